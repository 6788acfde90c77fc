//! What the index asks of the hook, and what the hook answers.

use crate::requests::Expected;

/// How often a context is ordered by what the prefix store may have, if it then turns out not to have it.
pub(crate) const TRIES: usize = 3;

/// A query for the hook, which knows better than the index: how much would be reused for a prompt that
/// begins like this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The id of a request that is cached, or that the prefix store may have.
    pub id: String,
    /// Tokens that the new prompt has in common with it.
    pub common: u64,
    /// Tokens of the new prompt, about.
    pub tokens: u64,
    /// The blocks in common.
    pub(crate) blocks: usize,
    /// Its number, if it has left the engine.
    pub(crate) stored: Option<u64>,
}

/// What the hook answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Tokens of the prompt; 0: the hook does not know the request.
    pub tokens: u64,
    /// Tokens that would be reused.
    pub reused: u64,
    /// Tokens beyond these that would be loaded from the prefix store; `None`: there is none, or it is not known what it
    /// has.
    pub loaded: Option<u64>,
    /// What the prefix store keeps of it on request: so many tokens, until this time in milliseconds since 1970.
    pub kept: Option<(u64, u64)>,
}

impl Found {
    /// Tokens that would not be evaluated.
    pub(crate) fn all(&self) -> u64 {
        self.reused.saturating_add(self.loaded.unwrap_or(0))
    }
}

impl Question {
    /// The forecast after the hook's answer: so many tokens would be reused, or loaded.
    pub(crate) fn expected(&self, reused: u64) -> Expected {
        Expected {
            blocks: self.blocks,
            tokens: reused,
            whole: reused >= self.common,
        }
    }
}
