//! A real llama-server of our own, with or without the launcher.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_client::{Completion, Health, LlamaServer, Prompt};
use contextpilot_tiny_model::{Arch, Spec, write};
use tempfile::TempDir;

/// Long enough for a cold start on a busy machine.
const STARTING: Duration = Duration::from_secs(60);

/// How long to wait for a line that the server has written.
const READING: Duration = Duration::from_secs(2);

/// The slots of the server that [`Running::start`] starts: so many prompts cause no eviction.
pub(super) const SLOTS: usize = 2;

/// What the launcher and the hook say of the hook.
pub(super) enum Hook {
    Active,
    /// Why, and what to do.
    Refused(String),
    /// Nothing.
    Silent,
}

impl Hook {
    /// Why it does not run, if this line says so.
    fn refusal(line: &str) -> Option<&str> {
        let by_launcher = line.split_once("] Launching llama-server without the hook: ");
        let why = by_launcher.or_else(|| line.split_once("] Inactive: "));
        why.map(|(_, why)| why)
    }

    /// # Errors
    /// It does not, and why.
    pub(super) fn runs(self) -> Result<(), String> {
        let why = match self {
            Self::Active => return Ok(()),
            Self::Refused(why) => why,
            Self::Silent => format!(
                "it printed nothing. If the server is started by a script, let {} and \
                 CONTEXTPILOT_* through there; contextpilot-llama doctor says more",
                crate::variables::PRELOAD
            ),
        };
        Err(format!(
            "The hook does not run in this server, so there is nothing to show: {why}"
        ))
    }
}

/// Ended when it is dropped.
pub(in crate::companion) struct Running {
    process: Child,
    pub(in crate::companion) port: u16,
    client: LlamaServer,
    lines: Receiver<String>,
    /// Its files, which are removed with it.
    _folder: TempDir,
}

impl Running {
    /// Starts the server under the launcher with a tiny model, and waits until it is ready.
    pub(super) fn start(server: &Path, index: &str) -> Result<Self, String> {
        let folder = temporary_folder()?;
        let model = folder.path().join("tiny.gguf");
        write(&model, &Spec::new(Arch::Llama))
            .map_err(|e| format!("{} cannot be written: {e}", model.display()))?;
        let mut command = bare(launcher());
        command
            .args(["--parallel", &SLOTS.to_string()])
            .args(["--ctx-size", "4096", "--threads", "1"])
            .args(fitting(server))
            .env("LLAMA_SERVER_BIN", server)
            .env("CONTEXTPILOT_INDEX_URL", index)
            .env("CONTEXTPILOT_JOURNAL", "0");
        Self::spawn(command, &model, folder)
    }

    /// Starts a server with this model at a free port, and waits until it is ready. `folder` is removed after its end.
    pub(in crate::companion) fn spawn(
        mut command: Command,
        model: &Path,
        folder: TempDir,
    ) -> Result<Self, String> {
        let port = free_port().map_err(|e| format!("No port is free: {e}"))?;
        command.arg("--model").arg(model);
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        let pipes = command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = pipes.stderr(Stdio::piped()).spawn().map_err(|e| {
            let shown = Path::new(command.get_program()).display();
            format!("{shown} cannot be started: {e}")
        })?;
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
            port,
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
                return Err(format!("llama-server ended with {status}: {}", why(&said)));
            }
            if Instant::now() >= deadline {
                return Err("llama-server is not ready after a minute: try it by itself".to_owned());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The lines of the launcher and the hook, up to the banner, which has been written when the
    /// server is ready; and what they say of the hook.
    pub(super) fn said(&self) -> (Vec<String>, Hook) {
        let mut said = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(READING) {
            let Some(line) = ours(&line) else { continue };
            if let Some(why) = Hook::refusal(line) {
                return (said, Hook::Refused(why.to_owned()));
            }
            said.push(line.to_owned());
            if line.contains("] Active: ") {
                return (said, Hook::Active);
            }
        }
        (said, Hook::Silent)
    }

    /// Lines of the hook since then.
    pub(super) fn said_since(&self) -> Vec<String> {
        let lines = self.lines.try_iter();
        lines
            .filter_map(|line| Some(ours(&line)?.to_owned()))
            .collect()
    }

    pub(in crate::companion) fn client(&self) -> &LlamaServer {
        &self.client
    }

    pub(in crate::companion) fn ask(&mut self, prompt: &Prompt) -> Result<Completion, String> {
        self.client.complete(prompt).map_err(|e| e.to_string())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Why the server ended, by what it said: the first error that it names, with what follows a colon, or else its last line.
fn why(said: &[String]) -> String {
    let mut lines = said
        .iter()
        .map(|line| line.trim())
        .filter(|line| !line.is_empty());
    let last = lines.clone().next_back().unwrap_or("");
    let named = lines.find_map(|line| Some(line.split_once(" error: ")?.1.trim()));
    match (named, lines.next()) {
        (Some(named), Some(more)) if named.ends_with(':') => format!("{named} {more}"),
        (named, _) => named.unwrap_or(last).to_owned(),
    }
}

/// The part of a line that is ours: the server writes its lines in pieces, so ours may follow the first
/// piece of a line.
fn ours(line: &str) -> Option<&str> {
    line.find("[ContextPilot]").map(|at| &line[at..])
}

/// A folder that is removed when it is dropped.
pub(in crate::companion) fn temporary_folder() -> Result<TempDir, String> {
    tempfile::tempdir()
        .map_err(|e| format!("No temporary folder ({e}): set TMPDIR to one that is writable"))
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
    let bytes = help.map_or_else(|_| Vec::new(), |output| output.stdout);
    let help = String::from_utf8_lossy(&bytes);
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

/// The launcher that was installed beside this command, or else the one on `PATH`.
pub(in crate::companion) fn launcher() -> PathBuf {
    const NAME: &str = "contextpilot-llama-server";
    let here = std::env::current_exe().ok();
    let beside = here.and_then(|here| Some(here.parent()?.join(NAME)));
    let found = beside.filter(|path| path.is_file());
    found.unwrap_or_else(|| NAME.into())
}

/// A command without settings that are meant for another server.
pub(in crate::companion) fn bare(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let is_ours = text.starts_with("CONTEXTPILOT_") && text != "CONTEXTPILOT_HOOK_LIB";
        if is_ours || text.starts_with("LLAMA_ARG_") {
            command.env_remove(&name);
        }
    }
    command
}

/// A client of the server at this port.
fn client(port: u16) -> Result<LlamaServer, String> {
    LlamaServer::new(&format!("127.0.0.1:{port}")).map_err(|e| e.to_string())
}
