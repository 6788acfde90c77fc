//! PUB: sends each message to all peers that subscribed to a prefix of its first part.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::listener::{Guest, Listener, lock};
use crate::queue::Put;
use crate::subscriber::{self, Subscriber, Subscribers};
use crate::{Limits, frame};

/// A PUB socket.
#[derive(Debug)]
pub struct Publisher {
    listener: Listener,
    subscribers: Arc<Subscribers>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    published: AtomicU64,
    dropped: AtomicU64,
    expelled: AtomicU64,
    overworked: AtomicU64,
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
    /// Connections that took nothing and had to make room for others.
    pub displaced: u64,
    /// Connections that were closed because of what the peer sent, or did not send or read in time.
    pub expelled: u64,
    /// Those of them that caused more work than [`Limits::work_of_each`].
    pub overworked: u64,
    /// Processor time for what peers sent, in microseconds.
    pub work_us: u64,
}

impl Publisher {
    /// Listens. `first` is run on each thread of ours before anything else.
    ///
    /// # Errors
    /// The address cannot be used, or a thread cannot be created.
    pub fn bind(address: SocketAddr, limits: Limits, first: fn()) -> io::Result<Self> {
        let subscribers = Arc::new(Subscribers {
            limits,
            first,
            all: Mutex::default(),
            subscribed: AtomicU64::new(0),
            waiting: Arc::default(),
        });
        let counts = Arc::<Counts>::default();
        let (theirs, faults) = (Arc::clone(&subscribers), Arc::clone(&counts));
        let serve = move |stream: &Arc<TcpStream>, guest: &Arc<Guest>| {
            let Err(error) = subscriber::serve(stream, guest, &theirs) else {
                return;
            };
            faults.expelled.fetch_add(1, Ordering::Relaxed);
            if error.kind() == io::ErrorKind::QuotaExceeded {
                faults.overworked.fetch_add(1, Ordering::Relaxed);
            }
        };
        let listener = Listener::bind(address, &limits, first, Arc::new(serve))?;
        Ok(Self {
            listener,
            subscribers,
            counts,
        })
    }

    /// Where it listens, with the port that was chosen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Queues a message of these parts for every peer that has subscribed to it. Never waits. Returns the
    /// number of these peers.
    pub fn publish(&self, parts: &[&[u8]]) -> usize {
        self.counts.published.fetch_add(1, Ordering::Relaxed);
        let topic = parts.first().copied().unwrap_or_default();
        let subscribers = lock(&self.subscribers.all);
        if subscribers.is_empty() {
            return 0;
        }
        let message: Arc<[u8]> = frame::encode(parts).into();
        let mut queued = 0;
        for subscriber in subscribers.iter() {
            match subscriber.queue.publish(topic, &message) {
                Put::Queued => {
                    queued += 1;
                    subscriber.guest.set_served(true);
                }
                Put::Dropped => {
                    self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                }
                Put::Unwanted => {}
            }
        }
        if self.is_overfull() {
            let bytes = |subscriber: &&Arc<Subscriber>| subscriber.queue.bytes();
            // The others need no more than their share then.
            if let Some(behind) = subscribers.iter().max_by_key(bytes) {
                behind.end();
                self.counts.expelled.fetch_add(1, Ordering::Relaxed);
            }
        }
        queued
    }

    /// Whether more bytes wait for all subscribers than may.
    fn is_overfull(&self) -> bool {
        let subscribers = &self.subscribers;
        subscribers.waiting.load(Ordering::Relaxed) > subscribers.limits.queued_bytes_of_all
    }

    /// Waits until all messages are written to the subscribers, at most for this time. Call this before
    /// dropping the publisher: a drop loses waiting messages.
    pub fn drain(&self, longest: Duration) {
        let until = Instant::now() + longest;
        let waits = || self.subscribers.waiting.load(Ordering::Relaxed) > 0;
        while waits() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The counts. Does not wait.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let work = self.listener.work().as_micros();
        Figures {
            subscribers: of(&self.subscribers.subscribed),
            published: of(&self.counts.published),
            dropped: of(&self.counts.dropped),
            refused: self.listener.refused(),
            displaced: self.listener.displaced(),
            expelled: of(&self.counts.expelled),
            overworked: of(&self.counts.overworked),
            work_us: u64::try_from(work).unwrap_or(u64::MAX),
        }
    }
}
