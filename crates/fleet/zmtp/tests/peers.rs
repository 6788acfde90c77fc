//! The sockets, and peers of all kinds: those that are slow, silent, rude, or too many.

use std::io::{Read, Write};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use contextpilot_zmtp::{Limits, Publisher, Router, Session, encode};
use support::{LONG, Peer, any_port, ready, wait_for};

mod support;

fn limits() -> Limits {
    Limits {
        connections: 4,
        connections_each_second: 100_000,
        queued_bytes: 1 << 20,
        handshake: Duration::from_millis(300),
        stalled: Duration::from_secs(1),
        ..Limits::default()
    }
}

fn publisher() -> Publisher {
    Publisher::bind(any_port(), limits(), || ()).expect("a port is free")
}

#[test]
fn messages_reach_those_who_subscribed() {
    let publisher = publisher();
    let mut all = Peer::ready(publisher.address(), "SUB");
    let mut some = Peer::ready(publisher.address(), "XSUB");
    all.subscribe(b"");
    some.subscribe(b"kv@");
    assert_eq!(publisher.figures().subscribers, 2);
    assert_eq!(publisher.publish(&[b"other", b"1"]), 1);
    assert_eq!(publisher.publish(&[b"kv@a", b"2"]), 2);
    for expected in ["other", "1", "kv@a", "2"] {
        assert_eq!(all.frame(), Some((false, expected.into())));
    }
    for expected in ["kv@a", "2"] {
        assert_eq!(some.frame(), Some((false, expected.into())));
    }
    drop(all);
    wait_for("it is gone", || publisher.figures().subscribers == 1);
}

#[test]
fn one_that_never_reads_costs_its_queue_and_nobody_waits() {
    let publisher = publisher();
    let mut idle = Peer::ready(publisher.address(), "SUB");
    let mut busy = Peer::ready(publisher.address(), "SUB");
    idle.subscribe(b"");
    busy.subscribe(b"");
    // Far more than the sockets' buffers and the queue hold.
    let message = vec![7; 4000];
    let (done, reader) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut read = 0;
        while let Some((_, body)) = busy.frame() {
            if body == b"end" {
                break;
            }
            read += 1;
            done.send(read).expect("somebody counts");
        }
        read
    });
    let mut longest = Duration::ZERO;
    for nth in 1..=8000 {
        let begun = Instant::now();
        publisher.publish(&[&message]);
        longest = longest.max(begun.elapsed());
        // At the pace of the one who reads.
        while reader.recv_timeout(LONG).expect("it reads on") < nth {}
    }
    publisher.publish(&[b"end"]);
    assert_eq!(thread.join().expect("it reads to the end"), 8000);
    let dropped = publisher.figures().dropped;
    assert!(dropped > 1000, "{dropped} dropped");
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    // It reads nothing, so it is disconnected in the end.
    wait_for("the stalled one goes", || {
        publisher.figures().subscribers == 0
    });
    idle.end();
}

#[test]
fn nonsense_ends_its_connection_and_nothing_else() {
    let publisher = publisher();
    let mut good = Peer::ready(publisher.address(), "SUB");
    good.subscribe(b"");
    let greeting = Session::greeting();
    let cases: [(&str, Vec<u8>); 7] = [
        ("HTTP", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("flags", [&greeting[..], &[0xff]].concat()),
        ("a size", [&greeting[..], &[6], &[0xff; 8]].concat()),
        ("no READY", [&greeting[..], &encode(&[b"\x01"])].concat()),
        ("a type", [&greeting[..], &ready("PUSH")].concat()),
        (
            "a long frame",
            [&greeting[..], &ready("SUB"), &encode(&[&[1; 5000]])].concat(),
        ),
        (
            "many topics",
            [&greeting[..], &ready("SUB")]
                .into_iter()
                .map(<[u8]>::to_vec)
                .chain((0..=255).map(|nth| encode(&[&[1, nth]])))
                .collect::<Vec<_>>()
                .concat(),
        ),
    ];
    for (nth, (name, bytes)) in cases.iter().enumerate() {
        let mut peer = Peer::connect(publisher.address());
        // It may be gone before it has said all.
        let _ = peer.stream.write_all(bytes);
        peer.end();
        wait_for(name, || publisher.figures().expelled == nth as u64 + 1);
    }
    assert_eq!(publisher.publish(&[b"still"]), 1);
    assert_eq!(good.frame(), Some((false, b"still".to_vec())));
}

#[test]
fn one_that_says_nothing_is_not_waited_for() {
    let publisher = publisher();
    let mut silent = Peer::connect(publisher.address());
    // It says something from time to time, and never enough.
    let mut slow = Peer::connect(publisher.address());
    let begun = Instant::now();
    for byte in Session::greeting() {
        if slow.stream.write_all(&[byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    silent.end();
    slow.end();
    assert!(begun.elapsed() < LONG / 6);
    wait_for("both are gone", || publisher.figures().expelled == 2);
}

#[test]
fn ten_thousand_connections_are_refused() {
    let publisher = publisher();
    let mut peers: Vec<Peer> = (0..4)
        .map(|_| Peer::ready(publisher.address(), "SUB"))
        .collect();
    for peer in &mut peers {
        peer.subscribe(b"");
    }
    // A peer that has been sent something keeps its place.
    publisher.publish(&[b"first"]);
    for peer in &mut peers {
        assert_eq!(peer.frame(), Some((false, b"first".to_vec())));
    }
    // Not more at a time than the system lets wait, or it has them wait for seconds.
    for hundreds in 1..=100 {
        let _hundred: Vec<Peer> = (0..100)
            .map(|_| Peer::connect(publisher.address()))
            .collect();
        wait_for("all are refused", || {
            publisher.figures().refused == hundreds * 100
        });
    }
    publisher.publish(&[b"still"]);
    for peer in &mut peers {
        assert_eq!(peer.frame(), Some((false, b"still".to_vec())));
    }
    // There is room again when one goes.
    drop(peers.pop());
    wait_for("it is gone", || publisher.figures().subscribers == 3);
    let begun = Instant::now();
    loop {
        // Its thread may be about to end.
        let mut peer = Peer::connect(publisher.address());
        if peer.stream.read_exact(&mut [0; 64]).is_ok() {
            break;
        }
        assert!(begun.elapsed() < LONG);
    }
}

#[test]
fn a_router_answers_whoever_asks() {
    let router = Router::bind(
        any_port(),
        limits(),
        || (),
        |parts, send| {
            for nth in 0..3_u8 {
                send(&[&parts[0], &[nth], &parts[1]])?;
            }
            Ok(())
        },
    )
    .expect("a port is free");
    let mut dealer = Peer::ready(router.address(), "DEALER");
    for question in [b"first", b"again"] {
        dealer.say(&encode(&[b"", question]));
        for nth in 0..3 {
            assert_eq!(dealer.frame(), Some((false, vec![])));
            assert_eq!(dealer.frame(), Some((false, vec![nth])));
            assert_eq!(dealer.frame(), Some((false, question.to_vec())));
        }
    }
    dealer.say(b"\x04\x07\x04PING\0\0");
    assert_eq!(dealer.frame(), Some((true, b"\x04PONG".to_vec())));
    // A peer that goes is no trouble; one that talks nonsense is counted, before and after the handshake.
    drop(dealer);
    assert_eq!(router.refused(), 0);
    let mut rude = Peer::connect(router.address());
    rude.say(&[0; 64]);
    rude.end();
    let mut later = Peer::ready(router.address(), "DEALER");
    later.say(&[0xff; 16]);
    later.end();
    wait_for("both are counted", || router.refused() == 2);
}

#[test]
fn dropped_sockets_close_their_connections_and_free_their_port() {
    let publisher = publisher();
    let address = publisher.address();
    let mut peer = Peer::ready(address, "SUB");
    peer.subscribe(b"");
    drop(publisher);
    peer.end();
    let again = Publisher::bind(address, limits(), || ()).expect("the port is free");
    Peer::ready(again.address(), "SUB").subscribe(b"");
}
