//! The request ids that an index believes to be cached by this llama-server, on
//! disk: so that after a crash the *next start* can tell the index what was lost.
//!
//! ```text
//!  arrives ──► note_live      evicted ──► note_evicted      told ──► note_gone
//!                  └────────── net changes, 4 writes a second ─────────┘
//!  next start: Journal::open ──► lost ids ──► told ──► note_gone
//! ```
//!
//! # What is promised
//! - **The process dies** (`kill -9`, a crash, out of memory): written is written.
//!   The next start gets every id that was noted live, and not gone, before the
//!   last flush. A flush is due at once when the last one is [`INTERVAL`] ago, so
//!   what can be missed is at most what was noted in the 250 ms before the end,
//!   plus the time until the caller calls [`Journal::flush_if_due`].
//! - **The machine dies** (power cut, kernel crash): what the kernel had written
//!   back, on Linux usually all but the last 5 to 30 s. There is no `fsync` for each
//!   flush: it would make the ledger's thread wait for a disk four times a second,
//!   behind whatever else that disk has to do, for ids of which most are cached for
//!   less than those seconds. A file that is compacted is synchronised before it
//!   takes the old one's place, so that what *was* safe stays safe.
//! - **A clean end**: the file is removed if nothing is left to tell.
//! - An id may be told twice (told, and the process dies before that is flushed);
//!   never an id that was not noted by this instance, as far as a checksum reaches.
//!
//! # What it costs
//! Call it from the worker thread, never from the inference thread. Noting is a
//! hash lookup; a flush is one `write` into the page cache, and takes a disk's time
//! only where the kernel throttles writers, and when compacting: once for every
//! 1 MiB written at most, which is some 20,000 requests. (Measured on a busy virtual
//! disk: 60 µs for a flush of 500 records, 30 to 200 ms for one that compacts.) An id
//! that comes and goes between two flushes is never written.
//!
//! # Who can read it
//! Nobody else: 0600 in a folder that is 0700 and checked. It holds ids and a
//! digest, no prompt, no URL.

#![forbid(unsafe_code)]

mod file;
mod identity;
mod journal;
mod record;
mod sweep;

pub use contextpilot_private_folder::{Base, PrivateFolder};
pub use identity::{Identity, Place};
pub use journal::{INTERVAL, Journal};
pub use record::{MAX_ID_BYTES, MAX_IDS};
