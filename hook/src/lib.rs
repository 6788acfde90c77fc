//! The library that is preloaded into llama-server.
//!
//! It stands in front of some functions of the engine, the server and the C library, notes what
//! they do, and tells the index which requests fell out of the KV cache. The server behaves as
//! if it were not there.
//!
//! ```text
//!  host's threads                                         worker thread          sender thread
//!  hooks/  ──► guard ──► shadow, contexts, connections
//!  (called in  (our       (what is in a batch, whose
//!   place of    code       memory it is, whose request)
//!   the host's  only          │
//!   functions)  here)         └──► channel ── Event ──► ledger ── Effect ──► POST /evict
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`attach`] | whether this is a llama-server, how we get in front of its functions, what is known of each |
//! | [`hooks`] | what is done in place of them, a few lines each |
//! | [`guard`] | the border between the host and our code |
//! | [`mode`], [`start`] | inert, active, out: decided once, announced in one line |
//! | [`model`] | whether the server has loaded one |
//! | [`shadow`], [`legacy`], [`packed`], [`tasks`] | what is in a batch, a save file, a list of tasks |
//! | [`contexts`], [`saved`], [`connections`] | small lock-free tables: memory to context, host buffers, HTTP threads |
//! | [`adapters`] | which LoRA adapters are applied to a context |
//! | [`prompts`] | whether requests are known by their prompts only |
//! | [`channel`], [`worker`], [`silence`] | from the host's threads to the ledger |
//! | [`beliefs`], [`recent`] | what the index believes, and has to be told; kept for the next start |
//! | [`observe`] | for people: the control endpoint and the log file |
//! | [`bounds`] | every bound of memory |
//! | [`faults`] | errors on demand, for tests |
//! | [`status`], [`trace`], [`log`] | for people |
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
mod beliefs;
mod capture;
mod channel;
mod hooks;
mod observe;
mod silence;
mod start;
mod trace;
mod worker;
