//! Published traces of requests: what could be reused of them at best, with so much room, and by a fleet of servers.
//!
//! A request is a chain of *blocks* of tokens. All chains form a [`Tree`], whose nodes are runs of blocks that no request
//! parts, so a request is a handful of nodes where it has hundreds of blocks, and ten million of them take a gigabyte.
//!
//! ```text
//! lines ──► read::Reader ──► Builder ──► Trace ─┬─► ceiling     room for everything
//!                                               ├─► curve       LRU, all sizes in one pass
//!                                               ├─► best        the optimal eviction (Belady)
//!                                               ├─► play        policies that know only the past
//!                                               └─► fleet       servers, a router, and prefix stores
//! ```
//!
//! What is reused is a beginning of a prompt: a block counts only with all blocks before it, and no cache keeps one without
//! them. How much of a prompt's tokens that is follows from its length: the last block may be partly filled, and what is
//! behind the last block is never reused.
//!
//! Pure: no clock, no I/O.

#![forbid(unsafe_code)]

mod best;
mod curve;
pub mod fleet;
mod policy;
pub mod read;
mod request;
mod session;
mod trace;
mod tree;

pub use best::{Future, best};
pub use curve::{Reuse, ceiling, curve, warm_up};
pub use policy::{Policy, play};
pub use request::{NONE, Request};
pub use trace::{Builder, Clock, NewRequest, Sample, Trace};
pub use tree::{MOST_BLOCKS, Node, ROOT, TooLarge, Tree};
