//! `POST /match`.

use serde::{Deserialize, Serialize};

/// A prompt to be compared with what is cached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatchRequest {
    /// Its tokens, as llama-server's `POST /tokenize` gives them (`add_special` as the prompt has
    /// it).
    #[serde(default)]
    pub tokens: Vec<i32>,
    /// Instead of tokens: it begins like the prompt of a request that is cached.
    #[serde(default)]
    pub like: Option<Like>,
    /// The slot that the request would name.
    #[serde(default)]
    pub id_slot: Option<i32>,
}

/// A prompt that begins like that of a request that is cached, and then differs from all that is.
/// For who knows texts and lengths, but no tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Like {
    /// The request's id. If it is not cached, the answer is about no prompt: its
    /// [`tokens`](Match::tokens) are 0.
    pub id: String,
    /// Tokens that both begin with.
    pub common: u32,
    /// Tokens of the prompt in all. 1,048,576 are counted at most.
    pub tokens: u32,
}

/// What the engine would reuse for a prompt, were it to come now as a completion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Match {
    /// Tokens of the prompt.
    pub tokens: u64,
    /// The most that could be reused of any one place.
    pub best: u64,
    /// Each slot that holds anything.
    pub slots: Vec<SlotMatch>,
    /// Each entry of the host prompt cache, the oldest first.
    pub host: Vec<HostMatch>,
    /// The slot that the engine would choose; `None`: all are at work, so it would wait; or one that
    /// was never used, of which the number is not known.
    pub slot: Option<i32>,
    /// How it would be chosen.
    pub chosen_by: Option<ChosenBy>,
    /// The entry of the host prompt cache that would be loaded into it: its place in
    /// [`host`](Self::host).
    pub loads: Option<u64>,
    /// Tokens that would be reused there.
    pub reused: u64,
}

/// A slot, next to the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlotMatch {
    /// Its number.
    pub slot: i32,
    /// Tokens that it holds.
    pub tokens: u64,
    /// Tokens that both begin with.
    pub common: u64,
    /// Tokens that would be reused there.
    pub reusable: u64,
    /// It is at work.
    pub busy: bool,
}

/// An entry of the host prompt cache, next to the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostMatch {
    /// Tokens that it holds.
    pub tokens: u64,
    /// Tokens that both begin with.
    pub common: u64,
    /// Tokens that would be reused, were it loaded.
    pub reusable: u64,
}

/// How the engine chooses a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChosenBy {
    /// The request names it.
    Id,
    /// It holds the largest share of the prompt.
    Similarity,
    /// It was not used for the longest time.
    LeastRecentlyUsed,
    /// A newer server's word.
    #[serde(other)]
    Other,
}
