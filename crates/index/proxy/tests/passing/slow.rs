//! Clients that take their time, or as many places as there are.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use contextpilot_proxy::Limits;

use crate::support::{Fake, Proxied, head, read_to};

/// Longer than what is quick here, and shorter than the tests' patience.
const SHORT: Duration = Duration::from_millis(600);

const BODY: &[u8] = b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc";
const OWN: &[u8] = b"GET /own HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn within(limits: Limits) -> (Fake, Proxied) {
    let fake = Fake::start();
    let proxy = Proxied::within(limits, "127.0.0.1", &fake.url());
    (fake, proxy)
}

fn send(proxy: &Proxied, bytes: &[u8]) -> TcpStream {
    let mut client = proxy.connect();
    client.write_all(bytes).expect("sent");
    client
}

/// All that comes until the connection is closed.
fn rest(mut client: TcpStream) -> String {
    let mut text = Vec::new();
    let _ = client.read_to_end(&mut text);
    String::from_utf8(text).expect("text")
}

#[test]
fn the_head_the_body_and_the_pause_between_requests_have_their_times() {
    let (mut fake, proxy) = within(Limits {
        head: SHORT,
        body: SHORT,
        idle: SHORT,
        ..Limits::default()
    });
    let silent = proxy.connect();
    let half = send(&proxy, b"POST /x HTTP/1.1\r\nHost: loc");
    let mut idle = send(&proxy, OWN);
    read_to(&mut idle, "mine");
    let body = send(&proxy, BODY);
    let mut server = fake.accept();
    head(&mut server);
    assert_eq!(rest(silent), "");
    assert_eq!(rest(half), "");
    assert_eq!(rest(idle), "");
    let answer = rest(body);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("send it faster"), "{answer}");
    assert_eq!(proxy.counts().late, 4);
    // A client that waits for an answer may wait longer than all of these.
    let mut waits = send(&proxy, b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut server = fake.accept();
    head(&mut server);
    std::thread::sleep(3 * SHORT);
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate";
    server.write_all(answer.as_bytes()).expect("answered");
    read_to(&mut waits, "late");
    assert_eq!(proxy.counts().late, 4);
}

#[test]
fn a_client_that_reads_nothing_of_its_answer_is_disconnected() {
    let (mut fake, proxy) = within(Limits {
        answer: SHORT,
        ..Limits::default()
    });
    let _client = send(&proxy, b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut server = fake.accept();
    head(&mut server);
    let start = "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
    server.write_all(start.as_bytes()).expect("head");
    // More than all buffers on the way hold: this ends only because the connection does.
    let part = vec![b'x'; 1 << 20];
    while server.write_all(&part).is_ok() {}
    assert_eq!(proxy.counts().late, 1);
}

#[test]
fn what_waits_in_a_connection_is_bounded() {
    let (_fake, proxy) = within(Limits::default());
    let long = 8 << 20;
    let head = format!(
        "POST /pieces HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {long}\r\n\r\n"
    );
    let mut client = send(&proxy, head.as_bytes());
    client.write_all(&vec![b' '; long]).expect("a body");
    let answer = rest(client);
    let (_, largest) = answer.rsplit_once("\r\n\r\n").expect("an answer");
    let largest: usize = largest.parse().expect("a number");
    assert!(largest <= 128 << 10, "{largest} bytes at once");
    // Nor may a head have more.
    let field = format!("X-Long: {}\r\n", "x".repeat(7000));
    let head = format!(
        "GET /own HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
        field.repeat(8)
    );
    let mut client = send(&proxy, head.as_bytes());
    read_to(&mut client, "mine");
    let head = format!(
        "GET /own HTTP/1.1\r\nHost: localhost\r\n{}",
        field.repeat(10)
    );
    let answer = rest(send(&proxy, head.as_bytes()));
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    // It is counted when the connection has ended.
    while proxy.counts().refused == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn if_unfinished_requests_hold_all_places_others_are_answered() {
    let (_fake, proxy) = within(Limits {
        connections: 8,
        reserve: 2,
        ..Limits::default()
    });
    let slow: Vec<_> = (0..40).map(|_| send(&proxy, BODY)).collect();
    for _ in 0..20 {
        let mut client = send(&proxy, OWN);
        read_to(&mut client, "mine");
    }
    let counts = proxy.counts();
    assert!(counts.open <= 10, "{counts:?}");
    assert!(counts.displaced >= 32, "{counts:?}");
    drop(slow);
}

/// As many connect as there are places, and more, before the proxy looks at any of them. None has been slow.
#[test]
fn whoever_has_sent_its_request_keeps_its_place_in_a_rush() {
    let (mut fake, proxy) = within(Limits {
        connections: 8,
        reserve: 2,
        ..Limits::default()
    });
    let blocks = send(
        &proxy,
        b"GET /block-all HTTP/1.1\r\nHost: localhost\r\n\r\n",
    );
    let mut server = fake.accept();
    let rush = |count| (0..count).map(|_| send(&proxy, BODY)).collect::<Vec<_>>();
    let before = rush(4);
    let mut client = send(&proxy, OWN);
    let after = rush(60);
    server.write_all(b"x").expect("it waits for this");
    read_to(&mut client, "mine");
    drop((blocks, before, after));
}

#[test]
fn if_all_places_wait_for_answers_urgent_requests_alone_are_answered() {
    let (mut fake, proxy) = within(Limits {
        connections: 2,
        reserve: 1,
        ..Limits::default()
    });
    let get = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let client = send(&proxy, get);
        let mut server = fake.accept();
        head(&mut server);
        waiting.push((client, server));
    }
    for _ in 0..5 {
        let mut client = send(&proxy, OWN);
        read_to(&mut client, "mine");
    }
    let answer = rest(send(&proxy, get));
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.to_lowercase().contains("retry-after: 1"), "{answer}");
    assert_eq!(proxy.counts().refused, 1);
    for (client, server) in &mut waiting {
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        server.write_all(answer.as_bytes()).expect("answered");
        read_to(client, "ok");
    }
}

#[test]
fn an_urgent_request_is_answered_while_all_threads_for_others_are_busy() {
    let (mut server, proxy) = within(Limits::default());
    let block = b"GET /block HTTP/1.1\r\nHost: localhost\r\n\r\n";
    // A connection that began with an urgent request asks for something else, too.
    let mut mixed = send(&proxy, OWN);
    assert!(read_to(&mut mixed, "mine").contains("200 OK"));
    mixed.write_all(block).expect("it is kept");
    let mut blocked = [mixed, send(&proxy, block)];
    // Both threads wait for this.
    let mut blocking = [server.accept(), server.accept()];
    for _ in 0..3 {
        let mut urgent = send(&proxy, OWN);
        assert!(read_to(&mut urgent, "mine").contains("200 OK"));
    }
    for server in &mut blocking {
        server.write_all(b"x").expect("it waits");
    }
    for client in &mut blocked {
        assert!(read_to(client, "\r\n\r\n1").contains("200 OK"));
    }
}

#[test]
fn a_clients_malformed_or_broken_body_is_not_the_servers_fault() {
    let (mut fake, proxy) = within(Limits::default());
    let start = "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    for bad in ["3\r\nabc\r\nzz\r\n", "3\r\nabcdef\r\n"] {
        let client = send(&proxy, format!("{start}{bad}").as_bytes());
        let mut server = fake.accept();
        head(&mut server);
        let answer = rest(client);
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.contains("the body of the request"), "{answer}");
    }
    let client = send(&proxy, BODY);
    let mut server = fake.accept();
    head(&mut server);
    client
        .shutdown(std::net::Shutdown::Write)
        .expect("half closed");
    let answer = rest(client);
    assert!(!answer.contains("llama-server"), "{answer}");
}
