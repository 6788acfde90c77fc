//! The library that is preloaded into llama-server.
//!
//! It stands in front of some functions of the engine, the server and the C library, notes what
//! they do, and tells the index which requests fell out of the KV cache. The server behaves as
//! if it were not there.
//!
//! ```text
//!  host's threads                                                      threads of ours
//!  hooks/ ──► guard ──► capture/ ──► channel/ ── Event ──► worker ──► ledger ──► Effect ──► POST /evict
//!  (called in  (our      (whose memory,   (a queue)        (crates/worker, which has no unsafe code)
//!   place of    code      whose request,
//!   the host's  only      what is in a
//!   functions)  here)     batch)
//! ```
//!
//! Rooms, from the ground up. None knows of those below it in this table:
//!
//! | room | what is in it |
//! |---|---|
//! | [`base`] | the border to the host (`guard`), inert or active (`mode`), the clock, counters, bounds |
//! | [`attach`] | whether this is a llama-server, how we get in front of its functions, what is known of each |
//! | [`channel`] | the queue from the host's threads to the worker |
//! | [`capture`] | what is taken note of: batches, contexts, saved buffers, connections |
//! | [`hooks`] | what is done in place of the host's functions, a few lines each |
//! | [`library`] | all this as the worker sees it |
//! | [`start`] | from an inert library to a working one, and the end of it |
//! | [`memory`] | every bound of memory, in one table |
//!
//! What a hook may do: call the original, take note, return. It never blocks, takes no contended
//! lock, allocates within stated bounds, lets exceptions of the host through and panics of ours
//! not out, and leaves `errno` alone.

// The symbols' names are given, not chosen.
#![allow(non_snake_case)]
#![cfg_attr(
    target_os = "macos",
    allow(
        dead_code,
        reason = "functions inside a file are hooked in ELF files only"
    )
)]

#[macro_use]
mod attach;
mod base;
mod capture;
mod channel;
mod hooks;
mod library;
mod memory;
mod start;
