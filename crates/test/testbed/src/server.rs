//! A real llama-server as a child process, with or without the hook.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::tls::Certificate;
use crate::{Arch, Completion, Connection, Endpoint, Error, Model, Request, Response, Result};

mod builder;
mod command;
mod end;
mod rest;
mod said;
#[cfg(test)]
mod tests;

pub use builder::Builder;
pub use rest::SILENCE;
use said::listening;

/// How often a condition outside this process is checked.
const LOOK: Duration = Duration::from_millis(2);
/// How long a server may take to be ready. It takes 0.1 s on an idle machine.
const READY: Duration = Duration::from_secs(60);

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
    /// A server with a context of 4096 tokens, one thread, and a folder for saved slots. All other
    /// settings are llama-server's defaults.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// The same with the tiny llama.
    pub fn tiny() -> Builder {
        Self::builder().model(&Model::tiny(Arch::Llama))
    }

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
