//! Where a Redis is, and who asks.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;

/// From `redis://[user:password@]host[:port][/number]`, the same with `rediss`, or
/// `redis+unix:///path[?user=…&pass=…&db=…]`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) at: At,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// The number of the database.
    pub(super) number: u32,
}

/// How it is reached.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum At {
    Host {
        name: String,
        port: u16,
        with_tls: bool,
    },
    Socket(PathBuf),
}

const PORT: u16 = 6379;

impl Address {
    /// # Errors
    /// What is wrong with it, without any of it.
    pub(super) fn new(url: &str) -> Result<Self, &'static str> {
        // Some clients trust any server if one is there.
        if url.contains('#') {
            return Err("a # has no meaning in it");
        }
        let (scheme, rest) = url.split_once("://").ok_or("it has no scheme")?;
        match scheme {
            "redis" | "rediss" => Self::of_host(rest, scheme == "rediss"),
            _ => Self::of_socket(rest),
        }
    }

    fn of_host(rest: &str, with_tls: bool) -> Result<Self, &'static str> {
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if !query.is_empty() {
            return Err("a ? has no meaning in it");
        }
        let (who, rest) = match rest.rsplit_once('@') {
            Some((who, rest)) => (Some(who), rest),
            None => (None, rest),
        };
        let (user, password) = match who.map(|who| who.split_once(':').unwrap_or((who, ""))) {
            Some((user, password)) => (decoded(user)?, decoded(password)?),
            None => (None, None),
        };
        let (host, number) = rest.split_once('/').unwrap_or((rest, ""));
        let (name, port) = match host.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or("a bracket is missing")?,
            None => match host.find(':') {
                Some(at) => host.split_at(at),
                None => (host, ""),
            },
        };
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().map_err(|_| "the port is no number")?,
            None if port.is_empty() => PORT,
            None => return Err("the port is no number"),
        };
        if name.is_empty() || name.contains(|c: char| c.is_control() || " /?@".contains(c)) {
            return Err("it names no host");
        }
        Ok(Self {
            at: At::Host {
                name: name.to_owned(),
                port,
                with_tls,
            },
            user,
            password,
            number: number_of(number.trim_end_matches('/'))?,
        })
    }

    fn of_socket(rest: &str) -> Result<Self, &'static str> {
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = decoded(path)?.ok_or("it names no socket")?;
        if !path.starts_with('/') {
            return Err("write redis+unix:///path");
        }
        let mut address = Self {
            at: At::Socket(path.into()),
            user: None,
            password: None,
            number: 0,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("user", user)) => address.user = decoded(user)?,
                Some(("pass", password)) => address.password = decoded(password)?,
                Some(("db", number)) => address.number = number_of(number)?,
                _ => return Err("behind the ? may stand user, pass and db"),
            }
        }
        Ok(address)
    }
}

fn number_of(text: &str) -> Result<u32, &'static str> {
    match text {
        "" => Ok(0),
        text => text.parse().map_err(|_| "the database is no number"),
    }
}

/// `None`: there is nothing.
fn decoded(text: &str) -> Result<Option<String>, &'static str> {
    let decoded = percent_decode_str(text).decode_utf8();
    let text = decoded.map_err(|_| "it is no UTF-8")?;
    Ok(Some(text.into_owned()).filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_apart() {
        let host = |name: &str, port, with_tls| At::Host {
            name: name.to_owned(),
            port,
            with_tls,
        };
        let of = |url: &str| {
            let Address {
                at,
                user,
                password,
                number,
            } = Address::new(url).unwrap();
            (
                at,
                user.unwrap_or_default(),
                password.unwrap_or_default(),
                number,
            )
        };
        let plain = |at| (at, String::new(), String::new(), 0);
        assert_eq!(of("redis://h"), plain(host("h", 6379, false)));
        assert_eq!(of("rediss://h.lan:7/"), plain(host("h.lan", 7, true)));
        assert_eq!(of("redis://[::1]:7"), plain(host("::1", 7, false)));
        assert_eq!(of("redis+unix:///a%20b"), plain(At::Socket("/a b".into())));
        let whole = (host("h", 6379, false), "me".into(), "p@:/ s".into(), 3);
        assert_eq!(of("redis://me:p%40:%2F%20s@h/3"), whole);
        let key = (host("h", 6379, false), String::new(), "key".into(), 0);
        assert_eq!(of("redis://:key@h"), key);
        let socket = (At::Socket("/a".into()), "me".into(), "k&y".into(), 2);
        assert_eq!(of("redis+unix:///a?user=me&pass=k%26y&db=2"), socket);
    }

    #[test]
    fn what_is_wrong_is_said_without_any_of_it() {
        for wrong in [
            "redis://",
            "redis://h:port-sesame",
            "redis://h/sesame",
            "redis://h?password=sesame",
            "redis://h#sesame",
            "redis://sesame@",
            "redis://[::1",
            "redis+unix://sesame",
            "redis+unix:///a?sesame",
            "redis://%ff@h",
        ] {
            let why = Address::new(wrong).unwrap_err();
            assert!(!why.contains("sesame"), "{why}");
        }
    }
}
