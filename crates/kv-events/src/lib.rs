#![forbid(unsafe_code)]
#![doc = include_str!("../README.md")]

mod encode;
mod event;
mod feed;
mod hash;
mod tracker;

pub use event::{KvEvent, Medium};
pub use feed::{Batch, Feed, MOST_EMPTY};
pub use hash::block_hash;
pub use tracker::Tracker;
