//! TLS to the server.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::{IpAddr, ServerName};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// What a connection to one server needs. Sessions are resumed, so that a request costs no
/// whole handshake.
#[derive(Clone)]
pub(crate) struct Tls {
    name: ServerName<'static>,
    connector: TlsConnector,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish()
    }
}

impl Tls {
    /// For the server at this host, an IPv6 address in brackets.
    pub(crate) fn to(host: &str) -> Result<Self, String> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = match IpAddr::try_from(bare) {
            Ok(address) => ServerName::IpAddress(address),
            Err(_) => ServerName::try_from(bare.to_owned())
                .map_err(|_| "has a host that no certificate can name".to_owned())?,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(BuilderVerifierExt::with_platform_verifier)
            .map_err(|e| {
                format!(
                    "needs certificates of authorities, which cannot be read ({e}; SSL_CERT_FILE \
                     names a PEM file of them)"
                )
            })?
            .with_no_client_auth();
        Ok(Self {
            name,
            connector: TlsConnector::from(Arc::new(config)),
        })
    }

    pub(crate) async fn over(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let connected = self.connector.connect(self.name.clone(), stream).await;
        connected.map_err(|error| {
            if certificate_is_refused(&error) {
                io::Error::new(
                    error.kind(),
                    format!(
                        "{error}; if an authority of your own has signed it, name its PEM file in \
                     SSL_CERT_FILE"
                    ),
                )
            } else {
                error
            }
        })
    }
}

fn certificate_is_refused(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|e| e.downcast_ref());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}
