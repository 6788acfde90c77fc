//! A line of `CONTEXTPILOT_LOG_FILE`.

use serde::{Deserialize, Serialize};

use crate::{Evaluation, Reason, Timestamp};

/// A finished request for inference, whether it had an id or not. Request ids and numbers, no
/// text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogLine {
    /// When it was finished.
    pub at: Timestamp,
    /// Its id; `None`: it had none.
    pub id: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// The slot of its (first) task; `None`: it never got one.
    pub slot: Option<i32>,
    /// Prompts that were evaluated to their ends (`n`, or a list of prompts: more than one).
    pub prompts: u32,
    /// Tokens of these.
    pub prompt_tokens: u64,
    /// Those that were in the cache.
    pub reused: u64,
    /// Those that the engine evaluated.
    pub evaluated: u64,
    /// From the complete receipt of the request to the end of the evaluation that completed its
    /// (first) prompt; `None`: none was.
    pub time_to_first_token_seconds: Option<f64>,
    /// From the complete receipt of the request to the end of its answer.
    pub total_seconds: f64,
    /// The requests that its prompts pushed out of the cache, at most 1000.
    pub evicted: Vec<Evicted>,
    /// Why its prompts were evaluated; `None`: none was.
    #[serde(default)]
    pub evaluation: Option<Box<Evaluation>>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All of its prompts were evaluated, and it was answered (or its client left after that).
    Answered,
    /// It ended before its prompts were evaluated: refused, failed, or its client left.
    Unfinished,
    /// A newer server's word.
    #[serde(other)]
    Other,
}

/// A request that fell out of the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evicted {
    /// Its id.
    pub id: String,
    /// Why.
    pub reason: Reason,
}
