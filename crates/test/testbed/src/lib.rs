//! Runs a real llama-server, and finds out from the engine itself which prompts are cached.
//!
//! For tests, the demo and benchmarks. Nothing of it is part of the hook library. All calls block,
//! and all sockets listen on loopback only.
//!
//! - [`llama_server`] finds (or fetches) the real engine, [`Model`] writes tiny
//!   models for it, [`real_model()`] fetches a real one, [`Server`] runs it, with or without the hook.
//! - [`Connection`] is an HTTP client that gives access to every byte.
//! - [`Index`] receives evictions, and can be told to misbehave.
//! - [`Trace`] is a sequence of requests; [`truth()`] asks the engine which of
//!   them it still has cached; [`Score`] compares that with what was reported.
//! - [`await_written`] waits for what a prefix store writes.
//! - [`skip()`] says that a test cannot run here, which fails under CI; [`Tally`] counts cases.

mod apart;
mod completion;
mod engine;
mod flags;
mod http;
mod index;
mod requests;
mod router;
mod score;
mod server;
mod sessions;
mod skip;
mod stream;
mod trace;
mod truth;
mod unseen;
mod wait;

use std::{fmt, io};

pub use apart::{Apart, KillOnDrop, apart, nowhere, private_folder};
pub use completion::Completion;
pub use contextpilot_random::Random;
pub use engine::{
    Arch, Model, NoScript, ProjectorKind, Spec, adapter, llama_server, projector, real_model,
    script,
};
pub use http::{Connection, Response};
pub use index::{Behaviour, Index, Post};
pub use requests::Request;
pub use router::{Decision, Gateway, Router};
pub use score::Score;
pub use server::builder::Builder;
pub use server::{SILENCE, Server};
pub use sessions::{Need, Session, Sessions};
pub use skip::{Tally, skip, skip_case, skip_optional};
pub use stream::{Certificate, Endpoint};
pub use trace::{Outcome, Step, Trace};
pub use truth::{Probe, Residency, Truth, residency, truth, truth_of};
pub use unseen::{Unseen, unseen_server};
pub use wait::{await_written, chunk_files, try_until, until};

/// A message that says what went wrong.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(String);

impl Error {
    /// An error with this message.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Prints the bare message: it may have several lines, and tests `unwrap`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
