//! As much HTTP/1.1 as a small endpoint needs: kept-alive connections, `Content-Length`,
//! `Expect: 100-continue`, answers that go on for ever, and limits on everything. Over TCP or a
//! Unix socket. Used by `contextpilot-llama listen` and by the control endpoint in the hooked
//! server.
//!
//! **Why not a crate that exists.** In the hooked server each thread must be started by us, with
//! its signals blocked and marked as ours, since the hook stands in front of `accept`, `recv`
//! and `send` for the whole process. `tiny_http` and `rouille` start threads of their own, as
//! many as there are connections, and have no timeouts; `hyper` wants an executor. What is
//! difficult, reading the head of a request, is `httparse`'s, which those use as well.
//!
//! Chunked bodies are refused (411): no client of ours sends them, and each feature is one more
//! thing to get wrong.
//!
//! **Limits.** Of bytes in a head (16 KiB) and its headers (64), of bytes in a body and of
//! connections (both by [`Limits`]), of the time that a client may take to send a request and to
//! take an answer. One connection too many is answered 503 and closed.

#![forbid(unsafe_code)]

mod connection;
mod listener;
mod message;
mod pool;

pub use connection::LARGEST_HEAD;
pub use listener::{BindError, Bound, Listener, Stream};
pub use message::{Body, Follow, Request, Response};
pub use pool::{Pool, accept_for_ever};

use std::time::Duration;

/// What a client may take up.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body: usize,
    /// How long a client may be silent within a request, or between two; and how long it may
    /// take to receive a part of an answer.
    pub patience: Duration,
    /// How long a whole request may take to arrive, however busily it does.
    pub whole_request: Duration,
    /// Connections at a time.
    pub connections: usize,
}

/// Answers the requests of one connection, until either side has had enough. `refuse` words
/// what is answered to what is no request.
///
/// # Errors
/// Those of the connection.
pub fn serve(
    stream: &Stream,
    limits: &Limits,
    answer: impl FnMut(&Request) -> Response,
    refuse: impl Fn(u16, &str) -> Response,
) -> std::io::Result<()> {
    connection::serve(stream, limits, answer, refuse)
}
