//! What llama-server would have reused of recorded traffic, had its flags been others.
//!
//! The rules are those of the server's own source, `tools/server/server-context.cpp` and
//! `server-task.cpp` of late 2026, and of older generations ([`Generation`]). Functions here name the
//! function of the server that they follow. From the recording come the requests and the changes of
//! slots, the server's flags and build, the sizes of saved states, the rates of evaluation, and where
//! the messages of users begin.
//!
//! ```text
//! Traffic ──► timeline (who follows whom) ──► Server: choose a slot ─► host cache ─► reuse ─► serve
//! Setting ──────────────────────────────────►   │                                            │
//!                                               └── queue, while all slots are busy ◄────────┘
//! ```
//!
//! **Time.** The server has one thread, and works in turns: it takes on what came since the last turn, then it
//! evaluates one batch, which the prompts of all slots share in the order of the slots. What comes meanwhile waits.
//! A batch takes as long as its tokens at the recorded rates (`times`). An answer takes as long as it did without the
//! prompts of others; while these are evaluated, it gets a token for each batch. Clients wait for their answers: a request
//! comes when the answer that its client waited for is finished, after the recorded pause (`timeline`). So there
//! are never more requests at work than there were clients.
//!
//! **The prefix store** below the server is its own code (`crates/store/kv-store`), asked when the hook would ask it. For models
//! whose cache cannot go back to any position, where states are taken and what is loaded is decided by `crates/store/kv-engine`, for an
//! engine that has positions and no rows. Copying takes the bytes that are copied
//! at the given speed. What was loaded in the recording although no request before had it was there from the start.
//! Further answers (`n`), prompts with media, and tokens that were moved or restored by clients are left out.
//!
//! **Slots that clients erase and restore.** A restored slot gets the content that it got in the
//! recording. This is so at every setting, although another setting might have led to another content
//! of the state file. Servers since build 11669 also save the slot's checkpoints in the file. These are
//! taken from the last slot that held the same content. If none did, the file is from another process,
//! and its checkpoints are not known.
//!
//! **Sleep.** What kept the recorded server awake is not recorded, but when it slept is: at the recorded seconds it sleeps
//! then. At others it sleeps when it has had nothing to do for so long.
//!
//! **Refused requests.** A refused request may change the slot that was chosen for it: the slot counts
//! as used, its content may be exchanged with the host prompt cache, and other adapters empty it. Its
//! prompt is not recorded, so it is refused at every setting. If content was saved or loaded for it in
//! the recording, the simulation looks in the host prompt cache for what was found there.
//!
//! **What is not modelled.** Answers that are generated side by side do not slow each other down. There are no speculative drafts,
//! and no batches that fail for want of room although no slot is idle. Servers of early 2025 compare a slot with a prompt by what
//! they have in common anywhere; here only the common prefix counts. Servers between the generations may
//! mix their rules: of build 9246, 38 of 126 traces differ, most by the one token that it does not reuse
//! where a prefix has no second.
//!
//! Pure: equal input, equal output.

#![forbid(unsafe_code)]

mod advice;
mod alike;
mod checkpoints;
mod client;
mod content;
mod files;
mod host;
#[cfg(test)]
mod made;
mod marks;
mod point;
mod prefixes;
mod put_right;
mod rates;
mod replay;
mod reuse;
mod seen;
mod server;
mod setting;
mod simulate;
mod sizes;
mod store;
mod timeline;
mod times;
mod whole;
mod window;

pub use advice::{
    Advice, Change, Each, Kind, LEAST_GAIN, Repeated, Trials, advise, advise_with, error_of_replay,
    points_with, trials_with,
};
pub use client::{Client, GivenUp, continued, given_up, without_kept_tokens, without_swaps};
pub use point::{Outcome, Point};
pub use put_right::{Difference, put_right};
pub use rates::Rates;
pub use replay::Replay;
pub use seen::Seen;
pub use setting::{Generation, STORE_SPEED, Setting, Unknown};
pub use simulate::{Spread, simulate};
pub use sizes::Sizes;
