#![forbid(unsafe_code)]
#![doc = include_str!("../README.md")]

// The naive ledger in tests/ is also included by unit tests, and imports this crate by its name.
#[cfg(test)]
extern crate self as contextpilot_residency;

mod account;
mod adapters;
mod batch;
mod contexts;
mod entries;
mod evaluations;
mod event;
mod fact;
mod gap;
mod ids;
mod jobs;
mod ledger;
pub mod program;
mod prompts;
mod requests;
mod rewinding;
mod sequence;
mod slab;
mod token;
mod tree;

pub use account::{
    Account, Accounts, Around, Causes, Choice, Diverged, Elsewhere, Loss, MOST_REMEMBERED, Match,
    Matched, Occupied, REMEMBERED_BYTES, REMEMBERED_EACH, Rules, Sources, Taking, Through, Wishes,
};
pub use adapters::{Adapter, AppliedAdapter, Blend, Compared, Scale, activation};
pub use entries::{Entries, Entry};
pub use evaluations::Evaluation;
pub use event::{EngineWork, Event};
pub use fact::{Asker, Fact, Place, Reason, TokenCounts};
pub use ids::{
    Arrival, BufferId, CacheEntry, ContextId, EvaluationId, RequestId, SequenceId, TaskId, UNTIED,
};
pub use ledger::query::{Contents, Likeness, Saved, Unfinished, Whereabouts};
pub use ledger::shape::{Branch, Merged};
pub use ledger::tails::MOST_TAIL_TOKENS;
pub use ledger::upcoming::{Successor, Upcoming};
pub use ledger::{Ledger, MOST_LIVE};
pub use prompts::{MOST_TOKENS as MOST_WAITING_TOKENS, MOST_WAITING, Prompt, Prompts};
pub use requests::{LIVE_BYTES, MOST_UNCACHED};
pub use rewinding::{RewindGeneration, Rewinding};
pub use token::{FILLER, Position, Token, is_of_vocabulary, media_run, media_token, unseen_token};
