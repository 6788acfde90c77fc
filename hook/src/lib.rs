//! The library that is preloaded into llama-server.
//!
//! It hooks some functions of the engine, the server and the C library, notes what
//! they do, and reports to the index which requests were evicted from the KV cache. The server
//! behaves as if the library were not there.
//!
//! The *host* is the process that the library is preloaded into. A *row* is one hooked function in the
//! [`table`](attach::table).
//!
//! ```text
//!  host's threads                                                      threads of ours
//!  hooks/ ──► guard ──► capture/ ──► channel/ ── Event ──► worker ──► ledger ──► Fact ──► POST /evict
//!  (called in  (our      (whose memory,   (a queue)        (crates/watch/worker, which has no unsafe code)
//!   place of    code      which request,
//!   the host's  only      what a batch
//!   functions)  here)     contains)
//! ```
//!
//! The modules, in layers. A module uses only those above it in this table:
//!
//! | module | what is in it |
//! |---|---|
//! | [`base`] | entering and leaving our code (`guard`), inert or active (`mode`), the clock, counters, bounds |
//! | [`attach`] | whether this is a llama-server, how its functions are hooked, what is known of each |
//! | [`channel`] | the queue from the host's threads to the worker |
//! | [`capture`] | the state that hooks keep between calls: batches, contexts, saved buffers, connections |
//! | [`store`] | the prefix store: what it loads into the engine, and what it takes out of it |
//! | [`hooks`] | the functions that are called in place of the host's, a few lines each |
//! | [`library`] | implements the worker's interface to the hook |
//! | [`start`] | the constructor, the start of the threads, and the end of the process |
//! | [`memory_bounds`] | every bound of memory, in one table |
//!
//! A hook calls the original, notes what happened, and returns. It never blocks, takes no contended
//! lock, allocates within stated bounds, lets the host's exceptions pass, lets no panic of ours
//! out, and leaves `errno` alone.

#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the library exports nothing: its documentation is for who works on it"
)]
// Hooks have the names of the symbols that they replace.
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
mod memory_bounds;
mod start;
mod store;
