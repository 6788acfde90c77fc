#![forbid(unsafe_code)]
#![doc = include_str!("../README.md")]

mod encode;
mod event;
mod feed;
mod hash;
mod runs;
mod tracker;

pub use event::{KvEvent, Medium};
pub use feed::{Batch, Feed, MOST_EMPTY};
pub use hash::block_hash;
pub use runs::{MOST_BLOCKS, Run, Runs};
pub use tracker::Tracker;
