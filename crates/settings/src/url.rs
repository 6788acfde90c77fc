use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::secret::Secret;

mod error;
mod parse;
#[cfg(test)]
mod tests;

pub use error::{IndexUrlError, Problem};

/// How the index is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plain HTTP/1.1.
    Http,
    /// HTTP/1.1 over TLS.
    Https,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "http",
            Self::Https => "https",
        })
    }
}

/// Where the index is: `scheme://[user[:password]@]host[:port][/prefix]`.
///
/// `Display` and `Debug` show `***` for a password. Without one, parsing what
/// `Display` printed gives the same URL again.
#[derive(Clone, PartialEq, Eq)]
pub struct IndexUrl {
    scheme: Scheme,
    credentials: Option<Credentials>,
    host: Host,
    port: Option<u16>,
    /// Empty, or `/…` without a slash at its end.
    prefix: String,
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
    /// Reads a URL.
    ///
    /// The scheme is `http` or `https` in any case; the host a name, an IPv4
    /// address or a bracketed IPv6 address; the port 1 to 65535. A path is kept
    /// as a prefix, without the slashes at its end.
    ///
    /// # Errors
    /// Anything else, with what is wrong and where. No password is in the error.
    ///
    /// ```
    /// # use contextpilot_settings::IndexUrl;
    /// let url = IndexUrl::parse("http://127.0.0.1:8765/pilot/")?;
    /// assert_eq!(url.endpoint("evict"), "http://127.0.0.1:8765/pilot/evict");
    /// assert!(IndexUrl::parse("localhost:8765").is_err());
    /// # Ok::<(), contextpilot_settings::IndexUrlError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, IndexUrlError> {
        parse::index_url(text).map_err(|problem| IndexUrlError::new(text, problem))
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The host as it stands in a URL: lower case, IPv6 in brackets.
    pub fn host(&self) -> String {
        self.host.to_string()
    }

    /// The port, or the scheme's own (80, 443) where the URL gives none.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(match self.scheme {
            Scheme::Http => 80,
            Scheme::Https => 443,
        })
    }

    /// The URL of an endpoint such as `evict`, below the path prefix and
    /// without user info, so that it can be logged and passed to any client.
    pub fn endpoint(&self, name: &str) -> String {
        let name = name.trim_start_matches('/');
        format!("{}://{}/{name}", self.scheme, self.location())
    }

    /// User and password, if the URL has them.
    pub fn basic_auth(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// Whether the host is this machine by definition: `localhost`,
    /// `*.localhost`, 127.0.0.0/8, `::1`. A name that merely resolves to a
    /// loopback address is not: nothing is resolved here.
    pub fn is_loopback(&self) -> bool {
        match &self.host {
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

    /// `host[:port][/prefix]`.
    fn location(&self) -> String {
        let port = self.port.map(|p| format!(":{p}")).unwrap_or_default();
        format!("{}{port}{}", self.host, self.prefix)
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
        write!(f, "{}://", self.scheme)?;
        if let Some(credentials) = &self.credentials {
            percent_encode(f, &credentials.user)?;
            f.write_str(if credentials.password.is_some() {
                ":***@"
            } else {
                "@"
            })?;
        }
        f.write_str(&self.location())
    }
}

impl fmt::Debug for IndexUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IndexUrl({self})")
    }
}

/// Writes `text` with everything but RFC 3986's unreserved characters encoded.
fn percent_encode(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    for byte in text.bytes() {
        match byte {
            b'-' | b'.' | b'_' | b'~' => write!(f, "{}", char::from(byte))?,
            _ if byte.is_ascii_alphanumeric() => write!(f, "{}", char::from(byte))?,
            _ => write!(f, "%{byte:02X}")?,
        }
    }
    Ok(())
}
