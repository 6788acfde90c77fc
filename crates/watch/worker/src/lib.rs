//! The worker: the thread that owns the ledger, and reports to the index, to people and to routers.
//!
//! The hook runs on a server's threads and must be short there: it sends an event and returns.
//! Everything else happens here, on our own threads, without unsafe code. This crate can be tested without
//! a preloaded library: what it needs of the hook is the trait [`Library`], and events come from a
//! [`Source`].
//!
//! | module | what it does |
//! |---|---|
//! | [`library`] | what the worker needs of the hook |
//! | [`worker`] | applies each event to the ledger, and passes its facts on |
//! | [`commands`] | what other threads ask of the worker, and how they wait for it |
//! | [`idle_timer`] | the idle timer: decides when the engine has been silent long enough |
//! | [`live_ids`] | the live ids: what the index believes to be cached; the journal |
//! | [`peers`] | in a program that is no llama-server: puts the events of several contexts in an order |
//! | [`observe`] | the control endpoint and the log file |
//! | [`routers`] | KV cache events for routers |
//! | [`trace`] | a file with every event and fact, for finding faults |
//! | [`bounds`] | bounds of memory |

#![forbid(unsafe_code)]
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the table of modules is for who works on them"
)]

pub mod bounds;
mod commands;
mod idle_timer;
mod learner;
mod library;
mod live_ids;
mod observe;
mod peers;
mod routers;
mod trace;
mod worker;

pub use contextpilot_http_server::LARGEST_HEAD;
pub use idle_timer::{DOZE, NAP};
pub use library::{Item, Library, Lost, Rest, Source, Waiting, What, Withdrawn};
pub use observe::{host_limit, shows_text};
pub use peers::{MOST_HELD, MOST_HELD_ENTRIES};
pub use trace::Trace;
pub use worker::{Handle, Index, OpenJournal, Task, start};
