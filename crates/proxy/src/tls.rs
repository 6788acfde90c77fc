//! TLS to the server.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls_platform_verifier::BuilderVerifierExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

/// Who the server must be, and by whose word.
#[derive(Clone)]
pub(crate) struct Tls {
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
}

/// A configuration has nothing to show.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({:?})", self.name)
    }
}

impl Tls {
    /// For a host as URLs write it. `ca`: certificates in PEM to trust instead of the system's.
    pub(crate) fn new(host: &str, ca: Option<&[u8]>) -> Result<Self, String> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name =
            ServerName::try_from(host.to_owned()).map_err(|e| format!("has no name: {e}"))?;
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let failed = |error: &dyn fmt::Display| format!("cannot be trusted ({error})");
        let builder = builder
            .with_safe_default_protocol_versions()
            .map_err(|e| failed(&e))?;
        let builder = match ca {
            Some(pem) => builder.with_root_certificates(roots(pem)?),
            None => builder.with_platform_verifier().map_err(|e| failed(&e))?,
        };
        Ok(Self {
            name,
            config: Arc::new(builder.with_no_client_auth()),
        })
    }

    pub(crate) async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let connector = TlsConnector::from(Arc::clone(&self.config));
        connector.connect(self.name.clone(), stream).await
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let failed = |error: &dyn fmt::Display| format!("has a CA file that cannot be used ({error})");
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|e| failed(&e))?;
        roots.add(certificate).map_err(|e| failed(&e))?;
    }
    match roots.is_empty() {
        true => Err(failed(&"no certificate in it")),
        false => Ok(roots),
    }
}
