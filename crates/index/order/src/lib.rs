//! In which order to put the blocks (retrieved documents) of prompts, so that prompts begin alike
//! and an engine finds their beginnings in its cache.
//!
//! Pure: no clock, no I/O, no randomness. Equal input gives equal output. Every order is a
//! permutation of what was given: nothing is dropped or added.
//!
//! - [`batch()`] orders many contexts at once, by hierarchical clustering ([`distances`],
//!   [`linkage()`]). Its answers are those of ContextPilot's index 0.5.0 (except that repeated
//!   blocks are kept), and the clustering is scipy's, ties included.
//! - [`batch_sharing`] orders many contexts so that most is shared, after what is [`Cached`].
//! - [`online()`] orders one context: the heaviest prefix that is [`Cached`] now, in the engine or in a store below it
//!   ([`Tiers`]), then the others by their [`Frequency`].

#![forbid(unsafe_code)]

mod batch;
mod cached;
mod distance;
mod frequency;
mod linkage;
mod online;
mod sharing;
mod tiers;
mod tree;

pub use batch::{Batch, BatchOptions, batch, batch_after, is_permutation};
pub use cached::Cached;
pub use cached::search::Beginning;
pub use distance::{Condensed, distances};
pub use frequency::Frequency;
pub use linkage::{Linkage, Merge, linkage};
pub use online::{Online, OnlineOptions, importance_note, online};
pub use sharing::{Join, batch_sharing, joins};
pub use tiers::Tiers;

/// A block: a number for its content. Equal content has equal numbers.
pub type Block = u32;
