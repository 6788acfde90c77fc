//! The ways to reach a server: where it listens, the connection, and the certificate that the connection trusts.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use contextpilot_http_server::Stream as Plain;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use tempfile::TempDir;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// An address of this machine.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl Endpoint {
    /// Parses a URL from llama-server's log. `None`: it is no URL, or has no port yet.
    pub(crate) fn of_url(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        match scheme {
            "unix" => Some(Self::Unix(rest.into())),
            "http" | "https" => {
                let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || ".:[]".contains(c)));
                let address: SocketAddr = rest[..end.unwrap_or(rest.len())].parse().ok()?;
                (address.port() != 0).then_some(Self::Tcp(address))
            }
            _ => None,
        }
    }

    pub(crate) fn connect(&self, patience: Duration) -> io::Result<Plain> {
        let plain = match self {
            Self::Tcp(address) => Plain::Tcp(TcpStream::connect_timeout(address, patience)?),
            Self::Unix(path) => Plain::Unix(UnixStream::connect(path)?),
        };
        plain.set_timeouts(patience)?;
        Ok(plain)
    }
}

/// A connection, encrypted or not.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(Plain),
    Tls(Box<StreamOwned<ClientConnection, Plain>>),
}

impl Stream {
    /// Connects. `patience` is the timeout of a TCP connection attempt, and of each read and write.
    pub(crate) fn open(
        endpoint: &Endpoint,
        certificate: Option<&Certificate>,
        patience: Duration,
    ) -> io::Result<Self> {
        let plain = endpoint.connect(patience)?;
        Ok(match certificate {
            None => Self::Plain(plain),
            Some(certificate) => {
                let tls = StreamOwned::new(certificate.client()?, plain);
                Self::Tls(Box::new(tls))
            }
        })
    }

    fn plain(&self) -> &Plain {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &stream.sock,
        }
    }

    pub(crate) fn set_read_timeout(&self, patience: Duration) -> io::Result<()> {
        self.plain().set_read_timeout(patience)
    }

    /// Shuts down the writing side.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        if let Self::Tls(stream) = self {
            stream.conn.send_close_notify();
            stream.flush()?;
        }
        self.plain().shutdown(Shutdown::Write)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_for_ipv4_ipv6_and_unix_sockets_are_parsed() {
        let tcp = |text: &str| Some(Endpoint::Tcp(text.parse().expect("an address")));
        for (url, endpoint) in [
            ("http://127.0.0.1:37185", tcp("127.0.0.1:37185")),
            ("https://[::1]:8080 - starting", tcp("[::1]:8080")),
            ("unix:///a/b.sock", Some(Endpoint::Unix("/a/b.sock".into()))),
            ("http://127.0.0.1:0", None),
            ("ftp://127.0.0.1:1", None),
            ("listening", None),
        ] {
            assert_eq!(Endpoint::of_url(url), endpoint, "{url}");
        }
    }
}
