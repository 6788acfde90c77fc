//! Compares what passes through the proxy at both ends, byte by byte.

mod slow;
mod support;

use std::io::{Read, Write};
use std::net::Shutdown;

use support::{Fake, Proxied, connected, get, head, read_to};

#[test]
fn requests_arrive_as_they_were_sent() {
    let (mut fake, _proxy, mut client) = connected();
    let sent = "POST /v1/x%20y?a=1&b=%zz HTTP/1.1\r\nHost: localhost:1\r\nAuthorization: Bearer k\r\n\
                x-MixedCase: 1\r\nX-mixedcase: 2\r\nContent-Length: 9\r\nAccept-Encoding: gzip\r\n\r\n\
                {\"a\" : 1}";
    client.write_all(sent.as_bytes()).expect("sent");
    let mut server = fake.accept();
    assert_eq!(read_to(&mut server, "{\"a\" : 1}"), sent);
    let answer = "HTTP/1.1 418 I'm a teapot\r\nX-Odd: a\r\nx-odd: b\r\nContent-Length: 2\r\n\r\nhi";
    server.write_all(answer.as_bytes()).expect("answered");
    assert_eq!(read_to(&mut client, "hi"), answer);
}

#[test]
fn chunks_pass_as_they_come_and_the_connection_is_kept() {
    let (mut fake, _proxy, mut client) = connected();
    for round in 0..3 {
        get(&mut client, "/s");
        let mut server = fake.accept();
        head(&mut server);
        let start = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        server.write_all(start.as_bytes()).expect("head");
        assert!(head(&mut client).contains("text/event-stream"));
        for n in 0..5 {
            // The next chunk is written only after this one has arrived, so nothing may be held back.
            let data = format!("data: {round} {n}\n\n");
            server
                .write_all(format!("{:x}\r\n{data}\r\n", data.len()).as_bytes())
                .expect("chunk");
            read_to(&mut client, &data);
        }
        server.write_all(b"0\r\n\r\n").expect("end");
        read_to(&mut client, "0\r\n\r\n");
    }
}

#[test]
fn a_request_body_passes_as_it_comes() {
    let (mut fake, _proxy, mut client) = connected();
    let start = "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.write_all(start.as_bytes()).expect("head");
    let mut server = fake.accept();
    assert!(
        head(&mut server)
            .to_lowercase()
            .contains("transfer-encoding: chunked")
    );
    for part in ["one", "two"] {
        client
            .write_all(format!("3\r\n{part}\r\n").as_bytes())
            .expect("chunk");
        read_to(&mut server, part);
    }
    client.write_all(b"0\r\n\r\n").expect("end");
    read_to(&mut server, "0\r\n\r\n");
}

#[test]
fn when_the_client_leaves_the_servers_connection_is_closed() {
    let mut fake = Fake::start();
    let proxy = Proxied::start(&fake.url());
    for answered in [
        "",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ] {
        let mut client = proxy.connect();
        get(&mut client, "/");
        let mut server = fake.accept();
        head(&mut server);
        server.write_all(answered.as_bytes()).expect("a beginning");
        if !answered.is_empty() {
            read_to(&mut client, "abc");
        }
        drop(client);
        let mut rest = Vec::new();
        assert_eq!(
            server.read_to_end(&mut rest).unwrap_or(0),
            0,
            "closed, or reset"
        );
    }
}

#[test]
fn when_the_server_closes_early_the_clients_connection_is_closed() {
    let (mut fake, _proxy, mut client) = connected();
    get(&mut client, "/");
    let mut server = fake.accept();
    head(&mut server);
    let start = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
    server.write_all(start.as_bytes()).expect("a beginning");
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an end");
    assert!(answer.ends_with("abc\r\n"), "no last chunk: {answer}");
}

#[test]
fn large_bodies_pass_completely() {
    let mut fake = Fake::start();
    let proxy = Proxied::start(&fake.url());
    let body: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let mut client = proxy.connect();
    let start = format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.write_all(start.as_bytes()).expect("head");
    let (mut sender, sent) = (client.try_clone().expect("a clone"), body.clone());
    let sending = std::thread::spawn(move || sender.write_all(&sent).expect("sent"));
    let mut server = fake.accept();
    head(&mut server);
    let mut arrived = vec![0; body.len()];
    server.read_exact(&mut arrived).expect("all of it");
    sending.join().expect("the sender ended");
    assert!(arrived == body);
    let start = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    server.write_all(start.as_bytes()).expect("head");
    let sending = std::thread::spawn(move || server.write_all(&arrived).expect("echoed"));
    head(&mut client);
    let mut back = vec![0; body.len()];
    client.read_exact(&mut back).expect("all of it");
    sending.join().expect("the echo ended");
    assert!(back == body);
}

#[test]
fn upgrades_join_the_connections() {
    let (mut fake, _proxy, mut client) = connected();
    let asked =
        "GET /w HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
    client.write_all(asked.as_bytes()).expect("sent");
    let mut server = fake.accept();
    assert!(head(&mut server).to_lowercase().contains("upgrade: echo"));
    let granted =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
    server.write_all(granted.as_bytes()).expect("granted");
    assert!(head(&mut client).starts_with("HTTP/1.1 101"));
    client.write_all(b"to the server").expect("sent");
    read_to(&mut server, "to the server");
    server.write_all(b"to the client").expect("sent");
    read_to(&mut client, "to the client");
    client.shutdown(Shutdown::Write).expect("half closed");
    let mut rest = Vec::new();
    assert_eq!(
        server.read_to_end(&mut rest).expect("the end is passed on"),
        0
    );
}

#[test]
fn if_the_server_cannot_be_reached_the_answer_is_a_502() {
    let fake = Fake::start();
    let url = fake.url();
    drop(fake);
    let proxy = Proxied::start(&url);
    let mut client = proxy.connect();
    client.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    assert!(
        answer.starts_with("HTTP/1.0 502") || answer.starts_with("HTTP/1.1 502"),
        "{answer}"
    );
    assert!(answer.contains(&url), "{answer}");
}

#[test]
fn own_routes_come_first_and_current_answers_end_before_the_stop() {
    let (mut fake, proxy, mut client) = connected();
    get(&mut client, "/own");
    assert!(read_to(&mut client, "mine").starts_with("HTTP/1.1 200"));
    get(&mut client, "/");
    let mut server = fake.accept();
    head(&mut server);
    let stopped = proxy.stop();
    server
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate")
        .expect("answered");
    read_to(&mut client, "late");
    stopped.join().expect("it stopped");
    let mut rest = Vec::new();
    assert_eq!(client.read_to_end(&mut rest).unwrap_or(0), 0);
}

#[test]
fn wherever_it_listens_pages_of_other_machines_are_kept_out() {
    // As in a container whose port is published on the host's loopback.
    for at in ["127.0.0.1", "0.0.0.0"] {
        let mut fake = Fake::start();
        let proxy = Proxied::at(at, &fake.url());
        let refused = |request: &str| {
            let mut client = proxy.connect();
            client.write_all(request.as_bytes()).expect("sent");
            let head = head(&mut client);
            head.split(' ').nth(1).expect("a status").to_owned()
        };
        for path in ["/own", "/reset", "/v1/completions"] {
            let post = format!("POST {path} HTTP/1.1\r\nContent-Length: 0\r\n");
            let foreign = "Origin: https://attacker.example\r\n\r\n";
            assert_eq!(
                refused(&format!("{post}Host: 127.0.0.1:8765\r\n{foreign}")),
                "403"
            );
            assert_eq!(
                refused(&format!("{post}Host: attacker.example:8765\r\n\r\n")),
                "421"
            );
        }
        let mut client = proxy.connect();
        let get =
            "GET /slots HTTP/1.1\r\nHost: localhost\r\nOrigin: https://attacker.example\r\n\r\n";
        client.write_all(get.as_bytes()).expect("sent");
        let mut server = fake.accept();
        head(&mut server);
        let answer = "HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: https://attacker.example\r\n\
                      access-control-allow-credentials: true\r\nX-Other: 1\r\nContent-Length: 0\r\n\r\n";
        server.write_all(answer.as_bytes()).expect("answered");
        let answer = head(&mut client).to_lowercase();
        assert!(
            answer.contains("x-other") && !answer.contains("access-control"),
            "{answer}"
        );
    }
}
