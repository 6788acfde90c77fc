use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use crate::percent;
use crate::secret::Secret;

mod error;
mod parse;
#[cfg(test)]
mod tests;

pub use error::{IndexUrlError, Problem};
pub(crate) use error::{looks_like_scheme, redact};

/// The protocol to the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plain HTTP/1.1.
    Http,
    /// HTTP/1.1 over TLS.
    Https,
    /// Plain HTTP/1.1 over a Unix socket.
    Unix,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Unix => "unix",
        })
    }
}

/// Where the index is: `scheme://[user[:password]@]host[:port][/prefix]`, or
/// `unix:/path/of/a/socket[:/prefix]`.
///
/// The second is written as `CONTEXTPILOT_LISTEN` has it, with the prefix behind a colon as in
/// nginx's `proxy_pass`. `unix:///path`, as Docker and gRPC write it, means the same.
///
/// `Display` and `Debug` show `***` for a password. Without one, parsing what
/// `Display` printed gives the same URL again.
#[derive(Clone, PartialEq, Eq)]
pub struct IndexUrl {
    server: Server,
    /// Empty, or `/…` without a slash at its end.
    prefix: String,
}

#[derive(Clone, PartialEq, Eq)]
enum Server {
    Net(NetServer),
    /// An absolute path.
    Unix(PathBuf),
}

#[derive(Clone, PartialEq, Eq)]
struct NetServer {
    tls: bool,
    credentials: Option<Credentials>,
    host: Host,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Name(String),
    V4(Ipv4Addr),
    V6(Ipv6Addr),
}

/// The user info of an [`IndexUrl`], percent-decoded, for basic authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    password: Option<Secret>,
}

impl Credentials {
    /// The user's name; never holds a `:` or a control character, as RFC 7617
    /// demands.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The password, if the URL gives one (which may be empty).
    pub fn password(&self) -> Option<&Secret> {
        self.password.as_ref()
    }
}

impl IndexUrl {
    /// `http`, `https` or `unix`.
    pub fn scheme(&self) -> Scheme {
        match &self.server {
            Server::Net(NetServer { tls: false, .. }) => Scheme::Http,
            Server::Net(NetServer { tls: true, .. }) => Scheme::Https,
            Server::Unix(_) => Scheme::Unix,
        }
    }

    /// The socket's path, if it is one.
    pub fn socket(&self) -> Option<&Path> {
        match &self.server {
            Server::Net(_) => None,
            Server::Unix(path) => Some(path),
        }
    }

    /// The host in the form of a URL: lower case, IPv6 in brackets. `localhost` for a Unix
    /// socket: HTTP requires a `Host`, and servers at sockets expect this one.
    pub fn host(&self) -> String {
        match &self.server {
            Server::Net(server) => server.host.to_string(),
            Server::Unix(_) => "localhost".to_owned(),
        }
    }

    /// The port, or the scheme's own (80, 443) where the URL gives none. A Unix socket has none;
    /// for a `Host` it is 80.
    pub fn port(&self) -> u16 {
        match &self.server {
            Server::Net(server) => server.port.unwrap_or(if server.tls { 443 } else { 80 }),
            Server::Unix(_) => 80,
        }
    }

    /// The URL of an endpoint such as `evict`, below the path prefix and
    /// without user info, so that it can be logged. Other clients understand it unless
    /// it begins with `unix:`.
    pub fn endpoint(&self, name: &str) -> String {
        let target = self.target(name);
        match &self.server {
            Server::Net(server) => format!("{}://{server}{target}", self.scheme()),
            // No path after the socket.
            Server::Unix(path) if target == "/" => format!("unix:{}", path.display()),
            Server::Unix(path) => format!("unix:{}:{target}", path.display()),
        }
    }

    /// The URL for messages: without user info.
    pub fn shown(&self) -> String {
        self.endpoint("").trim_end_matches('/').to_owned()
    }

    /// The target in the request line for an endpoint such as `evict`.
    pub fn target(&self, name: &str) -> String {
        format!("{}/{}", self.prefix, name.trim_start_matches('/'))
    }

    /// User and password, if the URL has them.
    pub fn basic_auth(&self) -> Option<&Credentials> {
        match &self.server {
            Server::Net(server) => server.credentials.as_ref(),
            Server::Unix(_) => None,
        }
    }

    /// Whether this machine answers by definition: the host is `localhost`,
    /// `*.localhost`, 127.0.0.0/8 or `::1`, or there is a Unix socket. A name that merely
    /// resolves to a loopback address is not: nothing is resolved here.
    pub fn is_loopback(&self) -> bool {
        let Server::Net(server) = &self.server else {
            return true;
        };
        match &server.host {
            Host::Name(name) => {
                let name = name.strip_suffix('.').unwrap_or(name);
                name == "localhost" || name.ends_with(".localhost")
            }
            Host::V4(address) => address.is_loopback(),
            Host::V6(address) => {
                address.is_loopback() || address.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback())
            }
        }
    }
}

/// `host[:port]`.
impl fmt::Display for NetServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.host)?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::V4(address) => write!(f, "{address}"),
            Self::V6(address) => write!(f, "[{address}]"),
        }
    }
}

impl fmt::Display for IndexUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = match &self.server {
            Server::Net(server) => server,
            Server::Unix(path) => {
                write!(f, "unix:{}", path.display())?;
                let colon = if self.prefix.is_empty() { "" } else { ":" };
                return write!(f, "{colon}{}", self.prefix);
            }
        };
        write!(f, "{}://", self.scheme())?;
        if let Some(credentials) = &server.credentials {
            write!(f, "{}", percent::encode(&credentials.user))?;
            f.write_str(if credentials.password.is_some() {
                ":***@"
            } else {
                "@"
            })?;
        }
        write!(f, "{server}{}", self.prefix)
    }
}

impl fmt::Debug for IndexUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IndexUrl({self})")
    }
}
