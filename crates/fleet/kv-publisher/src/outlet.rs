//! The thread that takes events from the ledger's thread, makes batches of them and publishes them.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use contextpilot_kv_events::{Feed, Medium};
use contextpilot_settings::KvEvents;
use contextpilot_zmtp::Router;

use crate::Host;
use crate::replay::Replays;
use crate::shared::{lock, now};

mod figures;
mod inbox;
mod sockets;

pub(crate) use inbox::Beside;
use inbox::Inbox;
pub use inbox::MOST_WAITING;
use sockets::Sockets;

/// As large as Rust's own are. Named, because otherwise Rust looks for a variable, and the host's threads change those.
const STACK: usize = 2 << 20;
pub use sockets::{CONNECTIONS, QUEUED_BYTES, QUEUED_BYTES_OF_ALL};

/// How long to wait at the end until the last batch is sent to subscribers.
const LAST: Duration = Duration::from_millis(50);
/// So much later, if any router may ask for replays, it has asked for what it lacks before the last batch.
const SILENCE: Duration = Duration::from_millis(20);
/// How long to wait for the answers.
const LAST_REPLAYS: Duration = Duration::from_millis(200);

/// The state that the threads share.
#[derive(Debug)]
pub(crate) struct Outlet {
    /// Tokens in a block.
    block_size: u32,
    inbox: Mutex<Inbox>,
    filled: Condvar,
    /// `None` until the publisher listens and the first batch number is known.
    feed: Arc<Mutex<Option<Feed>>>,
    sockets: Mutex<Sockets>,
    batches: AtomicU64,
    stored: AtomicU64,
    removed: AtomicU64,
    started_over: AtomicU64,
    replays: Arc<Replays>,
    /// What the feed says after the last batch: blocks on each medium, and the number of the next batch. The
    /// figures are asked for on the worker's thread, which waits for no replay.
    blocks: [AtomicU64; Medium::ALL.len()],
    next: AtomicU64,
    /// Events that were taken from the inbox and are not published yet.
    in_hand: AtomicU64,
}

impl Outlet {
    /// An outlet that publishes nothing.
    pub(crate) fn shut(block_size: u32, problem: String) -> Arc<Self> {
        let outlet = Self::new(block_size);
        lock(&outlet.sockets).problem = Some(problem);
        Arc::new(outlet)
    }

    fn new(block_size: u32) -> Self {
        Self {
            block_size,
            inbox: Mutex::default(),
            filled: Condvar::new(),
            feed: Arc::default(),
            sockets: Mutex::default(),
            batches: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            removed: AtomicU64::new(0),
            started_over: AtomicU64::new(0),
            replays: Arc::default(),
            blocks: Default::default(),
            next: AtomicU64::new(0),
            in_hand: AtomicU64::new(0),
        }
    }

    pub(crate) fn start(settings: KvEvents, host: Host) -> io::Result<(Arc<Self>, JoinHandle<()>)> {
        let outlet = Arc::new(Self::new(settings.block_size));
        let ours = Arc::clone(&outlet);
        let builder = std::thread::Builder::new()
            .name("kv-events".into())
            .stack_size(STACK);
        let thread = builder.spawn(move || {
            (host.on_thread)();
            ours.run(&settings, &host);
        })?;
        Ok((outlet, thread))
    }

    fn run(&self, settings: &KvEvents, host: &Host) {
        let Some((kept, mut said)) = self.open(settings, host) else {
            return;
        };
        loop {
            let (events, closed) = self.take();
            if events.is_empty() {
                self.open_replay(settings, &mut said, host);
            }
            let batch = {
                let mut feed = lock(&self.feed);
                let Some(feed) = &mut *feed else { return };
                let batch = feed.batch(&events, now());
                kept.keep(feed.next_sequence());
                self.note(feed);
                batch
            };
            self.count(&events);
            let publisher = lock(&self.sockets).publisher.clone();
            if let Some(publisher) = publisher {
                let number = batch.sequence.to_be_bytes();
                let topic = settings.topic.as_bytes();
                publisher.publish(&[topic, &number, &batch.payload]);
            }
            self.in_hand.store(0, Ordering::Release);
            if closed {
                break;
            }
        }
        let sockets = std::mem::take(&mut *lock(&self.sockets));
        if let Some(publisher) = &sockets.publisher {
            publisher.drain(LAST);
        }
        if sockets.router.as_ref().is_some_and(Router::has_peers) {
            self.replays.settle(SILENCE, LAST_REPLAYS);
        }
    }

    pub(crate) fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Notes the figures of the feed.
    fn note(&self, feed: &Feed) {
        for medium in Medium::ALL {
            let blocks = feed.blocks(medium) as u64;
            self.blocks[medium as usize].store(blocks, Ordering::Relaxed);
        }
        self.next.store(feed.next_sequence(), Ordering::Relaxed);
    }
}
