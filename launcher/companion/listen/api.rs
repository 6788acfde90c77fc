//! The part of the index's API that evictions need.
//!
//! `POST /evict {"request_ids": ["…", …]}` answers 200 with `status`,
//! `removed_count` and lists of ids, as the index (ContextPilot 0.5.0) does.
//! Errors are `{"detail": "…"}`, as there. The difference is that it keeps no index:
//! it treats each id as found, and shows it as it was sent.

use serde_json::{Value, json};

use contextpilot_http_server::{Request, Response};

/// `evicted` is called with the ids of each `POST /evict`.
pub(in crate::companion) fn answer(request: &Request, evicted: impl FnOnce(&[String])) -> Response {
    match (request.method.as_str(), request.path()) {
        ("POST", "/evict") => match request_ids(&request.body) {
            Ok(ids) => {
                // Print before the answer, so that a client with the answer knows that the lines are written.
                evicted(&ids);
                json(200, &confirmed(&ids))
            }
            Err(why) => error(400, &why),
        },
        ("GET" | "HEAD", "/health") => json(200, &json!({"status": "ready"})),
        (method, path) => error(
            404,
            &format!("nothing at {method} {path}; there are POST /evict and GET /health"),
        ),
    }
}

pub(in crate::companion) fn error(status: u16, why: &str) -> Response {
    json(status, &json!({ "detail": why }))
}

fn json(status: u16, body: &Value) -> Response {
    Response::json(status, body.to_string())
}

fn confirmed(ids: &[String]) -> Value {
    let mut distinct: Vec<&str> = Vec::with_capacity(ids.len());
    let mut seen = std::collections::HashSet::with_capacity(ids.len());
    distinct.extend(ids.iter().map(String::as_str).filter(|id| seen.insert(*id)));
    json!({
        "status": "success",
        "removed_count": distinct.len(),
        "evicted_count": distinct.len(),
        "evicted_request_ids": distinct,
        "not_found": [],
    })
}

fn request_ids(body: &[u8]) -> Result<Vec<String>, String> {
    let mut body: Value =
        serde_json::from_slice(body).map_err(|e| format!("the body is not JSON: {e}"))?;
    let ids = body
        .get_mut("request_ids")
        .ok_or("the body has no \"request_ids\"; send {\"request_ids\": [\"…\"]}")?;
    let Value::Array(ids) = ids.take() else {
        return Err("\"request_ids\" is not a list".to_owned());
    };
    ids.into_iter()
        .enumerate()
        .map(|(i, id)| match id {
            Value::String(id) => Ok(id),
            _ => Err(format!("\"request_ids\"[{i}] is not a string")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_were_sent() {
        let ids = |body: &str| request_ids(body.as_bytes());
        assert_eq!(ids(r#"{"request_ids": []}"#), Ok(vec![]));
        assert_eq!(
            ids(r#"{"x": 1, "request_ids": ["cmpl-1", "", "\u00e9\n", "cmpl-1"]}"#).unwrap(),
            ["cmpl-1", "", "é\n", "cmpl-1"]
        );
    }

    #[test]
    fn for_a_wrong_body_the_error_says_what_is_wrong() {
        for (body, why) in [
            (&b""[..], "not JSON"),
            (b"{\"request_ids\": [\"a\"", "not JSON"),
            (b"{\"request_ids\": [\"\xff\"]}", "not JSON"),
            (b"[]", "no \"request_ids\""),
            (b"{}", "no \"request_ids\""),
            (b"{\"request_ids\": \"a\"}", "not a list"),
            (b"{\"request_ids\": [\"a\", 1]}", "[1] is not a string"),
        ] {
            let error = request_ids(body).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn each_id_is_counted_once() {
        let ids = ["a", "b", "a"].map(str::to_owned);
        let body = confirmed(&ids);
        assert_eq!(body["removed_count"], 2);
        assert_eq!(body["evicted_request_ids"], json!(["a", "b"]));
    }
}
