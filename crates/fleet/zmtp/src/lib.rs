//! The part of ZeroMQ that KV cache events need: a PUB socket and a ROUTER socket that listen at a TCP
//! port and speak ZMTP 3.0 with the NULL mechanism. Tested against libzmq.
//!
//! **Why not an existing crate.** This runs inside llama-server. `zeromq` answers no PING, so
//! that peers with heartbeats reconnect for ever. It queues 100,000 messages for each peer, whatever
//! their size, and needs an executor. `zmq` needs libzmq and a C++ runtime. Neither lets us
//! start the threads, which must be marked as ours in the hooked server.
//!
//! **Limits.** [`Limits`] bounds the connections, the bytes that wait for each subscriber and for all, the
//! time that a peer may take, and the work that peers may cause. A message that does not fit is dropped for
//! that subscriber and counted. [`LONGEST_FRAME`], [`MOST_PARTS`], [`MOST_SUBSCRIPTIONS`] and
//! [`MOST_SUBSCRIPTION_BYTES`] bound what a peer may send. A peer that sends more, or anything malformed, is
//! disconnected. If all places are taken, a peer that takes nothing from us loses its place to a new one.
//!
//! **Threads.** One for each listener, one for each connection, and a second one for each
//! subscriber; they have a low priority. The thread that publishes never waits for a peer.
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

mod connection;
mod frame;
mod listener;
mod publisher;
mod queue;
mod refusal;
mod router;
mod session;
mod subscriber;

pub use frame::{Frame, LONGEST_FRAME, decode, encode};
pub use publisher::{Figures, Publisher};
pub use refusal::Refusal;
pub use router::Router;
pub use session::{MOST_PARTS, MOST_SUBSCRIPTION_BYTES, MOST_SUBSCRIPTIONS, Role, Session, Step};

use std::time::Duration;

pub use contextpilot_admission::Allowance;

/// The limits for peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time. One more takes the place of one that takes nothing from us, or else is closed
    /// at once.
    pub connections: usize,
    /// How many connections are accepted in each second; twice [`connections`](Self::connections) at once.
    /// The others wait in the system's queue.
    pub connections_each_second: u32,
    /// Bytes that wait for one subscriber. Messages are shared, so several subscribers that wait
    /// for the same messages take hardly more memory than one.
    pub queued_bytes: usize,
    /// Bytes that wait for all subscribers together. Above that, the one that most waits for is
    /// disconnected.
    pub queued_bytes_of_all: usize,
    /// How long a peer may take until it is ready, from its connection on.
    pub handshake: Duration,
    /// How long a peer may leave what is sent to it unread before it is disconnected.
    pub stalled: Duration,
    /// How long a subscriber may be silent until it is sent a PING, if it understands that. The fourth
    /// time in a row it is disconnected.
    pub heartbeat: Duration,
    /// How long a peer may take to read an answer, and a second more for each MiB of it.
    pub answer: Duration,
    /// The processor time that the bytes of one peer may take. One that causes more is disconnected.
    pub work_of_each: Allowance,
    /// The same for all peers together. If they cause more, their threads wait.
    pub work_of_all: Allowance,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 32,
            connections_each_second: 20,
            queued_bytes: 4 << 20,
            queued_bytes_of_all: 32 << 20,
            handshake: Duration::from_secs(5),
            stalled: Duration::from_secs(30),
            heartbeat: Duration::from_secs(10),
            answer: Duration::from_secs(5),
            work_of_each: Allowance {
                burst: Duration::from_millis(500),
                each_second: Duration::from_millis(10),
            },
            work_of_all: Allowance {
                burst: Duration::from_secs(1),
                each_second: Duration::from_millis(20),
            },
        }
    }
}
