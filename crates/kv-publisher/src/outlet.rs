//! Between the ledger's thread and the sockets.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use contextpilot_kv_events::{Feed, KvEvent, Medium};
use contextpilot_settings::KvEvents;
use contextpilot_zmtp::{Limits, Publisher, Router};

use crate::kept::Kept;
use crate::{Host, replay};

/// Tokens and blocks of events that may wait for our thread. Beyond that they are dropped, and all
/// that is there is said again.
pub const MOST_WAITING: usize = 4 << 20;
/// Connections at a time, of subscribers; and a quarter as many that ask for replays.
pub const CONNECTIONS: usize = 32;
/// Bytes that wait for one subscriber.
pub const QUEUED_BYTES: usize = 4 << 20;
/// A sign of life after so much silence: whoever has come meanwhile or missed the last batch
/// learns by it that there is something to ask for.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long to wait before an address is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long subscribers have for the last batch.
const LAST: Duration = Duration::from_millis(50);

/// Shared by all threads.
#[derive(Debug)]
pub(crate) struct Outlet {
    /// Tokens of a block.
    block_size: u32,
    inbox: Mutex<Inbox>,
    filled: Condvar,
    /// `None` until the first number is known.
    feed: Arc<Mutex<Option<Feed>>>,
    sockets: Mutex<Sockets>,
    batches: AtomicU64,
    stored: AtomicU64,
    removed: AtomicU64,
    started_over: AtomicU64,
    replays: Arc<AtomicU64>,
    /// Events that were taken from the inbox and are not published yet.
    in_hand: AtomicU64,
}

#[derive(Debug, Default)]
struct Inbox {
    events: Vec<KvEvent>,
    /// Tokens and blocks of these.
    weight: usize,
    closed: bool,
}

#[derive(Debug, Default)]
struct Sockets {
    publisher: Option<Publisher>,
    router: Option<Router>,
    /// Why there are none.
    problem: Option<String>,
}

/// What has happened since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Where subscribers connect to.
    pub publish: Option<SocketAddr>,
    /// Where replays are asked for; `None`: nowhere.
    pub replay: Option<SocketAddr>,
    /// Why nothing listens.
    pub problem: Option<String>,
    /// Tokens of a block.
    pub block_size: u32,
    /// Peers that are subscribed now.
    pub subscribers: u64,
    /// Blocks in slots that are published now.
    pub gpu_blocks: u64,
    /// Blocks of host entries.
    pub cpu_blocks: u64,
    /// The number of the newest batch; `None`: there is none yet.
    pub sequence: Option<u64>,
    /// Events that wait to be published.
    pub waiting: u64,
    /// Batches, signs of life not among them.
    pub batches: u64,
    /// Blocks that were said to be there.
    pub stored: u64,
    /// Blocks that were said to be gone.
    pub removed: u64,
    /// Batches that did not fit in a subscriber's queue, counted for each.
    pub dropped: u64,
    /// Replays that were asked for.
    pub replays: u64,
    /// Times that all was said again, since events did not fit on their way to our thread.
    pub started_over: u64,
    /// Connections that were closed: too many, or because of what the peer did.
    pub refused: u64,
}

impl Outlet {
    /// Publishes nothing.
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
            in_hand: AtomicU64::new(0),
        }
    }

    pub(crate) fn start(settings: KvEvents, host: Host) -> io::Result<(Arc<Self>, JoinHandle<()>)> {
        let outlet = Arc::new(Self::new(settings.block_size));
        let ours = Arc::clone(&outlet);
        let builder = std::thread::Builder::new().name("kv-events".into());
        let thread = builder.spawn(move || {
            (host.on_thread)();
            ours.run(&settings, &host);
        })?;
        Ok((outlet, thread))
    }

    // ---- the ledger's thread -------------------------------------------

    /// Takes events to be published. False: there was no room, and none of those that waited will
    /// be.
    pub(crate) fn push(&self, events: &mut Vec<KvEvent>) -> bool {
        let weight: usize = events.iter().map(weight).sum();
        let mut inbox = lock(&self.inbox);
        if inbox.weight > 0 && inbox.weight + weight > MOST_WAITING {
            inbox.events.clear();
            inbox.weight = 0;
            events.clear();
            self.started_over.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        inbox.weight += weight;
        inbox.events.append(events);
        self.filled.notify_one();
        true
    }

    /// Whatever waits, nothing is there.
    pub(crate) fn clear(&self) {
        let mut inbox = lock(&self.inbox);
        inbox.events = vec![KvEvent::Cleared];
        inbox.weight = 1;
        self.filled.notify_one();
    }

    pub(crate) fn close(&self) {
        lock(&self.inbox).closed = true;
        self.filled.notify_one();
    }

    // ---- our thread ----------------------------------------------------

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
                batch
            };
            self.count(&events);
            if let Some(publisher) = &lock(&self.sockets).publisher {
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
    }

    /// Listens, as soon as that is possible; also whether it was said that replays cannot be
    /// answered yet. `None`: it was closed first.
    fn open(&self, settings: &KvEvents, host: &Host) -> Option<(Kept, bool)> {
        let address = settings.publish;
        let mut said = false;
        let publisher = loop {
            match Publisher::bind(address, limits(CONNECTIONS), host.on_thread) {
                Ok(publisher) => break publisher,
                Err(why) => self.complain(&mut said, host, "KV_EVENTS", address, &why),
            }
            self.pause()?;
        };
        let chosen = address.port() == 0;
        let (kept, next) = Kept::open(publisher.address(), chosen, host);
        *lock(&self.feed) = Some(Feed::new(settings.block_size, next));
        let publish = publisher.address();
        lock(&self.sockets).publisher = Some(publisher);
        lock(&self.sockets).problem = None;
        let mut said = false;
        self.open_replay(settings, &mut said, host);
        self.announce(settings, publish, host);
        Some((kept, said))
    }

    /// Answers replays, as soon as that is possible.
    fn open_replay(&self, settings: &KvEvents, said: &mut bool, host: &Host) {
        let Some(address) = settings.replay else {
            return;
        };
        if lock(&self.sockets).router.is_some() {
            return;
        }
        match self.answer_at(settings, address, host) {
            Ok(router) => {
                let mut sockets = lock(&self.sockets);
                sockets.router = Some(router);
                sockets.problem = None;
            }
            Err(why) => self.complain(said, host, "KV_EVENTS_REPLAY", address, &why),
        }
    }

    fn answer_at(
        &self,
        settings: &KvEvents,
        address: SocketAddr,
        host: &Host,
    ) -> io::Result<Router> {
        let (feed, replays) = (Arc::clone(&self.feed), Arc::clone(&self.replays));
        let topic = settings.topic.clone();
        let limits = limits(CONNECTIONS / 4);
        Router::bind(address, limits, host.on_thread, move |question, send| {
            if replay::answer(&feed, topic.as_bytes(), question, send)? {
                replays.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        })
    }

    fn complain(&self, said: &mut bool, host: &Host, name: &str, at: SocketAddr, why: &io::Error) {
        let why = match why.kind() {
            io::ErrorKind::AddrInUse => "it is in use".to_owned(),
            _ => why.to_string(),
        };
        let problem = format!("cannot listen on tcp://{at}, {why}");
        if !std::mem::replace(said, true) {
            (host.log)(&format!(
                "[ContextPilot] KV cache events: {problem}. It is tried again; or set \
                 CONTEXTPILOT_{name} to another address and restart"
            ));
        }
        lock(&self.sockets).problem = Some(problem);
    }

    fn announce(&self, settings: &KvEvents, publish: SocketAddr, host: &Host) {
        let router = lock(&self.sockets).router.as_ref().map(Router::address);
        let replay = router.map_or("none".to_owned(), |at| format!("tcp://{at}"));
        let open = if settings.is_open() {
            "; other machines can connect, and read all prompts from them"
        } else {
            ""
        };
        (host.log)(&format!(
            "[ContextPilot] KV cache events: tcp://{publish}, replays {replay}, blocks of {} \
             tokens{open}",
            settings.block_size
        ));
    }

    /// `None`: it was closed.
    fn pause(&self) -> Option<()> {
        let until = Instant::now() + AGAIN;
        let mut inbox = lock(&self.inbox);
        loop {
            if inbox.closed {
                return None;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(());
            }
            let woken = self.filled.wait_timeout(inbox, left);
            inbox = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for events, and no longer than until the next sign of life. Also says whether these
    /// are the last.
    fn take(&self) -> (Vec<KvEvent>, bool) {
        let until = Instant::now() + HEARTBEAT;
        let mut inbox = lock(&self.inbox);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if inbox.closed || !inbox.events.is_empty() || left.is_zero() {
                inbox.weight = 0;
                let events = std::mem::take(&mut inbox.events);
                self.in_hand.store(events.len() as u64, Ordering::Release);
                return (events, inbox.closed);
            }
            let woken = self.filled.wait_timeout(inbox, left);
            inbox = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn count(&self, events: &[KvEvent]) {
        if !events.is_empty() {
            self.batches.fetch_add(1, Ordering::Relaxed);
        }
        for event in events {
            let (counter, hashes) = match event {
                KvEvent::Stored { hashes, .. } => (&self.stored, hashes),
                KvEvent::Removed { hashes, .. } => (&self.removed, hashes),
                KvEvent::Cleared => continue,
            };
            counter.fetch_add(hashes.len() as u64, Ordering::Relaxed);
        }
    }

    // ---- whoever asks --------------------------------------------------

    pub(crate) fn figures(&self) -> Figures {
        let inbox = lock(&self.inbox);
        let waiting = inbox.events.len() as u64 + self.in_hand.load(Ordering::Acquire);
        drop(inbox);
        let sockets = lock(&self.sockets);
        let publisher = sockets.publisher.as_ref();
        let router = sockets.router.as_ref();
        let sent = publisher.map(Publisher::figures).unwrap_or_default();
        let feed = lock(&self.feed);
        let blocks = |medium| feed.as_ref().map_or(0, |feed| feed.blocks(medium) as u64);
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            publish: publisher.map(Publisher::address),
            replay: router.map(Router::address),
            problem: sockets.problem.clone(),
            block_size: self.block_size,
            subscribers: sent.subscribers,
            gpu_blocks: blocks(Medium::Gpu),
            cpu_blocks: blocks(Medium::Cpu),
            sequence: feed
                .as_ref()
                .and_then(|feed| feed.next_sequence().checked_sub(1)),
            waiting,
            batches: of(&self.batches),
            stored: of(&self.stored),
            removed: of(&self.removed),
            dropped: sent.dropped,
            replays: of(&self.replays),
            started_over: of(&self.started_over),
            refused: sent.refused + sent.expelled + router.map_or(0, Router::refused),
        }
    }
}

fn limits(connections: usize) -> Limits {
    Limits {
        connections,
        queued_bytes: QUEUED_BYTES,
        ..Limits::default()
    }
}

fn weight(event: &KvEvent) -> usize {
    match event {
        KvEvent::Stored { hashes, tokens, .. } => hashes.len() + tokens.len(),
        KvEvent::Removed { hashes, .. } => hashes.len(),
        KvEvent::Cleared => 1,
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// What happens below a lock does not panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
