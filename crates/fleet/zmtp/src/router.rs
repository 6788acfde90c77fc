//! ROUTER: answers each query with one or more messages.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::connection::{Connection, Next, overspent, write, write_until};
use crate::listener::{Guest, Listener};
use crate::{Limits, Role, Step, frame};

/// How long a peer may be silent, so that connections of dead machines do not stay for ever. A living
/// peer connects again.
const IDLE: Duration = Duration::from_secs(600);
/// How fast a peer must read an answer, in bytes a second, besides the time for any answer.
const SLOWEST: u64 = 1 << 20;

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
        let serve = move |stream: &Arc<TcpStream>, guest: &Arc<Guest>| {
            // A peer that was disconnected will ask again.
            if serve(stream, guest, &limits, &*answer) == Ended::Expelled {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        };
        let listener = Listener::bind(address, &limits, first, Arc::new(serve))?;
        Ok(Self { listener, expelled })
    }

    /// Where it listens, with the port that was chosen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Whether any peer is connected.
    #[must_use]
    pub fn has_peers(&self) -> bool {
        self.listener.has_guests()
    }

    /// How many connections were closed: because there were too many, or because of what the peer
    /// sent, or did not send or read in time.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.listener.refused() + self.expelled.load(Ordering::Relaxed)
    }

    /// How many connections asked nothing and had to make room for others.
    #[must_use]
    pub fn displaced(&self) -> u64 {
        self.listener.displaced()
    }

    /// Processor time for what peers sent, in microseconds.
    #[must_use]
    pub fn work_us(&self) -> u64 {
        u64::try_from(self.listener.work().as_micros()).unwrap_or(u64::MAX)
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
    guest: &Guest,
    limits: &Limits,
    answer: &impl Fn(&[Vec<u8>], &mut dyn FnMut(&[&[u8]]) -> io::Result<()>) -> io::Result<()>,
) -> Ended {
    let Ok(mut connection) = Connection::open(stream, &guest.peer, Role::Router, limits) else {
        return Ended::Expelled;
    };
    let ended = connection.read_on(IDLE, |next| match next {
        Next::Step(Step::Reply(bytes)) => write(stream, &bytes),
        Next::Step(Step::Message(parts)) => {
            guest.set_served(true);
            guest.peer.admit().map_err(overspent)?;
            let mut deadline = Instant::now() + limits.answer;
            answer(&parts, &mut |parts| {
                let bytes = frame::encode(parts);
                deadline += Duration::from_millis(bytes.len() as u64 * 1000 / SLOWEST);
                write_until(stream, &bytes, deadline)
            })?;
            stream.set_write_timeout(Some(limits.stalled))?;
            guest.set_served(false);
            Ok(())
        }
        Next::Step(_) => Ok(()),
        Next::Silence(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    });
    match ended {
        Err(error) if is_the_peers_fault(&error) => Ended::Expelled,
        _ => Ended::Gone,
    }
}

/// What it sent is refused, or it causes too much work, or it does not read.
fn is_the_peers_fault(error: &io::Error) -> bool {
    use io::ErrorKind::{Other, QuotaExceeded, TimedOut, WouldBlock};
    matches!(error.kind(), Other | QuotaExceeded | TimedOut | WouldBlock)
}
