//! `POST /match`.

use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// A prompt to compare with what is cached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatchRequest {
    /// Its tokens, as llama-server's `POST /tokenize` returns them (with `add_special` as for the
    /// prompt).
    #[serde(default)]
    pub tokens: Vec<i32>,
    /// Instead of tokens: it begins like the prompt of an earlier request.
    #[serde(default)]
    pub like: Option<Like>,
    /// The slot that the request would name.
    #[serde(default)]
    pub id_slot: Option<i32>,
}

/// A prompt that begins like the prompt of an earlier request, and then differs from everything that is
/// cached or stored. For clients that know texts and lengths, but no tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Like {
    /// The request's id. The request is cached; or the server has a prefix store, and the prompt is still remembered
    /// (by the limits of [`Evaluation`](crate::Evaluation)). Otherwise [`tokens`](Match::tokens) in the answer are 0.
    pub id: String,
    /// Tokens that both begin with.
    pub common: u32,
    /// Tokens of the prompt in all. 1,048,576 are counted at most.
    pub tokens: u32,
}

/// What the engine would reuse for a prompt that came now as a completion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Match {
    /// Tokens of the prompt.
    pub tokens: u64,
    /// The most tokens that could be reused of any single slot or host entry.
    pub best: u64,
    /// Each slot that holds anything.
    pub slots: Vec<SlotMatch>,
    /// Each entry of the host prompt cache, the oldest first.
    pub host: Vec<HostMatch>,
    /// The slot that the engine would choose. `None` if all slots are busy, so that the request would wait,
    /// or if it would be a slot that was never used, whose number is not known.
    pub slot: Option<i32>,
    /// How it would be chosen.
    pub chosen_by: Option<ChosenBy>,
    /// The entry of the host prompt cache that would be loaded into the slot, as an index into
    /// [`host`](Self::host).
    pub loads: Option<u64>,
    /// Tokens that would be reused there.
    pub reused: u64,
    /// Tokens at the beginning of the prompt that the prefix store has. `None`: there is no store, or it is not known
    /// what it has for such a prompt.
    pub stored: Option<u64>,
    /// Tokens beyond [`reused`](Self::reused) that would be loaded and not evaluated: those that are stored, or that
    /// another slot holds, whose content is then copied to the store first. Few tokens of a long prompt may be evaluated
    /// nevertheless, if they are not worth the copy. `None` if `stored` is `None`.
    pub loaded: Option<u64>,
    /// What is kept of the [`stored`](Self::stored) tokens, because a client has asked for it (`cache_control`): it
    /// leaves the prefix store last. `None`: nothing is, or `stored` is `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptBeginning>,
}

/// The beginning of a prompt that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptBeginning {
    /// Its tokens.
    pub tokens: u64,
    /// From when on it may leave like others.
    pub until: Timestamp,
}

/// A slot, compared with the prompt.
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
    /// It is busy.
    pub busy: bool,
}

/// An entry of the host prompt cache, compared with the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostMatch {
    /// Tokens that it holds.
    pub tokens: u64,
    /// Tokens that both begin with.
    pub common: u64,
    /// Tokens that would be reused if the entry were loaded.
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
    /// It is the least recently used.
    LeastRecentlyUsed,
    /// A newer server's word.
    #[serde(other)]
    Other,
}
