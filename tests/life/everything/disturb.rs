//! What is killed beside the server.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_testbed::{Behaviour, Connection, Gateway, Index, Random, Server, until};
use serde_json::Value;

/// An index that is killed and started again, at one address.
pub(crate) struct Flapping {
    index: Index,
    /// What those before it were told.
    before: BTreeSet<String>,
    kills: usize,
}

impl Flapping {
    pub(crate) fn start() -> Self {
        Self {
            index: Index::start().unwrap(),
            before: BTreeSet::new(),
            kills: 0,
        }
    }

    pub(crate) fn url(&self) -> String {
        self.index.url()
    }

    pub(crate) fn kills(&self) -> usize {
        self.kills
    }

    /// The ids that were reported so far.
    pub(crate) fn evicted(&self) -> BTreeSet<String> {
        &self.before | &self.index.evicted()
    }

    /// Of these ids, those that are not reported within that time.
    pub(crate) fn lost(&self, ids: &BTreeSet<String>, patience: Duration) -> BTreeSet<String> {
        let untold = ids - &self.before;
        self.index
            .wait_until(|told| untold.is_subset(told), patience);
        &untold - &self.index.evicted()
    }

    /// Kills it and starts it again until then. At the end it runs.
    pub(crate) fn flap(&mut self, mut random: Random, end: Instant) {
        while rest(random.within(200..2000), end) {
            // From here on nothing is accepted, so what was accepted is known.
            self.index.behave(Behaviour::Close);
            self.before.extend(self.index.evicted());
            let address = self.index.address();
            // Only one can listen there.
            let nothing = Index::start().unwrap();
            drop(std::mem::replace(&mut self.index, nothing));
            rest(random.below(800), end);
            self.index = Index::start_at(address).unwrap();
            self.kills += 1;
        }
    }
}

/// Those who follow the server: a gateway, and clients of the control endpoint.
pub(crate) struct Followers {
    server: SocketAddr,
    control: SocketAddr,
    events: u16,
}

impl Followers {
    pub(crate) fn of(server: &Server, control: SocketAddr) -> Self {
        let publish = until("the server publishes", || {
            let stats = get(control, "/stats");
            let at = stats["kv_events"]["publish"].as_str()?;
            at.strip_prefix("tcp://")?.parse::<SocketAddr>().ok()
        });
        Self {
            server: server.address(),
            control,
            events: publish.port(),
        }
    }

    /// They come and are killed until then. The server may be gone meanwhile.
    pub(crate) fn disturb(&self, mut random: Random, end: Instant) {
        let companion = Path::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
        while Instant::now() < end {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = free.local_addr().unwrap().port();
            drop(free);
            let gateway = Gateway::start(companion, self.server, port, self.events);
            let mut streams = Vec::new();
            while rest(random.within(20..200), end) && random.below(5) > 0 {
                let path =
                    random.choose(&["/events", "/stats", "/requests/last", "/metrics", "/tree"]);
                if let Ok(mut connection) = Connection::open(self.control) {
                    let request = Connection::request_bytes("GET", path, b"");
                    if connection.write(&request).is_ok() {
                        streams.push(connection);
                    }
                }
            }
            drop(gateway);
        }
    }
}

/// Whether there is time left after this.
fn rest(milliseconds: u64, end: Instant) -> bool {
    let left = end.saturating_duration_since(Instant::now());
    thread::sleep(left.min(Duration::from_millis(milliseconds)));
    Instant::now() < end
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Value {
    let answer = Connection::open(address).map(|mut one| one.exchange("GET", path, b""));
    let answer = answer.ok().and_then(Result::ok);
    answer
        .and_then(|answer| answer.json().ok())
        .unwrap_or_default()
}
