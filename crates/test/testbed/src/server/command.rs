//! Starts a server.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use super::said::{STDERR, STDOUT};
use super::{Builder, Server};
use crate::{Error, Result, llama_server, private_folder};

impl Builder {
    fn command(&self, folder: &Path) -> Result<Command> {
        let server = self.program.clone().unwrap_or_else(llama_server);
        let mut command = match &self.launcher {
            Some(launcher) => {
                let mut command = Command::new(launcher);
                command.env("LLAMA_SERVER_BIN", &server);
                command
            }
            None => Command::new(&server),
        };
        // Variables of the environment of the test run must not change its result.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let meant_for_servers = ["CONTEXTPILOT_", "LLAMA_ARG_", "GGML_", "LD_PRELOAD"];
            if meant_for_servers
                .iter()
                .any(|start| text.starts_with(start))
            {
                command.env_remove(&name);
            }
        }
        command.args(&self.subcommand);
        if let Some(model) = &self.model {
            command.arg("--model").arg(model.path());
        }
        // One thread: if cores are scarce, two threads spin while they wait for each other, and an
        // evaluation of 1 ms takes 500 ms.
        let defaults: [(&[&str], &str); 5] = [
            (&["--host"], "127.0.0.1"),
            (&["--port"], "0"),
            (&["--threads", "-t"], "1"),
            (&["--ctx-size", "-c"], "4096"),
            (&["--slot-save-path"], "."),
        ];
        for (names, value) in defaults {
            let wanted = match names[0] {
                "--slot-save-path" => self.saves_slots,
                "--host" | "--port" => self.chooses_address,
                _ => true,
            };
            if wanted && !self.has(names) {
                command.arg(names[0]).arg(value);
            }
        }
        let flags = self.flags();
        // Servers without a host cache do not show their slots unless they are told to.
        if !flags.has("--cache-ram") {
            command.arg("--slots");
        }
        command.args(flags.fitting(&self.args)).current_dir(folder);
        // Each server has a journal of its own, unless a test makes two share one.
        command.env("XDG_STATE_HOME", folder);
        // What a server says of itself is the truth that tests compare with.
        if self
            .env
            .iter()
            .any(|(name, _)| name == "CONTEXTPILOT_STORE")
        {
            command.env("CONTEXTPILOT_STORE_USAGE", "0");
        }
        if let Some(hook) = &self.preload {
            command.env("LD_PRELOAD", std::path::absolute(hook)?);
        }
        if let Some(url) = &self.index_url {
            command.env("CONTEXTPILOT_INDEX_URL", url);
        }
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let file = |name| File::create(folder.join(name));
        command
            .stdin(Stdio::null())
            .stdout(file(STDOUT)?)
            .stderr(file(STDERR)?);
        Ok(command)
    }

    /// Starts the server and waits until it is ready to serve.
    ///
    /// It listens on a loopback port that it chooses itself (`--port 0`) and
    /// names in its log; with `--host`, wherever that says.
    ///
    /// # Errors
    /// When it cannot be started, ends, or is not ready in time: with the end
    /// of what it said on stderr.
    pub fn spawn(&self) -> Result<Server> {
        let mut server = self.start()?;
        server.await_ready()?;
        Ok(server)
    }

    /// Starts the server and does not wait until it is ready. No connection can be made before
    /// [`Server::await_ready`] has returned.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&self) -> Result<Server> {
        // The journal's folder is in it.
        let folder = private_folder();
        let mut command = self.command(folder.path())?;
        let child = command
            .spawn()
            .map_err(|error| Error::new(format!("{:?}: {error}", command.get_program())))?;
        Ok(Server {
            child,
            // The endpoints are known when the server listens.
            endpoints: Vec::new(),
            chosen: 0,
            certificate: self.certificate.clone(),
            folder,
            exited: None,
            hosts: self.hosts(),
            ready: self.ready,
        })
    }
}
