//! Addresses at which a server listens, seen from a program on the same machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::Stats;

impl Stats {
    /// Whether the server listens at this URL, by which a client calls it.
    #[must_use]
    pub fn listens_at(&self, url: &str) -> bool {
        let Some(wanted) = Address::parse(url) else {
            return false;
        };
        let mut places = self.listening.iter().filter_map(|url| Address::parse(url));
        places.any(|place| place.is_called(&wanted))
    }
}

/// The address that a program on the same machine uses, from addresses in the form of [`Stats::listening`]. The loopback
/// address takes the place of *all addresses*. Ports come before Unix sockets, and loopback addresses before others.
/// `None`: it is not known.
#[must_use]
pub fn nearest(listening: &[String]) -> Option<String> {
    let places = listening.iter().filter_map(|url| Address::parse(url));
    let nearest = places.min_by_key(Address::rank);
    nearest.map(|place| place.reachable())
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Address<'a> {
    Tcp { scheme: &'a str, at: SocketAddr },
    Unix(&'a str),
}

impl<'a> Address<'a> {
    /// `None` for a host that is a name other than `localhost`.
    fn parse(url: &'a str) -> Option<Self> {
        if let Some(path) = url.strip_prefix("unix:") {
            // `@` begins a name that is no path.
            return path.starts_with('/').then_some(Self::Unix(path));
        }
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let authority = rest.split('/').next().unwrap_or(rest);
        let usual = if scheme == "https" { 443 } else { 80 };
        let at = socket(authority, usual)?;
        Some(Self::Tcp { scheme, at })
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Tcp { at, .. } if at.ip().is_loopback() => 0,
            Self::Tcp { at, .. } if at.ip().is_unspecified() => 1,
            Self::Tcp { .. } => 2,
            Self::Unix(_) => 3,
        }
    }

    fn reachable(&self) -> String {
        match self {
            Self::Tcp { scheme, at } => {
                let ip = match at.ip() {
                    IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
                    IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
                    other => other,
                };
                format!("{scheme}://{}", SocketAddr::new(ip, at.port()))
            }
            Self::Unix(path) => format!("unix:{path}"),
        }
    }

    /// Whether a client that calls `wanted` reaches this address.
    fn is_called(&self, wanted: &Address<'_>) -> bool {
        match (self, wanted) {
            (Self::Unix(here), Address::Unix(there)) => here == there,
            (Self::Tcp { at: here, .. }, Address::Tcp { at: there, .. }) => {
                let both_local = here.ip().is_loopback() && there.ip().is_loopback();
                here.port() == there.port()
                    && (here.ip() == there.ip() || here.ip().is_unspecified() || both_local)
            }
            _ => false,
        }
    }
}

/// The address in a URL, with the `usual` port if it has none.
fn socket(authority: &str, usual: u16) -> Option<SocketAddr> {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !authority.ends_with(']') => (host, port.parse().ok()?),
        _ => (authority, usual),
    };
    let ip = match host {
        "localhost" => Ipv4Addr::LOCALHOST.into(),
        host => host.trim_matches(['[', ']']).parse().ok()?,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reachable(urls: &[&str]) -> Option<String> {
        let urls: Vec<String> = urls.iter().map(|&url| url.to_owned()).collect();
        nearest(&urls)
    }

    #[test]
    fn the_nearest_address_is_chosen() {
        let is = |urls: &[&str], wanted: &str| {
            assert_eq!(reachable(urls).as_deref(), Some(wanted), "{urls:?}");
        };
        is(&["http://127.0.0.1:9931"], "http://127.0.0.1:9931");
        is(&["https://0.0.0.0:1"], "https://127.0.0.1:1");
        is(&["http://[::]:1"], "http://[::1]:1");
        is(&["unix:/run/a", "http://192.0.2.1:1"], "http://192.0.2.1:1");
        is(
            &["http://192.0.2.1:1", "http://0.0.0.0:2"],
            "http://127.0.0.1:2",
        );
        is(&["http://0.0.0.0:2", "http://[::1]:3"], "http://[::1]:3");
        is(&["unix:@abstract", "unix:/run/a.sock"], "unix:/run/a.sock");
        assert_eq!(reachable(&["unix:@abstract"]), None);
        assert_eq!(reachable(&[]), None);
    }

    #[test]
    fn a_server_is_called_by_each_of_its_names() {
        let called = |here: &str, there: &str| {
            Address::parse(here)
                .unwrap()
                .is_called(&Address::parse(there).unwrap())
        };
        for name in [
            "http://127.0.0.1:80",
            "http://localhost",
            "http://localhost:80/prefix",
            "127.0.0.1:80",
            "http://[::1]:80",
            "http://[::1]",
        ] {
            assert!(called("http://127.0.0.1:80", name), "{name}");
        }
        assert!(called("http://0.0.0.0:8080", "http://192.0.2.1:8080"));
        assert!(called("https://127.0.0.1:443", "https://localhost"));
        assert!(called("unix:/run/a", "unix:/run/a"));
        for (here, there) in [
            ("http://127.0.0.1:80", "http://127.0.0.1:81"),
            ("http://127.0.0.1:80", "http://192.0.2.1:80"),
            ("http://192.0.2.1:80", "http://localhost:80"),
            ("unix:/run/a", "unix:/run/b"),
        ] {
            assert!(!called(here, there), "{here} {there}");
        }
        assert_eq!(Address::parse("http://name.example:80"), None);
    }
}
