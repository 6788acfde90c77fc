//! A line of `CONTEXTPILOT_LOG_FILE`.

use serde::{Deserialize, Serialize};

use crate::{Evaluation, Reason, Sections, Timestamp};

/// A finished inference request, with or without an id. It has request ids and numbers, no
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
    /// Prompts that were evaluated completely. With `n` or a list of prompts there may be several.
    pub prompts: u32,
    /// Tokens of these prompts.
    pub prompt_tokens: u64,
    /// Tokens of these prompts that were reused.
    pub reused: u64,
    /// Tokens of these prompts that the engine evaluated.
    pub evaluated: u64,
    /// From the complete receipt of the request to the end of the evaluation that completed its
    /// (first) prompt; `None`: none was.
    pub time_to_first_token_seconds: Option<f64>,
    /// From the complete receipt of the request to the end of its answer.
    pub total_seconds: f64,
    /// The requests that its prompts evicted, at most 1000.
    pub evicted: Vec<Evicted>,
    /// Why its prompts were evaluated; `None`: none was.
    #[serde(default)]
    pub evaluation: Option<Box<Evaluation>>,
    /// The sections of a request for a chat. `None`: it is for something else, or its body was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sections: Option<Sections>,
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

/// An evicted request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evicted {
    /// Its id.
    pub id: String,
    /// Why it was evicted.
    pub reason: Reason,
}
