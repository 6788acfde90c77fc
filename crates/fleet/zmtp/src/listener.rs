//! A listening port, and its connections.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use contextpilot_admission::{Pace, Peer, Work, give_way};

use crate::Limits;

/// The stack of a connection's thread. Only a little of it is ever used.
const STACK: usize = 256 << 10;
/// How long to wait if no connection can be accepted, for instance without free descriptors.
const PAUSE: Duration = Duration::from_millis(200);
/// A connection to ourselves is there at once, or not at all.
const WAKE: Duration = Duration::from_millis(500);

/// The function that serves a connection.
pub(crate) type Serve = Arc<dyn Fn(&Arc<TcpStream>, &Arc<Guest>) + Send + Sync>;

/// The peer of a connection.
#[derive(Debug)]
pub(crate) struct Guest {
    /// It takes messages, or waits for an answer: it keeps its place.
    served: AtomicBool,
    /// The work that it causes.
    pub(crate) peer: Peer,
}

impl Guest {
    fn is_served(&self) -> bool {
        self.served.load(Ordering::Relaxed)
    }

    pub(crate) fn set_served(&self, served: bool) {
        self.served.store(served, Ordering::Relaxed);
    }
}

/// Starts a thread with a small stack. `first` runs on it before anything else.
pub(crate) fn spawn(
    name: &str,
    first: fn(),
    work: impl FnOnce() + Send + 'static,
) -> io::Result<thread::JoinHandle<()>> {
    let builder = thread::Builder::new().name(name.into()).stack_size(STACK);
    builder.spawn(move || {
        first();
        give_way();
        work();
    })
}

/// Ignores poisoning: code that holds a lock does not panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A port that is listened at until this is dropped; then its connections are closed as well.
#[derive(Debug)]
pub(crate) struct Listener {
    address: SocketAddr,
    shared: Arc<ListenerShared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct ListenerShared {
    closed: AtomicBool,
    places: Mutex<Places>,
    most: usize,
    work: Arc<Work>,
    refused: AtomicU64,
    displaced: AtomicU64,
}

#[derive(Debug, Default)]
struct Places {
    open: HashMap<u64, (Arc<TcpStream>, Arc<Guest>)>,
    /// Threads, also of connections that were displaced and have not noticed yet.
    threads: usize,
}

impl Listener {
    /// Serves each connection on a thread of its own. `first` is run on each thread before anything
    /// else.
    pub(crate) fn bind(
        address: SocketAddr,
        limits: &Limits,
        first: fn(),
        serve: Serve,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(ListenerShared {
            closed: AtomicBool::new(false),
            places: Mutex::default(),
            most: limits.connections,
            work: Work::new(limits.work_of_each, limits.work_of_all),
            refused: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
        });
        let theirs = Arc::clone(&shared);
        let pace = Pace::new(limits.connections_each_second, 2 * limits.connections);
        let work = move || accept(&listener, pace, first, &theirs, &serve);
        let thread = spawn("kv-listener", first, work)?;
        Ok(Self {
            address,
            shared,
            thread: Some(thread),
        })
    }

    /// With the port that was chosen.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether there are connections.
    pub(crate) fn has_guests(&self) -> bool {
        !lock(&self.shared.places).open.is_empty()
    }

    /// How many connections were closed because there were too many.
    pub(crate) fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// How many had to give their places to others.
    pub(crate) fn displaced(&self) -> u64 {
        self.shared.displaced.load(Ordering::Relaxed)
    }

    /// The processor time that connections took so far.
    pub(crate) fn work(&self) -> Duration {
        self.shared.work.spent()
    }
}

fn accept(
    listener: &TcpListener,
    mut pace: Pace,
    first: fn(),
    shared: &Arc<ListenerShared>,
    serve: &Serve,
) {
    for number in 0.. {
        let accepted = listener.accept();
        if shared.closed.load(Ordering::Acquire) {
            return;
        }
        match accepted {
            Ok((stream, _)) => {
                let stream = Arc::new(stream);
                if let Some(place) = shared.place(number, &stream) {
                    let serve = Arc::clone(serve);
                    let work = move || {
                        serve(&stream, &place.guest);
                        drop(place);
                    };
                    // Without a thread the connection is closed: the closure goes, and with it all.
                    let _ = spawn("kv-connection", first, work);
                }
                pace.keep();
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

impl ListenerShared {
    /// A place for a connection. If all are taken, the oldest that is not served has to go: a router that has
    /// just connected is then served long before it is the oldest.
    fn place(self: &Arc<Self>, number: u64, stream: &Arc<TcpStream>) -> Option<Permit> {
        let mut places = lock(&self.places);
        let full = places.open.len() >= self.most;
        let oldest = || {
            let idle = places
                .open
                .iter()
                .filter(|(_, (_, guest))| !guest.is_served());
            idle.map(|(&number, _)| number).min()
        };
        let displaced = if full { oldest() } else { None };
        if (full && displaced.is_none()) || places.threads >= 2 * self.most {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        if let Some((stream, _)) = displaced.and_then(|oldest| places.open.remove(&oldest)) {
            let _ = stream.shutdown(Shutdown::Both);
            self.displaced.fetch_add(1, Ordering::Relaxed);
        }
        let guest = Arc::new(Guest {
            served: AtomicBool::new(false),
            peer: self.work.peer(),
        });
        let entry = (Arc::clone(stream), Arc::clone(&guest));
        places.open.insert(number, entry);
        places.threads += 1;
        drop(places);
        Some(Permit {
            shared: Arc::clone(self),
            number,
            guest,
        })
    }
}

/// The right to a connection, returned on drop.
struct Permit {
    shared: Arc<ListenerShared>,
    number: u64,
    guest: Arc<Guest>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut places = lock(&self.shared.places);
        places.threads -= 1;
        if let Some((stream, _)) = places.open.remove(&self.number) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        // The thread waits in `accept`. This connection wakes it.
        let mut own = self.address;
        if own.ip().is_unspecified() {
            own.set_ip(match own {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        let woken = TcpStream::connect_timeout(&own, WAKE).is_ok();
        // When it has ended, the port can be listened at again.
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
        for (stream, _) in lock(&self.shared.places).open.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
