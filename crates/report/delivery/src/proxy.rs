//! Finds the HTTP proxy in the environment.

/// The proxy for a request to `scheme://host:port`, as curl and others read the
/// environment: `http_proxy` or `https_proxy` by the scheme, else `all_proxy`,
/// each in lower or upper case, unless `no_proxy` names the host.
///
/// The caller asks this only for hosts that are not loopback: those are never
/// reached through a proxy.
pub fn from_environment(
    scheme: &str,
    host: &str,
    port: u16,
    lookup: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let get = |name: &str| {
        lookup(name)
            .or_else(|| lookup(&name.to_ascii_uppercase()))
            .map(|value| value.trim().to_owned())
            .filter(|value| !value.is_empty())
    };
    let proxy = get(&format!("{scheme}_proxy")).or_else(|| get("all_proxy"))?;
    let exempt = get("no_proxy").is_some_and(|list| names(&list, host, port));
    (!exempt).then_some(proxy)
}

/// Whether a `no_proxy` list names the host: itself, a domain above it (with or
/// without a dot or `*.` in front), either with a port, or `*`.
fn names(list: &str, host: &str, port: u16) -> bool {
    let lower = host.to_ascii_lowercase();
    let host = lower.trim_end_matches('.');
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    list.split([',', ' ']).any(|entry| {
        let entry = entry.trim().to_ascii_lowercase();
        if entry == "*" || entry == bare {
            return true;
        }
        let entry = match entry.rsplit_once(':') {
            Some((name, digits)) if digits == port.to_string() => name,
            _ => entry.as_str(),
        };
        let domain = entry.trim_start_matches('*').trim_start_matches('.');
        let above = |host: &str| {
            host.strip_suffix(domain)
                .is_some_and(|sub| sub.is_empty() || sub.ends_with('.'))
        };
        !domain.is_empty() && above(host)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(scheme: &str, host: &str, env: &[(&str, &str)]) -> Option<String> {
        from_environment(scheme, host, 8765, |name| {
            let found = env.iter().find(|(n, _)| *n == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_scheme_chooses_the_variable() {
        let env = [
            ("http_proxy", "http://plain:1"),
            ("HTTPS_PROXY", "http://tls:2"),
            ("all_proxy", "http://any:3"),
        ];
        let plain = Some("http://plain:1".to_owned());
        assert_eq!(find("http", "index.lan", &env), plain);
        let tls = Some("http://tls:2".to_owned());
        assert_eq!(find("https", "index.lan", &env), tls);
        let any = Some("http://any:3".to_owned());
        assert_eq!(find("https", "index.lan", &env[2..]), any);
        assert_eq!(find("http", "index.lan", &env[1..2]), None);
        assert_eq!(find("http", "index.lan", &[("http_proxy", " ")]), None);
    }

    #[test]
    fn a_host_in_no_proxy_is_reached_directly() {
        let exempt = |list: &str, host: &str| {
            let env = [("http_proxy", "http://p:1"), ("NO_PROXY", list)];
            find("http", host, &env).is_none()
        };
        for (list, host) in [
            ("*", "index.lan"),
            ("a.b, index.lan", "index.lan"),
            ("lan", "index.lan"),
            (".lan", "index.LAN"),
            ("*.lan", "index.lan."),
            ("index.lan:8765", "index.lan"),
            ("10.0.0.7", "10.0.0.7"),
            ("fd00::7", "[fd00::7]"),
            ("[fd00::7]:8765", "[fd00::7]"),
        ] {
            assert!(exempt(list, host), "{list} {host}");
        }
        for (list, host) in [
            ("", "index.lan"),
            (",", "index.lan"),
            (".", "index.lan"),
            ("an", "index.lan"),
            ("index.lan", "index.lan.example"),
            ("index.lan:1", "index.lan"),
            ("0.0.7", "10.10.0.0.70"),
        ] {
            assert!(!exempt(list, host), "{list} {host}");
        }
    }
}
