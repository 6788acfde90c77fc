//! ROUTER: answers each who asks, with as many messages as it takes.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::listener::Listener;
use crate::publisher::{Connection, write};
use crate::{Limits, Role, Step, frame};

/// How long a peer may be silent, so that those whose machines are gone do not stay for ever. One
/// that lives connects again.
const IDLE: Duration = Duration::from_secs(600);

/// A ROUTER socket. Answers go to whoever asked, so identities are of no interest.
#[derive(Debug)]
pub struct Router {
    listener: Listener,
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
        let serve = move |stream: &Arc<TcpStream>| {
            // Whatever goes wrong, the peer will ask again.
            let _ = serve(stream, &limits, &*answer);
        };
        let listener = Listener::bind(address, limits.connections, first, Arc::new(serve))?;
        Ok(Self { listener })
    }

    /// Where it listens, with the port that was chosen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }
}

fn serve(
    stream: &TcpStream,
    limits: &Limits,
    answer: &impl Fn(&[Vec<u8>], &mut dyn FnMut(&[&[u8]]) -> io::Result<()>) -> io::Result<()>,
) -> io::Result<()> {
    let mut connection = Connection::open(stream, Role::Router, limits)?;
    stream.set_read_timeout(Some(IDLE))?;
    connection.read_on(|step, _| match step {
        Step::Reply(bytes) => write(stream, &bytes),
        Step::Message(parts) => answer(&parts, &mut |parts| write(stream, &frame::encode(parts))),
        Step::Ready | Step::Subscriptions => Ok(()),
    })
}
