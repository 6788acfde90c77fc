//! A listening port, and its connections.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The stack of a connection's thread. Only a little of it is ever used.
const STACK: usize = 256 << 10;
/// How long to wait if no connection can be accepted, for instance without free descriptors.
const PAUSE: Duration = Duration::from_millis(200);
/// A connection to ourselves is there at once, or not at all.
const WAKE: Duration = Duration::from_millis(500);

/// The function that serves a connection.
pub(crate) type Serve = Arc<dyn Fn(&Arc<TcpStream>) + Send + Sync>;

/// Starts a thread with a small stack. `first` runs on it before anything else. (Boxed: each kind of
/// closure would bring another copy of what starts a thread into the hook library.)
pub(crate) fn spawn(
    name: &str,
    first: fn(),
    work: Box<dyn FnOnce() + Send>,
) -> io::Result<thread::JoinHandle<()>> {
    let builder = thread::Builder::new().name(name.into()).stack_size(STACK);
    builder.spawn(move || {
        first();
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
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    closed: AtomicBool,
    open: Mutex<HashMap<u64, Arc<TcpStream>>>,
    refused: AtomicU64,
}

impl Listener {
    /// Serves each connection on a thread of its own, at most `most` at a time; others are closed
    /// at once. `first` is run on each thread before anything else.
    pub(crate) fn bind(
        address: SocketAddr,
        most: usize,
        first: fn(),
        serve: Serve,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let work = move || accept(&listener, most, first, &theirs, &serve);
        let thread = spawn("kv-listener", first, Box::new(work))?;
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

    /// How many connections were closed because there were too many.
    pub(crate) fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }
}

fn accept(listener: &TcpListener, most: usize, first: fn(), shared: &Arc<Shared>, serve: &Serve) {
    for number in 0.. {
        let accepted = listener.accept();
        if shared.closed.load(Ordering::Acquire) {
            return;
        }
        match accepted {
            Ok((stream, _)) => {
                let stream = Arc::new(stream);
                let mut open = lock(&shared.open);
                if open.len() >= most {
                    shared.refused.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                open.insert(number, Arc::clone(&stream));
                drop(open);
                let place = Place(Arc::clone(shared), number);
                let serve = Arc::clone(serve);
                let work = move || {
                    serve(&stream);
                    drop(place);
                };
                // Without a thread the connection is closed: the closure goes, and with it all.
                let _ = spawn("kv-connection", first, Box::new(work));
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// The right to a connection, returned on drop.
struct Place(Arc<Shared>, u64);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(stream) = lock(&self.0.open).remove(&self.1) {
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
        for stream in lock(&self.shared.open).values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
