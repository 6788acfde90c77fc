//! Recordings of traffic without its text.
//!
//! A recording says of each request when it came, how long it took, which slot served it, how many
//! tokens its prompt had and how many of them were reused. It says what prompts have in common, but not
//! which tokens these are. For each token it has a number, the token's *identity*. The identity depends
//! on the token and on those before it, [`GRAM`] in all, or fewer at the beginning of a row. Equal grams
//! have equal identities, and no others have. So the common prefix of two rows is known to the token
//! ([`Tokens::common_prefix`]), and so is each stretch that they have in common elsewhere, if it is at
//! least as long as a gram. Shorter stretches cannot be seen: they would tell more of the text than a
//! simulation needs.
//!
//! A row is written as the number of tokens that it has in common with an earlier row, and segments. A
//! segment is either *new*, with new identities, or *known*: it names the identities that it repeats.
//!
//! Of a server with a prefix store it says how large that may become, and how many tokens of each prompt were
//! loaded from it.
//!
//! Of requests that ask for something in place of what the flags say, that is recorded too ([`Wished`]).
//!
//! Prompts of `/infill` are recorded twice: as they were, and as they would have been with `--spm-infill`. What a row has in
//! common with others depends on the order of its parts, so the second row cannot be made of the first one.
//!
//! Prompts that got tokens of earlier answers (`CONTEXTPILOT_KEEP_TOKENS`) are recorded twice, too: as they were, and with the
//! tokenizer's own tokens.
//!
//! Other changes of slots are recorded too ([`SlotChange`]): a slot was erased, restored from a state
//! file, or chosen for a request that was refused. What the slot holds after that is written like a
//! prompt. Names of files are not written.
//!
//! The writer forgets old tokens to bound its memory, so it does not recognise a prompt that comes
//! back after that. The reader does, to the block, because prompts come with hashes: one for each whole
//! block of [`BLOCK`] tokens that does not lie within the prefix that is already known. A hash covers all
//! tokens up to the end of its block, and has a key. The key is drawn for each file, and is in the file
//! only if this was asked for. Without the key the hashes do not tell whether a guessed text was sent.
//! What any reader of a file can see is the lengths of prompts, what they have in common, and the times.
//!
//! ```text
//! tokens ──► History ──► segments ─┐
//!        └─► Key ──────► hashes ───┴─► Request, SlotChange ──► frame ──► file ──► read() ──► Traffic
//! ```
//!
//! | part of a file | bytes |
//! |---|---|
//! | header | `CPTRAFIC`, version (2 bytes, little-endian) |
//! | frame | kind (1), length of the body (4), body, CRC-32 of all that (4) |
//!
//! Files of versions 1 and 2 are read as well. There the identities of equal stretches in the middle of
//! prompts may differ: whether they do depends on what else these stretches repeat.
//!
//! A file that was cut or damaged is read up to the first frame that is not good. A reader leaves out
//! frames of a kind that it does not know. A later version that puts new tokens into such a frame must
//! have a higher version number, and is refused as a whole.
//!
//! [`Recent`] is the same of what came last, in bounded memory. There each row stands by itself, so that the oldest can
//! be dropped, and a frame at its beginning says that identities were given before. So it is in a file, too, that several
//! processes write one after the other ([`Writer::handed_on`]).
//!
//! Pure: no clock, no I/O, no dependencies.

#![forbid(unsafe_code)]

mod bytes;
mod change;
mod history;
mod key;
mod read;
mod recent;
mod record;
mod row;
mod setup;
mod tokens;
mod write;

pub use bytes::{MAGIC, VERSION};
pub use change::{ChangeKind, Refusal, SlotChange};
pub use history::{History, MOST_TOKENS};
pub use key::{BLOCK, GRAM, Key};
pub use read::{Damage, DamageKind, Traffic, TrafficChange, TrafficRequest, is_empty, read};
pub use recent::{Recent, Resumed};
pub use record::{Applied, RequestRecord, SizeKind, SizeSample, Wished};
pub use row::Segment;
pub use setup::{Calls, Memory, Setup};
pub use tokens::{Run, Tokens};
pub use write::{Progress, Recorded, Writer};
