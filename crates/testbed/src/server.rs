//! A real llama-server as a child process, with or without the hook.

use std::{
    ffi::OsString,
    fs::{File, Permissions},
    net::SocketAddr,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::flags::Flags;
use crate::wait::try_until;
use crate::{
    Arch, Completion, Connection, Endpoint, Error, Model, ProjectorKind, Request, Response, Result,
    engine, llama_server, tls::Certificate,
};

/// How often a condition outside this process is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// How long a server may take to be ready. It takes 0.1 s on an idle machine.
const READY: Duration = Duration::from_secs(60);

/// How long a server may take to end after SIGTERM before it is killed.
const GRACE: Duration = Duration::from_secs(30);

/// How to run a server. Cloning it is how the same one is run again.
#[derive(Clone, Debug)]
pub struct Builder {
    program: Option<PathBuf>,
    subcommand: Option<OsString>,
    model: Option<Model>,
    args: Vec<OsString>,
    env: Vec<(OsString, Option<OsString>)>,
    launcher: Option<PathBuf>,
    preload: Option<PathBuf>,
    index_url: Option<String>,
    saves_slots: bool,
    certificate: Option<Arc<Certificate>>,
    ready: Duration,
}

impl Builder {
    /// The model to serve; none for router mode.
    pub fn model(mut self, model: &Model) -> Self {
        self.model = Some(model.clone());
        self
    }

    /// The llama-server to run rather than [`llama_server`]'s.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// The word that comes before all arguments, where the program needs one.
    pub fn subcommand(mut self, word: impl Into<OsString>) -> Self {
        self.subcommand = Some(word.into());
        self
    }

    /// More command line arguments.
    pub fn args<T: Into<OsString>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// `slots` slots whose KV is found in the slots or nowhere: no host prompt
    /// cache, and a buffer for each slot rather than a unified one.
    pub fn bare_slots(self, slots: u32) -> Self {
        self.args(["--no-kv-unified", "--cache-ram", "0", "--parallel"])
            .args([slots.to_string()])
    }

    /// No `--slot-save-path`, without which slots cannot be saved, restored or erased.
    pub fn no_saved_slots(mut self) -> Self {
        self.saves_slots = false;
        self
    }

    /// Images, by a tiny projector (`--mmproj`) for a tiny model.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn projector(self, kind: ProjectorKind) -> Self {
        let file = engine::projector(kind).into_os_string();
        self.args(["--mmproj".into(), file])
    }

    /// One more LoRA adapter (`--lora`) for the tiny model that was given before: equal seeds, equal
    /// adapters. With an `invocation`, it is activated by these tokens.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn adapter(self, seed: u64, invocation: &[u32]) -> Self {
        let arch = self.model.as_ref().map_or(Arch::Llama, Model::arch);
        let file = engine::adapter(arch, seed, invocation).into_os_string();
        self.args(["--lora".into(), file])
    }

    /// Speaks TLS, with a certificate of its own that is checked.
    ///
    /// # Panics
    /// When that cannot be written.
    pub fn tls(mut self) -> Self {
        let certificate = match Certificate::new() {
            Ok(certificate) => Arc::new(certificate),
            Err(error) => panic!("no certificate: {error}"),
        };
        self = self
            .args(["--ssl-key-file"])
            .args([certificate.key_file()])
            .args(["--ssl-cert-file"])
            .args([certificate.file()]);
        self.certificate = Some(certificate);
        self
    }

    /// An environment variable.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), Some(value.into())));
        self
    }

    /// Removes an environment variable.
    pub fn env_remove(mut self, name: impl Into<OsString>) -> Self {
        self.env.push((name.into(), None));
        self
    }

    /// Runs the launcher, which finds the server through `LLAMA_SERVER_BIN`.
    pub fn launcher(mut self, launcher: impl Into<PathBuf>) -> Self {
        self.launcher = Some(launcher.into());
        self
    }

    /// Preloads the hook library into the server, without a launcher.
    pub fn preload(mut self, hook: impl Into<PathBuf>) -> Self {
        self.preload = Some(hook.into());
        self
    }

    /// Sets `CONTEXTPILOT_INDEX_URL`.
    pub fn index_url(mut self, url: impl Into<String>) -> Self {
        self.index_url = Some(url.into());
        self
    }

    /// How long the server may take until it is ready; a minute otherwise.
    pub fn ready_within(mut self, patience: Duration) -> Self {
        self.ready = patience;
        self
    }

    /// The same server without hook and launcher: the one that tells the truth.
    pub fn plain(&self) -> Self {
        let mut plain = self.clone();
        plain.launcher = None;
        plain.preload = None;
        plain.index_url = None;
        let ours = |name: &OsString| name.to_string_lossy().starts_with("CONTEXTPILOT_");
        plain.env.retain(|(name, _)| !ours(name));
        plain
    }

    /// Whether any of these options was given.
    fn has(&self, options: &[&str]) -> bool {
        let option = |arg: &OsString| options.iter().any(|option| arg == option);
        self.args.iter().any(option)
    }

    /// What this asks for and the server does not have: an argument. Always `None` with the
    /// server that the tests are written for.
    pub fn lacking(&self) -> Option<String> {
        self.flags().lacking(&self.args)
    }

    fn flags(&self) -> Flags {
        Flags::of(&self.program.clone().unwrap_or_else(llama_server))
    }

    /// Whether what leaves a slot may go to the host prompt cache.
    pub fn has_host_cache(&self) -> bool {
        if !self.flags().has("--cache-ram") {
            return false;
        }
        let mut pairs = self.args.iter().zip(self.args.iter().skip(1));
        !pairs.any(|(name, value)| (name == "--cache-ram" || name == "-cram") && value == "0")
    }

    /// Whether a request in one slot can leave the KV of the others alone.
    pub(crate) fn has_separate_slots(&self) -> bool {
        let separate = self.has(&["--no-kv-unified", "-no-kvu"]);
        !self.has_host_cache() && (separate || !self.flags().has("--no-kv-unified"))
    }

    /// Whether its model can go back to any prefix of what it holds.
    pub fn keeps_any_prefix(&self) -> bool {
        let model = self.model.as_ref();
        model.is_none_or(Model::keeps_any_prefix) || self.has(&["--swa-full"])
    }

    /// Whether it has LoRA adapters.
    pub fn has_adapters(&self) -> bool {
        self.adapters() > 0
    }

    /// How many LoRA adapters it has.
    pub fn adapters(&self) -> usize {
        self.args.iter().filter(|one| *one == "--lora").count()
    }

    /// How many addresses it is to listen on.
    fn hosts(&self) -> usize {
        let mut pairs = self.args.iter().zip(self.args.iter().skip(1));
        let hosts = pairs.find(|(name, _)| *name == "--host");
        hosts.map_or(1, |(_, hosts)| hosts.to_string_lossy().split(',').count())
    }

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
        // What happens to be set around a test run must not change its result.
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
        // One thread: two of them spin for each other when cores are scarce,
        // which makes an evaluation of 1 ms take 500.
        let defaults: [(&[&str], &str); 5] = [
            (&["--host"], "127.0.0.1"),
            (&["--port"], "0"),
            (&["--threads", "-t"], "1"),
            (&["--ctx-size", "-c"], "4096"),
            (&["--slot-save-path"], "."),
        ];
        for (names, value) in defaults {
            let wanted = self.saves_slots || names != ["--slot-save-path"];
            if wanted && !self.has(names) {
                command.arg(names[0]).arg(value);
            }
        }
        let flags = self.flags();
        // Those without a host cache do not show their slots unless they are told to.
        if !flags.has("--cache-ram") {
            command.arg("--slots");
        }
        command.args(flags.fitting(&self.args)).current_dir(folder);
        // Its journal is its own, unless a test has two lives share one.
        command.env("XDG_STATE_HOME", folder);
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

    /// Starts the server, and does not wait until it is ready: nobody can talk to it before
    /// [`Server::await_ready`] has returned.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self) -> Result<Server> {
        // The journal's folder is in it: closed to others whatever the mask of this process is.
        let private = Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().permissions(private).tempdir()?;
        let mut command = self.command(folder.path())?;
        let child = command
            .spawn()
            .map_err(|error| Error::new(format!("{:?}: {error}", command.get_program())))?;
        Ok(Server {
            child,
            // Known once it listens.
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

const STDOUT: &str = "stdout.log";
const STDERR: &str = "stderr.log";

/// The addresses in lines such as `server is listening on http://127.0.0.1:4711`. Not those of
/// a router's children. Paths are relative to the server's folder.
fn listening(log: &str, folder: &Path) -> Vec<Endpoint> {
    let lines = log
        .lines()
        .filter(|line| line.contains("listening") && !line.starts_with('['));
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            words.find_map(Endpoint::of_url)
        })
        .map(|endpoint| match endpoint {
            Endpoint::Unix(path) => Endpoint::Unix(folder.join(path)),
            tcp => tcp,
        })
        .collect()
}

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    endpoints: Vec<Endpoint>,
    /// The one of them that is talked to.
    chosen: usize,
    certificate: Option<Arc<Certificate>>,
    /// Its working directory, with its logs and saved slots.
    folder: TempDir,
    exited: Option<ExitStatus>,
    /// How many endpoints it will have.
    hosts: usize,
    /// How long it may take until it is ready.
    ready: Duration,
}

impl Server {
    /// A server with nothing but a context of 4096 tokens, one thread, and a
    /// folder for saved slots; everything else is as llama-server has it.
    pub fn builder() -> Builder {
        Builder {
            program: None,
            subcommand: None,
            model: None,
            args: Vec::new(),
            env: Vec::new(),
            launcher: None,
            preload: None,
            index_url: None,
            saves_slots: true,
            certificate: None,
            ready: READY,
        }
    }

    /// Waits until it is ready to serve.
    ///
    /// # Errors
    /// When it ends, or is not ready in time: with the end of what it said on stderr.
    pub fn await_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + self.ready;
        self.endpoints = self.until(deadline, "it listened", |server| {
            let said = server.stderr() + &server.stdout();
            let endpoints = listening(&said, server.folder());
            Some(endpoints).filter(|endpoints| endpoints.len() >= server.hosts)
        })?;
        self.until(deadline, "it was ready", |server| {
            let health = server.get("/health").ok()?;
            (health.status == 200).then_some(())
        })
    }

    /// Where it listens.
    ///
    /// # Panics
    /// If it is not spoken to over TCP.
    pub fn address(&self) -> SocketAddr {
        match &self.endpoints[self.chosen] {
            Endpoint::Tcp(address) => *address,
            Endpoint::Unix(path) => panic!("{} is no address", path.display()),
        }
    }

    /// All places where it listens, in the order of `--host`.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// From now on, connections are made to the endpoint of that number rather than the first.
    ///
    /// # Panics
    /// If there is none.
    pub fn choose(&mut self, endpoint: usize) {
        assert!(endpoint < self.endpoints.len(), "{:?}", self.endpoints);
        self.chosen = endpoint;
    }

    /// Its process id; that of llama-server also under the launcher, which
    /// becomes the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its working directory. Saved slots are here.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it has said on stderr so far.
    pub fn stderr(&self) -> String {
        self.log(STDERR)
    }

    /// Where the hook's control endpoint listens, as it has said by now: `127.0.0.1:8890`, or
    /// `unix:/path`.
    pub fn control(&self) -> Option<String> {
        const SAYS: &str = "[ContextPilot] Control endpoint: ";
        let said = self.stderr();
        // The server writes its own lines in pieces: ours may stand behind the first of them.
        let at = said
            .lines()
            .find_map(|line| Some(line.split_once(SAYS)?.1))?;
        // In place of an address there may be a reason why there is none.
        let named = at.starts_with("http://") || at.starts_with("unix:");
        named.then(|| at.trim_start_matches("http://").to_owned())
    }

    /// The same, if it is a port: waits until it has said so.
    ///
    /// # Errors
    /// It does not say so within a minute.
    pub fn await_control(&self) -> Result<SocketAddr> {
        try_until("the hook says where it listens", || {
            Ok(self.control().and_then(|at| at.parse().ok()))
        })
        .map_err(|error| Error::new(format!("{error}; it says:\n{}", self.stderr())))
    }

    /// The certificate to trust, in PEM, if it speaks TLS.
    pub fn certificate_file(&self) -> Option<PathBuf> {
        self.certificate.as_deref().map(Certificate::file)
    }

    /// What it has said on stdout so far.
    pub fn stdout(&self) -> String {
        self.log(STDOUT)
    }

    fn log(&self, name: &str) -> String {
        let bytes = std::fs::read(self.folder.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The certificate that it shows, signed by itself, as a PEM file: with [`Builder::tls`].
    pub fn certificate(&self) -> Option<PathBuf> {
        Some(self.certificate.as_ref()?.file())
    }

    /// A new connection to it.
    ///
    /// # Errors
    /// Those of connecting.
    pub fn connect(&self) -> Result<Connection> {
        let endpoint = &self.endpoints[self.chosen];
        Ok(Connection::to(endpoint, self.certificate.as_deref())?)
    }

    /// GETs a path on a connection of its own.
    ///
    /// # Errors
    /// Those of the connection; a status of 4xx or 5xx is none.
    pub fn get(&self, path: &str) -> Result<Response> {
        self.connect()?.exchange("GET", path, b"")
    }

    /// POSTs JSON on a connection of its own.
    ///
    /// # Errors
    /// Those of the connection; a status of 4xx or 5xx is none.
    pub fn post(&self, path: &str, body: &Value) -> Result<Response> {
        let body = body.to_string();
        self.connect()?.exchange("POST", path, body.as_bytes())
    }

    /// Sends a request on a connection of its own.
    ///
    /// # Errors
    /// Those of the connection; a status of 4xx or 5xx is none.
    pub fn send(&self, request: &Request) -> Result<Response> {
        let body = request.wire_body();
        self.connect()?
            .exchange("POST", request.path(), body.as_bytes())
    }

    /// Sends a request and reads the (first) completion.
    ///
    /// # Errors
    /// Those of the connection, and every status but 200.
    pub fn complete(&self, request: &Request) -> Result<Completion> {
        Completion::first(&self.send(request)?)
    }

    /// The number of slots.
    ///
    /// # Errors
    /// When it does not say.
    pub fn slots(&self) -> Result<u32> {
        let props = self.get("/props")?.json()?;
        let slots = props["total_slots"].as_u64();
        slots
            .map(|slots| slots as u32)
            .ok_or_else(|| Error::new(format!("no total_slots in {props}")))
    }

    /// Waits until no slot works. Needs the slots endpoint, which is on unless
    /// `--no-slots` is given.
    ///
    /// The question goes through the same queue as requests, so what was
    /// answered before it has been cleaned up after as well.
    ///
    /// # Errors
    /// When it takes longer than a minute, or the server does not say.
    pub fn wait_idle(&self) -> Result<()> {
        let deadline = Instant::now() + READY;
        loop {
            let response = self.get("/slots")?;
            let slots = response.json()?;
            let slots = slots
                .as_array()
                .ok_or_else(|| Error::new(format!("/slots: {}", response.text())))?;
            if !slots.iter().any(|slot| slot["is_processing"] == true) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::new("a slot works for more than a minute"));
            }
            thread::sleep(LOOK);
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        if self.exited.is_none() {
            let pid = self.child.id() as libc::pid_t;
            // SAFETY: the child has not been waited for, so its id is still its own.
            unsafe { libc::kill(pid, signal) };
        }
    }

    /// Sends a signal (`libc::SIGTERM`, …) and waits for the end.
    ///
    /// # Errors
    /// When it does not end within ten seconds; it is killed then.
    pub fn stop(&mut self, signal: i32) -> Result<ExitStatus> {
        self.signal(signal);
        self.wait(GRACE)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// When it does not come in time; the server is killed then.
    pub fn wait(&mut self, patience: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                self.child.kill()?;
                self.exited = Some(self.child.wait()?);
                return Err(Error::new(format!(
                    "the server did not end within {patience:?}, so it was killed; its last words:\n{}",
                    self.last_words()
                )));
            }
            thread::sleep(LOOK);
        }
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// Those of the system call.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        if self.exited.is_none() {
            self.exited = self.child.try_wait()?;
        }
        Ok(self.exited)
    }

    fn until<T>(
        &mut self,
        deadline: Instant,
        what: &str,
        mut look: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T> {
        loop {
            if let Some(seen) = look(self) {
                return Ok(seen);
            }
            let ended = self.try_wait()?;
            let how = match ended {
                Some(status) => match (status.code(), status.signal()) {
                    (Some(code), _) => format!("exited with {code}"),
                    (_, Some(signal)) => format!("was killed by signal {signal}"),
                    _ => status.to_string(),
                },
                None if Instant::now() > deadline => "ran out of time".to_owned(),
                None => {
                    thread::sleep(LOOK);
                    continue;
                }
            };
            return Err(Error::new(format!(
                "the server {how} before {what}; its last words:\n{}",
                self.last_words()
            )));
        }
    }

    fn last_words(&self) -> String {
        let log = self.stderr();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whoever wanted to know how it ends has called `stop`.
        let _ = self.stop(libc::SIGTERM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_the_log() {
        let new = "0.00.432.436 I srv  llama_server: listening on http://127.0.0.1:37185\n\
                   0.00.432.440 I srv  llama_server: listening on unix://x.sock\n";
        let old = "main: server is listening on http://127.0.0.1:8080 - starting the main loop";
        let folder = Path::new("/folder");
        let tcp = |port: u16| Endpoint::Tcp(SocketAddr::from(([127, 0, 0, 1], port)));
        assert_eq!(
            listening(new, folder),
            [tcp(37185), Endpoint::Unix("/folder/x.sock".into())]
        );
        assert_eq!(listening(old, folder), [tcp(8080)]);
        for other in [
            "HTTP server is listening, port: 0",
            "see http://127.0.0.1:1 for help",
            "[4711] 0.00.1 I srv  llama_server: listening on http://127.0.0.1:4711",
        ] {
            assert_eq!(listening(other, folder), [], "{other}");
        }
    }

    #[test]
    fn options_are_recognised() {
        let default = Server::builder();
        assert!(default.has_host_cache() && !default.has_separate_slots());
        let bare = Server::builder().bare_slots(2);
        assert!(!bare.has_host_cache() && bare.has_separate_slots());
        let small = Server::builder().args(["-cram", "1"]);
        assert!(small.has_host_cache());
    }

    #[test]
    fn a_plain_server_has_nothing_of_ours() {
        let hooked = Server::builder()
            .launcher("/launcher")
            .preload("/hook.so")
            .index_url("http://localhost:1")
            .env("CONTEXTPILOT_STRICT", "1")
            .env("OTHER", "kept");
        let plain = hooked.plain();
        assert!(plain.launcher.is_none() && plain.preload.is_none());
        assert!(plain.index_url.is_none());
        assert_eq!(plain.env, [("OTHER".into(), Some("kept".into()))]);
    }

    #[test]
    fn a_server_that_cannot_start_shows_its_last_words() {
        let wrong = Server::builder()
            .program("/bin/sh")
            .args(["--nonsense"])
            .spawn();
        let text = wrong.expect_err("sh serves nothing").to_string();
        assert!(text.contains("exited with 2"), "{text}");
        let missing = Server::builder().program("/nonexistent").spawn();
        let text = missing.expect_err("no such program").to_string();
        assert!(text.contains("/nonexistent"), "{text}");
    }
}
