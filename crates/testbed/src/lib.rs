//! Runs a real llama-server and asks it for the truth.
//!
//! For tests, the demo and benchmarks; nothing of it is part of what is
//! installed. Everything blocks, and everything listens on loopback only.
//!
//! - [`llama_server`] finds (or fetches) the real engine, [`Model`] writes tiny
//!   models for it, [`Server`] runs it, with or without the hook.
//! - [`Connection`] is an HTTP client that gives access to every byte.
//! - [`Index`] is a receiver of evictions that can be told to misbehave.
//! - [`Trace`] is a sequence of requests; [`truth()`] asks the engine which of
//!   them it still has cached; [`Score`] compares that with what was reported.

mod completion;
mod engine;
mod flags;
mod http;
mod index;
mod nowhere;
mod requests;
mod router;
mod score;
mod server;
mod stream;
mod tls;
mod trace;
mod truth;
mod unseen;
mod wait;

use std::{fmt, io};

pub use completion::Completion;
pub use engine::{Arch, Model, ProjectorKind, Spec, llama_server, projector};
pub use http::{Connection, Response};
pub use index::{Behaviour, Index, Post};
pub use nowhere::nowhere;
pub use requests::Request;
pub use router::{Decision, Gateway, Router};
pub use score::Score;
pub use server::{Builder, Server};
pub use stream::Endpoint;
pub use trace::{Outcome, Step, Trace};
pub use truth::{Probe, Residency, Truth, residency, truth, truth_of};
pub use unseen::{Unseen, unseen_server};
pub use wait::{try_until, until};

/// Why something could not be done, for a person to read.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(String);

impl Error {
    /// With this text.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// As the text, because tests `unwrap` and the text has several lines.
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

/// What things here answer.
pub type Result<T, E = Error> = std::result::Result<T, E>;
