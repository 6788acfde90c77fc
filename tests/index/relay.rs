//! A relay between the index and the engine. It changes nothing, and notes the
//! requests, with the ids that the index has added.

use contextpilot_testbed::{Connection, Request};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, OnceLock},
    thread,
};

#[derive(Default)]
struct RelayShared {
    engine: OnceLock<SocketAddr>,
    requests: Mutex<Vec<Request>>,
}

/// A relay on a loopback port. Its threads end with the test process.
pub(crate) struct Relay {
    address: SocketAddr,
    shared: Arc<RelayShared>,
}

impl Relay {
    /// Starts a relay. The index needs the engine's address, and the engine needs that
    /// of the index. So the relay has an address before the engine runs.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<RelayShared>::default();
        let for_thread = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&for_thread);
                // If a connection breaks, the index answers 502, and the test fails.
                thread::spawn(move || while relay(&stream, &shared).is_some() {});
            }
        });
        Self { address, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the engine's address, to which all requests are passed on.
    pub(crate) fn engine(&self, engine: SocketAddr) {
        self.shared.engine.set(engine).unwrap();
    }

    /// The requests to the engine, in order. Ids are removed from the bodies and kept
    /// separately.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }
}

/// Passes on one request and its answer.
fn relay(mut client: &TcpStream, shared: &RelayShared) -> Option<()> {
    // A client sends its next request only after the answer, so the buffer never holds
    // bytes of the next request when it is dropped.
    let mut reader = BufReader::new(client);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        let wanted = name.eq_ignore_ascii_case("content-length");
        wanted.then(|| value.parse().ok())?
    });
    let mut body = vec![0; length?];
    reader.read_exact(&mut body).ok()?;
    let request = identified(head.split(' ').nth(1)?, &body)?;
    shared.requests.lock().unwrap().push(request);

    let mut engine = Connection::open(*shared.engine.get()?).ok()?;
    engine.write(head.as_bytes()).ok()?;
    engine.write(&body).ok()?;
    let response = engine.response().ok()?;
    let mut answer = format!("HTTP/1.1 {} -\r\n", response.status);
    for (name, value) in &response.headers {
        // The answer is passed on in one piece.
        if !["transfer-encoding", "content-length", "connection"].contains(&name.as_str()) {
            answer.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    answer.push_str(&format!("content-length: {}\r\n\r\n", response.body.len()));
    client.write_all(answer.as_bytes()).ok()?;
    client.write_all(&response.body).ok()
}

/// The request in the testbed's form, so that it can be replayed.
fn identified(path: &str, body: &[u8]) -> Option<Request> {
    let mut body: Value = serde_json::from_slice(body).ok()?;
    let fields = body.as_object_mut()?;
    let second = fields.remove("request_id");
    let id = fields.remove("rid").or(second);
    let request = Request::new(path, body);
    match id {
        Some(id) => Some(request.id(id.as_str()?)),
        None => Some(request),
    }
}

#[test]
fn the_relay_reads_ids_as_the_hook_does() {
    let id = |body: &str| {
        let request = identified("/x", body.as_bytes()).expect("JSON");
        request.request_id().map(str::to_owned)
    };
    assert_eq!(id(r#"{"request_id":"b","rid":"a"}"#).as_deref(), Some("a"));
    assert_eq!(id(r#"{"request_id":"b"}"#).as_deref(), Some("b"));
    assert_eq!(id(r#"{"prompt":"b"}"#), None);
}
