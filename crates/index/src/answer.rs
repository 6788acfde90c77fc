//! Answers to clients.

use serde_json::{Value, json};

/// A status and a JSON body.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// HTTP's.
    pub status: u16,
    /// The body.
    pub body: Value,
}

impl Answer {
    /// 200.
    pub(crate) fn ok(body: Value) -> Self {
        Self { status: 200, body }
    }

    /// An error in the form of the Python index's.
    #[must_use]
    pub fn error(status: u16, why: &str) -> Self {
        Self {
            status,
            body: json!({ "detail": why }),
        }
    }

    /// 422, in the form that its framework has.
    pub(crate) fn invalid(kind: &str, path: Vec<Value>, message: &str, input: &Value) -> Self {
        let mut place = vec![json!("body")];
        place.extend(path);
        let one = json!({"type": kind, "loc": place, "msg": message, "input": input});
        Self {
            status: 422,
            body: json!({ "detail": [one] }),
        }
    }

    pub(crate) fn not_initialized() -> Self {
        Self::error(503, "Index not initialized. Call POST /reorder first.")
    }
}
