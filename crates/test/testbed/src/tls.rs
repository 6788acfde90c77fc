//! A certificate for a test server, and clients that trust no other.

use std::{io, path::PathBuf, sync::Arc};

use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig,
    pki_types::{PrivateKeyDer, ServerName},
};
use tempfile::TempDir;

/// A self-signed certificate for `127.0.0.1`, `::1` and `localhost`.
#[derive(Debug)]
pub struct Certificate {
    files: TempDir,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

const KEY: &str = "key.pem";
const CERTIFICATE: &str = "certificate.pem";

impl Certificate {
    /// Makes a new certificate. The files with it and its key exist as long as this value.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn new() -> io::Result<Self> {
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let names = ["127.0.0.1", "::1", "localhost"].map(str::to_owned);
        let params = CertificateParams::new(names).map_err(io::Error::other)?;
        let certificate = params.self_signed(&key).map_err(io::Error::other)?;
        let files = tempfile::tempdir()?;
        std::fs::write(files.path().join(KEY), key.serialize_pem())?;
        std::fs::write(files.path().join(CERTIFICATE), certificate.pem())?;

        let mut roots = RootCertStore::empty();
        roots
            .add(certificate.der().clone())
            .map_err(io::Error::other)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).map_err(io::Error::other)?,
            )
            .map_err(io::Error::other)?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            files,
            client: Arc::new(client),
            server: Arc::new(server),
        })
    }

    /// The file of its key: for `--ssl-key-file`.
    pub fn key_file(&self) -> PathBuf {
        self.files.path().join(KEY)
    }

    /// What a server in this process needs to show it.
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// The file of the certificate: for `--ssl-cert-file`, and for those who are to trust it.
    pub fn file(&self) -> PathBuf {
        self.files.path().join(CERTIFICATE)
    }

    /// The client's side of a new connection.
    pub(crate) fn client(&self) -> io::Result<ClientConnection> {
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        ClientConnection::new(Arc::clone(&self.client), name).map_err(io::Error::other)
    }
}
