//! TLS: the trusted certificates, and the cryptography.

use std::io;
use std::sync::{Arc, OnceLock};

use contextpilot_settings::{IndexUrl, Scheme};
use rustls::crypto::ring::default_provider;
use rustls::crypto::{CryptoProvider, KeyProvider};
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::SigningKey;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::config::{Config, invalid};

/// Reads the trusted certificates: those in the CA file, if one is set, else the system's.
pub(crate) fn config(config: &Config) -> io::Result<TlsConfig> {
    let trusted = match &config.ca {
        Some(path) => {
            let fail = |e: &dyn std::fmt::Display| {
                let path = path.display();
                invalid(format!("CONTEXTPILOT_INDEX_CA={path} cannot be used: {e}"))
            };
            let pem = std::fs::read(path).map_err(|e| fail(&e))?;
            let certificates = certificates(&pem).map_err(|e| fail(&e))?;
            if certificates.is_empty() {
                return Err(fail(&"there is no certificate in it"));
            }
            certificates
        }
        None if may_use_tls(config) => systems(),
        None => Vec::new(),
    };
    Ok(TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(provider()))
        .root_certs(RootCerts::new_with_certs(&trusted))
        .build())
}

/// The usual cryptography, without the keys of clients.
fn provider() -> CryptoProvider {
    CryptoProvider {
        key_provider: &NoKeys,
        ..default_provider()
    }
}

/// This client has no key. What reads keys and signs with them would be part of the hook library.
#[derive(Debug)]
struct NoKeys;

impl KeyProvider for NoKeys {
    fn load_private_key(
        &self,
        _: PrivateKeyDer<'static>,
    ) -> Result<Arc<dyn SigningKey>, rustls::Error> {
        Err(rustls::Error::General("there are no keys here".to_owned()))
    }
}

/// Most indexes are on this machine, without TLS: for these, a few hundred certificates would be read
/// and kept in vain. Others may redirect to `https`.
fn may_use_tls(config: &Config) -> bool {
    let endpoint = IndexUrl::parse(&config.endpoint);
    config.socket.is_none()
        && endpoint.is_ok_and(|url| url.scheme() == Scheme::Https || !url.is_loopback())
}

fn certificates(pem: &[u8]) -> Result<Vec<Certificate<'static>>, ureq::Error> {
    parse_pem(pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(Ok(certificate)),
            Ok(_) => None,
            Err(e) => Some(Err(e)),
        })
        .collect()
}

/// The system's certificates, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name. None if there are
/// none: then no server is trusted.
///
/// ureq could do this by itself (`platform-verifier`), which brings the checking of revocation lists
/// along, into the hook library, and on Linux never has such a list.
fn systems() -> Vec<Certificate<'static>> {
    SYSTEMS.get().cloned().unwrap_or_else(read_systems)
}

static SYSTEMS: OnceLock<Vec<Certificate<'static>>> = OnceLock::new();

/// See [`keep_environment`](crate::keep_environment).
pub(crate) fn keep_systems(config: &Config) {
    if config.ca.is_none() && may_use_tls(config) {
        let _ = SYSTEMS.set(read_systems());
    }
}

fn read_systems() -> Vec<Certificate<'static>> {
    let found = rustls_native_certs::load_native_certs().certs;
    let owned = |der: &rustls::pki_types::CertificateDer<'_>| Certificate::from_der(der).to_owned();
    found.iter().map(owned).collect()
}
