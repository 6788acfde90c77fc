//! What the index does between reaching the hook and knowing what is cached.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use contextpilot_testbed::Server;
use serde_json::json;

use super::support::{Index, until, watched};

/// Passes connections on to the control endpoint, counts the queries for requests, and holds them up.
struct Relay {
    address: String,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Queries for one request, and for many.
    asked: Mutex<(usize, usize)>,
    held: Mutex<bool>,
    released: Condvar,
}

impl Relay {
    fn to(socket: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::<State>::default();
        let (socket, shared) = (socket.to_owned(), Arc::clone(&state));
        thread::spawn(move || {
            for client in listener.incoming() {
                let (socket, shared) = (socket.clone(), Arc::clone(&shared));
                thread::spawn(move || pass(client.unwrap(), &socket, &shared));
            }
        });
        Self { address, state }
    }

    fn asked(&self) -> (usize, usize) {
        *self.state.asked.lock().unwrap()
    }

    fn hold(&self, hold: bool) {
        *self.state.held.lock().unwrap() = hold;
        self.state.released.notify_all();
    }
}

fn pass(mut client: TcpStream, socket: &PathBuf, state: &State) {
    let Ok(mut server) = UnixStream::connect(socket) else {
        return;
    };
    let (mut answers, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    thread::spawn(move || {
        let _ = std::io::copy(&mut answers, &mut back);
        let _ = back.shutdown(std::net::Shutdown::Both);
    });
    let mut bytes = [0; 65536];
    while let Ok(n @ 1..) = client.read(&mut bytes) {
        // The client writes a head at once, and its body at once.
        let one = bytes.starts_with(b"GET /requests/");
        let many = bytes.starts_with(b"POST /requests ");
        if one || many {
            let mut asked = state.asked.lock().unwrap();
            asked.0 += usize::from(one);
            asked.1 += usize::from(many);
            drop(asked);
            let held = state.held.lock().unwrap();
            drop(state.released.wait_while(held, |held| *held).unwrap());
        }
        if server.write_all(&bytes[..n]).is_err() {
            return;
        }
    }
    let _ = server.shutdown(std::net::Shutdown::Both);
}

#[test]
fn the_index_asks_for_all_requests_at_once_and_says_that_it_learns() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let builder = Server::tiny().bare_slots(2);
    let server = watched(&builder, &socket);
    let relay = Relay::to(&socket);
    let index = Index::start(server.address(), &["--control", &relay.address]);
    index.wait_truth("engine");
    // Two that are cached, and many that are never sent.
    let first = index.order(&["one document, which is sent"]);
    index.complete(&first.2, &first.1);
    let contexts: Vec<[String; 1]> = (0..4500).map(|n| [format!("document {n}")]).collect();
    let body = json!({"contexts": contexts, "order": "none"});
    assert_eq!(index.post("/reorder", &body).status, 200);
    until("the index knows that the first is cached", || {
        (index.get("/stats")["cached_requests"] == 1).then_some(())
    });

    // Another server at the same place, with an empty cache.
    relay.hold(true);
    let before = relay.asked();
    drop(server);
    let _server = watched(&builder, &socket);
    index.wait_truth("learning");
    assert_eq!(index.get("/stats")["cached_requests"], 0);
    relay.hold(false);
    index.wait_truth("engine");
    let (one, many) = relay.asked();
    assert_eq!(one, before.0, "no request is asked for alone");
    // Five queries for all, and ten times one for the one that the new server does not know.
    let many = many - before.1;
    assert!((5..=16).contains(&many), "{many} queries");
    let ids = index.get("/requests");
    assert_eq!(ids["num_requests"], 4500, "only the first is gone");
}
