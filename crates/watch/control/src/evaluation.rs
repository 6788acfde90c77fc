//! Why a prompt was evaluated.

use std::fmt;

use contextpilot_residency::{Causes, Sources};
use serde::{Deserialize, Serialize};

use crate::{ChosenBy, Reason, Timestamp};

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Which tokens of a request's prompt were reused or evaluated, and why. If a request has several prompts
/// (a list, `n`), numbers are added up, and the other fields are of the prompt with the most evaluated
/// tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evaluation {
    /// Tokens: [`reused`](Self::reused) and [`evaluated`](Self::evaluated).
    pub prompt_tokens: u64,
    /// Tokens that were not evaluated: the engine's `cache_n`, and what the prefix store loaded
    /// ([`Sources::store`]).
    pub reused: u64,
    /// Tokens that were evaluated: the engine's `prompt_n`, less what the prefix store loaded.
    pub evaluated: u64,
    /// The time that this took, from the launch of the prompt's task in its slot to the first token of the
    /// answer. `None`: not measured, or there is no first token yet.
    pub seconds: Option<f64>,
    /// Why tokens were evaluated. Adds up to [`evaluated`](Self::evaluated).
    pub causes: Causes,
    /// Where reused tokens were. Adds up to [`reused`](Self::reused).
    pub from: Sources,
    /// The LoRA adapters that were applied when its evaluation began, as far as the hook sees them, in the
    /// server's order. `None`: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapters: Option<Vec<AppliedAdapter>>,
    /// The client left before all of the prompt was evaluated: these are the tokens up to there, and the time up to
    /// the end of its last batch.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub given_up: bool,
    /// How many requests for this prompt, one after the other, were given up before this one.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempts: u64,
    /// Tokens of the prompts that are an answer's own, where the tokenizer has others (`CONTEXTPILOT_KEEP_TOKENS`).
    #[serde(skip_serializing_if = "is_zero")]
    pub kept: u64,
    /// Where the prompt diverged from the earlier prompt with the longest common prefix, the latest if there
    /// are several. `None` if there is none, or if one prompt is a prefix of the other.
    pub diverged: Option<Diverged>,
    /// How most tokens of [`Causes::evicted`] were lost. `None` if no token was, or if that is no longer
    /// known.
    pub lost: Option<Lost>,
    /// What the request is about, with `CONTEXTPILOT_EXPLAIN_TEXT=1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<Title>,
}

/// What a request is about, for people. Without characters that a terminal obeys, and short.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Title {
    /// The first words of its last user message, or of its prompt; empty: not known.
    pub words: String,
    /// The program that sent it, by the first word of `User-Agent`; empty: not known.
    pub agent: String,
}

impl Evaluation {
    /// Adds another prompt of the same request. `is_largest`: more of its tokens were evaluated than of
    /// any earlier prompt of the request.
    pub fn add(&mut self, other: Self, is_largest: bool) {
        if is_largest {
            self.adapters = other.adapters;
            self.attempts = other.attempts;
            self.diverged = other.diverged;
            self.lost = other.lost;
        }
        self.given_up |= other.given_up;
        self.prompt_tokens += other.prompt_tokens;
        self.reused += other.reused;
        self.evaluated += other.evaluated;
        self.causes.add(other.causes);
        self.from.add(other.from);
    }
}

/// A LoRA adapter that was applied.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AppliedAdapter {
    /// Its `id` in `GET /lora-adapters` of the server. `None`: not known, because servers of 2025 do not tell
    /// the engine which of them it is.
    pub id: Option<u32>,
    /// How strongly it was applied. Never 0.
    pub scale: f32,
}

/// Where a prompt diverged from an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Diverged {
    /// The length of the common prefix, in tokens.
    pub at: u64,
    /// The request of the earlier prompt; `None` if that is no longer known.
    pub request: Option<RequestName>,
    /// Tokens that differ there: the larger of [`inserted`](Self::inserted) and
    /// [`deleted`](Self::deleted).
    pub differing: u64,
    /// Tokens behind the difference that are the same in both prompts.
    pub same_after: u64,
    /// Tokens from the difference on that the earlier prompt has, too, in whatever order, and that were
    /// still cached. So many more could have been reused if they had come as in the earlier prompt, and
    /// before what differs.
    pub repeated: u64,
    /// At least so many of these stand in another order than in the earlier prompt: a list of tools may
    /// have been sorted anew.
    pub reordered: u64,
    /// Tokens right at the difference that are not [`repeated`](Self::repeated). If these are few and
    /// others are reordered, the order is all that differs.
    pub unmatched: u64,
    /// Tokens that only this prompt has there.
    pub inserted: u64,
    /// Tokens that only the earlier prompt has there.
    pub deleted: u64,
    /// The difference lies in what was generated for the earlier prompt: the client sends its answer back otherwise,
    /// or not at all.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub answer: bool,
    /// The difference lies in an answer before that one, which the earlier prompt had sent back: it is left out now, or
    /// changed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub earlier_answer: bool,
    /// Tokens of one block that the earlier prompt has right at the difference. Here it stands behind text that stood
    /// behind it there. 0: no such block is seen.
    #[serde(skip_serializing_if = "is_zero")]
    pub block: u64,
    /// Both prompts have media there (an image), and the server does not take them for the same.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub media: bool,
    /// Whether the request may have what is new at the difference, with `CONTEXTPILOT_EXPLAIN_TEXT=1`: a date or another
    /// text with digits. `Some(false)`: no client sent it, but the server's chat template wrote it. `None`: not known, or there
    /// is no such text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<bool>,
    /// The tokens around the difference as text, with `CONTEXTPILOT_EXPLAIN_TEXT=1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<DivergedText>,
}

/// The tokens around a difference, as text. Bytes that are not UTF-8 are replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DivergedText {
    /// Some tokens that both prompts have before the difference.
    pub before: String,
    /// Some tokens of the earlier prompt from the difference on.
    pub old: String,
    /// Some tokens of this prompt from the difference on.
    pub new: String,
    /// How many characters of [`old`](Self::old) are of tokens that differ; this prompt has the others, too, behind
    /// [`new_differs`](Self::new_differs). `None`: an older hook does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_differs: Option<usize>,
    /// How many characters of [`new`](Self::new) are of tokens that differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_differs: Option<usize>,
}

/// How tokens were lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    /// When they were lost.
    pub when: Timestamp,
    /// Why they were lost.
    pub reason: Reason,
    /// The request that took their place; `None` if there was none, or it is not known.
    pub by: Option<RequestName>,
    /// What took them, if no prompt did. `None`: a prompt, or it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<Through>,
    /// How many tokens of [`Causes::evicted`] were lost so.
    #[serde(default)]
    pub tokens: u64,
    /// How the slot that had them was chosen for that request. `None`: not known, or the slot's content was
    /// saved to the host prompt cache before.
    #[serde(default)]
    pub chosen_by: Option<ChosenBy>,
    /// The share of that request's prompt that the slot held, 0 to 1. `None` as for
    /// [`chosen_by`](Self::chosen_by).
    #[serde(default)]
    pub similarity: Option<f64>,
    /// The share of the slot's content that stayed there, 0 to 1. Below a half, the server saves the content
    /// to the host prompt cache first, if it has one. `None` as for [`chosen_by`](Self::chosen_by).
    #[serde(default)]
    pub kept: Option<f64>,
}

/// What takes tokens from a slot, besides prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Through {
    /// A client erased the slot (`POST /slots/0?action=erase`).
    Erase,
    /// A client restored something else into the slot (`POST /slots/0?action=restore`).
    Restore,
    /// The context that all slots share was full, and the server emptied an idle slot to go on.
    NoRoom,
    /// The router ended the process of the model to make room for another model. Only `why` says so: for the next process
    /// of the model, such tokens are new.
    Swap,
    /// The same, because a client unloaded the model.
    Unload,
    /// A newer server's word.
    #[serde(other)]
    Other,
}

/// Names a request: by its id or, without one, by the number that this process gave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RequestName {
    /// Its id.
    Id(String),
    /// Its number.
    Number(u64),
}

impl RequestName {
    /// The number in `#17`: so lists name a request without an id.
    #[must_use]
    pub fn number(name: &str) -> Option<u64> {
        name.strip_prefix('#')?.parse().ok()
    }
}

impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => f.write_str(id),
            Self::Number(number) => write!(f, "#{number}"),
        }
    }
}

/// A request whose prompt was evaluated: an entry of `GET /requests/last`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// The number that this process gave it, in the order of arrival. 0 if it came on a
    /// connection that could not be read.
    pub number: u64,
    /// Its id; `None`: it had none.
    pub id: Option<String>,
    /// When (the last of) its prompts was evaluated.
    pub at: Timestamp,
    /// The slot of (the last of) its prompts.
    pub slot: i32,
    /// From the complete receipt of the request to the end of the evaluation that completed its (first)
    /// prompt. `None` until it is answered.
    #[serde(default)]
    pub time_to_first_token_seconds: Option<f64>,
    /// When it was answered. `None`: it is not answered yet.
    #[serde(default)]
    pub ended: Option<Timestamp>,
    /// The sections of a request for a chat. `None`: it is for something else, or its body was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sections: Option<Sections>,
    /// Which tokens were reused or evaluated, and why.
    pub evaluation: Evaluation,
}

/// The sections of a request for a chat, in bytes of its body's JSON. Which of the prompt's tokens belong to
/// each is not known: the server's chat template decides that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sections {
    /// `system` (`/v1/messages`), `instructions` (`/v1/responses`), and messages with the role `system` or
    /// `developer`.
    pub system: u64,
    /// `tools`.
    pub tools: u64,
    /// All other messages.
    pub messages: u64,
}

/// `GET /requests/last?n=…`: the latest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latest {
    /// At most as many as were asked for.
    pub requests: Vec<Evaluated>,
}
