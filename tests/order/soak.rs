//! Many requests, while the server, the index and the control stream are ended and started again.
//! After each round the index must list what the engine holds. `scripts/soak index` sends 100,000.

use std::collections::BTreeSet;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use contextpilot_client::Control;
use contextpilot_client::control::RequestState;
use contextpilot_testbed::{Builder, Connection, Error, Response, Server, try_until};
use serde_json::{Value, json};

use crate::support::{Index, companion, control, until, watched};

const CLIENTS: usize = 4;
const ROUNDS: usize = 10;

/// A relay between the index and the hook's socket. It can cut the connections.
struct Cutter {
    path: PathBuf,
    open: Arc<Mutex<Vec<UnixStream>>>,
}

impl Cutter {
    fn start(folder: &Path, hook: &Path) -> Self {
        let path = folder.join("relay.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let open = Arc::<Mutex<Vec<UnixStream>>>::default();
        let (hook, kept) = (hook.to_owned(), Arc::clone(&open));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // There is no server at this moment.
                let Ok(server) = UnixStream::connect(&hook) else {
                    continue;
                };
                let ends = [client, server].map(|end| (end.try_clone().unwrap(), end));
                let [(client, client_too), (server, server_too)] = ends;
                kept.lock().unwrap().push(client.try_clone().unwrap());
                thread::spawn(move || pass(client, server));
                thread::spawn(move || pass(server_too, client_too));
            }
        });
        Self { path, open }
    }

    fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            // The connection may have ended.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pass(mut from: UnixStream, mut to: UnixStream) {
    // If one side ends, both sides are closed.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// The server, the index, and the relay between them. Each can be ended and started again.
struct Scene {
    builder: Builder,
    server: Option<Server>,
    index: Option<Index>,
    hook: PathBuf,
    cutter: Cutter,
    /// Counts up when the index is ended, and again when it has started. So it is odd in between.
    life: Arc<AtomicUsize>,
    engine: SocketAddr,
    address: SocketAddr,
}

impl Scene {
    fn start(folder: &Path) -> Self {
        let hook = folder.join("control.sock");
        let builder = Server::tiny().args(["--parallel", "4", "-c", "8192", "--cache-ram", "1"]);
        let server = watched(&builder, &hook);
        let cutter = Cutter::start(folder, &hook);
        let index = Index::told(server.address(), &cutter.path);
        let engine = server.address();
        let port = engine.port().to_string();
        Self {
            builder: builder.args(["--port".to_owned(), port]),
            engine,
            address: index.address,
            server: Some(server),
            index: Some(index),
            hook,
            cutter,
            life: Arc::default(),
        }
    }

    fn restart_index(&mut self) {
        self.life.fetch_add(1, Ordering::SeqCst);
        self.index = None;
        let control = format!("unix:{}", self.cutter.path.display());
        let port = self.address.port().to_string();
        let mut command = companion(&["index", "--port", &port, "--control", &control]);
        command.args(["--engine".to_owned(), format!("http://{}", self.engine)]);
        self.index = Some(Index::of(command));
        self.life.fetch_add(1, Ordering::SeqCst);
    }

    fn restart_server(&mut self, signal: i32) {
        if let Some(mut server) = self.server.take() {
            server.stop(signal).unwrap();
        }
        self.server = Some(watched(&self.builder, &self.hook));
    }

    /// Ends something while requests are in progress. The server gets SIGKILL: llama-server 0.7.0 itself
    /// hangs if SIGTERM comes during a request.
    fn disturb(&mut self, round: usize) -> &'static str {
        match round * 7 % ROUNDS {
            0 => self.cutter.cut(),
            1 => self.restart_index(),
            2 | 3 => self.restart_server(libc::SIGKILL),
            4 => {
                self.cutter.cut();
                self.restart_server(libc::SIGKILL);
            }
            5 => {
                self.restart_server(libc::SIGKILL);
                self.restart_index();
            }
            6 => {
                self.restart_index();
                self.restart_server(libc::SIGKILL);
            }
            7 => {
                self.restart_index();
                self.cutter.cut();
            }
            8 => {
                for _ in 0..5 {
                    self.cutter.cut();
                    thread::yield_now();
                }
            }
            _ => return "nothing",
        }
        "something"
    }
}

/// A request that was sent: its id, and the value of `Scene::life` when the index gave out the id.
/// `None` if the index was restarted meanwhile.
type Sent = (String, Option<usize>);

/// A context of documents that other requests use, too.
fn context(number: usize) -> Vec<String> {
    let documents = (0..6).map(|nth| ((number * 2_654_435_761) >> (nth * 3)) % (7 + nth * 5));
    let distinct: BTreeSet<usize> = documents.collect();
    distinct
        .into_iter()
        .map(|one| format!("Document {one} tells of {} and no more.", one * one + 7))
        .collect()
}

fn post(address: SocketAddr, path: &str, body: &Value) -> Result<Response, Error> {
    let mut connection = Connection::open(address)?;
    let response = connection.exchange("POST", path, body.to_string().as_bytes())?;
    match response.status {
        200 => Ok(response),
        status => Err(Error::new(format!("{path}: {status} {}", response.text()))),
    }
}

/// Repeats a request until it is answered: the server or the index may be restarting.
fn insist(address: SocketAddr, path: &str, body: &Value) -> Value {
    let mut last = String::new();
    let answer = try_until("an answer", || match post(address, path, body) {
        Ok(response) => Ok(Some(response.json()?)),
        Err(error) => {
            last = error.to_string();
            Ok(None)
        }
    });
    answer.unwrap_or_else(|error| panic!("{error}: {last}"))
}

fn one(address: SocketAddr, life: &AtomicUsize, number: usize) -> Sent {
    let before = life.load(Ordering::SeqCst);
    let ordered = insist(address, "/reorder", &json!({"contexts": [context(number)]}));
    let sure = life.load(Ordering::SeqCst) == before && before % 2 == 0;
    let id = ordered["request_ids"][0].as_str().unwrap().to_owned();
    let texts = ordered["reordered_contexts"][0].as_array().unwrap();
    let texts: Vec<&str> = texts.iter().filter_map(Value::as_str).collect();
    let prompt = format!("{}\nWhat of {number}?", texts.join("\n"));
    let body = json!({"prompt": prompt, "n_predict": 1, "temperature": 0, "rid": id});
    insist(address, "/completion", &body);
    (id, sure.then_some(before))
}

/// Waits until the index lists no request that is not cached, and every cached request that it has
/// given an id since its last start.
fn agree(scene: &Scene, control: &Control, sent: &mut Vec<Sent>) {
    let index = scene.index.as_ref().unwrap();
    let life = scene.life.load(Ordering::SeqCst);
    let mut last = String::new();
    let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        until("the live sets are one", || {
            let held: BTreeSet<String> = sent
                .iter()
                .filter(|(id, _)| {
                    let state = control.request(id);
                    matches!(state, Ok(RequestState::Cached { .. }))
                })
                .map(|(id, _)| id.clone())
                .collect();
            let listed = index.get("/requests");
            let listed: BTreeSet<String> = listed["request_ids"]
                .as_array()
                .unwrap()
                .iter()
                .map(|id| id.as_str().unwrap().to_owned())
                .collect();
            let known = |(id, of): &&Sent| held.contains(id) && *of == Some(life);
            let missing: Vec<_> = sent
                .iter()
                .filter(known)
                .filter(|(id, _)| !listed.contains(id))
                .collect();
            let gone: Vec<_> = listed.difference(&held).collect();
            last = format!("the index lacks {missing:?}; the engine lacks {gone:?}");
            (missing.is_empty() && gone.is_empty()).then_some(held)
        })
    }));
    let held = held.unwrap_or_else(|_| panic!("{last}"));
    sent.retain(|(id, _)| held.contains(id));
}

#[test]
fn after_each_restart_the_index_lists_what_the_engine_holds() {
    let given = std::env::var("CONTEXTPILOT_TEST_INDEX_REQUESTS");
    let requests: usize = given.map_or(400, |number| number.parse().unwrap());
    let rounds = (requests / 500).max(ROUNDS);
    let folder = tempfile::tempdir().unwrap();
    let mut scene = Scene::start(folder.path());
    let control = control(&scene.hook);
    let next = AtomicUsize::new(0);
    let (mut sent, mut disturbed, mut compared) = (Vec::new(), 0, 0);
    for round in 0..rounds {
        let last = requests * (round + 1) / rounds;
        let half = (next.load(Ordering::SeqCst) + last) / 2;
        let (address, life) = (scene.address, Arc::clone(&scene.life));
        thread::scope(|scope| {
            let client = || {
                let mut sent = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if number >= last {
                        return sent;
                    }
                    sent.push(one(address, &life, number));
                }
            };
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
            until("half of the round is sent", || {
                (next.load(Ordering::SeqCst) >= half).then_some(())
            });
            disturbed += usize::from(scene.disturb(round) != "nothing");
            for client in clients {
                sent.extend(client.join().unwrap());
            }
        });
        next.store(last, Ordering::SeqCst);
        scene.server.as_ref().unwrap().wait_idle().unwrap();
        if round % 4 == 3 {
            scene.restart_server(libc::SIGTERM);
            disturbed += 1;
        }
        scene.index.as_ref().unwrap().wait_truth("engine");
        agree(&scene, &control, &mut sent);
        compared += sent.len();
        if round % 20 == 19 {
            println!("{last} requests, {compared} ids compared");
        }
    }
    println!(
        "{requests} requests from {CLIENTS} clients, {disturbed} endings: the live sets were one \
         after each, of {compared} ids in all"
    );
    // After the last round the server may have been restarted, so nothing is cached then.
    assert!(compared > 0);
}
