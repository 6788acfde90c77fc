//! Refuses what a web page of another machine sends, and lets none read the answers.

use contextpilot_settings::{AllowedHosts, BrowserHeaders};
use hyper::Method;
use hyper::header::{HeaderMap, HeaderValue};

use crate::{Request, Response, error_response};

/// What a browser says of a request, judged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verdict {
    /// No page of another machine sends it.
    Own,
    /// Such a page sends it, and may: it changes nothing, and the page cannot read the answer.
    Unread,
    /// The `Host` is not allowed.
    OtherHost,
    /// Such a page would change something.
    Refused,
}

pub(crate) fn judge(request: &Request, allowed: &AllowedHosts) -> Verdict {
    let browser = BrowserHeaders::of(|name| {
        let values = request.headers().get_all(name);
        values.into_iter().map(HeaderValue::as_bytes).collect()
    });
    // A name that was made to resolve to this machine: the page could read the answers, too.
    if !browser.names_an_allowed_host(allowed) {
        return Verdict::OtherHost;
    }
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    match (browser.from_a_foreign_page(allowed), reads) {
        (false, _) => Verdict::Own,
        (true, true) => Verdict::Unread,
        (true, false) => Verdict::Refused,
    }
}

impl Verdict {
    /// The answer to a request that is refused.
    pub(crate) fn refusal(self) -> Option<Response> {
        match self {
            Self::Own | Self::Unread => None,
            Self::OtherHost => {
                let why = "the Host is not one of this service's: use 127.0.0.1, [::1] or \
                           localhost, or start it with --allow-host NAME";
                Some(error_response(421, "invalid_request_error", why))
            }
            Self::Refused => {
                let why = "web pages of other machines may not do this: send it from a program, \
                           or from a page of this machine";
                Some(error_response(403, "permission_error", why))
            }
        }
    }

    /// Takes away what would let such a page read an answer. llama-server allows it to every page that asks.
    pub(crate) fn close(self, headers: &mut HeaderMap) {
        if matches!(self, Self::Own) {
            return;
        }
        let opening: Vec<_> = headers
            .keys()
            .filter(|name| name.as_str().starts_with("access-control-"))
            .cloned()
            .collect();
        for name in opening {
            headers.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Body;

    fn status(method: &str, headers: &[(&str, &str)]) -> Option<u16> {
        let mut request = hyper::Request::builder().method(method).uri("/evict");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::full("")).expect("a request");
        let refusal = judge(&request, &AllowedHosts::default()).refusal();
        refusal.map(|response| response.status().as_u16())
    }

    #[test]
    fn requests_by_pages_of_other_machines_are_refused() {
        let here = ("host", "127.0.0.1:8765");
        for method in ["GET", "POST"] {
            assert_eq!(
                status(method, &[("host", "attacker.example:8765")]),
                Some(421)
            );
            assert_eq!(status(method, &[here]), None);
        }
        for header in [
            ("origin", "https://attacker.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
        ] {
            assert_eq!(status("POST", &[here, header]), Some(403), "{header:?}");
            assert_eq!(status("DELETE", &[here, header]), Some(403), "{header:?}");
            assert_eq!(status("GET", &[here, header]), None, "{header:?}");
        }
        // llama-server's own page, through the proxy.
        let own = [
            here,
            ("origin", "http://127.0.0.1:8765"),
            ("sec-fetch-site", "same-origin"),
        ];
        assert_eq!(status("POST", &own), None);
    }

    #[test]
    fn only_pages_of_this_machine_are_allowed_to_read_an_answer() {
        let left = |origin: &str| {
            let request = hyper::Request::get("/slots").header("host", "localhost");
            let request = request.header("origin", origin).body(Body::full(""));
            let verdict = judge(&request.expect("a request"), &AllowedHosts::default());
            let mut headers = HeaderMap::new();
            for name in [
                "access-control-allow-origin",
                "access-control-allow-credentials",
                "content-type",
            ] {
                headers.insert(name, HeaderValue::from_static("x"));
            }
            verdict.close(&mut headers);
            headers.len()
        };
        assert_eq!(left("http://localhost:8765"), 3);
        for foreign in ["https://attacker.example", "null", "http://192.0.2.1"] {
            assert_eq!(left(foreign), 1, "{foreign}");
        }
    }
}
