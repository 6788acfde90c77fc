//! One subscriber: a thread that reads what it sends, and one that writes what it subscribed to.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::connection::{Connection, Next, write};
use crate::listener::{Guest, lock, spawn};
use crate::queue::{Outgoing, Queue};
use crate::{Limits, Role, Session, Step};

/// After so many intervals without a byte, and a PING in each, a peer counts as gone.
const UNANSWERED: u32 = 3;

/// All subscribers of a socket: what their threads and the publishing one share.
#[derive(Debug)]
pub(crate) struct Subscribers {
    pub(crate) limits: Limits,
    pub(crate) first: fn(),
    pub(crate) all: Mutex<Vec<Arc<Subscriber>>>,
    /// Those that are subscribed to something.
    pub(crate) subscribed: AtomicU64,
    /// Bytes that wait for all of them.
    pub(crate) waiting: Arc<AtomicUsize>,
}

/// A subscriber, as the publishing thread sees it.
#[derive(Debug)]
pub(crate) struct Subscriber {
    pub(crate) queue: Queue,
    pub(crate) guest: Arc<Guest>,
    stream: Arc<TcpStream>,
}

impl Subscriber {
    /// Disconnects it.
    pub(crate) fn end(&self) {
        self.queue.close();
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Serves a peer until it disconnects. An error is the peer's fault.
pub(crate) fn serve(
    stream: &Arc<TcpStream>,
    guest: &Arc<Guest>,
    all: &Arc<Subscribers>,
) -> io::Result<()> {
    let limits = &all.limits;
    let mut connection = Connection::open(stream, &guest.peer, Role::Publisher, limits)?;
    let subscriber = Arc::new(Subscriber {
        queue: Queue::new(limits.queued_bytes, Arc::clone(&all.waiting)),
        guest: Arc::clone(guest),
        stream: Arc::clone(stream),
    });
    let Ok(writer) = start_writer(&subscriber, all.first) else {
        return Ok(());
    };
    lock(&all.all).push(Arc::clone(&subscriber));
    let read = follow(&mut connection, &subscriber.queue, all);
    lock(&all.all).retain(|other| !Arc::ptr_eq(other, &subscriber));
    subscriber.end();
    let _ = writer.join();
    read
}

/// Does what the peer asks for.
fn follow(connection: &mut Connection<'_>, queue: &Queue, all: &Subscribers) -> io::Result<()> {
    let counted = Counted::new(&all.subscribed);
    let beats = connection.has_heartbeats();
    connection.read_on(all.limits.heartbeat, |next| {
        let step = match next {
            Next::Step(step) => step,
            Next::Silence(times) if beats && times > UNANSWERED => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Next::Silence(_) if beats => return reply(queue, &Session::ping()),
            Next::Silence(_) => return Ok(()),
        };
        match step {
            Step::Reply(bytes) => reply(queue, &bytes)?,
            Step::Subscribe(prefix) => counted.set(queue.subscribe(prefix), true),
            Step::Cancel(prefix) => counted.set(queue.cancel(&prefix), false),
            Step::Ready | Step::Message(_) => {}
        }
        Ok(())
    })
}

fn reply(queue: &Queue, bytes: &[u8]) -> io::Result<()> {
    if queue.reply(bytes) {
        Ok(())
    } else {
        // It does not read.
        Err(io::ErrorKind::TimedOut.into())
    }
}

/// Counts a peer while it is subscribed to something.
struct Counted<'a> {
    all: &'a AtomicU64,
    is_subscribed: std::cell::Cell<bool>,
}

impl<'a> Counted<'a> {
    fn new(all: &'a AtomicU64) -> Self {
        let is_subscribed = std::cell::Cell::new(false);
        Self { all, is_subscribed }
    }

    fn set(&self, changed: bool, subscribed: bool) {
        if !changed || self.is_subscribed.replace(subscribed) == subscribed {
            return;
        }
        if subscribed {
            self.all.fetch_add(1, Ordering::Relaxed)
        } else {
            self.all.fetch_sub(1, Ordering::Relaxed)
        };
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.set(true, false);
    }
}

fn start_writer(subscriber: &Arc<Subscriber>, first: fn()) -> io::Result<JoinHandle<()>> {
    let subscriber = Arc::clone(subscriber);
    let work = move || {
        let queue = &subscriber.queue;
        let mut meter = subscriber.guest.peer.meter();
        let mut sent = None;
        while let Some(taken) = queue.take(sent.as_ref()) {
            let (bytes, next): (&[u8], _) = match &taken {
                Outgoing::Replies(bytes) => (bytes, None),
                Outgoing::Message(message) => (message, Some(Arc::clone(message))),
            };
            meter.skip();
            if write(&subscriber.stream, bytes).is_err() {
                break;
            }
            // Messages are the server's doing, replies the peer's.
            match next {
                None => meter.note(),
                Some(_) => meter.skip(),
            }
            sent = next;
        }
        // Close the connection, so that the reader notices, whichever side ended it.
        let _ = subscriber.stream.shutdown(Shutdown::Both);
    };
    spawn("kv-subscriber", first, work)
}
