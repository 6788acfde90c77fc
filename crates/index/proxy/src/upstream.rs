//! The server behind the proxy.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::upgrade::OnUpgrade;
use hyper::{StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;

use crate::arriving::Fault;
use crate::stream::BUFFER;
use crate::tls::Tls;
use crate::{Body, BoxError, Request, Response, Tap, error_response, headers};

/// How long connecting may take. An answer may take any time: prompts are long.
const CONNECT: Duration = Duration::from_secs(10);

/// One llama-server: its address, and how to pass requests on to it.
#[derive(Clone, Debug)]
pub struct Upstream {
    place: Target,
    /// The prefix of every path, without a slash at its end.
    prefix: String,
    /// As it was given.
    shown: String,
}

#[derive(Clone, Debug)]
enum Target {
    /// `host:port`.
    Tcp(String),
    /// The same, with TLS.
    Tls(String, Tls),
    Unix(PathBuf),
}

/// An address that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressError {
    address: String,
    why: String,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, why } = self;
        write!(
            f,
            "{address} {why}: give http://host:port, https://host:port, or unix:/path of a socket"
        )
    }
}

impl std::error::Error for AddressError {}

impl Upstream {
    /// A server at `http://host:port`, with or without a path before those of its routes, the same
    /// with `https`, or at `unix:/path`. Opens no connection. A certificate is trusted if the
    /// system trusts it, or else the PEM file that `SSL_CERT_FILE` names.
    ///
    /// # Errors
    /// The address is none of these; or the system's certificates cannot be read.
    pub fn new(address: &str) -> Result<Self, AddressError> {
        let error = |why: &str| AddressError {
            address: address.to_owned(),
            why: why.to_owned(),
        };
        let shown = address.to_owned();
        if let Some(path) = address.strip_prefix("unix:") {
            if !path.starts_with('/') {
                return Err(error("is not an absolute path"));
            }
            return Ok(Self {
                place: Target::Unix(PathBuf::from(path)),
                prefix: String::new(),
                shown,
            });
        }
        let url: Uri = address.parse().map_err(|_| error("is not a URL"))?;
        let tls = match url.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(error("is no http:// or https:// URL")),
        };
        let authority = url.authority().ok_or_else(|| error("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(error("has user information, which is a header's business"));
        }
        let usual = if tls { 443 } else { 80 };
        let (host, port) = (authority.host(), authority.port_u16().unwrap_or(usual));
        let at = format!("{host}:{port}");
        Ok(Self {
            place: if tls {
                Target::Tls(at, Tls::to(host).map_err(|why| error(&why))?)
            } else {
                Target::Tcp(at)
            },
            prefix: url.path().trim_end_matches('/').to_owned(),
            shown,
        })
    }

    /// The address as it was given.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.shown
    }

    /// Passes a request on, and its answer back as it arrives. A server that cannot be reached
    /// is a 502 that says so; a body that breaks off or takes too long is the client's fault, 400 or 408.
    pub async fn forward(&self, request: Request) -> Response {
        let fault = request.extensions().get::<Fault>().cloned();
        match self.send(request).await {
            Ok(response) => response,
            Err(error) => {
                if let Some(answer) = fault.and_then(|fault| fault.answer()) {
                    return answer;
                }
                let shown = &self.shown;
                let message = format!("no answer from llama-server at {shown}: {error}");
                error_response(502, "proxy_error", &message)
            }
        }
    }

    /// Passes a request on, and its answer back as it arrives.
    ///
    /// # Errors
    /// Those of the connection, until the head of an answer is there. A connection that breaks
    /// later breaks the answer's body.
    pub async fn send(&self, mut request: Request) -> Result<Response, BoxError> {
        let from_client = hyper::upgrade::on(&mut request);
        self.readdress(&mut request)?;
        let mut response = match &self.place {
            Target::Tcp(address) => exchange(in_time(connect(address)).await?, request).await?,
            Target::Tls(address, tls) => {
                let secured = async { tls.over(connect(address).await?).await };
                exchange(in_time(secured).await?, request).await?
            }
            Target::Unix(path) => {
                let stream = in_time(UnixStream::connect(path)).await?;
                exchange(stream, request).await?
            }
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let from_server = hyper::upgrade::on(&mut response);
            tokio::spawn(join(from_client, from_server));
        }
        headers::strip(response.headers_mut());
        Ok(response)
    }

    fn readdress(&self, request: &mut Request) -> Result<(), BoxError> {
        let path = request.uri().path_and_query().map_or("/", |it| it.as_str());
        *request.uri_mut() = match &*self.prefix {
            "" => path.parse()?,
            prefix => format!("{prefix}{path}").parse()?,
        };
        // HTTP/1.0 clients get an answer that they understand from the server part; the
        // connection to llama-server is our own.
        *request.version_mut() = Version::HTTP_11;
        headers::strip(request.headers_mut());
        if !request.headers().contains_key(HOST) {
            let host = match &self.place {
                Target::Tcp(address) | Target::Tls(address, _) => address,
                Target::Unix(_) => "localhost",
            };
            request.headers_mut().insert(HOST, host.parse()?);
        }
        Ok(())
    }
}

async fn connect(address: &str) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn in_time<T>(
    connecting: impl Future<Output = std::io::Result<T>>,
) -> Result<T, std::io::Error> {
    let late = |_| std::io::Error::new(std::io::ErrorKind::TimedOut, "no connection in 10 s");
    tokio::time::timeout(CONNECT, connecting)
        .await
        .map_err(late)?
}

/// Sends a request on a new connection.
async fn exchange<S>(stream: S, request: Request) -> Result<Response, BoxError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::Builder::new()
        .preserve_header_case(true)
        .max_buf_size(BUFFER)
        .handshake::<_, Body>(TokioIo::new(stream))
        .await?;
    // The answer or its body reports the end of the connection.
    let mut connection = Connection(Some(tokio::spawn(async move {
        let _ = connection.with_upgrades().await;
    })));
    let response: hyper::Response<Incoming> = sender.send_request(request).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        connection.0 = None; // It is handed over to the upgrade.
        return Ok(response.map(Body::new));
    }
    Ok(response.map(|body| Body::new(body).tapped(connection)))
}

/// A connection that is closed when its answer is no longer awaited.
struct Connection(Option<JoinHandle<()>>);

impl Tap for Connection {
    fn data(&mut self, _: &[u8]) {}

    fn end(&mut self, _: bool) {}
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}

/// Joins two connections until both have ended. An error on one only closes the other.
async fn join(client: OnUpgrade, server: OnUpgrade) {
    if let (Ok(client), Ok(server)) = (client.await, server.await) {
        let _ = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_address_is_read() {
        for good in [
            "http://127.0.0.1:8080",
            "http://[::1]:8080/",
            "http://localhost/llama",
            "https://127.0.0.1:8443",
            "https://[::1]/llama",
            "https://llama.example",
            "unix:/run/llama.sock",
        ] {
            assert!(Upstream::new(good).is_ok(), "{good}");
        }
        for bad in [
            "127.0.0.1:8080",
            "ftp://a",
            "unix:llama.sock",
            "http://u:p@a",
            "",
        ] {
            let error = Upstream::new(bad).expect_err(bad).to_string();
            assert!(error.contains("give http://host:port"), "{error}");
        }
    }
}
