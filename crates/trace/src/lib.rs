//! Published traces of requests, as chains of blocks: what could be reused at best, and with so much room.

#![forbid(unsafe_code)]

mod best;
mod curve;
pub mod fleet;
mod policy;
pub mod read;
mod session;
mod trace;
mod tree;

pub use best::{Future, best};
pub use curve::{Reuse, ceiling, curve, warm_up};
pub use policy::{Policy, play};
pub use trace::{Builder, Clock, NONE, NewRequest, Request, Sample, Trace};
pub use tree::{MOST_BLOCKS, Node, ROOT, TooLarge, Tree};
