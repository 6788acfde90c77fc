//! What becomes of that which the hook takes note of: the thread that owns the ledger, and what it tells
//! the index and people.
//!
//! The hook is called by a server's threads and may do next to nothing there; it leaves a note, and
//! goes on. Everything else happens here, on threads of ours, without unsafe code and without a
//! preloaded library: what is needed of that is a [`Library`], and its notes come from a [`Source`].
//!
//! | module | what it does |
//! |---|---|
//! | [`library`] | what surrounds the worker, as it sees that |
//! | [`worker`] | applies each event to the ledger, and each effect to what follows |
//! | [`silence`] | when nothing has happened for long enough to mean something |
//! | [`beliefs`] | what the index believes to be cached, and has to be told; kept for the next start |
//! | [`observe`] | for people: the control endpoint and the log file |
//! | [`routers`] | what of the cache is published for routers |
//! | [`trace`] | every event and effect, for whoever looks for an error |
//! | [`bounds`] | bounds of memory |

#![forbid(unsafe_code)]

mod beliefs;
pub mod bounds;
mod library;
mod observe;
mod routers;
mod silence;
mod trace;
mod worker;

pub use contextpilot_http_server::LARGEST_HEAD;
pub use library::{Item, Library, Lost, Rest, Source, Waiting, What, Withdrawn};
pub use observe::host_limit;
pub use silence::{DOZE, NAP};
pub use trace::{Trace, VARIABLE as TRACE_FILE};
pub use worker::{Handle, Index, OpenJournal, Task, start};
