//! The server that a command speaks to, with its hook: given, or found.

use std::time::Duration;

use clap::Args;
use contextpilot_client::control::nearest;
use contextpilot_client::{Control, Error, Health, LlamaServer};

use super::connect::{ControlAt, START, hook_says};
use super::servers::{Running, choose, running};
use crate::say::say;
use crate::variables::{Lookup, of_process};

/// Where llama-server listens if it is told nothing, the newer ones first. These are tried if nothing
/// else is known.
const SERVERS: [&str; 2] = ["http://127.0.0.1:9931", "http://127.0.0.1:8080"];
/// llama-server's own variable for its key.
const API_KEY: &str = "LLAMA_API_KEY";

/// A server, and its hook.
pub(super) struct Engine {
    /// The server's URL.
    pub(super) url: String,
    /// The hook's endpoint. `None`: none is known.
    pub(super) control: Option<Control>,
}

impl Engine {
    /// The server at the URL that was given, or the one that runs; and its hook. `flag` names the option
    /// with which the URL is given.
    pub(super) fn find(url: Option<&str>, control: &ControlAt, flag: &str) -> Result<Self, String> {
        let given = control.given()?;
        match (url, given) {
            (Some(url), Some(control)) => Ok(Self::new(url, Some(control))),
            (Some(url), None) => Ok(Self::new(url, control.of_server(url)?)),
            (None, Some(control)) => {
                let stats = control.stats();
                let url = stats.ok().and_then(|stats| nearest(&stats.listening));
                let url = url.map_or_else(|| guess(flag), Ok)?;
                Ok(Self::new(&url, Some(control)))
            }
            (None, None) => control.runs(flag),
        }
    }

    fn new(url: &str, control: Option<Control>) -> Self {
        let url = url.to_owned();
        Self { url, control }
    }
}

impl ControlAt {
    /// The hook of the server at this URL, if there is one that is found.
    fn of_server(&self, url: &str) -> Result<Option<Control>, String> {
        let (here, elsewhere) = running()
            .into_iter()
            .partition(|server| server.listens_at(url));
        let model = self.model.as_deref();
        let found = choose(here, self.pid, model).map_err(|why| {
            match choose(elsewhere, self.pid, model) {
                Ok(Some(_)) => format!(
                    "The server that --pid or --model names does not listen at {url}: leave one of them out"
                ),
                _ => why,
            }
        })?;
        let usual = || self.usual().filter(|(_, stats)| stats.listens_at(url));
        Ok(match found {
            Some(found) => Some(found.control),
            None => usual().map(|(control, _)| control),
        })
    }

    /// The server that runs.
    fn runs(&self, flag: &str) -> Result<Engine, String> {
        let found = match self.found()? {
            Some(Running { control, stats, .. }) => {
                let stats = stats.map_err(|error| hook_says(&control, &error))?;
                Some((control, stats))
            }
            None => self.usual(),
        };
        let Some((control, stats)) = found else {
            return Ok(Engine::new(&guess(flag)?, None));
        };
        let url = nearest(&stats.listening).map_or_else(|| guess(flag), Ok)?;
        Ok(Engine::new(&url, Some(control)))
    }
}

/// How long a server may take to say whether it is one.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether a llama-server answers at this URL.
pub(super) fn is_server(url: &str) -> bool {
    let server = LlamaServer::new(url).map(|server| server.with_timeouts(PATIENCE, PATIENCE));
    let health = server.and_then(|server| server.health());
    matches!(health, Ok(Health::Ready | Health::Loading))
}

/// A server where llama-server listens if it is told nothing.
fn guess(flag: &str) -> Result<String, String> {
    let tried = SERVERS.join(" and ");
    match SERVERS.iter().find(|url| is_server(url)) {
        Some(url) => {
            say(format_args!(
                "No server says where it listens; {tried} were tried, and one answers at {url}: if \
                 another is meant, name it with {flag}"
            ));
            Ok((*url).to_owned())
        }
        None => Err(format!(
            "No server of this user says where it listens, and none answers at {tried}: start it \
             as {START}, or name it with {flag}"
        )),
    }
}

#[derive(Args)]
pub(super) struct ServerAt {
    /// The server: http://host:port, with its --api-prefix behind that, or the path of its socket.
    /// Its key, if it asks for one, is taken from LLAMA_API_KEY
    /// [default: where the server of this user listens that runs]
    #[arg(long, value_name = "URL", global = true)]
    server: Option<String>,
}

impl ServerAt {
    /// A client for the server that was given, or for the one that runs; and for its hook, if that is known.
    pub(super) fn clients(
        &self,
        control: &ControlAt,
    ) -> Result<(LlamaServer, Option<Control>), String> {
        // As llama-server takes it with --host.
        let server = self.server.as_deref().map(|server| match server {
            path if path.starts_with('/') => format!("unix:{path}"),
            url => url.to_owned(),
        });
        let engine = Engine::find(server.as_deref(), control, "--server")?;
        let server = LlamaServer::new(&engine.url).map_err(|e| format!("--server: {e}"))?;
        Ok((with_key(server)?, engine.control))
    }
}

/// Adds the key of the environment.
pub(super) fn with_key(server: LlamaServer) -> Result<LlamaServer, String> {
    match of_process.text(API_KEY) {
        Some(key) => server
            .with_api_key(&key)
            .map_err(|_| format!("{API_KEY} cannot be sent: check it")),
        None => Ok(server),
    }
}

/// The message if no hook is known of a server.
pub(super) fn no_hook(server: &LlamaServer) -> String {
    format!(
        "No hook of the server at {} is found: start the server as {START}, or say with --control \
         where its hook listens",
        server.address()
    )
}

/// The message for an error of the server.
pub(super) fn server_says(server: &LlamaServer, error: &Error) -> String {
    let address = server.address();
    match error {
        Error::Unreachable { why, .. } => format!(
            "No llama-server answers at {address} ({why}): start it, \
             or say with --server where it is"
        ),
        Error::Unauthorized { .. } => format!(
            "The server at {address} asks for a key: set {API_KEY} to the one of its --api-key"
        ),
        Error::Refused { status: 404, .. } => format!(
            "What answers at {address} has no such path: if it is a llama-server that was started with \
             --api-prefix, put that behind the port in --server"
        ),
        Error::Untrusted { .. } | Error::NoTls { .. } => error.to_string(),
        other => format!("The server at {address}: {other}"),
    }
}
