//! An index: orders contexts (lists of retrieved documents) so that prompts begin with what an
//! engine has cached, hands out ids for the requests that are made of them, and learns what
//! became of these.
//!
//! The API is that of ContextPilot's index server 0.5.0: `/reorder`, `/evict` and so on. This
//! crate has no server, no clock and no randomness: a request is parsed ([`Query::parse`]),
//! answered from the state ([`Index::answer`]), and what takes long in between ([`Work::run`])
//! needs the state for nothing, so that a server can do it elsewhere.
//!
//! The index learns what is cached from three sources: the events of the hook's control endpoint
//! ([`Index::cached`], [`Index::evicted`]), `POST /evict`, and answers that pass through it
//! ([`Index::completed`]). Without these it guesses, and its answers say so.

#![forbid(unsafe_code)]

mod answer;
mod block;
mod context;
mod deduplicate;
mod errors;
mod evict;
mod forecast;
mod index;
mod limits;
mod metrics;
mod numbering;
mod predict;
mod query;
mod reorder;
mod reply;
mod requests;
mod room;
mod search;
mod status;
mod timings;
mod validate;

pub use answer::Answer;
pub use errors::Errors;
pub use forecast::Question;
pub use index::{Index, Mode, Truth, Wish};
pub use limits::Limits;
pub use query::{Endpoint, Query};
pub use reorder::{Outcome, Work, Worked};
pub use timings::{Timings, timings};
