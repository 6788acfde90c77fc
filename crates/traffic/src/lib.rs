//! Recordings of traffic without its text.
//!
//! A recording says of each request when it came, how long it took, which slot served it, how many
//! tokens its prompt had and how many of them were reused. It says what prompts have in common to
//! the token, but not which tokens these are: a prompt is a list of segments, each of which is
//! either *new* or *known*, that is, equal to a stretch of tokens recorded before. New tokens get
//! consecutive numbers, their *identities*; a known segment names the identities that it repeats.
//! Two tokens of equal identity are equal; the first token at which two prompts part has two
//! identities ([`Tokens::common_prefix`] is exact).
//!
//! What changes a slot beside that is recorded too ([`SlotChange`]): it was erased, restored from a
//! file, or chosen for a request that was refused. What it holds since is written as a prompt is; no
//! name of a file is.
//!
//! Beside that, each block of [`BLOCK`] tokens that has new ones in it is written as a keyed hash
//! of all tokens up to its end. A writer forgets old tokens to bound its memory, and so does not
//! recognise a prompt that comes back after that. The reader does, by the hashes, to the block.
//! The key is drawn for each file and is not in it, unless this was asked for. Without it the
//! hashes say nothing about a text that somebody guesses. What anybody can read is the lengths of
//! prompts, what they have in common, and the times.
//!
//! ```text
//! tokens ──► History ──► segments ─┐
//!        └─► Key ──────► hashes ───┴─► Request, SlotChange ──► frame ──► file ──► read() ──► Traffic
//! ```
//!
//! | part of a file | bytes |
//! |---|---|
//! | header | `CPTRAFIC`, version (2, little-endian) |
//! | frame | kind (1), length of the body (4), body, CRC-32 of all that (4) |
//!
//! A file that was cut, or damaged, is read up to the last good frame. Frames of a kind that a reader
//! does not know are left out: a later version that adds one with new tokens in it has a higher number,
//! and is refused.
//!
//! Pure: no clock, no I/O, no dependencies.

#![forbid(unsafe_code)]

mod bytes;
mod change;
mod frame;
mod history;
mod key;
mod read;
mod record;
mod row;
mod setup;
mod tokens;
mod write;

pub use change::{ChangeKind, Refusal, SlotChange};
pub use frame::{MAGIC, VERSION};
pub use history::{History, MOST_TOKENS, Segment};
pub use key::{BLOCK, Key};
pub use read::{Damage, DamageKind, Traffic, TrafficChange, TrafficRequest, read};
pub use record::{Applied, RequestRecord, SizeKind, SizeSample};
pub use setup::{Calls, Memory, Setup};
pub use tokens::{Run, Tokens};
pub use write::{Recorded, Writer};
