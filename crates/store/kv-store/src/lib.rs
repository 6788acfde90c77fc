//! What a prefix store has, and how the state of a sequence is cut into pieces and put together again.
//!
//! ```text
//!  state of a sequence ──► SequenceState::read ──► extract ──► rows of a chunk ──► a file
//!  state of a sequence ◄── Composer    ◄── put     ◄── rows of a chunk ◄── a file
//!
//!  prompt ──► Store::find    ──► the pieces that are there
//!         ──► Store::missing ──► the chunks that are not ──► Store::insert ──► what leaves for them
//! ```
//!
//! A *chunk* is a run of tokens together with their KV rows. The rows depend on all tokens before
//! them, so a chunk belongs to a prefix: chunks form a radix tree. They never cross a multiple of
//! [`GRID`] tokens, and are never split: a prompt that differs in the middle of a chunk continues
//! there with a chunk of its own. So no row is stored twice.
//!
//! A model with sliding windows or a recurrent state has a *tail* besides: the part of a state that only
//! stands for the position at which it was taken ([`Shape`]). It is a chunk of one token that no prompt has.
//!
//! The crate knows names, tokens and sizes. Rows are in files, which `crates/store/kv-files` writes and reads.
//!
//! | module | what is in it |
//! |---|---|
//! | `name`, `facts`, `origin` | names of chunks; what KV depends on besides its tokens (a [`Fingerprint`]); what is written down of that |
//! | `chunk`, `slab`, `tree`, `place` | chunks and pieces of them, their tree, and which of them may stand behind some tokens |
//! | `store` | the tree with a budget: what leaves for what comes |
//! | `kept`, `waiting` | chunks that leave last, on request; chunks of other processes whose parents are not there |
//! | `session` | what the sequences of one context hold, as far as the store may rely on it |
//! | `layout`, `shape`, `address` | how the state of a sequence is laid out, also with windows or recurrent; whose cells a part of it has |
//! | `state`, `compose`, `prove` | reads a state and cuts rows out of it; puts one together; tries both with a real one |
//! | `wanted_bytes`, `numbers`, `bytes` | the bytes of a state that are wanted; whether they are numbers; how these are read |
//! | [`media`] | images and sounds among the tokens |
//! | [`worth`] | what is worth a copy out of the engine or into it, for the hook and the simulation |
//!
//! # Memory
//! 4 bytes a token and about 300 bytes a chunk, at most [`MEMORY`] in all: when that is reached,
//! chunks leave as if the budget were used up.

#![forbid(unsafe_code)]

mod address;
mod bytes;
mod chunk;
mod compose;
mod kept;
mod layout;
pub mod media;
mod name;
mod numbers;
mod origin;
mod place;
mod session;
mod shape;
mod slab;
mod state;
mod store;
mod tree;
mod waiting;
mod wanted_bytes;
pub mod worth;

pub use chunk::{Chunk, Found, HEADER_BYTES, Piece, TAIL, Tail, common};
pub use compose::{ComposeError, Composer, Gap, make_room, prove};
pub use kept::{KEPT_SHARE, MOST_KEPT};
pub use layout::{Layout, LayoutError};
pub use name::{Fingerprint, GRID, Name, NameError};
pub use numbers::{Check, Numbers};
pub use origin::{Facts, HIDDEN_STATES, Origin, What};
pub use place::Place;
pub use session::{Advice, Conditions, Held, Run, Session, Why};
pub use shape::{Shape, is_tail_finite};
pub use state::{SequenceState, StateMap};
pub use store::{Change, Changes, MEMORY, Model, Refused, Store};
pub use tree::{MOST_ALIKE, MOST_WAYS};
pub use wanted_bytes::WantedBytes;
