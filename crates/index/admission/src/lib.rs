//! Bounds for the peers of a listener in the server's process: how often they may connect, and how
//! much of our threads' time they may take. The threads that serve peers must never take the
//! processors from the threads that infer.
//!
//! Work is measured as processor time of the threads that do it, not in bytes or frames: so no kind of
//! request is cheap for the peer and dear for us. Each peer has a [`Bucket`], and all of a listener
//! have one together ([`Work`]). What happens to a peer that has emptied its own is up to the listener.
//! If the common one is empty, the threads that serve peers wait until it is paid back, or
//! send the peer away.

#![forbid(unsafe_code)]

mod bucket;
mod pace;
mod priority;
mod work;

pub use bucket::{Allowance, Bucket};
pub use pace::Pace;
pub use priority::give_way;
/// The stack of a thread in the server's process, as large as Rust's own are. Always name one: without it, Rust looks for
/// a variable (`RUST_MIN_STACK`), and the host's threads change variables.
pub const STACK: usize = 2 << 20;

pub use work::{Meter, Overspent, Peer, Work, processor_time};
