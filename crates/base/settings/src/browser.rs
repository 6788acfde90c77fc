//! What a browser says of the page that asks.
//!
//! A web page in a browser on this machine can send to a loopback address: blindly, or under a
//! name of its own that it has made to mean this machine (DNS rebinding), and then it reads the
//! answers, too. A browser tells on it: `Host` is the name that the page uses, `Origin` goes with
//! each request that changes something, and `Sec-Fetch-Site` with all.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::ListenAddress;

/// The hosts by which clients may name what listens, beside those of this machine: 127.0.0.1, `[::1]` and
/// `localhost`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedHosts {
    names: Vec<String>,
    addresses: bool,
}

impl AllowedHosts {
    /// Names to allow, without a port.
    ///
    /// # Errors
    /// It is no name of a host.
    pub fn new(names: &[String]) -> Result<Self, String> {
        let is_name = |name: &String| {
            let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !name.is_empty() && name.bytes().all(known)
        };
        match names.iter().find(|name| !is_name(name)) {
            Some(wrong) => Err(format!(
                "{wrong:?} is no name of a host: give it as in a URL, without scheme and port"
            )),
            None => Ok(Self {
                names: names.to_vec(),
                addresses: false,
            }),
        }
    }

    /// Allows IP addresses as well, for what other machines may reach. That is no risk: no name server makes a
    /// page's address another one.
    #[must_use]
    pub fn and_addresses(self) -> Self {
        Self {
            addresses: true,
            ..self
        }
    }

    fn allow(&self, host: &str) -> bool {
        let bare = without_port(host);
        let address = || {
            let inner = bare
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'));
            match inner {
                Some(inner) => inner.parse::<Ipv6Addr>().is_ok(),
                None => bare.parse::<Ipv4Addr>().is_ok(),
            }
        };
        is_loopback(host) || self.has_name(host) || (self.addresses && address())
    }

    fn has_name(&self, host: &str) -> bool {
        let bare = without_port(host);
        self.names
            .iter()
            .any(|name| name.eq_ignore_ascii_case(bare))
    }
}

/// The values of the three headers, each as often as it was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrowserHeaders<'a> {
    host: Vec<&'a [u8]>,
    origin: Vec<&'a [u8]>,
    site: Vec<&'a [u8]>,
}

impl<'a> BrowserHeaders<'a> {
    /// Of a request: `values` gives those of a header, by its name in lower case.
    pub fn of(values: impl Fn(&'static str) -> Vec<&'a [u8]>) -> Self {
        Self {
            host: values("host"),
            origin: values("origin"),
            site: values("sec-fetch-site"),
        }
    }

    /// A page sends this, wherever it is from. Not so what is typed into the address bar.
    #[must_use]
    pub fn from_a_page(&self) -> bool {
        !self.origin.is_empty() || self.site.iter().any(|site| *site != b"none")
    }

    /// A page sends this, and it is not known to be the page that what listens has served itself: from the same
    /// scheme, host and port. A browser adds no `Origin` where such a page only reads.
    #[must_use]
    pub fn from_another_page(&self) -> bool {
        let known: [&[u8]; 2] = [b"none", b"same-origin"];
        !self.origin.is_empty() || self.site.iter().any(|site| !known.contains(site))
    }

    /// A page sends this that is neither from this machine nor from an allowed host: from there, the page is of
    /// what listens here, or beside it.
    #[must_use]
    pub fn from_a_foreign_page(&self, allowed: &AllowedHosts) -> bool {
        if self.origin.is_empty() {
            let known: [&[u8]; 2] = [b"none", b"same-origin"];
            return self.site.iter().any(|site| !known.contains(site));
        }
        let own = |origin: &&[u8]| {
            let origin = std::str::from_utf8(origin).ok();
            origin.and_then(host_of).is_some_and(|host| {
                // An address is ours if it is the one that the client has used.
                let used = || self.host[..] == [host.as_bytes()] && allowed.allow(host);
                is_loopback(host) || allowed.has_name(host) || used()
            })
        };
        !self.origin.iter().all(own)
    }

    /// The request was sent to this machine, or to an allowed host.
    #[must_use]
    pub fn names_an_allowed_host(&self, allowed: &AllowedHosts) -> bool {
        match self.host[..] {
            [host] => std::str::from_utf8(host).is_ok_and(|host| allowed.allow(host)),
            // HTTP/1.0 without it: no browser speaks that.
            [] => true,
            _ => false,
        }
    }

    /// The request was sent to an address of this machine, under its own name.
    #[must_use]
    pub fn names_this_machine(&self) -> bool {
        self.names_an_allowed_host(&AllowedHosts::default())
    }
}

/// Host and port of an `Origin`; `null` has none.
fn host_of(origin: &str) -> Option<&str> {
    let (scheme, host) = origin.split_once("://")?;
    matches!(scheme, "http" | "https").then_some(host)
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Whether a `Host` means this machine, whatever any name server says.
fn is_loopback(host: &str) -> bool {
    let bare = without_port(host);
    // With a port of its own, it is read as an address to listen on: names are refused there.
    format!("{bare}:0")
        .parse::<ListenAddress>()
        .is_ok_and(|address| address.is_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers<'a>(sent: &'a [(&'a str, &'a str)]) -> BrowserHeaders<'a> {
        BrowserHeaders::of(|name| {
            let of_name = sent.iter().filter(|(given, _)| *given == name);
            of_name.map(|(_, value)| value.as_bytes()).collect()
        })
    }

    #[test]
    fn only_names_of_this_machine_are_known() {
        for host in [
            "127.0.0.1:8890",
            "127.0.0.1",
            "localhost:1",
            "LOCALHOST",
            "[::1]:8890",
            "[::1]",
        ] {
            assert!(headers(&[("host", host)]).names_this_machine(), "{host}");
        }
        for host in [
            "",
            "attacker.example",
            "attacker.example:8890",
            "localhost.attacker.example",
            "127.0.0.1.attacker.example:8890",
            "192.0.2.1:8890",
            "0.0.0.0:8890",
            "[::]:8890",
        ] {
            assert!(!headers(&[("host", host)]).names_this_machine(), "{host}");
        }
        let two = [("host", "127.0.0.1"), ("host", "attacker.example")];
        assert!(!headers(&two).names_this_machine());
        assert!(headers(&[]).names_this_machine());
    }

    #[test]
    fn what_a_page_sends_is_told_apart() {
        for header in [
            ("origin", "null"),
            ("origin", "http://127.0.0.1:8890"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert!(headers(&[header]).from_a_page(), "{header:?}");
        }
        assert!(!headers(&[("sec-fetch-site", "none")]).from_a_page());
        for header in [
            ("origin", "http://127.0.0.1:8890"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert!(headers(&[header]).from_another_page(), "{header:?}");
        }
        let own = headers(&[("sec-fetch-site", "same-origin")]);
        assert!(own.from_a_page() && !own.from_another_page());
        assert!(!headers(&[("sec-fetch-site", "none")]).from_another_page());
        assert!(!headers(&[("host", "localhost")]).from_a_page());
    }

    #[test]
    fn pages_of_this_machine_are_not_foreign() {
        for own in [
            &[][..],
            &[("origin", "http://127.0.0.1:8765")],
            &[
                ("origin", "http://localhost:3000"),
                ("sec-fetch-site", "cross-site"),
            ],
            &[("origin", "https://[::1]:8765")],
            &[("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "none")],
        ] {
            assert!(
                !headers(own).from_a_foreign_page(&AllowedHosts::default()),
                "{own:?}"
            );
        }
        for foreign in [
            &[("origin", "null")][..],
            &[("origin", "https://attacker.example")],
            &[("origin", "http://127.0.0.1.attacker.example:8765")],
            &[("origin", "http://user@127.0.0.1")],
            &[("origin", "file://localhost")],
            &[("origin", "")],
            &[("origin", "http://localhost"), ("origin", "http://a")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
        ] {
            assert!(
                headers(foreign).from_a_foreign_page(&AllowedHosts::default()),
                "{foreign:?}"
            );
        }
    }

    #[test]
    fn names_are_allowed_as_they_are_given_and_addresses_where_other_machines_ask() {
        let names = ["index".to_owned(), "llm.example".to_owned()];
        let named = AllowedHosts::new(&names).unwrap();
        let open = named.clone().and_addresses();
        let reached = |allowed: &AllowedHosts, host| {
            headers(&[("host", host)]).names_an_allowed_host(allowed)
        };
        for host in [
            "index:8765",
            "LLM.example",
            "localhost:1",
            "127.0.0.1:8765",
            "[::1]",
        ] {
            assert!(reached(&named, host) && reached(&open, host), "{host}");
        }
        for host in ["192.0.2.1:8765", "[2001:db8::1]:8765", "0.0.0.0"] {
            assert!(!reached(&named, host) && reached(&open, host), "{host}");
        }
        for host in [
            "attacker.example",
            "x.llm.example",
            "llm.example.attacker.example",
            "192.0.2.1.attacker.example",
            "2001:db8::1",
            "[attacker]",
            "index:a",
            "",
        ] {
            assert!(!reached(&named, host) && !reached(&open, host), "{host}");
        }
        for wrong in ["", "http://a", "a:1", "a b", "*"] {
            assert!(AllowedHosts::new(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_page_at_the_address_that_was_asked_is_not_foreign() {
        let allowed = AllowedHosts::new(&["llm.example".to_owned()])
            .unwrap()
            .and_addresses();
        let foreign = |host, origin| {
            headers(&[("host", host), ("origin", origin)]).from_a_foreign_page(&allowed)
        };
        for (host, origin) in [
            ("192.0.2.1:8765", "http://192.0.2.1:8765"),
            ("192.0.2.1:8765", "https://llm.example"),
            ("llm.example", "https://llm.example"),
            ("192.0.2.1:8765", "http://localhost:3000"),
        ] {
            assert!(!foreign(host, origin), "{host} {origin}");
        }
        for (host, origin) in [
            ("192.0.2.1:8765", "http://192.0.2.2:8765"),
            ("192.0.2.1:8765", "http://192.0.2.1:80"),
            ("attacker.example", "http://attacker.example"),
            ("llm.example", "https://x.llm.example"),
        ] {
            assert!(foreign(host, origin), "{host} {origin}");
        }
    }
}
