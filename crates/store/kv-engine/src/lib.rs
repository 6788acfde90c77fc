//! What the prefix store asks of an engine, and what it decides to ask.
//!
//! ```text
//!  call of the host ──► dense, bounded ──► Plan ──► carry_out ──► Engine        the hook, or a test's in memory
//!                            │    ▲                    │
//!                            ▼    │ what is stored     ▼
//!                         Record  Supply            Journal ──► repair, after an error of ours
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`Engine`] | a context of an engine: what can be asked of it, and what is true afterwards |
//! | [`Host`] | the same, with what is known of it ([`Record`]), its [`Journal`], and what is stored ([`Supply`]) |
//! | `change` | how one sequence is changed, as a list of steps, and how its record and its journal are kept alike: [`changed`] |
//! | [`dense`] | contexts that can go back to any position |
//! | [`bounded`] | those that cannot: what is pending, a batch by several calls, tails where other prompts may turn off |
//! | [`batch`] | the host's batch: what comes before and after the engine evaluates it |
//! | [`Tails`] | tails that wait in memory for their tokens' rows |
//! | [`repair`](repair()) | puts a context right after an error of ours |
//!
//! The hook implements the traits once, by a value that only unsafe code can make: the context is alive, and this thread
//! uses it while a call of the host lasts. Tests implement them in memory.

#![forbid(unsafe_code)]

pub mod batch;
pub mod bounded;
mod change;
pub mod dense;
mod engine;
mod host;
mod journal;
mod repair;
mod tails;

pub use bounded::{keep_checkpoint, last_message};
pub use change::changed;
pub use engine::{Engine, LOST, NO_ROOM, Refusal, STOPPED};
pub use host::{Bounds, Done, Host, HostBatch, Part, Record, States, Supply, Wanted, is_bounded};
pub use journal::{Change, Checkpoint, Journal};
pub use repair::repair;
pub use tails::{Tail, Tails};

/// Puts the engine at what the host believes of a sequence: what is ahead is cut off, and what is pending is given to it.
/// Negative: of all. A caller that is about to read or change a sequence calls this first. Returns whether anything was cut off.
pub fn synchronise<H: Host>(host: &H, sequence: i32) -> bool {
    if !is_bounded(host) {
        return dense::cut_ahead(host, sequence);
    }
    bounded::undo(host, sequence);
    bounded::complete(host, sequence);
    false
}
