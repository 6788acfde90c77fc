//! Where a server listens, and with which protocol.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use contextpilot_testbed::{Connection, Endpoint, Index, ProjectorKind, Request};
use serde_json::json;

use crate::support::hooked;
use crate::{assert_exact, assert_told, lines, server};

#[test]
fn reports_are_exact_over_https() {
    let index = Index::start().unwrap();
    let mut server = hooked(&server().tls(), &index);
    assert!(
        lines(&server)
            .iter()
            .any(|line| line.contains("slot assignment, TLS ("))
    );
    assert_exact(&mut server, &index);
}

/// Several requests on one connection, the last two in one write.
#[test]
fn each_request_on_one_https_connection_has_its_own_id() {
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
    assert_told(&server, &index, &["req-0", "req-1", "req-2", "req-3"]);
}

#[test]
fn reports_are_exact_over_a_unix_socket() {
    let index = Index::start().unwrap();
    let mut server = hooked(&server().args(["--host", "here.sock"]), &index);
    assert!(matches!(server.endpoints(), [Endpoint::Unix(_)]));
    assert_exact(&mut server, &index);
}

#[test]
fn reports_are_exact_with_several_hosts() {
    let index = Index::start().unwrap();
    let mut server = hooked(&server().args(["--host", "127.0.0.1,here.sock"]), &index);
    assert_eq!(server.endpoints().len(), 2);
    assert_exact(&mut server, &index);
}

#[test]
fn reports_are_exact_over_ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        contextpilot_testbed::skip("this machine has no IPv6 loopback");
        return;
    }
    let index = Index::start().unwrap();
    let mut server = hooked(&server().args(["--host", "::1"]), &index);
    assert!(server.address().is_ipv6());
    assert_exact(&mut server, &index);
}

/// During a request the server fetches an image, as a client. Its connection gets a file descriptor
/// that belonged to one of its own clients before. The bytes there must not be read as a request.
#[test]
fn an_image_that_the_server_fetches_is_not_read_as_a_request() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/image.ppm", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut asked = [0; 4096];
            let _ = stream.read(&mut asked);
            let image = [b"P6 56 56 255\n".as_slice(), &[90; 56 * 56 * 3]].concat();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", image.len());
            let _ = stream.write_all(&[head.as_bytes(), &image].concat());
        }
    });
    let index = Index::start().unwrap();
    let server = hooked(&server().projector(ProjectorKind::Llava), &index);
    // Several connections at once, so that several descriptors have belonged to clients.
    let mut clients = [(); 4].map(|()| server.connect().unwrap());
    for client in &mut clients {
        assert_eq!(client.exchange("GET", "/health", b"").unwrap().status, 200);
    }
    drop(clients);
    let content = json!([
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "What is this?"},
    ]);
    let image = Request::chat(&[])
        .with("messages", json!([{"role": "user", "content": content}]))
        .id("req-image")
        .slot(0);
    let answer = server.complete(&image).unwrap();
    assert!(answer.prompt_tokens > 10, "{:?}", answer.raw);
    assert_told(&server, &index, &[]);
    let next = Request::completion("Something else").id("req-next").slot(0);
    server.complete(&next).unwrap();
    assert_told(&server, &index, &["req-image"]);
}
