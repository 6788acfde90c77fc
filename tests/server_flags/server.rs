//! Runs a server with exactly the arguments and variables of a line.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{iter, thread};

use contextpilot_server_flags::{Generation, ServerFlags};
use contextpilot_testbed::{Connection, KillOnDrop, Model, llama_server};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::help::Help;

/// How long a server may take to be ready, or to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// Variables and arguments.
pub(crate) struct Line {
    variables: Vec<(String, String)>,
    /// Those that the line has.
    given: Vec<String>,
    /// Those that the server needs to run here.
    needed: Vec<OsString>,
    /// The server chooses its port.
    any_port: bool,
}

impl Line {
    pub(crate) fn new(text: &str) -> Self {
        let free = free_port().to_string();
        let words = text.split(' ').filter(|word| !word.is_empty());
        let value = |word: &str| {
            word.replace("''", "")
                .replace('·', " ")
                .replace("FREE", &free)
        };
        let (variables, given): (Vec<_>, Vec<_>) =
            words.map(value).partition(|word| is_variable(word));
        let variables = variables
            .iter()
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let mut line = Self {
            variables,
            given,
            needed: Vec::new(),
            any_port: false,
        };
        // One thread: with more, they wait for each other when cores are scarce.
        line.needed = ["--threads", "1"].map(Into::into).into();
        // Everything is said in the log.
        line.needed.extend(["-lv", "5"].map(Into::into));
        for (names, variable, value) in [
            (["--port", "--port"], "LLAMA_ARG_PORT", "0"),
            (["-c", "--ctx-size"], "LLAMA_ARG_CTX_SIZE", "4096"),
        ] {
            let has = |word: &String| names.contains(&word.as_str());
            let is_set = line.variables.iter().any(|(name, _)| name == variable);
            if !is_set && !line.given.iter().any(has) {
                line.needed.extend([names[0], value].map(Into::into));
                line.any_port |= names[0] == "--port";
            }
        }
        if Help::of_server().generation() == Generation::Of2025 {
            line.needed.push("--slots".into());
        }
        line
    }

    /// Without what the server needs to run here.
    pub(crate) fn only_arguments(mut self) -> Self {
        self.needed.clear();
        self
    }

    /// With this model, unless a variable names another.
    pub(crate) fn model(mut self, model: &Model) -> Self {
        let is_set = |(name, _): &(String, String)| name == "LLAMA_ARG_MODEL";
        if !self.variables.iter().any(is_set) {
            let path = model.path().as_os_str();
            self.needed.extend(["--model".into(), path.to_owned()]);
        }
        self
    }

    /// The arguments of the line itself.
    pub(crate) fn given(&self) -> &[String] {
        &self.given
    }

    fn arguments(&self) -> impl Iterator<Item = OsString> {
        let given = self.given.iter().map(OsString::from);
        self.needed.iter().cloned().chain(given)
    }

    pub(crate) fn read(&self, generation: Generation) -> ServerFlags {
        let argv = iter::once("llama-server".into()).chain(self.arguments());
        let lookup = |name: &str| {
            let found = self.variables.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.into())
        };
        ServerFlags::read(argv, lookup, generation)
    }
}

fn is_variable(word: &str) -> bool {
    word.starts_with("LLAMA_ARG_")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// What a server said and did.
pub(crate) struct Said {
    pub(crate) log: String,
    /// It chose its port, which says nothing.
    pub(crate) any_port: bool,
    /// Its exit code; `None`: it runs until it is told to end.
    pub(crate) code: Option<i32>,
    /// The answer to `/v1/models`.
    pub(crate) models: Option<Value>,
    /// The prompt that it made of `PREFIX` and `SUFFIX`.
    pub(crate) infill: Option<String>,
    /// Whether an answer went beyond the end of its slot.
    pub(crate) shifted: Option<bool>,
}

struct Running {
    child: KillOnDrop,
    log: PathBuf,
}

impl Said {
    /// Starts the server, asks it what it does not say by itself, and ends it.
    pub(crate) fn by(line: &Line) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let file = File::create(&log).unwrap();
        let mut command = Command::new(llama_server());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LLAMA_") {
                command.env_remove(name);
            }
        }
        command
            .args(line.arguments())
            .envs(line.variables.iter().cloned())
            // No `config.ini` of the user's.
            .env("XDG_CONFIG_HOME", folder.path())
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file);
        let child = KillOnDrop(command.spawn().unwrap());
        let mut running = Running { child, log };
        let code = running.until_idle();
        let mut said = Self {
            log: String::new(),
            any_port: line.any_port,
            code,
            models: None,
            infill: None,
            shifted: None,
        };
        if let Some(address) = running.address().filter(|_| code.is_none()) {
            said.ask(address);
        }
        said.log = running.end();
        said
    }

    fn ask(&mut self, address: SocketAddr) {
        let exchange = |method: &str, path: &str, body: &Value| {
            let mut connection = Connection::open(address).unwrap();
            let body = body.to_string();
            let response = connection.exchange(method, path, body.as_bytes());
            response.unwrap().json().unwrap()
        };
        self.models = Some(exchange("GET", "/v1/models", &json!({})));
        let infill = json!({"input_prefix": "PREFIX", "input_suffix": "SUFFIX", "n_predict": 1});
        let prompt = exchange("POST", "/infill", &infill)["prompt"].take();
        self.infill = prompt.as_str().map(str::to_owned);
        // The second one finds a slot that is like it.
        for _ in 0..2 {
            let again = json!({"prompt": "Tell me about tea.", "n_predict": 1});
            exchange("POST", "/completion", &again);
        }
        let slots = exchange("GET", "/slots", &json!({}));
        let context = slots[0]["n_ctx"].as_u64().unwrap();
        if context > 256 {
            return;
        }
        let long = json!({"prompt": "o".repeat(240), "n_predict": 24, "ignore_eos": true});
        let answer = exchange("POST", "/completion", &long);
        self.shifted = Some(answer["tokens_predicted"] == 24);
    }
}

impl Running {
    /// Ends the server, and returns its log: only at its end it is complete.
    fn end(mut self) -> String {
        let pid = Pid::from_child(&self.child);
        // It may have ended.
        let _ = kill_process(pid, Signal::TERM);
        self.child.wait().unwrap();
        self.log()
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap()).into_owned()
    }

    /// Waits until the server is idle, or has ended: then returns its exit code.
    fn until_idle(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status.code().unwrap_or(-1));
            }
            if self.log().contains("all slots are idle") {
                return None;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("neither ready nor ended:\n{}", self.log());
    }

    /// The first address of this machine at which it listens.
    fn address(&self) -> Option<SocketAddr> {
        let log = self.log();
        let at = log.split("listening on http://").nth(1)?;
        let at = at.split_whitespace().next()?;
        at.to_ascii_lowercase()
            .replace("localhost", "127.0.0.1")
            .parse()
            .ok()
    }
}
