//! A real llama-server as a child process, with or without the hook: its requests, its logs and its end.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    Certificate, Completion, Connection, Endpoint, Error, Request, Response, Result, try_until,
};

pub(crate) mod builder;

/// Longer than the longest silence after which the ledger decides what is lost (a second:
/// `crates/watch/worker/src/idle_timer.rs`), by enough for the report. A server without a control endpoint has
/// reported everything when it was silent for so long.
pub const SILENCE: Duration = Duration::from_millis(1250);

/// How often a condition outside this process is checked.
const LOOK: Duration = Duration::from_millis(2);
/// How long a server may take to be ready. It takes 0.1 s on an idle machine.
const READY: Duration = Duration::from_secs(60);
/// How long a server may take to end after a signal before it is killed.
const GRACE: Duration = Duration::from_secs(30);
const STDOUT: &str = "stdout.log";
const STDERR: &str = "stderr.log";

/// A running server. Dropping this ends the process.
#[derive(Debug)]
pub struct Server {
    child: Child,
    endpoints: Vec<Endpoint>,
    /// Index of the endpoint that connections are made to.
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
    /// Waits until the server is ready.
    ///
    /// # Errors
    /// If the server ends or is not ready in time. The error has the end of its stderr.
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

    /// The address of the chosen endpoint.
    ///
    /// # Panics
    /// If the endpoint is a Unix socket.
    pub fn address(&self) -> SocketAddr {
        match &self.endpoints[self.chosen] {
            Endpoint::Tcp(address) => *address,
            Endpoint::Unix(path) => panic!("{} is no address", path.display()),
        }
    }

    /// All endpoints at which it listens, in the order of `--host`.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// From now on, connections are made to the endpoint of this index. Without this, to the first.
    ///
    /// # Panics
    /// If there is no such endpoint.
    pub fn choose(&mut self, endpoint: usize) {
        assert!(endpoint < self.endpoints.len(), "{:?}", self.endpoints);
        self.chosen = endpoint;
    }

    /// The process id of llama-server. The launcher keeps its id when it becomes the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its working directory. Saved slots are here.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The certificate to trust, in PEM, if it speaks TLS.
    pub fn certificate_file(&self) -> Option<PathBuf> {
        self.certificate.as_deref().map(Certificate::file)
    }

    /// The certificate that it shows, signed by itself, as a PEM file: with [`Builder::tls`](builder::Builder::tls).
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
    /// If the server does not say.
    pub fn slots(&self) -> Result<u32> {
        let props = self.get("/props")?.json()?;
        let slots = props["total_slots"].as_u64();
        slots
            .map(|slots| slots as u32)
            .ok_or_else(|| Error::new(format!("no total_slots in {props}")))
    }

    /// Waits until no slot works. Needs the slots endpoint, which is on unless `--no-slots` is given.
    ///
    /// This asks through the server's task queue. So the server has also finished the work that
    /// follows the answers it gave before.
    ///
    /// # Errors
    /// If it takes longer than a minute, or the server does not say.
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
}

/// When all is reported.
impl Server {
    /// Waits until all that has happened is decided and reported. Needs [`Builder::observed`](builder::Builder::observed).
    ///
    /// # Errors
    /// If it takes longer than a minute, or the control endpoint does not answer.
    pub fn come_to_rest(&self) -> Result<()> {
        let control = self.await_control()?;
        let mut last = Value::Null;
        try_until("everything is decided and reported", || {
            last = Connection::open(control)?
                .exchange("GET", "/stats", b"")?
                .json()?;
            Ok(is_at_rest(&last).then_some(()))
        })
        .map_err(|error| Error::new(format!("{error}: {last}")))
    }

    /// Like [`Server::come_to_rest`], or a wait of [`SILENCE`] if its log names no control endpoint.
    ///
    /// # Errors
    /// As [`Server::come_to_rest`].
    pub fn settle(&self) -> Result<()> {
        match self.control() {
            Some(_) => self.come_to_rest(),
            None => {
                thread::sleep(SILENCE);
                Ok(())
            }
        }
    }
}

fn is_at_rest(stats: &Value) -> bool {
    let requests = &stats["requests"];
    let delivery = &stats["delivery"];
    // In a gap, or an internal error of the hook, the ends of requests were not seen.
    let answered = requests["finished"] == requests["seen"] || stats["losses"]["gaps"] != 0;
    let decided = stats["mode"] == "stopped" || stats["undecided"] == false && answered;
    decided && delivery["waiting"] == 0 && delivery["in_flight"] == 0
}

/// Its end.
impl Server {
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
    /// If the server does not end within 30 seconds. Then it is killed.
    pub fn stop(&mut self, signal: i32) -> Result<ExitStatus> {
        self.signal(signal);
        self.wait(GRACE)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// If the server does not end in time. Then it is killed.
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

    /// The exit status, if the server has ended.
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
}

impl Drop for Server {
    fn drop(&mut self) {
        // The exit status does not matter here: for that there is `stop`.
        let _ = self.stop(libc::SIGTERM);
    }
}

/// Its logs.
impl Server {
    /// All of its stderr so far.
    pub fn stderr(&self) -> String {
        self.log(STDERR)
    }

    /// Where the hook's control endpoint listens, if its line is in the log: `127.0.0.1:8890`, or
    /// `unix:/path`.
    pub fn control(&self) -> Option<String> {
        const SAYS: &str = "[ContextPilot] Control endpoint: ";
        let said = self.stderr();
        // The server writes a line in pieces: the hook's line may follow the first piece.
        let at = said
            .lines()
            .find_map(|line| Some(line.split_once(SAYS)?.1))?;
        // Instead of an address the line may have the reason why there is none.
        let named = at.starts_with("http://") || at.starts_with("unix:");
        named.then(|| at.trim_start_matches("http://").to_owned())
    }

    /// Waits until the log says at which TCP address the control endpoint listens.
    ///
    /// # Errors
    /// If it does not within a minute.
    pub fn await_control(&self) -> Result<SocketAddr> {
        try_until("the hook says where it listens", || {
            Ok(self.control().and_then(|at| at.parse().ok()))
        })
        .map_err(|error| Error::new(format!("{error}; it says:\n{}", self.stderr())))
    }

    /// All of its stdout so far.
    pub fn stdout(&self) -> String {
        self.log(STDOUT)
    }

    fn log(&self, name: &str) -> String {
        let bytes = std::fs::read(self.folder.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn last_words(&self) -> String {
        let log = self.stderr();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

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
