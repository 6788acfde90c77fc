//! KV cache events from the ledger to a subscriber's socket.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Mutex, OnceLock};

use contextpilot_control as control;
use contextpilot_kv_events::{KvEvent, Medium};
use contextpilot_kv_publisher::{Host, MOST_WAITING, Publication};
use contextpilot_residency::{ContextId, Entry, Event, Ledger, Token};
use contextpilot_settings::KvEvents;
use contextpilot_testbed::nowhere;
use contextpilot_zmtp::encode;
use events::{Subscriber, read};
use peer::{Peer, wait_for};

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../kv-events/tests/support/mod.rs"]
mod events;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../zmtp/tests/support/mod.rs"]
mod peer;

const CONTEXT: ContextId = ContextId(1);
const TOPIC: &str = "kv@here@model";

static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn host() -> Host {
    static STATE: OnceLock<tempfile::TempDir> = OnceLock::new();
    fn lookup(name: &str) -> Option<OsString> {
        let state = STATE.get_or_init(|| tempfile::tempdir().expect("a folder"));
        (name == "XDG_STATE_HOME").then(|| state.path().into())
    }
    Host {
        on_thread: || (),
        log: |line| LOG.lock().expect("nobody panics").push(line.to_owned()),
        lookup,
    }
}

/// Whether a line with an address and some text was logged.
fn was_said(about: SocketAddr, words: &str) -> bool {
    let about = about.to_string();
    let log = LOG.lock().expect("nobody panics");
    log.iter()
        .any(|line| line.contains(&about) && line.contains(words))
}

fn at(publish: SocketAddr, replay: Option<SocketAddr>) -> KvEvents {
    KvEvents {
        connections: 32,
        publish,
        replay,
        topic: TOPIC.to_owned(),
        block_size: 4,
        adapters: Vec::new(),
    }
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// The address in a URL of the figures.
#[track_caller]
fn address_in(url: &Option<String>) -> SocketAddr {
    let address = url.as_deref().and_then(|url| url.strip_prefix("tcp://"));
    let address = address.expect("it listens at tcp://");
    address.parse().expect("an address")
}

struct Scene {
    publication: Publication,
    ledger: Ledger,
}

impl Scene {
    fn start(settings: KvEvents) -> Self {
        Self {
            publication: Publication::start(settings, host()).expect("a thread"),
            ledger: Ledger::observed(),
        }
    }

    fn listening(settings: KvEvents) -> (Self, control::KvEvents) {
        let scene = Self::start(settings);
        wait_for("it listens", || scene.figures().publish.is_some());
        let figures = scene.figures();
        (scene, figures)
    }

    fn figures(&self) -> control::KvEvents {
        self.publication.figures()
    }

    fn apply(&mut self, event: Event) {
        let mut facts = Vec::new();
        self.ledger.apply(event, &mut facts);
        self.publication.note(&facts);
        self.publication.follow(&mut self.ledger);
    }

    /// Evaluates a prompt of these tokens in a slot.
    fn evaluate(&mut self, slot: i32, tokens: impl IntoIterator<Item = Token>) {
        let entries = tokens.into_iter().zip(0..).map(|(token, position)| Entry {
            sequence: slot,
            position,
            token,
            output: true,
        });
        self.apply(Event::Submitted {
            context: CONTEXT,
            entries: entries.collect(),
        });
        self.apply(Event::Evaluated {
            context: CONTEXT,
            failed: Vec::new(),
            no_room: false,
        });
    }
}

/// The next batch that a peer gets: its number and its events.
fn batch(peer: &mut Peer) -> (u64, Vec<KvEvent>) {
    let mut part = || peer.frame().expect("a frame").1;
    assert_eq!(part(), TOPIC.as_bytes());
    let number = part().try_into().expect("eight bytes");
    (u64::from_be_bytes(number), read(&part()))
}

fn subscriber(address: SocketAddr) -> Peer {
    let mut peer = Peer::ready(address, "SUB");
    peer.subscribe(b"kv@");
    peer
}

#[test]
fn a_subscriber_is_sent_each_block_that_is_stored_or_removed() {
    let (mut scene, figures) = Scene::listening(at(any_port(), Some(any_port())));
    let publish = address_in(&figures.publish);
    // A moment later: only then is it known where replays are.
    wait_for("it is said", || was_said(publish, "blocks of 4 tokens"));
    let mut peer = subscriber(publish);
    let (first, events) = batch(&mut peer);
    assert_eq!(events, [], "a sign of life");
    scene.evaluate(0, 0..9);
    let mut model = Subscriber::new(4);
    let mut next = first + 1;
    while model.blocks(Medium::Gpu, None).len() < 2 {
        let (number, events) = batch(&mut peer);
        assert_eq!(number, next);
        next += 1;
        model.take(&events);
    }
    scene.apply(Event::Removed {
        context: CONTEXT,
        sequence: 0,
        from: 7,
        to: -1,
    });
    while model.blocks(Medium::Gpu, None).len() > 1 {
        model.take(&batch(&mut peer).1);
    }
    let figures = scene.figures();
    assert_eq!((figures.gpu_blocks, figures.cpu_blocks), (1, 0));
    assert_eq!((figures.stored, figures.removed), (2, 1));
    assert_eq!((figures.subscribers, figures.dropped), (1, 0));
    assert!(figures.batches >= 2 && figures.started_over == 0);
    // A server that ends in order sends a last batch, even an empty one.
    drop(scene);
    assert_eq!(peer.frame(), Some((false, TOPIC.into())));
}

#[test]
fn a_late_subscriber_gets_all_blocks_by_a_replay() {
    let (mut scene, _) = Scene::listening(at(any_port(), Some(any_port())));
    // It listens for replays a moment later than for subscribers.
    wait_for("it listens", || scene.figures().replay.is_some());
    scene.evaluate(0, 0..9);
    wait_for("it is published", || scene.figures().gpu_blocks == 2);
    let mut dealer = Peer::ready(address_in(&scene.figures().replay), "DEALER");
    let nonsense: [&[&[u8]]; 3] = [&[b"x"], &[b"", b"1234567"], &[b"", b"12345678", b""]];
    for parts in nonsense {
        dealer.say(&encode(parts));
    }
    dealer.say(&encode(&[b"", &0_u64.to_be_bytes()]));
    let mut model = Subscriber::new(4);
    let mut next = 0;
    loop {
        assert_eq!(dealer.frame(), Some((false, vec![])));
        let (_, topic) = dealer.frame().expect("a topic");
        let (_, number) = dealer.frame().expect("a number");
        let (_, payload) = dealer.frame().expect("a payload");
        if number == [0xff; 8] {
            assert!(topic.is_empty() && payload.is_empty());
            break;
        }
        assert_eq!(number, u64::to_be_bytes(next));
        let events = read(&payload);
        assert_eq!(events.is_empty(), next > 0, "all is in the first");
        model.take(&events);
        next += 1;
    }
    assert_eq!(model.blocks(Medium::Gpu, None).len(), 2);
    assert!(next > 0);
    wait_for("it is counted", || scene.figures().replays == 1);
}

#[test]
fn after_a_restart_at_the_same_address_the_batch_numbers_go_on() {
    let address = nowhere();
    let (mut scene, _) = Scene::listening(at(address, None));
    scene.evaluate(0, 0..9);
    wait_for("it is published", || scene.figures().gpu_blocks == 2);
    drop(scene);
    let (mut scene, _) = Scene::listening(at(address, None));
    let mut peer = subscriber(address);
    let (number, _) = batch(&mut peer);
    assert!(number > 0);
    scene.evaluate(0, 0..4);
    let (mut before, mut events) = (number, Vec::new());
    while events.is_empty() {
        let (number, next) = batch(&mut peer);
        assert_eq!(number, before + 1);
        (before, events) = (number, next);
    }
    assert_eq!(events[0], KvEvent::Cleared);
    assert_eq!(scene.figures().replay, None);
}

#[test]
fn an_address_that_is_in_use_is_tried_again() {
    let taken = TcpListener::bind(any_port()).expect("a port is free");
    let address = taken.local_addr().expect("an address");
    let mut scene = Scene::start(at(address, Some(any_port())));
    wait_for("it is known", || scene.figures().problem.is_some());
    let problem = scene.figures().problem.expect("known");
    assert_eq!(
        problem,
        format!("cannot listen on tcp://{address}, it is in use")
    );
    assert!(was_said(
        address,
        "set CONTEXTPILOT_KV_EVENTS to another address"
    ));

    // Nothing can be published, and the number of waiting events is bounded.
    let long = MOST_WAITING as i32 / 2;
    scene.evaluate(0, 0..long);
    scene.evaluate(1, (0..long).rev());
    assert_eq!(scene.figures().started_over, 1);
    drop(taken);
    wait_for("it listens", || scene.figures().publish.is_some());
    assert_eq!(scene.figures().problem, None);
    scene.evaluate(1, 0..4);
    let blocks = MOST_WAITING as u64 / 2 / 4;
    wait_for("all is there", || scene.figures().gpu_blocks == blocks);
}

#[test]
fn events_are_published_while_the_port_for_replays_is_in_use() {
    let taken = TcpListener::bind(any_port()).expect("a port is free");
    let address = taken.local_addr().expect("an address");
    let (mut scene, _) = Scene::listening(at(any_port(), Some(address)));
    scene.evaluate(0, 0..9);
    wait_for("it is published", || scene.figures().gpu_blocks == 2);
    let problem = scene.figures().problem.expect("it is known");
    assert!(problem.contains(&address.to_string()), "{problem}");
    drop(taken);
    let replay = format!("tcp://{address}");
    wait_for("it listens", || {
        scene.figures().replay.as_ref() == Some(&replay)
    });
    assert_eq!(scene.figures().problem, None);
}

#[test]
fn after_lose_all_subscribers_learn_that_nothing_is_cached() {
    let (mut scene, figures) = Scene::listening(at(any_port(), None));
    scene.evaluate(0, 0..9);
    wait_for("it is published", || scene.figures().gpu_blocks == 2);
    let mut peer = subscriber(address_in(&figures.publish));
    scene.publication.lose_all();
    loop {
        let (_, events) = batch(&mut peer);
        if !events.is_empty() {
            assert_eq!(events, [KvEvent::Cleared]);
            break;
        }
    }
    assert_eq!(scene.figures().gpu_blocks, 0);
}

#[test]
fn a_publication_without_a_thread_gives_its_reason_as_the_problem() {
    let mut publication = Publication::none(16, "for a reason".to_owned());
    let mut ledger = Ledger::observed();
    let event = Event::ContextCreated { context: CONTEXT };
    let mut facts = Vec::new();
    ledger.apply(event, &mut facts);
    publication.note(&facts);
    publication.follow(&mut ledger);
    publication.lose_all();
    let figures = publication.figures();
    assert_eq!(figures.problem.as_deref(), Some("for a reason"));
    assert_eq!((figures.publish, figures.sequence), (None, None));
    assert_eq!((figures.waiting, figures.block_size), (0, 16));
}
