//! Hop-by-hop headers, which the proxy removes.

use hyper::header::{
    CONNECTION, EXPECT, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

/// By RFC 9110, 7.6.1, with additions by RFC 9112 and common practice.
fn is_of_the_connection(name: &HeaderName) -> bool {
    const NAMED: [HeaderName; 8] = [
        CONNECTION,
        EXPECT,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    NAMED.contains(name) || matches!(name.as_str(), "keep-alive" | "proxy-connection")
}

/// Removes hop-by-hop headers, except those of an upgrade that is requested or granted.
pub(crate) fn strip(headers: &mut HeaderMap) {
    let upgrade = wants_upgrade(headers).then(|| headers.get(UPGRADE).cloned());
    let listed: Vec<HeaderName> = tokens(headers)
        .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
        // A client must not be able to remove these: without them the request would mean something else.
        .filter(|name| !matches!(name.as_str(), "authorization" | "content-length" | "host"))
        .collect();
    let doomed: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_of_the_connection(name) || listed.contains(name))
        .cloned()
        .collect();
    for name in doomed {
        headers.remove(name);
    }
    if let Some(Some(protocol)) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

fn wants_upgrade(headers: &HeaderMap) -> bool {
    headers.contains_key(UPGRADE)
        && tokens(headers).any(|token| token.eq_ignore_ascii_case("upgrade"))
}

/// The names in the `Connection` headers.
fn tokens(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(CONNECTION)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripped(lines: &[(&str, &str)]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            headers.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        strip(&mut headers);
        let mut left: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().expect("text")))
            .collect();
        left.sort();
        left
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let left = stripped(&[
            ("Connection", "keep-alive, X-Mine"),
            ("Keep-Alive", "timeout=5"),
            ("X-Mine", "1"),
            ("X-Other", "2"),
            ("TE", "trailers"),
            ("Transfer-Encoding", "chunked"),
            ("Expect", "100-continue"),
            ("Upgrade", "h2c"),
            ("Authorization", "Bearer k"),
        ]);
        assert_eq!(left, ["authorization: Bearer k", "x-other: 2"]);
    }

    #[test]
    fn a_client_cannot_remove_the_authorization_by_the_connection_header() {
        let left = stripped(&[
            ("Connection", "Authorization, Host"),
            ("Authorization", "Bearer k"),
            ("Host", "a"),
        ]);
        assert_eq!(left, ["authorization: Bearer k", "host: a"]);
    }

    #[test]
    fn the_headers_of_an_upgrade_are_kept() {
        let left = stripped(&[("Connection", "Upgrade"), ("Upgrade", "websocket")]);
        assert_eq!(left, ["connection: upgrade", "upgrade: websocket"]);
    }
}
