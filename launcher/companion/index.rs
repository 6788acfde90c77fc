//! `index`: orders contexts by what the server has cached, and passes requests on to the server.

use std::net::{SocketAddr, TcpListener};

use clap::Args;
use contextpilot_index::{Index, Limits, Mode};

use super::bounds::Bounds;
use super::connect::ControlAt;
use super::engine::Engine;
use super::hosts::Hosts;
use super::listen;
use super::stabilise::Edits;
use crate::say::say;

mod behind;
mod hook;
pub(super) mod ids;
mod lanes;
mod rooms;
mod service;
mod shared;
mod tokens;
mod watch;

pub(super) use behind::{Behind, KnownServer};
use shared::SharedIndex;
use watch::FindHook;

/// Order contexts by what the server has cached
///
/// Has the API of ContextPilot's index server (POST /reorder and so on) and
/// passes all other requests on to the server. It asks the server's hook what is
/// cached, if the server was started with CONTEXTPILOT_LISTEN. Without, the index
/// guesses, and its answers say so.
#[derive(Args)]
#[command(after_help = "Example:
  CONTEXTPILOT_LISTEN=auto contextpilot-llama-server -m model.gguf &
  contextpilot-llama index --port 8765")]
pub(super) struct IndexOptions {
    #[command(flatten)]
    pub(super) serving: Serving,
    /// The server: http://host:port, https://host:port, or unix:/path. Its
    /// certificate is checked against the system's authorities, or those in the
    /// PEM file that SSL_CERT_FILE names
    /// [default: where the server of this user listens that runs]
    #[arg(long, value_name = "URL", alias = "infer-api-url")]
    engine: Option<String>,
    #[command(flatten)]
    control: ControlAt,
}

/// Address and limits of the index.
#[derive(Args)]
pub(super) struct Serving {
    /// Port to listen on; 0 chooses a free one
    #[arg(long, default_value_t = 8765)]
    port: u16,
    /// Address to listen on; others than loopback let all use it who can reach
    /// this machine
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    #[command(flatten)]
    hosts: Hosts,
    #[command(flatten)]
    bounds: Bounds,
    #[command(flatten)]
    edits: Edits,
    /// Order each batch by itself only, and track nothing
    #[arg(long)]
    stateless: bool,
    /// Requests that are tracked at most
    #[arg(long, value_name = "N", default_value_t = Limits::default().requests)]
    max_requests: usize,
    /// Distinct documents that are known at most
    #[arg(long, value_name = "N", default_value_t = Limits::default().blocks)]
    max_blocks: usize,
    /// MiB of all that is kept, at most
    #[arg(long, value_name = "MIB", default_value_t = Limits::default().kept >> 20)]
    max_kept: usize,
    /// MiB that requests may take together while they are received, worked on and
    /// answered. Evictions, and completions that pass through, may take a quarter
    /// as much each, in addition
    #[arg(long, value_name = "MIB", default_value_t = Limits::default().bodies >> 20)]
    max_bodies: usize,
    /// Contexts in one call at most; their clustering takes 4 bytes for the
    /// square of their number
    #[arg(long, value_name = "N", default_value_t = Limits::default().contexts)]
    max_contexts: usize,
}

impl Serving {
    /// At loopback, with the default limits.
    pub(super) fn at_port(port: u16) -> Self {
        let limits = Limits::default();
        Self {
            port,
            host: "127.0.0.1".to_owned(),
            hosts: Hosts::default(),
            bounds: Bounds::default(),
            edits: Edits::default(),
            stateless: false,
            max_requests: limits.requests,
            max_blocks: limits.blocks,
            max_kept: limits.kept >> 20,
            max_bodies: limits.bodies >> 20,
            max_contexts: limits.contexts,
        }
    }

    /// The same with these edits.
    pub(super) fn with(self, edits: Edits) -> Self {
        Self { edits, ..self }
    }

    fn limits(&self) -> Limits {
        Limits {
            requests: self.max_requests,
            blocks: self.max_blocks,
            kept: self.max_kept << 20,
            bodies: self.max_bodies << 20,
            contexts: self.max_contexts,
            ..Limits::default()
        }
    }

    /// `flag`: the one that chooses the port, for messages.
    pub(super) fn bind(&self, flag: &str) -> Result<(TcpListener, SocketAddr), String> {
        let (listener, address) = listen::bind(&self.host, self.port, flag)?;
        listen::say_who_can_reach(address);
        Ok((listener, address))
    }
}

/// Serves until the process is ended.
pub(super) fn run(options: &IndexOptions) -> Result<(), String> {
    let engine = Engine::find(options.engine.as_deref(), &options.control, "--engine")?;
    let behind = Behind::default();
    behind.found(KnownServer::at(&engine.url).map_err(|e| format!("--engine: {e}"))?);
    let (listener, address) = options.serving.bind("--port")?;
    say(format_args!(
        "Index at http://{address}, in front of {}",
        engine.url
    ));
    let hook: Option<FindHook> = match engine.control {
        Some(control) => Some(Box::new(move || Some(control.clone()))),
        None => None,
    };
    serve(&options.serving, listener, behind, hook)
}

/// Serves at an address, in front of a server that may be found later. `hook`: `None` if there is none.
pub(super) fn serve(
    serving: &Serving,
    listener: TcpListener,
    behind: Behind,
    hook: Option<FindHook>,
) -> Result<(), String> {
    let mode = if serving.stateless {
        Mode::Stateless
    } else {
        Mode::Live
    };
    let index = Index::new(mode, serving.limits());
    let shared = SharedIndex::new(index, mode);
    let asked = hook::Hook::default();
    match hook {
        Some(find) if mode == Mode::Live => watch::start(find, asked.clone(), shared.clone()),
        _ if mode == Mode::Live => say(
            "No hook of this server is found, so this index guesses what is cached; start the \
             server with CONTEXTPILOT_LISTEN=auto",
        ),
        _ => {}
    }
    let wishes = tokens::start(behind.clone(), shared.clone());
    let hosts = serving.hosts.allowed()?;
    let clients = serving.bounds.limits();
    let usage = !serving.edits.engine_usage;
    let rules = serving.edits.stabilise.rules()?;
    service::serve(
        listener, behind, shared, wishes, asked, usage, rules, hosts, clients,
    )
}
