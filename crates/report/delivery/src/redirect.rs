//! Where a redirect may lead: the host that was asked, and nowhere else, since
//! the ids and the `Authorization` header go with it.
//!
//! The answer from there is judged as any other. A redirect is followed for each POST again, even a
//! permanent one: its sender may be wrong, and replaced in a minute. A redirect that is not followed
//! settles nothing, like any other answer that is not the index's own.

use ureq::http::Uri;

/// Redirects followed for one POST.
pub(crate) const MAX_REDIRECTS: u32 = 3;

/// Whether this status is a redirect that is followed with another
/// POST. Browsers turn 301 and 302 into GET for historical reasons (RFC
/// 9110 15.4.2), but a GET would evict nothing. 303 asks for a GET of another
/// page (mostly a login page), and is not followed.
pub(crate) fn is_followable(status: u16) -> bool {
    matches!(status, 301 | 302 | 307 | 308)
}

/// The address that `location` means when `from` answered with it; `None` if it
/// may not be followed: another host, a step from https down to http, user
/// info, or not an address at all.
pub(crate) fn target(from: &Uri, location: &str) -> Option<Uri> {
    let location = location.split('#').next().unwrap_or_default().trim();
    let scheme = from.scheme_str()?;
    let authority = from.authority()?;
    let absolute = if location.contains("://") {
        location.to_owned()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.is_empty() {
        return None;
    } else {
        let folder = from
            .path()
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    let to: Uri = absolute.parse().ok()?;
    let same_host = to.host()?.eq_ignore_ascii_case(from.host()?);
    let safe_scheme = match to.scheme_str()? {
        "https" => true,
        "http" => scheme == "http",
        _ => false,
    };
    let without_user = !to.authority()?.as_str().contains('@');
    (same_host && safe_scheme && without_user).then_some(to)
}

/// Whether both are the same scheme, host and port: behind a Unix socket there is no other.
pub(crate) fn is_same_server(from: &Uri, to: &Uri) -> bool {
    from.scheme() == to.scheme() && from.authority() == to.authority()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(from: &str, location: &str) -> Option<String> {
        let from = from.parse().expect("a valid URL in the test");
        target(&from, location).map(|to| to.to_string())
    }

    #[test]
    fn a_redirect_to_the_same_host_is_followed() {
        let from = "http://index.lan:8765/pilot/evict";
        for (location, to) in [
            ("/evict/", "http://index.lan:8765/evict/"),
            ("evict/", "http://index.lan:8765/pilot/evict/"),
            ("http://index.lan:9000/evict", "http://index.lan:9000/evict"),
            ("https://INDEX.lan/evict#x", "https://INDEX.lan/evict"),
            ("//index.lan/evict?a=b", "http://index.lan/evict?a=b"),
        ] {
            assert_eq!(follow(from, location).as_deref(), Some(to), "{location}");
        }
        assert_eq!(
            follow("http://[::1]:80/evict", "/x").as_deref(),
            Some("http://[::1]:80/x")
        );
    }

    #[test]
    fn a_redirect_elsewhere_is_not_followed() {
        let from = "https://index.lan/evict";
        for location in [
            "https://evil.example/evict",
            "//evil.example/evict",
            "https://index.lan.evil.example/",
            "https://index.lan@evil.example/",
            "https://user:password@index.lan/",
            "http://index.lan/evict",
            "ftp://index.lan/evict",
            "file:///etc/passwd",
            "",
            "#here",
            "https://",
            "/a b",
            "/\u{0}",
            "://",
        ] {
            assert_eq!(follow(from, location), None, "{location:?}");
        }
    }

    #[test]
    fn behind_a_socket_only_the_path_may_differ() {
        let from: Uri = "http://localhost/evict".parse().unwrap();
        for (to, same) in [
            ("http://localhost/a/evict", true),
            ("http://LOCALHOST/a", true),
            ("http://localhost:8765/evict", false),
            ("https://localhost/evict", false),
        ] {
            assert_eq!(is_same_server(&from, &to.parse().unwrap()), same, "{to}");
        }
    }

    #[test]
    fn only_301_302_307_and_308_are_followed() {
        let followed: Vec<u16> = (300..400).filter(|s| is_followable(*s)).collect();
        assert_eq!(followed, [301, 302, 307, 308]);
    }
}
