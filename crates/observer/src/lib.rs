//! What people want to know of the cache, gathered from what the ledger is told and says.
//!
//! ```text
//!             ┌──────────► ledger ───► effects ──┐
//!  events ────┤                                  ▼
//!  notes ─────┴───────────────────────────► [`Observer`] ──► residency events, log lines
//!                                                │
//!                                                └─ on demand: stats, a request, metrics
//! ```
//!
//! Like the ledger it has no clock, no thread and no I/O: each call brings the time along, and
//! what is to be sent or written is collected and handed over. It exists only if somebody asked
//! for it (`CONTEXTPILOT_LISTEN`, `CONTEXTPILOT_LOG_FILE`), and the ledger does not know of it.
//!
//! **Tokens.** *Evaluated* are the entries that were submitted for a slot from the launch of a task
//! to the one whose output ended its prompt, and evaluated without an error; *reused* are the
//! tokens that the slot had before the first of them, and the prompt is both. These are the
//! engine's own `prompt_n` and `cache_n`, also where the rows of an image share positions. A child
//! of a request for several answers (`n`) takes over its parent's prompt and is counted as the
//! engine counts it: with the parent's figures.
//!
//! **Time to first token** is from the complete receipt of a request to the end of the evaluation
//! that completed its prompt. Sampling, and the way of the answer, are not in it.
//!
//! **Bounds.** One entry for each request under way and for each live id, the last
//! [`MOST_GONE`] evictions, [`MOST_EVALUATIONS`] evaluations, [`MOST_EVENTS`] events with [`MOST_IDS`] ids, 60 seconds, the slots, the
//! host's buffers.

#![forbid(unsafe_code)]

mod evaluations;
mod gone;
mod histogram;
mod launches;
mod matching;
mod metrics;
mod minute;
mod names;
mod note;
mod observer;
mod prompt;
mod quote;
mod recorder;
mod ring;
mod stats;
mod work;

pub use contextpilot_traffic::MOST_TOKENS as MOST_RECORDED_TOKENS;
pub use evaluations::MOST_EVALUATIONS;
pub use gone::MOST_GONE;
pub use names::MOST_NAMED;
pub use note::{Note, Now, Stamp};
pub use observer::{After, Observer, Told};
pub use quote::quote;
pub use recorder::{MOST_WAITING, Recorder};
pub use ring::{MOST_EVENTS, MOST_IDS, Ring, Since};
pub use stats::Outside;
