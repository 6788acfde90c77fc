//! Refuses what a web page of another machine sends to an address of this one.

use contextpilot_settings::BrowserHeaders;
use hyper::Method;
use hyper::header::HeaderValue;

use crate::{Request, Response, error_response};

/// Why a request to a loopback address is refused; `None` if it is not.
pub(crate) fn refusal(request: &Request) -> Option<Response> {
    let browser = BrowserHeaders::of(|name| {
        let values = request.headers().get_all(name);
        values.into_iter().map(HeaderValue::as_bytes).collect()
    });
    // A name that was made to resolve to this machine: the page could read the answers, too.
    if !browser.names_this_machine() {
        let why = "the Host is not this machine's: use 127.0.0.1, [::1] or localhost, and where \
                   another proxy is in front, have it send one of these";
        return Some(error_response(421, "invalid_request_error", why));
    }
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    if !reads && browser.from_a_foreign_page() {
        let why = "web pages of other machines may not do this: send it from a program, or from \
                   a page of this machine";
        return Some(error_response(403, "permission_error", why));
    }
    None
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
        refusal(&request).map(|response| response.status().as_u16())
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
}
