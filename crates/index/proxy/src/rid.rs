//! Adds an id to a request without one.

use contextpilot_request::{Endpoint, Identity, RequestReader, Step};
use serde::de::IgnoredAny;

/// The body with `"rid": id` put after its members, where it counts even if there is a
/// `"rid": null` before it, and every other byte as it was; `None` if it is to be left alone: it has an id (or something in its place that the hook refuses), it
/// is no JSON object, or `path` is not one at which llama-server generates from a JSON body.
///
/// The judgement is that of the hook's own reader (crates/cache/request).
///
/// ```
/// use contextpilot_proxy::give_id;
///
/// let body = give_id("/v1/completions", br#"{"prompt": "a"}"#, "r-1");
/// assert_eq!(body.unwrap(), br#"{"prompt": "a","rid":"r-1"}"#);
/// assert_eq!(give_id("/v1/completions", br#"{"rid": "mine"}"#, "r-1"), None);
/// ```
#[must_use]
pub fn give_id(path: &str, body: &[u8], id: &str) -> Option<Vec<u8>> {
    if !generates(path) || identity(body)? != Identity::Absent {
        return None;
    }
    // The server refuses a body that is not JSON, and quotes it in the error.
    serde_json::from_slice::<IgnoredAny>(body).ok()?;
    let end = body.iter().rposition(|byte| !byte.is_ascii_whitespace())?;
    let (before, rest) = body.split_at_checked(end)?;
    if !rest.starts_with(b"}") {
        return None;
    }
    let empty = before.trim_ascii_end().ends_with(b"{");
    let member = format!("{}\"rid\":{}", if empty { "" } else { "," }, quoted(id));
    Some([before, member.as_bytes(), rest].concat())
}

/// Whether a JSON body that is posted to this path asks for generation.
#[must_use]
pub fn generates(path: &str) -> bool {
    matches!(
        Endpoint::of_path(path.as_bytes()),
        Endpoint::Completion
            | Endpoint::Chat
            | Endpoint::Responses
            | Endpoint::Messages
            | Endpoint::Infill
    )
}

/// The id that a body carries, as the hook reads it: `rid`, else `request_id`.
#[must_use]
pub fn request_id(body: &[u8]) -> Option<String> {
    match identity(body)? {
        Identity::Id(id) => Some(id.into_string()),
        _ => None,
    }
}

fn identity(body: &[u8]) -> Option<Identity> {
    let mut reader = RequestReader::new();
    let length = body.len();
    let head = format!("POST /completion HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
    reader.feed(head.as_bytes());
    match reader.feed(body).1 {
        Step::Complete(request) => Some(request.identity),
        _ => None,
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(body: &str) -> Option<String> {
        let body = give_id("/v1/chat/completions", body.as_bytes(), "r\"1")?;
        Some(String::from_utf8(body).expect("UTF-8"))
    }

    #[test]
    fn only_the_id_is_added_and_every_other_byte_stays() {
        let of = |text: &str| given(text).unwrap_or_default();
        assert_eq!(
            of(" \n{ \"a\" : 1.50, \"b\":\"\\u00e9\"}\n"),
            " \n{ \"a\" : 1.50, \"b\":\"\\u00e9\",\"rid\":\"r\\\"1\"}\n"
        );
        assert_eq!(of("{ }"), "{ \"rid\":\"r\\\"1\"}");
        assert_eq!(of(r#"{"a":{}}"#), r#"{"a":{},"rid":"r\"1"}"#);
        assert_eq!(
            of(r#"{"a":{"rid":"x"}}"#),
            r#"{"a":{"rid":"x"},"rid":"r\"1"}"#
        );
        assert_eq!(of(r#"{"rid":null}"#), r#"{"rid":null,"rid":"r\"1"}"#);
    }

    #[test]
    fn a_body_with_an_id_or_that_is_not_an_object_is_not_changed() {
        for body in [
            r#"{"rid":"x"}"#,
            r#"{"a":[{}],"request_id":"x"}"#,
            r#"{"rid":7}"#,
            r#"{"rid":""}"#,
            "[]",
            "",
            "{",
            "{\"a\":1}}",
            "rid",
        ] {
            assert_eq!(given(body), None, "{body}");
        }
    }

    #[test]
    fn only_routes_that_generate_tokens_get_an_id() {
        let at = |path| give_id(path, b"{}", "r").is_some();
        for path in ["/completion", "/v1/completions", "/v1/messages", "/infill"] {
            assert!(at(path), "{path}");
        }
        for path in ["/", "/v1/embeddings", "/rerank", "/slots/0", "/tokenize"] {
            assert!(!at(path), "{path}");
        }
    }
}
