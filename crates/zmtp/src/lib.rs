//! The part of ZeroMQ that KV cache events need: a PUB socket and a ROUTER socket that listen at a TCP
//! port and speak ZMTP 3.0 with the NULL mechanism. Tested against libzmq.
//!
//! **Why not an existing crate.** This runs inside llama-server. `zeromq` answers no PING, so
//! that peers with heartbeats reconnect for ever. It queues 100,000 messages for each peer, whatever
//! their size, and needs an executor. `zmq` needs libzmq and a C++ runtime. Neither lets us
//! start the threads, which must be marked as ours in the hooked server.
//!
//! **Limits.** [`Limits`] bounds the connections, the bytes that wait for each subscriber and the
//! time a peer may take. A message that does not fit is dropped for that subscriber and counted.
//! [`LONGEST_FRAME`], [`MOST_PARTS`] and [`MOST_SUBSCRIPTIONS`] bound what a peer may send. A peer that
//! sends more, or anything malformed, is disconnected.
//!
//! **Threads.** One for each listener, one for each connection, and a second one for each
//! subscriber. The thread that publishes never waits for a peer.
//!
//! ```no_run
//! use contextpilot_zmtp::{Limits, Publisher};
//!
//! let address = "127.0.0.1:5557".parse().unwrap();
//! let publisher = Publisher::bind(address, Limits::default(), || ())?;
//! publisher.publish(&[b"topic", b"payload"]);
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]

mod frame;
mod listener;
mod publisher;
mod queue;
mod refusal;
mod router;
mod session;

pub use frame::{Frame, LONGEST_FRAME, decode, encode};
pub use publisher::{Figures, Publisher};
pub use refusal::Refusal;
pub use router::Router;
pub use session::{MOST_PARTS, MOST_SUBSCRIPTIONS, Role, Session, Step};

use std::time::Duration;

/// The limits for peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time. A connection over the limit is closed at once.
    pub connections: usize,
    /// Bytes that wait for one subscriber. Messages are shared, so several subscribers that wait
    /// for the same messages take hardly more memory than one.
    pub queued_bytes: usize,
    /// How long a peer may take until it is ready, from its connection on.
    pub handshake: Duration,
    /// How long a peer may leave what is sent to it unread before it is disconnected.
    pub stalled: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 32,
            queued_bytes: 4 << 20,
            handshake: Duration::from_secs(5),
            stalled: Duration::from_secs(30),
        }
    }
}
