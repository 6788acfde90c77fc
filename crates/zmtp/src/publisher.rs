//! PUB: sends each message to all peers that subscribed to a prefix of its first part.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::listener::{Listener, lock, spawn};
use crate::queue::{Put, Queue};
use crate::{Limits, Role, Session, Step, frame};

/// Bytes read at a time.
const CHUNK: usize = 4096;

/// A PUB socket.
#[derive(Debug)]
pub struct Publisher {
    listener: Listener,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limits: Limits,
    first: fn(),
    subscribers: Mutex<Vec<Arc<Queue>>>,
    published: AtomicU64,
    dropped: AtomicU64,
    expelled: AtomicU64,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Peers that are subscribed to something now.
    pub subscribers: u64,
    /// Messages that were published, to however many.
    pub published: u64,
    /// Messages that did not fit in a subscriber's queue, counted for each subscriber.
    pub dropped: u64,
    /// Connections that were closed because there were too many.
    pub refused: u64,
    /// Connections that were closed because of what the peer sent, or did not send in time.
    pub expelled: u64,
}

impl Publisher {
    /// Listens. `first` is run on each thread of ours before anything else.
    ///
    /// # Errors
    /// The address cannot be used, or a thread cannot be created.
    pub fn bind(address: SocketAddr, limits: Limits, first: fn()) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            limits,
            first,
            subscribers: Mutex::default(),
            published: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            expelled: AtomicU64::new(0),
        });
        let theirs = Arc::clone(&shared);
        let serve = move |stream: &Arc<TcpStream>| {
            if serve(stream, &theirs).is_err() {
                theirs.expelled.fetch_add(1, Ordering::Relaxed);
            }
        };
        let serve = Arc::new(serve);
        let listener = Listener::bind(address, limits.connections, first, serve)?;
        Ok(Self { listener, shared })
    }

    /// Where it listens, with the port that was chosen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Queues a message of these parts for every peer that has subscribed to it. Never waits. Returns the
    /// number of these peers.
    pub fn publish(&self, parts: &[&[u8]]) -> usize {
        let shared = &self.shared;
        shared.published.fetch_add(1, Ordering::Relaxed);
        let topic = parts.first().copied().unwrap_or_default();
        let subscribers = lock(&shared.subscribers);
        if subscribers.is_empty() {
            return 0;
        }
        let message: Arc<[u8]> = frame::encode(parts).into();
        let mut queued = 0;
        for subscriber in subscribers.iter() {
            match subscriber.publish(topic, &message) {
                Put::Queued => queued += 1,
                Put::Dropped => {
                    shared.dropped.fetch_add(1, Ordering::Relaxed);
                }
                Put::Unwanted => {}
            }
        }
        queued
    }

    /// Waits until all messages are written to the subscribers, at most for this time. Call this before
    /// dropping the publisher: a drop loses waiting messages.
    pub fn drain(&self, longest: Duration) {
        let until = Instant::now() + longest;
        let waits = || lock(&self.shared.subscribers).iter().any(|one| one.waits());
        while waits() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The counts.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let subscribers = lock(&self.shared.subscribers);
        let subscribed = subscribers.iter().filter(|one| one.is_subscribed()).count();
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            subscribers: subscribed as u64,
            published: of(&self.shared.published),
            dropped: of(&self.shared.dropped),
            refused: self.listener.refused(),
            expelled: of(&self.shared.expelled),
        }
    }
}

/// Serves a peer until it disconnects. An error is the peer's fault.
fn serve(stream: &Arc<TcpStream>, shared: &Arc<Shared>) -> io::Result<()> {
    let mut connection = Connection::open(stream, Role::Publisher, &shared.limits)?;
    let queue = Arc::new(Queue::new(shared.limits.queued_bytes));
    queue.subscribe(connection.session.subscriptions().clone());
    let (ours, theirs) = (Arc::clone(stream), Arc::clone(&queue));
    let work = move || {
        let mut sent = 0;
        while let Some(message) = theirs.take(sent) {
            if write(&ours, &message).is_err() {
                break;
            }
            sent = message.len();
        }
        // Close the connection, so that the reader notices, whichever side ended it.
        let _ = ours.shutdown(Shutdown::Both);
    };
    let writer = spawn("kv-subscriber", shared.first, Box::new(work));
    let Ok(writer) = writer else { return Ok(()) };
    lock(&shared.subscribers).push(Arc::clone(&queue));
    let read = connection.read_on(|step, session| match step {
        Step::Reply(bytes) => match queue.reply(bytes) {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
        },
        Step::Subscriptions => {
            queue.subscribe(session.subscriptions().clone());
            Ok(())
        }
        _ => Ok(()),
    });
    lock(&shared.subscribers).retain(|other| !Arc::ptr_eq(other, &queue));
    queue.close();
    let _ = stream.shutdown(Shutdown::Both);
    let _ = writer.join();
    read
}

/// A connection whose handshake is over.
pub(crate) struct Connection<'a> {
    stream: &'a TcpStream,
    session: Session,
    /// What came with the end of the handshake.
    steps: Vec<Step>,
}

impl<'a> Connection<'a> {
    /// Does the handshake.
    pub(crate) fn open(stream: &'a TcpStream, role: Role, limits: &Limits) -> io::Result<Self> {
        let deadline = Instant::now() + limits.handshake;
        // Each message is written in one piece.
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(limits.stalled))?;
        write(stream, &Session::greeting())?;
        let mut session = Session::new(role);
        let mut steps = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(Some(left))?;
            if !read(stream, &mut session, &mut steps)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut ready = false;
            let mut rest = Vec::new();
            for step in steps.drain(..) {
                match step {
                    Step::Ready => ready = true,
                    // Nothing but our READY comes before the peer's.
                    Step::Reply(bytes) if !ready => write(stream, &bytes)?,
                    step => rest.push(step),
                }
            }
            if ready {
                stream.set_read_timeout(None)?;
                return Ok(Self {
                    stream,
                    session,
                    steps: rest,
                });
            }
        }
    }

    /// Does each step, until the peer disconnects or is disconnected.
    pub(crate) fn read_on(
        &mut self,
        mut act: impl FnMut(Step, &Session) -> io::Result<()>,
    ) -> io::Result<()> {
        loop {
            for step in self.steps.drain(..) {
                act(step, &self.session)?;
            }
            if !read(self.stream, &mut self.session, &mut self.steps)? {
                return Ok(());
            }
        }
    }
}

/// False if the peer has disconnected.
fn read(mut stream: &TcpStream, session: &mut Session, steps: &mut Vec<Step>) -> io::Result<bool> {
    let mut chunk = [0; CHUNK];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(false),
            Ok(length) => {
                let fed = session.feed(&chunk[..length], steps);
                return fed.map(|()| true).map_err(io::Error::other);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// Writes everything, as long as the peer reads some bytes in each interval.
pub(crate) fn write(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    io::Write::write_all(&mut stream, bytes)
}
