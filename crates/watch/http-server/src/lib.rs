//! A small HTTP/1.1 server: kept-alive connections, `Content-Length`,
//! `Expect: 100-continue`, endless answers, and limits on everything, over TCP or a
//! Unix socket. Used by `contextpilot-llama listen` and by the control endpoint in the hooked
//! server.
//!
//! **Why not an existing crate.** In the hooked server we must start each thread ourselves, with
//! signals blocked and marked as ours, because the hook replaces `accept`, `recv`
//! and `send` for the whole process. `tiny_http` and `rouille` start their own threads, as
//! many as there are connections, and have no timeouts. `hyper` needs an executor. The
//! difficult part, reading the head of a request, is done by `httparse`, which those crates use as well.
//!
//! Chunked bodies are refused (411): no client of ours sends them.
//!
//! **Limits.** 16 KiB for a head, 64 headers; [`Limits`] has those for bytes in a body, for
//! connections, and for the time that a client may take to send a request and to
//! read an answer. A connection over the limit gets 503 and is closed.

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

/// Answers the requests of one connection, until either side closes it. `refuse` makes
/// the answer to a malformed request.
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
