//! Real sockets: too many connections, endless answers, sockets that a killed process left.

use contextpilot_http_server::{
    BindError, Body, Follow, Limits, Listener, Pool, Request, Response, accept_for_ever, serve,
};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::Duration;

const LIMITS: Limits = Limits {
    body: 1024,
    patience: Duration::from_secs(30),
    whole_request: Duration::from_secs(30),
    connections: 2,
};

/// Counts to three.
struct Count(u32);

impl Follow for Count {
    fn next(&mut self, _: Duration) -> Option<Vec<u8>> {
        self.0 += 1;
        (self.0 <= 3).then(|| self.0.to_string().into_bytes())
    }
}

fn answer(request: &Request) -> Response {
    match request.path() {
        "/count" => Response {
            body: Body::Endless(Box::new(Count(0))),
            ..Response::whole(200, "text/plain", Vec::new())
        },
        _ => Response::json(200, format!("{:?}", request.body.len())).with("X-Mine", "yes"),
    }
}

fn refuse(status: u16, why: &str) -> Response {
    Response::json(status, format!("{why:?}"))
}

fn start(listener: Listener) {
    thread::spawn(move || {
        accept_for_ever(
            &listener,
            Pool::new(LIMITS.connections),
            || refuse(503, "full"),
            |_| {},
            |stream, _| {
                let _ = serve(stream, &LIMITS, answer, refuse);
            },
        )
    });
}

fn tcp() -> SocketAddr {
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.tcp_address().unwrap();
    start(listener);
    address
}

fn ask(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn after_an_endless_answer_the_connection_is_closed() {
    let address = tcp();
    let connect = || TcpStream::connect(address).unwrap();
    let whole = ask(
        connect(),
        "POST / HTTP/1.1\r\nContent-Length: 2\r\nConnection: close\r\n\r\nab",
    );
    assert!(whole.starts_with("HTTP/1.1 200 OK\r\n"), "{whole}");
    assert!(whole.contains("\r\nX-Mine: yes\r\n"), "{whole}");
    assert!(whole.contains("\r\nContent-Length: 1\r\n"), "{whole}");
    assert!(whole.ends_with("\r\n\r\n2"), "{whole}");
    let head = ask(connect(), "HEAD / HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert!(head.ends_with("\r\n\r\n"), "{head}");
    let endless = ask(connect(), "GET /count HTTP/1.1\r\n\r\n");
    assert!(!endless.contains("Content-Length"), "{endless}");
    assert!(endless.ends_with("\r\n\r\n123"), "{endless}");
    let large = ask(connect(), "POST / HTTP/1.1\r\nContent-Length: 1025\r\n\r\n");
    assert!(large.starts_with("HTTP/1.1 413 "), "{large}");
}

#[test]
fn a_connection_over_the_limit_gets_503() {
    let address = tcp();
    let mut open: Vec<_> = (0..LIMITS.connections)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let mut line = String::new();
            // Answered, so it has its place.
            BufReader::new(&stream).read_line(&mut line).unwrap();
            assert!(line.starts_with("HTTP/1.1 200"), "{line}");
            stream
        })
        .collect();
    let mut full = String::new();
    TcpStream::connect(address)
        .unwrap()
        .read_to_string(&mut full)
        .unwrap();
    assert!(full.starts_with("HTTP/1.1 503 "), "{full}");
    open.pop();
    // The place is free when the other side has noticed.
    let again = (0..2000).find(|_| {
        thread::sleep(Duration::from_millis(10));
        let mut stream = TcpStream::connect(address).unwrap();
        let mut line = String::new();
        // The one that is turned away may be reset before it has read.
        let sent = stream.write_all(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
        let read = BufReader::new(&stream).read_line(&mut line);
        sent.is_ok() && read.is_ok() && line.starts_with("HTTP/1.1 200")
    });
    assert!(again.is_some());
}

#[test]
fn a_unix_socket_is_private_and_replaced_when_nothing_listens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    // What a killed process leaves.
    drop(UnixListener::bind(&path).unwrap());
    let (listener, bound) = Listener::unix(&path).unwrap();
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    start(listener);
    let stream = UnixStream::connect(&path).unwrap();
    let answer = ask(stream, "GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(matches!(Listener::unix(&path), Err(BindError::InUse)));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    bound.remove();
    assert!(!path.exists());

    let (_other, _) = Listener::unix(&path).unwrap();
    bound.remove();
    assert!(path.exists(), "it is another's");

    let file = folder.path().join("file");
    fs::write(&file, "mine").unwrap();
    assert!(matches!(Listener::unix(&file), Err(BindError::NotASocket)));
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    let nowhere = folder.path().join("none/control");
    assert!(matches!(Listener::unix(&nowhere), Err(BindError::Io(_))));
}

#[test]
fn a_port_in_use_is_a_distinct_error() {
    let address = tcp();
    assert!(matches!(Listener::tcp(address), Err(BindError::InUse)));
}
