//! ROUTER: answers each query with one or more messages.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::listener::Listener;
use crate::publisher::{Connection, write};
use crate::{Limits, Role, Step, frame};

/// How long a peer may be silent, so that connections of dead machines do not stay for ever. A living
/// peer connects again.
const IDLE: Duration = Duration::from_secs(600);

/// A ROUTER socket. Answers go to the connection of the query, so identities are ignored.
#[derive(Debug)]
pub struct Router {
    listener: Listener,
    expelled: Arc<AtomicU64>,
}

impl Router {
    /// Listens. `answer` is called with the parts of each message, on the thread of its
    /// connection, and sends messages by the function that it is given; that one waits for the
    /// peer to read, and fails when the peer is gone. `first` is run on each thread of ours before
    /// anything else.
    ///
    /// # Errors
    /// The address cannot be listened at, or no thread can be had.
    pub fn bind(
        address: SocketAddr,
        limits: Limits,
        first: fn(),
        answer: impl Fn(&[Vec<u8>], &mut dyn FnMut(&[&[u8]]) -> io::Result<()>) -> io::Result<()>
        + Send
        + Sync
        + 'static,
    ) -> io::Result<Self> {
        let answer = Arc::new(answer);
        let expelled = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&expelled);
        let serve = move |stream: &Arc<TcpStream>| {
            // A peer that was disconnected will ask again.
            if serve(stream, &limits, &*answer) == Ended::Expelled {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        };
        let listener = Listener::bind(address, limits.connections, first, Arc::new(serve))?;
        Ok(Self { listener, expelled })
    }

    /// Where it listens, with the port that was chosen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// How many connections were closed: because there were too many, or because of what the peer
    /// sent, or did not send in time.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.listener.refused() + self.expelled.load(Ordering::Relaxed)
    }
}

/// How a connection ended.
#[derive(PartialEq)]
enum Ended {
    /// By the peer, or since it was of no use any more.
    Gone,
    /// The peer did what it must not.
    Expelled,
}

fn serve(
    stream: &TcpStream,
    limits: &Limits,
    answer: &impl Fn(&[Vec<u8>], &mut dyn FnMut(&[&[u8]]) -> io::Result<()>) -> io::Result<()>,
) -> Ended {
    let Ok(mut connection) = Connection::open(stream, Role::Router, limits) else {
        return Ended::Expelled;
    };
    let _ = stream.set_read_timeout(Some(IDLE));
    let ended = connection.read_on(|step, _| match step {
        Step::Reply(bytes) => write(stream, &bytes),
        Step::Message(parts) => answer(&parts, &mut |parts| write(stream, &frame::encode(parts))),
        Step::Ready | Step::Subscriptions => Ok(()),
    });
    match ended {
        // A refusal is no error of the system's.
        Err(error) if error.kind() == io::ErrorKind::Other => Ended::Expelled,
        _ => Ended::Gone,
    }
}
