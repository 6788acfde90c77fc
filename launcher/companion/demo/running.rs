//! A real llama-server under the launcher, with a tiny model.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_client::{Completion, Health, LlamaServer, Prompt};
use contextpilot_tiny_model::{Arch, Spec, write};
use tempfile::TempDir;

use super::{bare, client, launcher};

/// Long enough for a cold start on a busy machine.
const STARTING: Duration = Duration::from_secs(60);

/// How long to wait for a line that the server has written.
const READING: Duration = Duration::from_secs(2);

/// Ended when it is dropped.
pub(super) struct Running {
    process: Child,
    client: LlamaServer,
    lines: Receiver<String>,
    /// Its model and its state, which are removed with it.
    _folder: TempDir,
}

impl Running {
    /// Starts the server, and waits until it is ready.
    pub(super) fn start(server: &Path, index: &str) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|e| {
            format!("No temporary folder ({e}): set TMPDIR to one that is writable")
        })?;
        let model = folder.path().join("tiny.gguf");
        write(&model, &Spec::new(Arch::Llama))
            .map_err(|e| format!("{} cannot be written: {e}", model.display()))?;
        let port = free_port().map_err(|e| format!("No port is free: {e}"))?;
        let mut process = bare(launcher())
            .arg("--model")
            .arg(&model)
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .args(["--parallel", "2", "--ctx-size", "4096", "--threads", "1"])
            .args(fitting(server))
            .env("LLAMA_SERVER_BIN", server)
            .env("CONTEXTPILOT_INDEX_URL", index)
            .env("CONTEXTPILOT_JOURNAL", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("contextpilot-llama-server cannot be started: {e}"))?;
        let (sender, lines) = channel();
        if let Some(stderr) = process.stderr.take() {
            let stderr = BufReader::new(stderr).lines().map_while(Result::ok);
            thread::spawn(move || {
                stderr
                    .map(|line| sender.send(line))
                    .all(|sent| sent.is_ok())
            });
        }
        let mut running = Self {
            process,
            client: client(port)?,
            lines,
            _folder: folder,
        };
        running.await_ready()?;
        Ok(running)
    }

    fn await_ready(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + STARTING;
        while !matches!(self.client.health(), Ok(Health::Ready)) {
            if let Ok(Some(status)) = self.process.try_wait() {
                // Its last lines may not have been read yet.
                thread::sleep(Duration::from_millis(50));
                let said: Vec<String> = self.lines.try_iter().collect();
                let last = said.iter().rev().find(|line| !line.trim().is_empty());
                let last = last.map_or("", |line| line.trim());
                return Err(format!("llama-server ended with {status}: {last}"));
            }
            if Instant::now() >= deadline {
                return Err("llama-server is not ready after a minute: try it by itself".to_owned());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The hook's lines, up to the banner, which has been written when the server is
    /// ready.
    pub(super) fn said(&self) -> Vec<String> {
        let mut said = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(READING) {
            // The server writes its lines in pieces, so ours may follow the first piece of a line.
            if let Some(at) = line.find("[ContextPilot]") {
                let is_last = line.contains("] Active: ") || line.contains("] Inactive: ");
                said.push(line[at..].to_owned());
                if is_last {
                    break;
                }
            }
        }
        said
    }

    pub(super) fn ask(&mut self, prompt: &Prompt) -> Result<Completion, String> {
        self.client.complete(prompt).map_err(|e| e.to_string())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Flags for two slots without a host prompt cache, as far as this server knows them: older servers have
/// no host prompt cache, and only one layout of the KV cache.
fn fitting(server: &Path) -> Vec<&'static str> {
    let help = bare(server)
        .arg("--help")
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let help = help.map_or_else(|_| Vec::new(), |output| output.stdout);
    let help = String::from_utf8_lossy(&help);
    let mut flags = Vec::new();
    if help.contains("--cache-ram") {
        flags.extend(["--cache-ram", "0"]);
    } else {
        // Servers without a host prompt cache show their slots only with this flag.
        flags.push("--slots");
    }
    if help.contains("--no-kv-unified") {
        flags.push("--no-kv-unified");
    }
    flags
}
