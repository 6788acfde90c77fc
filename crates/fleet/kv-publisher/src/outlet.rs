//! The thread that takes events from the ledger's thread, makes batches of them and publishes them.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use contextpilot_kv_events::{Feed, Medium};
use contextpilot_settings::KvEvents;
use contextpilot_zmtp::{Limits, Publisher, Router};

use crate::Host;
use crate::kept::Kept;
use crate::replay::{self, Replays};
use crate::shared::{lock, now};

mod figures;
mod inbox;

pub(crate) use inbox::Beside;
use inbox::Inbox;
pub use inbox::MOST_WAITING;

/// As large as Rust's own are. Named, because otherwise Rust looks for a variable, and the host's threads change those.
const STACK: usize = 2 << 20;

/// Connections of subscribers at a time, unless `CONTEXTPILOT_KV_EVENTS_CONNECTIONS` says otherwise. A quarter as
/// many may ask for replays.
pub const CONNECTIONS: usize = contextpilot_settings::DEFAULT_ROUTERS;
/// Bytes that may wait for one connection.
pub const QUEUED_BYTES: usize = 4 << 20;
/// Bytes that may wait for all of them.
pub const QUEUED_BYTES_OF_ALL: usize = 32 << 20;

/// How long to wait at the end until the last batch is sent to subscribers.
const LAST: Duration = Duration::from_millis(50);
/// So much later, if any router may ask for replays, it has asked for what it lacks before the last batch.
const SILENCE: Duration = Duration::from_millis(20);
/// How long to wait for the answers.
const LAST_REPLAYS: Duration = Duration::from_millis(200);

/// One socket publishes to subscribers, the other answers requests for replays.
#[derive(Debug, Default)]
struct Sockets {
    publisher: Option<Arc<Publisher>>,
    router: Option<Router>,
    /// Why a socket is missing.
    problem: Option<String>,
}

/// The state that the threads share.
#[derive(Debug)]
pub(crate) struct Outlet {
    /// Tokens in a block.
    block_size: u32,
    pub(crate) inbox: Inbox,
    /// `None` until the publisher listens and the first batch number is known.
    feed: Arc<Mutex<Option<Feed>>>,
    sockets: Mutex<Sockets>,
    batches: AtomicU64,
    stored: AtomicU64,
    removed: AtomicU64,
    replays: Arc<Replays>,
    /// What the feed says after the last batch: blocks on each medium, and the number of the next batch. The
    /// figures are asked for on the worker's thread, which waits for no replay.
    blocks: [AtomicU64; Medium::ALL.len()],
    next: AtomicU64,
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
            inbox: Inbox::default(),
            feed: Arc::default(),
            sockets: Mutex::default(),
            batches: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            removed: AtomicU64::new(0),
            replays: Arc::default(),
            blocks: Default::default(),
            next: AtomicU64::new(0),
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
            let (events, closed) = self.inbox.take();
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
            self.inbox.in_hand.store(0, Ordering::Release);
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

    /// Listens for subscribers, and tries until that succeeds. Then tries once to listen for replays.
    /// Also returns whether a failure of the latter was logged. `None`: the outlet was closed before.
    fn open(&self, settings: &KvEvents, host: &Host) -> Option<(Kept, bool)> {
        let address = settings.publish;
        let mut said = false;
        let publisher = loop {
            match Publisher::bind(address, limits(settings.connections), host.on_thread) {
                Ok(publisher) => break publisher,
                Err(why) => self.complain(&mut said, host, "KV_EVENTS", address, &why),
            }
            self.inbox.pause()?;
        };
        let chosen = address.port() == 0;
        let (kept, next) = Kept::open(publisher.address(), chosen, host);
        let feed = Feed::new(settings.block_size, next);
        self.note(&feed);
        *lock(&self.feed) = Some(feed);
        let publish = publisher.address();
        lock(&self.sockets).publisher = Some(Arc::new(publisher));
        lock(&self.sockets).problem = None;
        let mut said = false;
        self.open_replay(settings, &mut said, host);
        self.announce(settings, publish, host);
        Some((kept, said))
    }

    /// Tries to listen for replays, unless it does already. `said`: a failure was logged already.
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
        let limits = limits(settings.connections.div_ceil(4));
        Router::bind(address, limits, host.on_thread, move |question, send| {
            replay::answer(&replays, &feed, topic.as_bytes(), question, send)
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

fn limits(connections: usize) -> Limits {
    Limits {
        connections,
        queued_bytes: QUEUED_BYTES,
        queued_bytes_of_all: QUEUED_BYTES_OF_ALL,
        ..Limits::default()
    }
}
