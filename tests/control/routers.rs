//! What `/stats` and `/metrics` say of the KV cache events for routers.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use contextpilot_client::Metrics;
use contextpilot_zmtp::{Session, encode};
use peer::Peer;

use crate::support::{Hooked, ask, bare, until};

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../crates/fleet/zmtp/tests/support/mod.rs"]
mod peer;

const EVENTS: &str = "CONTEXTPILOT_KV_EVENTS";
/// Any free port.
const ADDRESS: &str = "tcp://127.0.0.1:0";

#[test]
fn stored_and_removed_blocks_are_counted() {
    let hooked = Hooked::observing(&bare(2).env(EVENTS, ADDRESS));
    // The tokens before every prompt, 40 letters, and an answer of eight tokens, of which the last
    // is not evaluated. This makes three full blocks of 16 tokens.
    hooked.server.complete(&ask(1, 40).slot(0)).unwrap();
    let events = until("the blocks are published", || {
        let events = hooked.stats().kv_events?;
        (events.gpu_blocks == 3).then_some(events)
    });
    assert!(
        events
            .publish
            .is_some_and(|at| at.starts_with("tcp://127.0.0.1:"))
    );
    assert!(events.replay.is_some());
    assert_eq!((events.block_size, events.cpu_blocks), (16, 0));
    assert_eq!((events.subscribers, events.removed), (0, 0));
    assert_eq!(events.problem, None);
    hooked.server.complete(&ask(2, 40).slot(0)).unwrap();
    let events = until("others take their place", || {
        let events = hooked.stats().kv_events?;
        (events.stored == 6 && events.gpu_blocks == 3).then_some(events)
    });
    assert_eq!(events.removed, 3);
    let metrics = Metrics::parse(&hooked.get("/metrics").text());
    let value = |name: &str, label| {
        let name = format!("contextpilot_llama_{name}");
        metrics.value(&name, &[label])
    };
    assert_eq!(value("kv_events_blocks", ("medium", "GPU")), Some(3.0));
    assert_eq!(value("kv_events_blocks", ("medium", "CPU")), Some(0.0));
    assert_eq!(
        value("kv_events_blocks_total", ("change", "stored")),
        Some(6.0)
    );
    assert_eq!(
        value("kv_events_failing", ("engine", "llama.cpp")),
        Some(0.0)
    );
}

#[test]
fn if_nothing_is_published_stats_say_why() {
    let hooked = Hooked::observing(
        &bare(2)
            .env(EVENTS, ADDRESS)
            .env("CONTEXTPILOT_KV_BLOCK_SIZE", "1024"),
    );
    assert_eq!(hooked.stats().kv_events.unwrap().problem, None);
    hooked.server.complete(&ask(1, 40)).unwrap();
    let problem = until("it is known", || hooked.stats().kv_events?.problem);
    assert!(
        problem.contains("after 1 prompt:") && problem.contains("1024"),
        "{problem}"
    );

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", taken.local_addr().unwrap());
    let hooked = Hooked::observing(&bare(2).env(EVENTS, &address));
    let problem = until("it is known", || hooked.stats().kv_events?.problem);
    assert_eq!(problem, format!("cannot listen on {address}, it is in use"));
    assert!(hooked.server.stderr().contains(&problem));
    // The server still answers.
    hooked.server.complete(&ask(1, 40)).unwrap();
}

/// Tells the client to stop when this value is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How many connections the publisher accepts at a time.
const ROOM: usize = 32;

#[test]
fn misbehaving_peers_do_not_affect_the_server() {
    let hooked = Hooked::observing(&bare(2).env(EVENTS, ADDRESS));
    let events = until("it publishes", || {
        hooked.stats().kv_events.filter(|one| one.publish.is_some())
    });
    let [publish, replay] = [events.publish, events.replay].map(|at| -> SocketAddr {
        let at = at.expect("it listens");
        at.trim_start_matches("tcp://").parse().expect("an address")
    });
    let refused = || hooked.stats().kv_events.unwrap().refused;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The client must stop even if an assertion fails.
        let load_ends = Ends(&done);
        let client = scope.spawn(|| {
            let mut answered = 0;
            while !done.load(Ordering::Relaxed) {
                let answer = hooked.server.complete(&ask(answered, 60).predict(2));
                answer.expect("the server answers");
                answered += 1;
            }
            answered
        });
        // These peers subscribe and never read.
        let mut stalled: Vec<Peer> = (0..ROOM - 1).map(|_| Peer::ready(publish, "SUB")).collect();
        for peer in &mut stalled {
            peer.say(&encode(&[b"\x01"]));
        }
        until("they are subscribed", || {
            let subscribers = hooked.stats().kv_events?.subscribers;
            (subscribers == stalled.len() as u64).then_some(())
        });
        let too_long = [
            &Session::greeting()[..],
            &[2, 0x7f, 0xff, 0xff, 0xff],
            &[0xff; 4],
        ];
        let nonsense: [&[u8]; 3] = [
            b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n",
            &[0xff; 4096],
            &too_long.concat(),
        ];
        for at in [publish, replay] {
            for bytes in nonsense {
                let mut peer = Peer::connect(at);
                // The server may have closed the connection already.
                let _ = peer.stream.write_all(bytes);
                peer.end();
            }
        }
        until("they are counted", || (refused() >= 6).then_some(()));
        // One place is left, for which a hundred compete: all but the last lose it again.
        let turned_away = || {
            let events = hooked.stats().kv_events.unwrap();
            events.refused + events.displaced
        };
        let before = turned_away();
        let hundred: Vec<Peer> = (0..100).map(|_| Peer::connect(publish)).collect();
        until("all have lost", || {
            (turned_away() >= before + 99).then_some(())
        });
        drop(hundred);
        drop(load_ends);
        let answered = client.join().expect("the server has answered");
        assert!(answered > 10, "{answered}");
        drop(stalled);
    });
    // A new connection is accepted again.
    until("there is room again", || {
        let events = hooked.stats().kv_events.unwrap();
        (events.subscribers == 0).then_some(())
    });
    let mut late = Peer::ready(publish, "SUB");
    late.say(&encode(&[b"\x01"]));
    assert_eq!(
        late.frame(),
        Some((false, Vec::new())),
        "the topic of a batch"
    );
    assert_eq!(hooked.stats().kv_events.unwrap().problem, None);
}

#[test]
fn without_the_setting_nothing_is_published() {
    let hooked = Hooked::observing(&bare(2));
    assert_eq!(hooked.stats().kv_events, None);
    assert!(!hooked.get("/metrics").text().contains("kv_events"));
    let tasks = format!("/proc/{}/task", hooked.server.pid());
    for task in std::fs::read_dir(tasks).unwrap().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        assert!(!name.starts_with("kv-"), "{name}");
    }
}
