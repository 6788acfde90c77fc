//! Reports to an index which requests were evicted from the KV cache.
//!
//! ```text
//!   worker thread                         sender thread
//!   evict / withdraw ──► Outbox ──batch──► POST {"request_ids":[…]} ──► index
//!                          ▲                     │
//!                          └─put_back─ Verdict ◄─┘ answer (or none)
//!                            set_aside   │ retry
//!                                     Pace: when to try again, and how many ids at once
//! ```
//!
//! [`Outbox`], [`RetryPolicy`] and [`Backoff`], [`Verdict`], [`OncePer`], the pace and
//! the redirect and proxy rules are pure: no clock, no randomness, no I/O of
//! their own. [`Sender`] puts them on one thread around one kept-alive
//! connection. Delivery is *at least once*: an id is sent again until an answer confirms it, and
//! only the index's own answers do ([`classify`]). Reporting an id twice is
//! harmless, because the index has forgotten the request by then.
//!
//! Nothing that this crate prints contains a request id, a token or a password.
#![forbid(unsafe_code)]

mod config;
mod http;
mod once_per;
mod outbox;
pub mod proxy;
mod redirect;
mod retry;
mod sender;
mod tls;
mod verdict;

pub use config::{Config, LogSink, Socket};
pub use http::{IndexAnswer, ask, keep_environment};
pub use once_per::OncePer;
pub use outbox::{Limits, Outbox};
pub use retry::{Backoff, RetryPolicy};
pub use sender::{Drained, Sender, Stats};
pub use verdict::{IndexReply, Next, Retry, Verdict, classify};

/// The most ids one POST carries.
pub const MAX_IDS_PER_POST: usize = 1_000;
