//! What llama-server would have reused of recorded traffic, had its flags been others.
//!
//! The server's rules are those of its own source, `tools/server/server-context.cpp` and
//! `server-task.cpp` of late 2026; the functions here name the one that they follow. Nothing is
//! learned from the recording but sizes and rates.
//!
//! ```text
//! Traffic ──► timeline (who follows whom) ──► Server: choose a slot ─► host cache ─► reuse ─► serve
//! Setting ──────────────────────────────────►   │                                            │
//!                                               └── queue, while all slots are busy ◄────────┘
//! ```
//!
//! **Time.** A prompt takes as long as its evaluated tokens at the recorded rate, an answer as long
//! as it took. A request that came while the server had nothing to do is sent when the one before is
//! finished, after the pause that was recorded; so is one that continues the answer of another. All
//! others come when they came.
//!
//! **Slots that clients erase and restore.** A restored slot has what it had in the recording, also at
//! another setting, where the file might have been saved from another content. Its checkpoints, where
//! the server saves them (build 11669), are those of the last slot that held the same; of a file from
//! another process they are not known.
//!
//! **Refused requests.** What a request does to the slot that is chosen for it, though it is refused
//! then: the slot counts as used, what it had may be exchanged with the host cache, and other adapters
//! empty it. Its prompt is not recorded, so it is refused at every setting, and at another one the
//! host cache is asked for what it was asked for in the recording.
//!
//! **What is not modelled.** Slots at work do not slow each other down. Speculative drafts. Batches
//! that failed for want of room. Of the servers of early 2025, that slots are compared with a prompt
//! by what they have in common anywhere, not only at the front.
//!
//! Pure: equal input, equal output.

#![forbid(unsafe_code)]

mod advice;
mod checkpoints;
mod content;
mod files;
mod host;
mod marks;
mod point;
mod reuse;
mod server;
mod setting;
mod sizes;
mod timeline;
mod window;

pub use advice::{Advice, Change, LEAST_GAIN, Repeated, advise};
pub use point::{Outcome, Point, Rates, simulate};
pub use setting::{Generation, Setting, Unknown};
pub use sizes::Sizes;
