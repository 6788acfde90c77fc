use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use contextpilot_testbed::{Arch, Builder, Completion, KillOnDrop, Model, Request, Server};

pub(crate) use contextpilot_testbed::until;
use serde_json::Value;

pub(crate) const COMPANION: &str = env!("CARGO_BIN_EXE_contextpilot-llama");

/// Two slots of 2048 tokens, and no host prompt cache.
pub(crate) fn two_slots() -> Builder {
    Server::builder()
        .model(&Model::tiny(Arch::Llama))
        .bare_slots(2)
}

/// A server whose hook has a control endpoint and no index, and the address of that endpoint.
pub(crate) struct Watched {
    pub(crate) server: Server,
    pub(crate) control: String,
}

impl Watched {
    pub(crate) fn start(builder: Builder) -> Self {
        Self::listening(builder, "127.0.0.1:0")
    }

    pub(crate) fn listening(builder: Builder, address: &str) -> Self {
        let server = builder
            .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
            .env("CONTEXTPILOT_LISTEN", address)
            .spawn()
            .unwrap();
        let control = until("the hook says where it listens", || server.control());
        Self { server, control }
    }

    /// A companion command with the addresses of this server and this hook.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = companion(arguments);
        let server = format!("http://{}", self.server.address());
        command.args(["--control", &self.control]);
        if matches!(arguments[0], "slots" | "ttft" | "warm" | "keep" | "release") {
            command.args(["--server", &server]);
        }
        command
    }

    /// The output of the command, which must succeed.
    #[track_caller]
    pub(crate) fn text(&self, arguments: &[&str]) -> String {
        good(&self.command(arguments).output().unwrap())
    }

    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        json(&self.text(&[arguments, &["--json"]].concat()))
    }

    pub(crate) fn complete(&self, request: Request) -> Completion {
        self.server.complete(&request).unwrap()
    }

    /// `open`, which shows the page, without a browser.
    pub(crate) fn open(&self) -> Opened {
        let mut command = self.command(&["open", "--no-browser", "--port", "0"]);
        let mut child = KillOnDrop(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut url = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut url).unwrap();
        let (page, token) = url.trim().split_once("/#token=").unwrap();
        let (_, address) = page.split_once("http://").unwrap();
        Opened {
            _process: child,
            address: address.parse().unwrap(),
            token: token.to_owned(),
        }
    }

    /// Waits until the hook says that a request is in this state.
    pub(crate) fn wait_state(&self, id: &str, state: &str) {
        until(&format!("{id} is {state}"), || {
            let output = self.command(&["where", id, "--json"]).output().unwrap();
            let said = json(&String::from_utf8_lossy(&output.stdout));
            (said["state"] == state).then_some(())
        });
    }
}

/// The page, and what its requests must have.
pub(crate) struct Opened {
    _process: KillOnDrop,
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
}

/// The companion command, in an environment without our settings.
pub(crate) fn companion(arguments: &[&str]) -> Command {
    let mut command = Command::new(COMPANION);
    command.args(arguments).stdin(Stdio::null());
    for name in [
        "CONTEXTPILOT_LISTEN",
        "CONTEXTPILOT_LISTEN_TOKEN",
        "LLAMA_API_KEY",
        "NO_COLOR",
    ] {
        command.env_remove(name);
    }
    command
}

#[track_caller]
pub(crate) fn good(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}{stderr}");
    stdout.into_owned()
}

/// The line on stderr of a command that must fail and print one line.
#[track_caller]
pub(crate) fn fails(mut command: Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("[ContextPilot] "), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

#[track_caller]
pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// A port on which nothing listens.
pub(crate) fn nowhere() -> String {
    contextpilot_testbed::nowhere().to_string()
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
