//! Where the control endpoint listens.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// What comes before the path of a Unix socket.
const UNIX: &str = "unix:";
/// The text for [`Listen::Auto`].
const AUTO: &str = "auto";
/// The longest path of a Unix socket: `sun_path` of Linux has 108 bytes, that of macOS 104, the
/// last one is zero, and eight are for the name under which it is made.
pub const LONGEST_PATH: usize = 95;

/// Where the control endpoint listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// At a Unix socket of its own, in a private folder where the companion command looks
    /// (crates/watch/discovery).
    Auto,
    /// At this address.
    At(ListenAddress),
}

impl Listen {
    /// Whether only this machine can reach it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Auto => true,
            Self::At(address) => address.is_local(),
        }
    }

    /// Whether it is a Unix socket.
    #[must_use]
    pub fn is_unix(&self) -> bool {
        match self {
            Self::Auto => true,
            Self::At(address) => address.unix_path().is_some(),
        }
    }
}

impl FromStr for Listen {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, ListenAddressError> {
        match text {
            AUTO => Ok(Self::Auto),
            text => text.parse().map(Self::At),
        }
    }
}

/// Writes the form that [`FromStr`] reads.
impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str(AUTO),
            Self::At(address) => address.fmt(f),
        }
    }
}

/// An address to listen at or to connect to: `127.0.0.1:8890`, `[::1]:8890`, `localhost:8890`
/// or `unix:/path`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// An IP address and a port of this machine. Port 0: any free port; a message gives its number.
    Tcp(SocketAddr),
    /// A Unix socket at an absolute path.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Whether only this machine can reach it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => is_loopback(address.ip()),
            Self::Unix(_) => true,
        }
    }

    /// The path, if it is a Unix socket.
    #[must_use]
    pub fn unix_path(&self) -> Option<&Path> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(path) => Some(path),
        }
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => {
            ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback())
        }
    }
}

/// Reads an address. Names other than `localhost` are refused, because whether an endpoint is open to
/// the network must not depend on how a name resolves.
impl FromStr for ListenAddress {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, ListenAddressError> {
        if let Some(path) = text.strip_prefix(UNIX) {
            return unix(path);
        }
        if ["true", "yes", "on", "1"].contains(&&*text.to_ascii_lowercase()) {
            return Err(ListenAddressError::Switch);
        }
        if text.contains("//") {
            return Err(ListenAddressError::Url);
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return Err(match text.parse::<u16>() {
                Ok(port) => ListenAddressError::OnlyPort(port),
                Err(_) => ListenAddressError::NoPort,
            });
        };
        let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        let port = match port.parse::<u16>() {
            Ok(port) if digits => port,
            _ => return Err(ListenAddressError::Port),
        };
        let ip = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
            Some(inner) => inner.parse::<Ipv6Addr>().map(IpAddr::V6).ok(),
            None if host.eq_ignore_ascii_case("localhost") => Some(Ipv4Addr::LOCALHOST.into()),
            None => host.parse::<Ipv4Addr>().map(IpAddr::V4).ok(),
        };
        match ip {
            Some(ip) => Ok(Self::Tcp(SocketAddr::new(ip, port))),
            None if host.is_empty() => Err(ListenAddressError::OnlyPort(port)),
            None if host.contains(':') => Err(ListenAddressError::Brackets),
            None => Err(ListenAddressError::Name),
        }
    }
}

fn unix(path: &str) -> Result<ListenAddress, ListenAddressError> {
    if !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
        return Err(ListenAddressError::Path);
    }
    if path.len() > LONGEST_PATH {
        return Err(ListenAddressError::LongPath);
    }
    Ok(ListenAddress::Unix(PathBuf::from(path)))
}

/// Writes the form that [`FromStr`] reads.
impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// Why a text is not a [`ListenAddress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenAddressError {
    /// It is a URL.
    Url,
    /// It has no port.
    NoPort,
    /// It says that there is to be an endpoint, and not where.
    Switch,
    /// Its port is not a number of a port.
    Port,
    /// It has nothing but this port.
    OnlyPort(u16),
    /// Its IPv6 address is not in brackets, or is wrong.
    Brackets,
    /// It has a name other than `localhost`.
    Name,
    /// Its path is not the absolute path of a file.
    Path,
    /// Its path is longer than a socket's may be.
    LongPath,
}

impl fmt::Display for ListenAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url => f.write_str("a URL; give only address and port, as in 127.0.0.1:8890"),
            Self::NoPort => f.write_str("no port; give one, as in 127.0.0.1:8890, or auto"),
            Self::Switch => f.write_str("no address; say auto, and contextpilot-llama finds it"),
            Self::Port => f.write_str("its port is not a number from 0 to 65535"),
            Self::OnlyPort(port) => write!(f, "a port without an address; give 127.0.0.1:{port}"),
            Self::Brackets => f.write_str("an IPv6 address stands in brackets, as in [::1]:8890"),
            Self::Name => f.write_str(
                "a name, where a number such as 127.0.0.1 is wanted (localhost is understood)",
            ),
            Self::Path => f.write_str("a Unix socket has an absolute path, as in unix:/run/llama"),
            Self::LongPath => {
                write!(f, "a Unix socket's path has {LONGEST_PATH} bytes at most")
            }
        }
    }
}

impl std::error::Error for ListenAddressError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_was_read_is_written_in_the_same_form() {
        for (text, shown, local) in [
            ("127.0.0.1:8890", "127.0.0.1:8890", true),
            ("127.9.9.9:0", "127.9.9.9:0", true),
            ("localhost:1", "127.0.0.1:1", true),
            ("LocalHost:1", "127.0.0.1:1", true),
            ("[::1]:8890", "[::1]:8890", true),
            ("[::ffff:127.0.0.1]:1", "[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:8890", "0.0.0.0:8890", false),
            ("[::]:8890", "[::]:8890", false),
            ("192.0.2.1:65535", "192.0.2.1:65535", false),
            ("unix:/run/a b.sock", "unix:/run/a b.sock", true),
        ] {
            let address: ListenAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(address.to_string().parse(), Ok(address.clone()));
            assert_eq!(address.is_local(), local, "{text}");
        }
        let socket: ListenAddress = "unix:/run/x".parse().unwrap();
        assert_eq!(socket.unix_path(), Some(Path::new("/run/x")));
    }

    #[test]
    fn auto_is_a_unix_socket_of_this_user() {
        let auto: Listen = "auto".parse().unwrap();
        assert_eq!((&auto, auto.to_string().as_str()), (&Listen::Auto, "auto"));
        assert!(auto.is_local() && auto.is_unix());
        let tcp: Listen = "0.0.0.0:8890".parse().unwrap();
        assert_eq!(tcp.to_string(), "0.0.0.0:8890");
        assert!(!tcp.is_local() && !tcp.is_unix());
        assert!("unix:/run/x".parse::<Listen>().unwrap().is_unix());
        assert_eq!("Auto".parse::<Listen>(), Err(ListenAddressError::NoPort));
        assert!(
            "auto".parse::<ListenAddress>().is_err(),
            "no client can connect to that"
        );
    }

    #[test]
    fn for_a_text_that_is_not_an_address_the_error_says_why() {
        for (text, error) in [
            ("", ListenAddressError::NoPort),
            ("127.0.0.1", ListenAddressError::NoPort),
            ("true", ListenAddressError::Switch),
            ("Yes", ListenAddressError::Switch),
            ("1", ListenAddressError::Switch),
            ("8890", ListenAddressError::OnlyPort(8890)),
            (":8891", ListenAddressError::OnlyPort(8891)),
            ("88900", ListenAddressError::NoPort),
            ("127.0.0.1:", ListenAddressError::Port),
            ("127.0.0.1:+1", ListenAddressError::Port),
            ("127.0.0.1:65536", ListenAddressError::Port),
            ("127.0.0.1:8890 ", ListenAddressError::Port),
            ("::1:8890", ListenAddressError::Brackets),
            ("127.1:8890", ListenAddressError::Name),
            ("host.example:8890", ListenAddressError::Name),
            ("http://127.0.0.1:8890", ListenAddressError::Url),
            ("unix:", ListenAddressError::Path),
            ("unix:run/x", ListenAddressError::Path),
            ("unix:/run/", ListenAddressError::Path),
        ] {
            assert_eq!(text.parse::<ListenAddress>(), Err(error), "{text}");
        }
        let long = format!("unix:/{}", "x".repeat(LONGEST_PATH));
        assert_eq!(
            long.parse::<ListenAddress>(),
            Err(ListenAddressError::LongPath)
        );
    }
}
