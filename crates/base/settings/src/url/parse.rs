use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use super::error::{IndexUrlError, LONGEST, LONGEST_SOCKET, looks_like_scheme, shorten};
use super::{Credentials, Host, IndexUrl, NetServer, Problem, Server};
use crate::percent::{self, Undecodable};
use crate::secret::Secret;

/// Longest host name, in bytes, by RFC 1035 (as text, without a final dot).
const LONGEST_NAME: usize = 253;
/// Longest part of a host name between two dots.
const LONGEST_LABEL: usize = 63;
/// What begins the path of a Unix socket.
const UNIX: &str = "unix:";

impl IndexUrl {
    /// Reads a URL.
    ///
    /// The scheme is `http` or `https` in any case; the host a name, an IPv4
    /// address or a bracketed IPv6 address; the port 1 to 65535. A path is kept
    /// as a prefix, without the slashes at its end.
    ///
    /// After `unix:`, in any case, the path of a socket, from the root on and as it is (nothing is
    /// percent-decoded), up to the first `:/`.
    ///
    /// # Errors
    /// Anything else, with what is wrong and where. No password is in the error.
    ///
    /// ```
    /// # use contextpilot_settings::IndexUrl;
    /// let url = IndexUrl::parse("http://127.0.0.1:8765/pilot/")?;
    /// assert_eq!(url.endpoint("evict"), "http://127.0.0.1:8765/pilot/evict");
    /// assert!(IndexUrl::parse("localhost:8765").is_err());
    ///
    /// let url = IndexUrl::parse("unix:/run/index.sock")?;
    /// assert_eq!(url.endpoint("evict"), "unix:/run/index.sock:/evict");
    /// assert_eq!(url.target("evict"), "/evict");
    /// # Ok::<(), contextpilot_settings::IndexUrlError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, IndexUrlError> {
        index_url(text).map_err(|problem| IndexUrlError::new(text, problem))
    }
}

fn index_url(text: &str) -> Result<IndexUrl, Problem> {
    if text.is_empty() {
        return Err(Problem::Empty);
    }
    if text.len() > LONGEST {
        return Err(Problem::TooLong(text.len()));
    }
    let is_unix = |scheme: &str| scheme.eq_ignore_ascii_case(UNIX);
    if let Some((_, rest)) = text.split_at_checked(UNIX.len()).filter(|t| is_unix(t.0)) {
        return unix(rest);
    }
    characters(text)?;

    let (scheme, rest) = text.split_once("://").ok_or(Problem::NoScheme)?;
    let tls = self::tls(scheme)?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    // Looked at before everything else: it tells that what looks like host and
    // port may be a user and the beginning of a password.
    if path.contains('@') {
        return Err(Problem::At);
    }
    let (credentials, location) = match authority.rsplit_once('@') {
        Some((user_info, location)) => (credentials(user_info)?, location),
        None => (None, authority),
    };
    let (host, port) = host_and_port(location)?;
    Ok(IndexUrl {
        server: Server::Net(NetServer {
            tls,
            credentials,
            host,
            port,
        }),
        prefix: prefix(path)?,
    })
}

/// What follows `unix:`.
fn unix(rest: &str) -> Result<IndexUrl, Problem> {
    // `unix:///path` has an empty host in it. With one slash less, the first part of the path
    // would be the host.
    let rest = match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        Some(_) => return Err(Problem::Socket(shorten(rest, 64))),
        None => rest,
    };
    let (path, prefix) = match rest.find(":/") {
        Some(colon) => (&rest[..colon], &rest[colon + 1..]),
        None => (rest, ""),
    };
    // More slashes than one mean the same, but behind `unix:` two would begin a host.
    let path = match path.strip_prefix("//") {
        Some(rest) => &path[path.len() - rest.trim_start_matches('/').len() - 1..],
        None => path,
    };
    let is_file = path.starts_with('/') && !path.ends_with(['/', ':']);
    if !is_file || path.contains(char::is_control) {
        return Err(Problem::Socket(shorten(path, 64)));
    }
    if path.len() > LONGEST_SOCKET {
        return Err(Problem::LongSocket(path.len()));
    }
    characters(prefix)?;
    if prefix.contains('@') {
        return Err(Problem::At);
    }
    Ok(IndexUrl {
        server: Server::Unix(PathBuf::from(path)),
        prefix: self::prefix(prefix)?,
    })
}

/// Only what RFC 3986 lets stand in a URL.
fn characters(text: &str) -> Result<(), Problem> {
    let secret_until = text.rfind('@').unwrap_or(0);
    for (position, (offset, c)) in text.char_indices().enumerate() {
        let allowed = c.is_ascii_graphic() && !r#""<>\^`{|}"#.contains(c);
        if !allowed {
            let hidden = offset < secret_until && !c.is_whitespace() && !c.is_control();
            return Err(Problem::Character {
                position: position + 1,
                character: (!hidden).then_some(c),
            });
        }
    }
    Ok(())
}

/// Whether a scheme means TLS.
fn tls(text: &str) -> Result<bool, Problem> {
    if text.eq_ignore_ascii_case("http") {
        Ok(false)
    } else if text.eq_ignore_ascii_case("https") {
        Ok(true)
    } else if looks_like_scheme(text) {
        Err(Problem::Scheme(shorten(text, 32)))
    } else {
        Err(Problem::NoScheme)
    }
}

fn credentials(user_info: &str) -> Result<Option<Credentials>, Problem> {
    if user_info.is_empty() {
        return Ok(None);
    }
    if user_info.contains('@') {
        return Err(Problem::At);
    }
    let (user, password) = match user_info.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (user_info, None),
    };
    let user = decode(user)?;
    if user.contains(':') {
        return Err(Problem::UserInfo(
            "has an encoded ':' in the user's name, which basic authentication cannot carry",
        ));
    }
    let password = password.map(decode).transpose()?.map(Secret::new);
    Ok(Some(Credentials { user, password }))
}

fn decode(text: &str) -> Result<String, Problem> {
    let text = percent::decode(text).map_err(|why| {
        Problem::UserInfo(match why {
            Undecodable::Escape => "has a '%' that is not followed by two hexadecimal digits",
            Undecodable::NotUtf8 => "does not decode to valid UTF-8",
        })
    })?;
    if text.contains(char::is_control) {
        return Err(Problem::UserInfo("decodes to a control character"));
    }
    Ok(text)
}

fn host_and_port(location: &str) -> Result<(Host, Option<u16>), Problem> {
    // Only in brackets may a host hold a colon.
    let end_of_host = match location.rfind(']') {
        Some(bracket) => bracket + 1,
        // A bare `::1`, or two ports: there is no telling what was meant.
        None if location.matches(':').count() > 1 => {
            return Err(Problem::Host(shorten(location, 64)));
        }
        None => location.find(':').unwrap_or(location.len()),
    };
    let (host_text, port_text) = location.split_at(end_of_host);
    let host = host(host_text)?;
    let port = match port_text.strip_prefix(':') {
        Some(port_text) => Some(port(port_text)?),
        None if port_text.is_empty() => None,
        None => return Err(Problem::Host(shorten(location, 64))),
    };
    Ok((host, port))
}

fn host(text: &str) -> Result<Host, Problem> {
    if text.is_empty() {
        return Err(Problem::NoHost);
    }
    let wrong = || Problem::Host(shorten(text, 64));
    if let Some(inside) = text.strip_prefix('[') {
        let address = inside.strip_suffix(']').ok_or_else(wrong)?;
        return match address.parse::<Ipv6Addr>() {
            Ok(address) => Ok(Host::V6(address)),
            Err(_) => Err(wrong()),
        };
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    // A name whose last label is a number can only be an address, and resolvers
    // disagree on what `127.1` or `010.0.0.1` mean: only the full form will do.
    let last = name.rsplit('.').next().unwrap_or_default();
    if last.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse::<Ipv4Addr>().map(Host::V4).map_err(|_| wrong());
    }
    let label_fits = |label: &str| {
        (1..=LONGEST_LABEL).contains(&label.len())
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    if name.len() > LONGEST_NAME || !name.split('.').all(label_fits) {
        return Err(wrong());
    }
    Ok(Host::Name(text.to_ascii_lowercase()))
}

fn port(text: &str) -> Result<u16, Problem> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u16>() {
        Ok(port) if digits && port != 0 => Ok(port),
        _ => Err(Problem::Port(shorten(text, 16))),
    }
}

fn prefix(path: &str) -> Result<String, Problem> {
    if let Some(mark) = path.find(['?', '#']) {
        return Err(match path.as_bytes()[mark] {
            b'?' => Problem::Query,
            _ => Problem::Fragment,
        });
    }
    if let Some(bracket) = path.find(['[', ']']) {
        return Err(Problem::Path(char::from(path.as_bytes()[bracket])));
    }
    if !percent::is_encoded(path) {
        return Err(Problem::PathEncoding);
    }
    Ok(path.trim_end_matches('/').to_owned())
}
