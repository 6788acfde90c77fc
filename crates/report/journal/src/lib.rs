//! Keeps the live request ids on disk: those that the index believes to be cached by
//! this llama-server. After a crash, the *next start* reports them as evicted: that of any server
//! of this user on this machine with the same index, because a program that kills its llama-server
//! may give the next one another port.
//!
//! ```text
//!  arrives ──► Recent::note ──► note_live    evicted ──► note_evicted    reported ──► note_gone
//!                  │                └────────── net changes, 4 writes a second ─────────┘
//!                  └─ shared memory, until they are written
//!  next start: Journal::open ──► lost ids ──► reported ──► note_gone
//! ```
//!
//! # What is promised
//! - **The process dies** (`kill -9`, a crash, out of memory): the next start gets every id
//!   that was noted in [`Recent`] or written to the file, and is not gone by the last
//!   flush. A note in [`Recent`] is complete at once, and any thread may make it. The file
//!   is written up to four times a second. Ids that are not in [`Recent`] are written
//!   as soon as the caller has nothing else to do ([`Journal::flush`]).
//! - **The machine dies** (power cut, kernel crash): the next start gets what the kernel
//!   had written back, on Linux usually all but the last 5 to 30 s. A flush does not call
//!   `fsync`: the worker thread would wait for the disk four times a second, for ids of
//!   which most are cached for less than those seconds. A compacted file is synchronised
//!   before it replaces the old one, so what *was* safe stays safe.
//! - **The container is killed and started again**: its `/dev/shm` is a new one. So the ids
//!   that were only in [`Recent`] are lost: those of the last 250 ms, or of 500 ms while
//!   the engine is busy and the worker puts writes off.
//! - **A clean end**: the file is removed if every id was reported.
//! - An id may be reported twice: when the process dies after a report, before that is
//!   flushed. An id that this instance did not note is never reported, as far as a
//!   checksum reaches.
//!
//! # Why two places
//! With a few writes a second and nothing else, a crash would lose the ids since the last
//! write. With a write for each request it would lose fewer, and that is what happens
//! where there is no [`Recent`]. But that is a system call for each request, and a request
//! that is received and answered before the worker thread runs would still be lost. A note
//! in [`Recent`] needs no system call, and is made by the thread that received the request.
//!
//! # What it costs
//! [`Recent::note`] is at most 17 stores and a checksum, about 0.1 µs. Call the rest from
//! the worker thread, never from the inference thread. To note an id is a hash lookup. A
//! flush is one `write` into the page cache. It waits for the disk only if the kernel
//! throttles writers, and if it compacts the file. With few live ids it compacts once for
//! every 1 MiB written, which is some 20,000 requests with ids of 20 bytes; in the worst
//! case, with about 0.75 MiB of live ids, once for every 256 KiB. (Measured on a busy
//! virtual disk: 60 µs for a flush of 500 records, 30 to 200 ms for one that compacts.) An
//! id that comes and goes between two flushes is never written.
//!
//! # Who can read it
//! Only this user: the files have mode 0600, in folders that have mode 0700 and are checked.
//! They hold ids, a digest and the state folder's path, but no prompts and no URL.

#![forbid(unsafe_code)]

mod file;
mod identity;
mod journal;
mod recent;
mod record;
mod relatives;

pub use contextpilot_private_folder::{Base, PrivateFolder};
pub use identity::{Identity, Origin};
pub use journal::{INTERVAL, Journal, MAX_CHANGES};
pub use recent::{BYTES as RECENT_BYTES, Map, Recent};
pub use record::{MAX_ID_BYTES, MAX_IDS, MAX_LIVE_BYTES};
