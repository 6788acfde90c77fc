//! Answers to clients.

use serde_json::{Value, json};

/// A status and a JSON body.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexAnswer {
    /// HTTP's.
    pub status: u16,
    /// The body.
    pub body: Value,
}

impl IndexAnswer {
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
        let input = shortened(input);
        let detail = json!({"type": kind, "loc": place, "msg": message, "input": input});
        Self {
            status: 422,
            body: json!({ "detail": [detail] }),
        }
    }

    pub(crate) fn not_initialized() -> Self {
        Self::error(503, "Index not initialized. Call POST /reorder first.")
    }
}

/// What an answer repeats of a request.
const REPEATED: usize = 4096;

/// A value as it is, unless it is large.
fn shortened(value: &Value) -> Value {
    /// What is left of the bytes that may be repeated; `None` if they are not enough.
    fn go(value: &Value, left: usize) -> Option<usize> {
        let left = left.checked_sub(8)?;
        match value {
            Value::String(text) => left.checked_sub(text.len()),
            Value::Array(list) => list.iter().try_fold(left, |rest, value| go(value, rest)),
            Value::Object(members) => members.iter().try_fold(left, |rest, (name, value)| {
                go(value, rest.checked_sub(name.len())?)
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) => Some(left),
        }
    }
    match go(value, REPEATED) {
        Some(_) => value.clone(),
        None => json!("(too long to be repeated here)"),
    }
}
