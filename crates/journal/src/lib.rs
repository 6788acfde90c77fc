//! The request ids that an index believes to be cached by this llama-server, on
//! disk: so that after a crash the *next start* can tell the index what was lost.
//!
//! ```text
//!  arrives ──► Recent::note ──► note_live      evicted ──► note_evicted      told ──► note_gone
//!                  │                └────────── net changes, 4 writes a second ─────────┘
//!                  └─ shared memory, until they are written
//!  next start: Journal::open ──► lost ids ──► told ──► note_gone
//! ```
//!
//! # What is promised
//! - **The process dies** (`kill -9`, a crash, out of memory): the next start gets every id
//!   that was noted in [`Recent`] or written to the file, and is not gone by the last
//!   flush. A store is enough for the first, and any thread may make it; the second
//!   happens four times a second, and for ids that are not in [`Recent`] whenever the
//!   caller has nothing else to do ([`Journal::flush`]).
//! - **The machine dies** (power cut, kernel crash): what the kernel had written
//!   back, on Linux usually all but the last 5 to 30 s. There is no `fsync` for each
//!   flush: it would make the ledger's thread wait for a disk four times a second,
//!   behind whatever else that disk has to do, for ids of which most are cached for
//!   less than those seconds. A file that is compacted is synchronised before it
//!   takes the old one's place, so that what *was* safe stays safe.
//! - **The container is killed and started again**: its `/dev/shm` is a new one, so of what
//!   was only in [`Recent`] nothing is left: at most the last 250 ms.
//! - **A clean end**: the file is removed if nothing is left to tell.
//! - An id may be told twice (told, and the process dies before that is flushed);
//!   never an id that was not noted by this instance, as far as a checksum reaches.
//!
//! # Why two places
//! A few writes a second lose what came since the last one, unless that is somewhere else.
//! A write for each request loses less, and is what is done where there is no other place;
//! but it is a call for each request, and what is received and answered before the ledger's
//! thread has a turn is lost even so. [`Recent`] takes neither a call nor a turn.
//!
//! # What it costs
//! [`Recent::note`] is some 20 stores and a checksum, about 0.1 µs. Call the rest from the
//! worker thread, never from the inference thread. Noting is a
//! hash lookup; a flush is one `write` into the page cache, and takes a disk's time
//! only where the kernel throttles writers, and when compacting: once for every
//! 1 MiB written at most, which is some 20,000 requests. (Measured on a busy virtual
//! disk: 60 µs for a flush of 500 records, 30 to 200 ms for one that compacts.) An id
//! that comes and goes between two flushes is never written.
//!
//! # Who can read it
//! Nobody else: 0600 in folders that are 0700 and checked. They hold ids, a digest and the
//! state folder's path, no prompt, no URL.

#![forbid(unsafe_code)]

mod file;
mod identity;
mod journal;
mod recent;
mod record;
mod sweep;

pub use contextpilot_private_folder::{Base, PrivateFolder};
pub use identity::{Identity, Place, model_name};
pub use journal::{INTERVAL, Journal, MAX_CHANGES};
pub use recent::{BYTES as RECENT_BYTES, Map, Recent};
pub use record::{MAX_ID_BYTES, MAX_IDS, MAX_LIVE_BYTES};
