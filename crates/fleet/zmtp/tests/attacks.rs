//! Peers that try to take the server's processors, its memory, or all places.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use contextpilot_zmtp::{Allowance, Limits, Publisher, Router, Session, encode};
use rustix::time::{ClockId, clock_gettime};
use support::{LONG, Peer, any_port, ready, wait_for};

mod support;

const MS: Duration = Duration::from_millis(1);

fn limits() -> Limits {
    Limits {
        connections: 4,
        connections_each_second: 100_000,
        ..Limits::default()
    }
}

fn publisher(limits: Limits) -> Publisher {
    Publisher::bind(any_port(), limits, || ()).expect("a port is free")
}

/// The processor time of this process.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn processor_time_of_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Says the same again and again, and comes again when it is disconnected.
fn repeat(address: SocketAddr, kind: &str, first: &[u8], again: &[u8], is_over: &AtomicBool) {
    let again = again.repeat(4096 / again.len());
    let hello = [&Session::greeting()[..], &ready(kind), first].concat();
    let goes_on = || !is_over.load(Ordering::Relaxed);
    while goes_on() {
        let mut peer = Peer::connect(address);
        let timeout = peer.stream.set_write_timeout(Some(1000 * MS));
        timeout.expect("a timeout");
        let _ = peer.stream.write_all(&hello);
        while goes_on() && peer.stream.write_all(&again).is_ok() {}
    }
}

/// Every kind of frame that a peer may send, as fast as it can.
#[test]
fn peers_that_send_without_end_take_no_more_than_their_share() {
    let long: Vec<u8> = (0..15_u8)
        .flat_map(|n| encode(&[&[&[1], &[n; 1000][..]].concat()]))
        .collect();
    let attacks: [(&str, &[u8], &[u8]); 5] = [
        ("the same subscription", &long, b"\0\x01\x01"),
        (
            "a subscription that comes and goes",
            &long,
            b"\0\x02\x01x\0\x02\0x",
        ),
        ("PING", b"", b"\x04\x07\x04PING\0\0"),
        ("messages of no meaning", b"", b"\0\0"),
        ("commands that are unknown", b"", b"\x04\x02\x01X"),
    ];
    for (what, first, again) in attacks {
        let limits = Limits {
            work_of_each: Allowance {
                burst: 20 * MS,
                each_second: MS,
            },
            work_of_all: Allowance {
                burst: 50 * MS,
                each_second: 20 * MS,
            },
            ..limits()
        };
        let publisher = publisher(limits);
        let mut router = Peer::ready(publisher.address(), "SUB");
        router.subscribe(b"");
        // When all places are taken, a peer that was sent nothing yet loses its own, and peers that are expelled come again.
        publisher.publish(&[b"first"]);
        assert_eq!(router.frame(), Some((false, b"first".to_vec())));
        let address = publisher.address();
        let is_over = AtomicBool::new(false);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let ends = Ends(&is_over);
            for _ in 0..3 {
                scope.spawn(|| repeat(address, "SUB", first, again, &is_over));
            }
            // A router is served all the while: for a second, and on a busy machine until the others have had their share.
            for nth in 0..=u8::MAX {
                if nth >= 20 && publisher.figures().expelled > 0 {
                    break;
                }
                std::thread::sleep(50 * MS);
                publisher.publish(&[&[nth]]);
                router.say(b"\x04\x07\x04PING\0\0");
                let mut frames = [router.frame(), router.frame()];
                frames.sort();
                let expected = [Some((false, vec![nth])), Some((true, b"\x04PONG".to_vec()))];
                assert_eq!(frames, expected, "{what}");
            }
            drop(ends);
        });
        let figures = publisher.figures();
        let work = Duration::from_micros(figures.work_us);
        // 50 ms at once and 20 ms each second. What was in hand when the share was spent, of three peers, comes on top.
        assert!(work < 230 * MS + begun.elapsed() / 50, "{what}: {work:?}");
        assert!(figures.expelled > 0, "{what}: {figures:?}");
    }
}

/// A replay takes as long as writing what is cached, and some hundred queries fit in what is read at once.
#[test]
fn peers_that_ask_without_end_take_no_more_than_their_share() {
    let answer = |_: &[Vec<u8>], send: &mut dyn FnMut(&[&[u8]]) -> std::io::Result<()>| {
        let begun = processor_time_of_thread();
        while processor_time_of_thread() < begun + 10 * MS {}
        send(&[b"x"])
    };
    let limits = Limits {
        work_of_each: Allowance {
            burst: 20 * MS,
            each_second: MS,
        },
        work_of_all: Allowance {
            burst: 50 * MS,
            each_second: 20 * MS,
        },
        ..limits()
    };
    let router = Router::bind(any_port(), limits, || (), answer).expect("a port is free");
    let address = router.address();
    let is_over = AtomicBool::new(false);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let ends = Ends(&is_over);
        for _ in 0..3 {
            let asks = encode(&[b"", &[0; 8]]);
            let is_over = &is_over;
            scope.spawn(move || repeat(address, "DEALER", b"", &asks, is_over));
        }
        std::thread::sleep(2000 * MS);
        wait_for("one is refused", || router.refused() > 0);
        drop(ends);
    });
    let work = Duration::from_micros(router.work_us());
    // 50 ms at once and 20 ms each second, and what was in hand when that was spent.
    assert!(work < 210 * MS + begun.elapsed() / 50, "{work:?}");
}

/// The attack that was seen: 63 subscriptions of 4,000 bytes, and one that is repeated.
#[test]
fn long_subscriptions_are_refused_and_short_ones_cost_nothing_when_repeated() {
    let publisher = publisher(limits());
    let mut peer = Peer::ready(publisher.address(), "SUB");
    for nth in 0..63_u8 {
        let _ = peer
            .stream
            .write_all(&encode(&[&[&[1], &[nth; 4000][..]].concat()]));
    }
    peer.end();
    wait_for("it is refused", || publisher.figures().expelled == 1);

    let mut peer = Peer::ready(publisher.address(), "SUB");
    for nth in 0..63_u8 {
        peer.say(&encode(&[&[&[1], &[nth; 250][..]].concat()]));
    }
    let before = processor_time();
    for _ in 0..20 {
        peer.say(&b"\0\x01\x01".repeat(1000));
    }
    peer.say(b"\x04\x07\x04PING\0\0");
    assert_eq!(peer.frame(), Some((true, b"\x04PONG".to_vec())));
    let each = (processor_time() - before) / 20_000;
    // A copy of all prefixes takes ten times as long.
    assert!(each < Duration::from_micros(4), "{each:?}");
}

#[test]
fn answers_that_nobody_reads_are_few() {
    let publisher = publisher(Limits {
        work_of_each: Allowance {
            burst: LONG,
            each_second: LONG,
        },
        ..limits()
    });
    let mut peer = Peer::ready(publisher.address(), "SUB");
    let pings = b"\x04\x07\x04PING\0\0".repeat(1000);
    let mut sent = 0;
    // It is disconnected once the system's buffers and ours are full.
    while peer.stream.write_all(&pings).is_ok() {
        sent += 1000;
        assert!(sent < 100_000_000, "all {sent} are kept");
    }
    wait_for("it is counted", || publisher.figures().expelled == 1);
}

#[test]
fn those_that_take_nothing_make_room() {
    let publisher = publisher(limits());
    let address = publisher.address();
    let mut router = Peer::ready(address, "SUB");
    router.subscribe(b"");
    publisher.publish(&[b"first"]);
    assert_eq!(router.frame(), Some((false, b"first".to_vec())));
    // One that says nothing, one that wants nothing, and one that wants what there never is.
    let mut silent = Peer::connect(address);
    let mut idle = Peer::ready(address, "SUB");
    let mut other = Peer::ready(address, "SUB");
    other.subscribe(b"never");
    // All four places are taken. The oldest that takes nothing goes first.
    for (nth, loser) in [&mut silent, &mut idle, &mut other].into_iter().enumerate() {
        let mut late = Peer::ready(address, "SUB");
        late.subscribe(b"");
        publisher.publish(&[b"again"]);
        assert_eq!(late.frame(), Some((false, b"again".to_vec())));
        assert_eq!(router.frame(), Some((false, b"again".to_vec())));
        loser.end();
        assert_eq!(publisher.figures().displaced, nth as u64 + 1);
        std::mem::forget(late);
    }
    // Now all are served.
    Peer::connect(address).end();
    wait_for("it is refused", || publisher.figures().refused == 1);
    publisher.publish(&[b"last"]);
    while router.frame() != Some((false, b"last".to_vec())) {}
}

/// A peer that loses its place comes back at once, so that the newest is always about to be displaced.
#[test]
fn a_router_finds_a_place_among_those_that_come_back() {
    let publisher = publisher(Limits {
        connections: 8,
        connections_each_second: 50,
        ..limits()
    });
    let address = publisher.address();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = Ends(&done);
        // One more than there are places.
        for _ in 0..9 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let mut peer = Peer::connect(address);
                    let _ = peer.stream.set_read_timeout(Some(10 * MS));
                    let _ = peer.stream.write_all(&Session::greeting());
                    let _ = peer.stream.write_all(&ready("SUB"));
                    let gone = |error: Error| error.kind() != ErrorKind::WouldBlock;
                    let mut byte = [0];
                    let mut stays = true;
                    while stays && !done.load(Ordering::Relaxed) {
                        stays = !peer.stream.read_exact(&mut byte).is_err_and(gone);
                    }
                }
            });
        }
        wait_for("all places are taken", || publisher.figures().displaced > 0);
        // While it shakes hands it has taken nothing either, and may have to make room like the others. Sockets of
        // ZeroMQ then connect again by themselves.
        let router = (0..10).find_map(|_| subscribed(address));
        let mut router = router.expect("a router finds a place");
        for nth in 0..100_u8 {
            publisher.publish(&[&[nth]]);
            assert_eq!(router.frame(), Some((false, vec![nth])));
            std::thread::sleep(5 * MS);
        }
        drop(ends);
    });
}

/// A subscriber to everything. `None`: the connection was ended meanwhile.
fn subscribed(address: SocketAddr) -> Option<Peer> {
    let mut peer = Peer::try_ready(address, "SUB")?;
    peer.stream.write_all(&encode(&[b"\x01"])).ok()?;
    peer.stream.write_all(b"\x04\x09\x04PING\0\0on").ok()?;
    assert_eq!(peer.frame()?, (true, b"\x04PONGon".to_vec()));
    Some(peer)
}

/// Whatever happens, the others end.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_router_that_asks_finds_a_place_among_those_that_do_not() {
    let answer = |parts: &[Vec<u8>], send: &mut dyn FnMut(&[&[u8]]) -> std::io::Result<()>| {
        send(&[&parts[0]])
    };
    let router = Router::bind(any_port(), limits(), || (), answer).expect("a port is free");
    let _idle: Vec<Peer> = (0..4)
        .map(|_| Peer::ready(router.address(), "DEALER"))
        .collect();
    for nth in 0..10_u8 {
        // It is refused as long as those before it, which have gone, still have all places. Sockets of ZeroMQ connect again.
        let mut asks = None;
        wait_for("a router finds a place", || {
            asks = Peer::try_ready(router.address(), "DEALER");
            asks.is_some()
        });
        let mut asks = asks.expect("it has found one");
        asks.say(&encode(&[&[nth]]));
        assert_eq!(asks.frame(), Some((false, vec![nth])));
    }
    assert!(router.displaced() >= 1);
}

#[test]
fn an_answer_must_be_read_in_time() {
    let answer = |_: &[Vec<u8>], send: &mut dyn FnMut(&[&[u8]]) -> std::io::Result<()>| {
        let large = vec![0; 1 << 20];
        (0..32).try_for_each(|_| send(&[&large]))
    };
    let limits = Limits {
        answer: Duration::ZERO,
        ..limits()
    };
    let router = Router::bind(any_port(), limits, || (), answer).expect("a port is free");
    let mut slow = Peer::ready(router.address(), "DEALER");
    slow.say(&encode(&[b"x"]));
    let begun = Instant::now();
    // It reads something every now and then, and never enough.
    while router.refused() == 0 {
        assert!(begun.elapsed() < LONG, "it may take for ever");
        std::thread::sleep(20 * MS);
        let mut few = [0; 1000];
        let _ = slow.stream.read(&mut few);
    }
}

#[test]
fn one_that_does_not_answer_a_ping_is_gone() {
    let publisher = publisher(Limits {
        heartbeat: 500 * MS,
        ..limits()
    });
    let mut greeting = Session::greeting();
    let zmtp_3_0 = Peer::ready(publisher.address(), "SUB");
    greeting[11] = 1;
    let connect = || {
        let mut peer = Peer::connect(publisher.address());
        peer.say(&greeting);
        peer.say(&ready("SUB"));
        peer.stream.read_exact(&mut [0; 64]).expect("a greeting");
        assert!(peer.frame().is_some_and(|(command, _)| command));
        peer
    };
    let mut silent = connect();
    let mut alive = connect();
    let ping = Some((true, b"\x04PING\0\0".to_vec()));
    for _ in 0..5 {
        assert_eq!(alive.frame(), ping);
        alive.say(b"\x04\x05\x04PONG");
    }
    for _ in 0..3 {
        assert_eq!(silent.frame(), ping);
    }
    silent.end();
    assert_eq!(publisher.figures().expelled, 1);
    drop(zmtp_3_0);
}

#[test]
fn all_queues_together_are_bounded_and_the_slowest_goes() {
    let publisher = publisher(Limits {
        queued_bytes: 8 << 20,
        queued_bytes_of_all: 12 << 20,
        ..limits()
    });
    let mut idle: Vec<Peer> = (0..3)
        .map(|_| {
            let mut peer = Peer::ready(publisher.address(), "SUB");
            peer.subscribe(b"");
            peer
        })
        .collect();
    let message = vec![0; 256 << 10];
    for _ in 0..200 {
        publisher.publish(&[&message]);
    }
    wait_for("two of three have gone", || {
        publisher.figures().expelled == 2
    });
    wait_for("one stays", || publisher.figures().subscribers == 1);
    idle.clear();
}
