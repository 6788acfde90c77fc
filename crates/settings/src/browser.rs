//! What a browser says of the page that asks.
//!
//! A web page in a browser on this machine can send to a loopback address: blindly, or under a
//! name of its own that it has made to mean this machine (DNS rebinding), and then it reads the
//! answers, too. A browser tells on it: `Host` is the name that the page uses, `Origin` goes with
//! each request that changes something, and `Sec-Fetch-Site` with all.

use crate::ListenAddress;

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

    /// A page sends this that is not from this machine.
    #[must_use]
    pub fn from_a_foreign_page(&self) -> bool {
        if self.origin.is_empty() {
            let known: [&[u8]; 2] = [b"none", b"same-origin"];
            return self.site.iter().any(|site| !known.contains(site));
        }
        let local = |origin: &&[u8]| {
            let origin = std::str::from_utf8(origin).ok();
            origin.and_then(host_of).is_some_and(is_loopback)
        };
        !self.origin.iter().all(local)
    }

    /// The request was sent to an address of this machine, under its own name.
    #[must_use]
    pub fn names_this_machine(&self) -> bool {
        match self.host[..] {
            [host] => std::str::from_utf8(host).is_ok_and(is_loopback),
            // HTTP/1.0 without it: no browser speaks that.
            [] => true,
            _ => false,
        }
    }
}

/// Host and port of an `Origin`; `null` has none.
fn host_of(origin: &str) -> Option<&str> {
    let (scheme, host) = origin.split_once("://")?;
    matches!(scheme, "http" | "https").then_some(host)
}

/// Whether a `Host` means this machine, whatever any name server says.
fn is_loopback(host: &str) -> bool {
    let bare = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
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
            assert!(!headers(own).from_a_foreign_page(), "{own:?}");
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
            assert!(headers(foreign).from_a_foreign_page(), "{foreign:?}");
        }
    }
}
