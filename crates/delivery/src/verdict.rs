//! What an answer of the index means for the ids that were posted.

use std::time::Duration;

/// What to do with the ids of a POST that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Told.
    Delivered,
    /// The index holds nothing yet (before its first `/reorder`), so there is
    /// nothing to evict there: done.
    NothingThere,
    /// The index will answer like this for ever: the ids are dropped, and the
    /// text says what a person should check.
    Rejected(&'static str),
    /// It may go better later; a wish of the index how much later.
    Retry(Option<Duration>),
}

/// The text with which a ContextPilot index (0.5.0) answers 503 before its
/// first `/reorder`, in lower case, without what may be reworded around it.
const NOT_INITIALIZED: &str = "not initialized";

/// Judges an answer by its status, body and `Retry-After` header.
#[must_use]
pub fn classify(status: u16, body: &[u8], retry_after: Option<&str>) -> Verdict {
    match status {
        200..=299 => Verdict::Delivered,
        503 if says_not_initialized(body) => Verdict::NothingThere,
        // 408 and 425 are client errors by number only: the same request is
        // expected again (RFC 9110 15.5.9, RFC 8470 5.2).
        408 | 425 | 429 | 500..=599 => Verdict::Retry(parse_retry_after(retry_after)),
        401 | 403 => Verdict::Rejected(
            "check CONTEXTPILOT_INDEX_TOKEN or the user and password in CONTEXTPILOT_INDEX_URL",
        ),
        404 | 405 | 410 => Verdict::Rejected(
            "check the host, port and path in CONTEXTPILOT_INDEX_URL: no index answers there",
        ),
        400 | 422 => Verdict::Rejected(
            "check that CONTEXTPILOT_INDEX_URL leads to a ContextPilot index of a known version",
        ),
        407 => Verdict::Rejected("check the user and password of the HTTP proxy"),
        413 => Verdict::Rejected("check the body size limit of the proxy before the index"),
        300..=399 => Verdict::Rejected(
            "this redirect is not followed; set CONTEXTPILOT_INDEX_URL to the final address",
        ),
        _ => Verdict::Rejected("check CONTEXTPILOT_INDEX_URL"),
    }
}

fn says_not_initialized(body: &[u8]) -> bool {
    String::from_utf8_lossy(body)
        .to_ascii_lowercase()
        .contains(NOT_INITIALIZED)
}

/// Seconds only: the date form needs a clock that both sides agree on.
fn parse_retry_after(value: Option<&str>) -> Option<Duration> {
    value?.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_2xx_is_delivered_whatever_it_says() {
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(classify(status, b"garbage", None), Verdict::Delivered);
        }
    }

    #[test]
    fn an_index_without_an_index_has_nothing_to_evict() {
        let body = br#"{"detail":"Index not initialized. Call POST /reorder first."}"#;
        assert_eq!(classify(503, body, None), Verdict::NothingThere);
        assert_eq!(classify(503, b"overloaded", None), Verdict::Retry(None));
        assert_eq!(classify(500, body, None), Verdict::Retry(None));
        assert_eq!(classify(503, &[0xff, 0xfe], None), Verdict::Retry(None));
    }

    #[test]
    fn trouble_of_the_server_is_retried() {
        for status in [408, 425, 429, 500, 502, 503, 504, 599] {
            assert_eq!(classify(status, b"", None), Verdict::Retry(None));
        }
        let two = Some(Duration::from_secs(2));
        assert_eq!(classify(429, b"", Some(" 2 ")), Verdict::Retry(two));
        for nonsense in ["-1", "soon", "Wed, 21 Oct 2015 07:28:00 GMT", "1e9", ""] {
            assert_eq!(classify(503, b"", Some(nonsense)), Verdict::Retry(None));
        }
    }

    #[test]
    fn everything_else_is_rejected_with_advice() {
        for status in (300..=499).filter(|s| ![408, 425, 429].contains(s)) {
            match classify(status, b"not initialized", None) {
                Verdict::Rejected(advice) => assert!(advice.contains("check") || status < 400),
                other => panic!("{status}: {other:?}"),
            }
        }
        assert!(matches!(classify(999, b"", None), Verdict::Rejected(_)));
        assert!(matches!(classify(0, b"", None), Verdict::Rejected(_)));
    }
}
