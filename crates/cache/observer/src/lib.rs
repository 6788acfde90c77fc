//! Gathers what people want to know of the cache, from the ledger's facts.
//!
//! ```text
//!  events ──► ledger ──► facts ──┐
//!                                ▼
//!  notes ─────────────────► [`Observer`] ──► residency events, log lines
//!                                │
//!                                └─ on demand: stats, a request, metrics
//! ```
//!
//! Like the ledger it has no clock, no thread and no I/O. Each call gets the time as an argument, and
//! the caller fetches what is to be sent or written. It exists only if a setting asks for it
//! (`CONTEXTPILOT_LISTEN`, `CONTEXTPILOT_LOG_FILE`, `CONTEXTPILOT_TRAFFIC_FILE`). The ledger says who works
//! on what; the observer keeps times, sums, and what became of requests. The [`Recorder`] makes a recording
//! of traffic.
//!
//! **Tokens.** *Evaluated* tokens of a prompt are the batch entries of its slot, from the launch of the
//! task to the entry whose output ended the prompt, in batches that succeeded. *Reused* tokens are those
//! that the slot had before the first of these entries. The prompt is both together. These are the
//! engine's own `prompt_n` and `cache_n`, also if the rows of an image share positions. A further answer
//! to a prompt (`n`) takes over its parent's prompt. Nothing is evaluated for it, and nothing counted. A prompt whose
//! client left counts as far as it was evaluated.
//!
//! **Time to first token** is from the complete receipt of a request to the end of the evaluation
//! that completed its prompt. It includes neither sampling nor the sending of the answer.
//!
//! **Bounds.** The observer and the ledger keep one entry each for each request under way, each live id,
//! each slot and each host buffer; the last [`MOST_GONE`] evictions and [`MOST_EVALUATIONS`] evaluations; [`MOST_EVENTS`]
//! events with [`MOST_IDS`] ids; and sums for each of the last 60 seconds.

#![forbid(unsafe_code)]

mod asked;
mod difference;
mod evaluations;
mod gone;
mod histogram;
mod matching;
mod metrics;
mod minute;
mod names;
mod note;
mod observer;
mod quote;
mod recorder;
mod ring;
mod stats;
mod tree;
mod work;

pub use asked::{AskStore, Asked, Stored};
pub use contextpilot_traffic::MOST_TOKENS as MOST_RECORDED_TOKENS;
pub use difference::Difference;
pub use evaluations::{MOST_EVALUATIONS, MOST_SENT};
pub use gone::MOST_GONE;
pub use names::{MOST_MOVED, MOST_NAMED};
pub use note::{KeptPrompt, Note, Now, Stamp};
pub use observer::{Observer, Output};
pub use recorder::{MOST_OTHER_TOKENS, MOST_WAITING, Recorder};
pub use ring::{MOST_EVENTS, MOST_IDS, Ring, Since};
pub use stats::Outside;
