//! A server with the hook, and the index in front of it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use contextpilot_client::Control;
use contextpilot_client::control::RequestState;
use contextpilot_testbed::{Builder, Connection, KillOnDrop, Response, Server};

pub(crate) use contextpilot_testbed::until;
use serde_json::{Value, json};

pub(crate) const COMPANION: &str = env!("CARGO_BIN_EXE_contextpilot-llama");

/// Starts the server. Its control endpoint listens at this socket.
pub(crate) fn watched(builder: &Builder, socket: &Path) -> Server {
    builder
        .clone()
        .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
        .env("CONTEXTPILOT_LISTEN", format!("unix:{}", socket.display()))
        .spawn()
        .unwrap()
}

pub(crate) fn control(socket: &Path) -> Control {
    Control::new(&format!("unix:{}", socket.display())).unwrap()
}

/// An index process. It ends when this value is dropped.
pub(crate) struct Index {
    process: KillOnDrop,
    pub(crate) address: SocketAddr,
}

impl Index {
    pub(crate) fn start(engine: SocketAddr, arguments: &[&str]) -> Self {
        let engine = format!("http://{engine}");
        let mut command = companion(&["index", "--port", "0", "--engine", &engine]);
        command.args(arguments);
        Self::of(command)
    }

    /// Starts the index with this command.
    pub(crate) fn of(mut command: Command) -> Self {
        let mut process = KillOnDrop(command.stderr(Stdio::piped()).spawn().unwrap());
        let (address, _) = said_address(&mut process);
        Self { process, address }
    }

    /// Starts an index that follows the hook at this socket, and waits until the index has connected.
    pub(crate) fn told(engine: SocketAddr, socket: &Path) -> Self {
        let index = Self::start(
            engine,
            &["--control", &format!("unix:{}", socket.display())],
        );
        index.wait_truth("engine");
        index
    }

    pub(crate) fn wait_truth(&self, truth: &str) {
        until("the index knows what is cached", || {
            (self.get("/ready")["cache_truth"] == truth).then_some(())
        });
    }

    pub(crate) fn process(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn text(&self, path: &str) -> String {
        exchange(self.address, "GET", path, b"").text()
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let response = exchange(self.address, "GET", path, b"");
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        response.json().unwrap()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        exchange(self.address, "POST", path, body.to_string().as_bytes())
    }

    /// Orders a context. Returns the answer, the request id, and the documents in their new order.
    pub(crate) fn order(&self, context: &[&str]) -> (Value, String, String) {
        let response = self.post("/reorder", &json!({"contexts": [context]}));
        assert_eq!(response.status, 200, "{}", response.text());
        let body = response.json().unwrap();
        let id = body["request_ids"][0].as_str().unwrap().to_owned();
        let ordered: Vec<&str> = body["reordered_contexts"][0]
            .as_array()
            .unwrap()
            .iter()
            .map(|block| block.as_str().unwrap())
            .collect();
        let text = format!("{}\nWhat of it?", ordered.join("\n"));
        (body, id, text)
    }

    /// Completes a prompt through the index. Returns how many tokens the engine reused.
    pub(crate) fn complete(&self, prompt: &str, id: &str) -> u64 {
        let body = json!({"prompt": prompt, "n_predict": 4, "temperature": 0, "rid": id});
        let response = self.post("/completion", &body);
        assert_eq!(response.status, 200, "{}", response.text());
        response.json().unwrap()["timings"]["cache_n"]
            .as_u64()
            .unwrap()
    }

    /// Waits until the index tracks exactly those of the sent requests that are cached.
    #[track_caller]
    pub(crate) fn agrees(&self, control: &Control, sent: &[String]) {
        let held = |id: &&String| {
            let state = control.request(id).unwrap();
            matches!(state, RequestState::Cached { .. })
        };
        until("the index's live set is the engine's", || {
            let mut held: Vec<&String> = sent.iter().filter(held).collect();
            let listed = self.get("/requests");
            let mut listed: Vec<&str> = listed["request_ids"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_str)
                .collect();
            held.sort();
            listed.sort_unstable();
            held.iter().map(|id| id.as_str()).eq(listed).then_some(())
        });
    }
}

/// The companion command, in an environment without our settings.
pub(crate) fn companion(arguments: &[&str]) -> Command {
    let mut command = Command::new(COMPANION);
    command.args(arguments).stdin(Stdio::null());
    for name in [
        "CONTEXTPILOT_LISTEN",
        "CONTEXTPILOT_LISTEN_TOKEN",
        "LLAMA_API_KEY",
    ] {
        command.env_remove(name);
    }
    command
}

/// The address that the index prints. A thread reads the rest of its output to the end.
pub(crate) fn said_address(process: &mut Child) -> (SocketAddr, thread::JoinHandle<String>) {
    const SAYS: &str = "[ContextPilot] Index at http://";
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let line = lines
        .by_ref()
        .map(Result::unwrap)
        .find(|line| line.starts_with(SAYS))
        .expect("it says where it listens");
    let address = line[SAYS.len()..]
        .split(',')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let rest = thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>().join("\n"));
    (address, rest)
}

pub(crate) fn exchange(address: SocketAddr, method: &str, path: &str, body: &[u8]) -> Response {
    let mut connection = Connection::open(address).unwrap();
    connection.exchange(method, path, body).unwrap()
}
