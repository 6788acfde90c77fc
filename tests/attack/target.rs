//! A server with everything on, the index and the gateway in front of it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;

use contextpilot_testbed::{Arch, Builder, Connection, KillOnDrop, Model, Response, Server, until};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::watch::resident;

const LAUNCHER: &str = env!("CARGO_BIN_EXE_contextpilot-llama-server");
const COMPANION: &str = env!("CARGO_BIN_EXE_contextpilot-llama");

pub(crate) struct Target {
    pub(crate) front: Front,
    pub(crate) control: SocketAddr,
    /// Where KV cache events are published, and where replays are asked for.
    pub(crate) events: SocketAddr,
    pub(crate) replays: SocketAddr,
    _folder: TempDir,
}

/// A server, and what passes requests on to it.
pub(crate) struct Front {
    pub(crate) server: Server,
    /// MiB of the server at its start.
    pub(crate) resident: u64,
    pub(crate) index: Service,
    pub(crate) gateway: Service,
}

/// A process of the companion command that listens.
pub(crate) struct Service {
    process: KillOnDrop,
    pub(crate) address: SocketAddr,
}

impl Target {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).display().to_string();
        // The index and the server need each other's address.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let index = free.local_addr().unwrap();
        drop(free);
        let builder = builder()
            .launcher(LAUNCHER)
            .index_url(format!("http://{index}"));
        let server = [
            ("CONTEXTPILOT_LISTEN", "127.0.0.1:0".to_owned()),
            ("CONTEXTPILOT_KV_EVENTS", "tcp://127.0.0.1:0".to_owned()),
            (
                "CONTEXTPILOT_KV_EVENTS_REPLAY",
                "tcp://127.0.0.1:0".to_owned(),
            ),
            ("CONTEXTPILOT_EXPLAIN_TEXT", "1".to_owned()),
            ("CONTEXTPILOT_STORE", file("store")),
            ("CONTEXTPILOT_LOG_FILE", file("log")),
            ("CONTEXTPILOT_TRAFFIC_FILE", file("traffic")),
        ]
        .into_iter()
        .fold(builder, |builder, (name, value)| builder.env(name, value))
        .spawn()
        .unwrap();
        let control = server.await_control().unwrap();
        let hook = ["--control".to_owned(), control.to_string()];
        let front = Front::of(server, index.port(), &hook);
        let (events, replays) = until("the server publishes", || {
            let events = &get(control, "/stats")["kv_events"];
            let at = |name: &str| events[name].as_str()?.strip_prefix("tcp://")?.parse().ok();
            Some((at("publish")?, at("replay")?))
        });
        until("the index is told what is cached", || {
            (get(front.index.address, "/ready")["cache_truth"] == "engine").then_some(())
        });
        let body = json!({"contexts": [["a document"]]}).to_string();
        let first = exchange(front.index.address, "POST", "/reorder", body.as_bytes());
        assert_eq!(first.unwrap().status, 200);
        Self {
            front,
            control,
            events,
            replays,
            _folder: folder,
        }
    }

    /// What is wrong when all attacks are over.
    pub(crate) fn afterwards(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut check = |good: bool, why: String| {
            if !good {
                wrong.push(format!("afterwards: {why}"));
            }
        };
        let body = json!({"prompt": "Is all well?", "n_predict": 4, "rid": "the-last"});
        let answer = exchange(
            self.front.index.address,
            "POST",
            "/completion",
            body.to_string().as_bytes(),
        );
        let status = answer.map_or(0, |answer| answer.status);
        check(status == 200, format!("a completion gets {status}"));
        let state = until("the hook has seen the last request", || {
            let state = get(self.control, "/requests/the-last");
            (state["state"] != "awaited").then_some(state)
        });
        check(
            state["state"] == "cached",
            format!("the last request is {state}"),
        );
        let ready = until("the index follows the hook", || {
            let ready = get(self.front.index.address, "/ready");
            (ready["cache_truth"] == "engine").then_some(ready)
        });
        check(ready["status"] == "ready", format!("the index is {ready}"));
        let stats = get(self.control, "/stats");
        check(
            stats["mode"] == "reporting",
            format!("the hook is {}", stats["mode"]),
        );
        let said = self.front.server.stderr();
        for word in ["internal error", "panicked"] {
            check(!said.contains(word), format!("the server says: {said}"));
        }
        wrong
    }
}

/// The server that is attacked.
fn builder() -> Builder {
    let model = Model::tiny(Arch::Llama);
    let builder = Server::builder().model(&model).bare_slots(4);
    builder.args(["-c", "4096", "--cache-ram", "64"])
}

impl Front {
    /// Of a plain server, to compare with.
    pub(crate) fn plain() -> Self {
        Self::of(builder().plain().spawn().unwrap(), 0, &[])
    }

    /// `port`: of the index. `hook`: how the index finds the hook.
    fn of(server: Server, port: u16, hook: &[String]) -> Self {
        let engine = format!("http://{}", server.address());
        let port = port.to_string();
        let index = ["index", "--port", &port, "--engine", &engine];
        let index = index.into_iter().chain(hook.iter().map(String::as_str));
        let index = Service::start(&index.collect::<Vec<_>>());
        let gateway = Service::start(&["gateway", "--port", "0", "--server", &engine]);
        Self {
            resident: resident(server.pid()),
            server,
            index,
            gateway,
        }
    }
}

impl Service {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(COMPANION);
        command.args(arguments).stdin(Stdio::null());
        let mut process = KillOnDrop(command.stderr(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                // The index names its own address first, the gateway last.
                let mut found = line
                    .split([' ', ',', ';'])
                    .filter_map(|word| word.strip_prefix("http://"));
                let at = if line.contains("Gateway to") {
                    found.next_back()
                } else {
                    found.next()
                };
                at?.parse().ok()
            })
            .expect("it says where it listens");
        thread::spawn(move || lines.for_each(drop));
        Self { process, address }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }
}

pub(crate) fn exchange(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &[u8],
) -> contextpilot_testbed::Result<Response> {
    Connection::open(address)?.exchange(method, path, body)
}

fn get(address: SocketAddr, path: &str) -> Value {
    let answer = exchange(address, "GET", path, b"");
    answer.and_then(|answer| answer.json()).unwrap_or_default()
}
