//! `gateway`: a proxy between a router and one llama-server.

use std::sync::Arc;

use clap::Args;
use contextpilot_gateway::Gateway;
use contextpilot_proxy::Upstream;
use contextpilot_settings::{KvEventsOf, Settings, env};

use super::accounts::Accounts;
use super::bounds::Bounds;
use super::connect::ControlAt;
use super::engine::Engine;
use super::hosts::Hosts;
use super::listen;
use super::stabilise::Edits;
use crate::say::say;
use crate::sys;
use crate::variables::of_process;

/// Run a proxy in front of a llama-server that answers routers' queries
///
/// Answers the queries of routers that read KV cache events: POST
/// /v1/completions/render and POST /v1/chat/completions/render with the token ids
/// of a request, and GET /kv_event_sources with the addresses of the events. These
/// come from the same variables as the server's: CONTEXTPILOT_KV_EVENTS and the
/// others. Everything else passes through to the server and back, but for the usage
/// in answers: what the prefix store has loaded counts as cached, if the server has
/// one and was started with CONTEXTPILOT_LISTEN; and what --stabilise changes.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama gateway --port 8081
  contextpilot-llama gateway --server http://127.0.0.1:9931 --port 8081")]
pub(super) struct GatewayOptions {
    /// The server: http://host:port, https://host:port, or unix:/path of its
    /// socket. Its certificate is checked against the system's authorities, or
    /// those in the PEM file that SSL_CERT_FILE names
    /// [default: where the server of this user listens that runs]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    #[command(flatten)]
    control: ControlAt,
    /// Port to listen on; 0 chooses a free one
    #[arg(long, default_value_t = 8081)]
    port: u16,
    /// Address to listen on. All who can reach it can use the server
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    #[command(flatten)]
    hosts: Hosts,
    #[command(flatten)]
    bounds: Bounds,
    #[command(flatten)]
    edits: Edits,
    /// MiB that requests for token ids may take together while they are received,
    /// worked on and answered: some 100 bytes for each of theirs
    #[arg(long, value_name = "MIB", default_value_t = contextpilot_gateway::BODIES >> 20)]
    max_bodies: usize,
}

/// Serves until the process is ended.
pub(super) fn run(options: &GatewayOptions) -> Result<(), String> {
    sys::return_large_blocks();
    let events = |name: &str| of_process(name).filter(|_| name.starts_with(env::KV_PREFIX));
    let settings = Settings::from(events).map_err(|e| e.to_string())?;
    let events = settings.kv_events.as_ref();
    let only = events.and_then(KvEventsOf::only);
    let engine = Engine::find(options.server.as_deref(), &options.control, "--server");
    let (server, control) = match (&options.server, engine) {
        // Without its hook, the engine's figures are left as they are.
        (Some(server), engine) => (
            server.clone(),
            engine.ok().and_then(|engine| engine.control),
        ),
        (None, engine) => engine.map(|engine| (engine.url, engine.control))?,
    };
    let control = control.filter(|_| !options.edits.engine_usage);
    let upstream = Upstream::new(&server).map_err(|e| format!("--server: {e}"))?;
    let hosts = options.hosts.allowed()?;
    let mut gateway = Gateway::new(upstream, only.cloned())
        .with_hosts(hosts)
        .with_bodies(options.max_bodies << 20)
        .with_limits(options.bounds.limits());
    if let Some(control) = control {
        gateway = gateway.with_usage(Arc::new(Accounts::following(control)));
    }
    if let Some(rules) = options.edits.stabilise.rules()? {
        gateway = gateway.with_rules(rules);
    }
    let (listener, address) = listen::bind(&options.host, options.port, "--port")?;
    let events = match events {
        Some(KvEventsOf::Server(events)) => {
            format!("its KV cache events are at tcp://{}", events.publish)
        }
        // A router asks for the events of one server.
        Some(KvEventsOf::Models(_)) => "the events of its models are not told here".to_owned(),
        None => format!(
            "it names no KV cache events to routers ({} is not set here): set it as for the server, if that publishes some",
            env::KV_EVENTS
        ),
    };
    say(format_args!(
        "Gateway to {server} on http://{address}; {events}"
    ));
    gateway
        .run(listener)
        .map_err(|e| format!("The gateway cannot run ({e}): see what the system is short of"))
}
