//! What the index answers.

use serde_json::json;

/// How the index answers a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// 200, as the index answers; 422 if the request is no eviction.
    Accept,
    /// Another status with a JSON body, after which the connection stays open.
    Status(u16, String),
    /// A status, header lines without their line ends, and a body. Only `Content-Length` is added.
    Answer(u16, Vec<String>, String),
    /// This status without a body if the request has one of these ids. Others are accepted.
    RefuseIds(Vec<String>, u16),
    /// This status without a body if the request has more than so many ids. Others are accepted.
    RefuseAbove(usize, u16),
    /// No answer until [`Index::release`](crate::Index::release). The connection is closed without
    /// an answer if the index is dropped or told to behave differently.
    Hang,
    /// The connection is closed without an answer.
    Close,
    /// The connection is closed in the middle of the body of a 200, which counts as not accepted.
    CloseMidAnswer,
    /// These bytes, then the connection is closed.
    Raw(Vec<u8>),
    /// These bytes, and then more without an end, until the other side gives up.
    Endless(Vec<u8>),
}

impl Behaviour {
    /// The answer of the real index before the first `/reorder`.
    pub fn not_initialized() -> Self {
        let text = "Index not initialized. Call POST /reorder first.";
        Self::Status(503, json!({"detail": text}).to_string())
    }

    /// A status without a body.
    pub fn empty(status: u16) -> Self {
        Self::Answer(status, Vec::new(), String::new())
    }

    /// A status without a body, and the `Location` to ask instead.
    pub fn redirect(status: u16, location: &str) -> Self {
        Self::Answer(status, vec![format!("Location: {location}")], String::new())
    }

    /// How to answer one request: resolves the behaviours that depend on the request. `ids` are
    /// those of an eviction; `None`: the request is no eviction.
    pub(super) fn towards(self, ids: Option<&[String]>) -> Self {
        let sent = ids.unwrap_or_default();
        match self {
            Self::RefuseIds(bad, status) if sent.iter().any(|id| bad.contains(id)) => {
                Self::empty(status)
            }
            Self::RefuseAbove(most, status) if sent.len() > most => Self::empty(status),
            Self::Accept | Self::RefuseIds(..) | Self::RefuseAbove(..) => match ids {
                Some(_) => Self::Accept,
                None => Self::Status(422, r#"{"detail":"not an eviction"}"#.into()),
            },
            other => other,
        }
    }

    /// Whether an eviction that is answered like this counts as accepted: the answer is one of an index.
    pub(super) fn accepts(&self) -> bool {
        match self {
            Self::Accept => true,
            Self::Status(200, body) | Self::Answer(200, _, body) => {
                let body: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
                body["removed_count"].is_u64()
            }
            _ => false,
        }
    }
}
