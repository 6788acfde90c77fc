//! An index: orders contexts (lists of retrieved documents) so that prompts begin with what an
//! engine has cached, hands out ids for the requests that are made of them, and learns what
//! became of these.
//!
//! The API is that of ContextPilot's index server 0.5.0: `/reorder`, `/evict` and so on. This
//! crate has no server, no clock and no randomness: a request is parsed ([`Query::parse`]), and
//! answered from the state ([`Index::answer`]). What takes more than a moment is done in pieces
//! ([`Work`]): those that need the state are short, and the others can be done elsewhere.
//!
//! **Bounds.** [`Limits`] has those of one request, and of all that is kept. How much memory a request takes
//! while it is worked on is told before ([`weight()`](weight()), [`Query::more_weight`]), so that a server can bound all of them
//! together. All work is linear in the length of a request, or nearly so (`n log n`), but for batches, whose
//! comparisons have a bound of their own.
//!
//! With a prefix store below the engine, prompts that have left the engine are a tier of their own
//! ([`Index::left_engine`]), and orders continue those, too.
//!
//! The index learns what is cached from three sources: the events of the hook's control endpoint
//! ([`Index::cached`], [`Index::left_engine`]), `POST /evict`, and answers that pass through it
//! ([`Index::completed`]). Without these it guesses, and its answers say so.

#![forbid(unsafe_code)]

mod answer;
mod block;
mod context;
mod deduplicate;
mod endpoint;
mod errors;
mod evict;
mod forecast;
mod index;
mod limits;
mod metrics;
mod mode;
mod numbering;
mod outcome;
mod piece;
mod predict;
mod query;
mod question;
mod reorder;
mod reply;
mod requests;
mod room;
mod search;
mod status;
mod stored;
mod tier;
mod timings;
mod turns;
mod validate;
mod weight;
mod work;

pub use answer::IndexAnswer;
pub use endpoint::Endpoint;
pub use errors::Errors;
pub use index::{Index, Wish};
pub use limits::Limits;
pub use mode::{Mode, Truth};
pub use outcome::{Forgotten, Outcome};
pub use piece::Next;
pub use query::Query;
pub use question::{Found, Question};
pub use timings::{Timings, timings};
pub use weight::weight;
pub use work::Work;
