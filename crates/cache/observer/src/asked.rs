//! What is looked at to say what could be reused: the model of the cache, and the prefix store.

use contextpilot_control::KeptBeginning;
use contextpilot_residency::{Ledger, Token};

/// What the prefix store has of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Tokens at its beginning.
    pub tokens: u64,
    /// Fewer tokens than these are not loaded.
    pub least: u64,
    /// What another slot holds is of use only if all of it is the beginning of the prompt, for it cannot be cut back.
    pub whole: bool,
    /// What is kept of them on request.
    pub kept: Option<KeptBeginning>,
}

/// What the store has of some tokens; `None`: that is not known.
pub type AskStore<'a> = &'a dyn Fn(&[Token]) -> Option<Stored>;

/// What a look at requests may ask: the model of the cache, and the prefix store, if there is one.
#[derive(Clone, Copy, Default)]
pub struct Asked<'a> {
    /// The ledger.
    pub ledger: Option<&'a Ledger>,
    /// `None`: there is no store.
    pub store: Option<AskStore<'a>>,
}
