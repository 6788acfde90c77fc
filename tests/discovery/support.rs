//! Servers with `CONTEXTPILOT_LISTEN=auto`, and commands without an address.

use std::process::{Command, Output, Stdio};

use contextpilot_control::Stats;
use contextpilot_testbed::{Apart, Builder, Server, apart, private_folder, until};
use tempfile::TempDir;

pub(crate) const COMPANION: &str = env!("CARGO_BIN_EXE_contextpilot-llama");
pub(crate) const LAUNCHER: &str = env!("CARGO_BIN_EXE_contextpilot-llama-server");

/// The user's folders, in which there is nothing yet.
pub(crate) struct Home {
    folder: TempDir,
    /// Ports are free, and no other servers run.
    pub(crate) alone: bool,
}

impl Home {
    /// For the test of this name. `None`: the test runs in another process.
    pub(crate) fn of(test: &str) -> Option<Self> {
        let alone = match apart(test) {
            Apart::Done => return None,
            Apart::Alone => true,
            Apart::Beside => false,
        };
        let folder = private_folder();
        Some(Self { folder, alone })
    }

    /// The variables of all processes of this user.
    fn variables(&self) -> Vec<(&'static str, &std::path::Path)> {
        let home = self.folder.path();
        let mut variables = vec![("HOME", home), ("XDG_STATE_HOME", home)];
        // Other tests run beside this one, with folders of their own.
        if !self.alone {
            variables.push(("XDG_RUNTIME_DIR", home));
        }
        variables
    }

    /// Starts a server whose endpoint the commands must find.
    pub(crate) fn serve(&self, builder: &Builder) -> Server {
        let server = self.route(builder);
        until("the hook says where it listens", || server.control());
        server
    }

    /// Starts a server in router mode, which has no endpoint itself.
    pub(crate) fn route(&self, builder: &Builder) -> Server {
        let mut builder = builder.clone().launcher(LAUNCHER);
        for (name, value) in self.variables() {
            builder = builder.env(name, value);
        }
        builder.env("CONTEXTPILOT_LISTEN", "auto").spawn().unwrap()
    }

    /// A command of this user.
    pub(crate) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let ours = ["CONTEXTPILOT_", "LLAMA_", "XDG_", "NO_COLOR"];
            if ours.iter().any(|start| text.starts_with(start)) {
                command.env_remove(&name);
            }
        }
        command.envs(self.variables());
        command.current_dir(self.folder.path());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(COMPANION, arguments).output().unwrap()
    }

    /// The output of a command that must succeed.
    #[track_caller]
    pub(crate) fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What a command says that must fail.
    #[track_caller]
    pub(crate) fn fails(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("[ContextPilot] "), "{stderr}");
        stderr
    }

    #[track_caller]
    pub(crate) fn stats(&self, arguments: &[&str]) -> Stats {
        let text = self.text(&[&["stats", "--json"], arguments].concat());
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        self.folder.path()
    }
}

pub(crate) fn two_slots() -> Builder {
    Server::tiny().bare_slots(2)
}
