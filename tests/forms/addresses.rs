//! Where a server listens, and what is spoken there.

use std::net::TcpListener;

use contextpilot_testbed::{Connection, Endpoint, Index, Request};

use crate::support::hooked;
use crate::{assert_exact, assert_told, lines, server};

#[test]
fn https() {
    let index = Index::start().unwrap();
    let mut server = hooked(&server().tls(), &index);
    assert!(
        lines(&server)
            .iter()
            .any(|line| line.contains("slot assignment, TLS;"))
    );
    assert_exact(&mut server, &index);
}

/// Requests that follow each other on one connection, two of them in one write.
#[test]
fn one_connection_of_https_for_many_requests() {
    let index = Index::start().unwrap();
    let server = hooked(&server().tls(), &index);
    let request = |number: u32| {
        let prompt = format!("{number} comes over the same connection");
        Request::completion(prompt)
            .id(format!("req-{number}"))
            .slot(0)
    };
    let bytes = |number: u32| {
        let request = request(number);
        Connection::request_bytes("POST", request.path(), request.wire_body().as_bytes())
    };
    let mut connection = server.connect().unwrap();
    for number in 0..3 {
        connection.write(&bytes(number)).unwrap();
        assert_eq!(connection.response().unwrap().status, 200);
    }
    connection.write(&[bytes(3), bytes(4)].concat()).unwrap();
    for _ in 0..2 {
        assert_eq!(connection.response().unwrap().status, 200);
    }
    assert_told(&index, &["req-0", "req-1", "req-2", "req-3"]);
}

#[test]
fn a_unix_socket() {
    let index = Index::start().unwrap();
    let mut server = hooked(&server().args(["--host", "here.sock"]), &index);
    assert!(matches!(server.endpoints(), [Endpoint::Unix(_)]));
    assert_exact(&mut server, &index);
}

#[test]
fn several_hosts_at_once() {
    let index = Index::start().unwrap();
    let mut server = hooked(&server().args(["--host", "127.0.0.1,here.sock"]), &index);
    assert_eq!(server.endpoints().len(), 2);
    assert_exact(&mut server, &index);
}

#[test]
fn ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: this machine has no IPv6 loopback");
        return;
    }
    let index = Index::start().unwrap();
    let mut server = hooked(&server().args(["--host", "::1"]), &index);
    assert!(server.address().is_ipv6());
    assert_exact(&mut server, &index);
}
