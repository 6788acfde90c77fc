//! A gateway to one llama-server: a transparent proxy with the routes that routers ask for.
//!
//! Routers that read KV cache events find the best server from *token ids*, and ask a server for
//! those of a request before they choose. vLLM has routes for that; llama-server's own two, for
//! templates and for tokens, give the same together:
//!
//! | route | answer |
//! |---|---|
//! | `POST /v1/completions/render` | `[{"token_ids": […]}]`, one for each prompt |
//! | `POST /v1/chat/completions/render` | `{"token_ids": […]}` |
//! | `GET /gateway/metrics` | what the gateway refused, and how often each rule was used, for Prometheus |
//! | `GET /kv_event_sources` | where the server publishes its KV cache events, `{"0": {"endpoint": …}}` |
//!
//! The body is that of the request which is to be routed. Everything else is passed on to the server, and its
//! answers back, byte for byte (crates/index/proxy); but for the usage in answers of a server with a prefix store, where
//! what was loaded counts as cached ([`Gateway::with_usage`]), and what a user's rules change in prompts
//! ([`Gateway::with_rules`]).
//!
//! Images and sounds have no token ids. A request with some is refused here (501) and can be sent
//! as it is.

#![forbid(unsafe_code)]

mod passing;
mod prompts;
mod render;
mod sources;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use contextpilot_proxy::{
    Accounts, Handler, Limits, Reading, Request, Response, Stabiliser, Tally, Upstream,
    error_response, json_response, metrics, metrics_response,
};
use contextpilot_settings::{AllowedHosts, KvEvents};
use hyper::Method;

use passing::Passing;
use render::Renderer;

/// What routers talk to.
#[derive(Clone)]
pub struct Gateway {
    upstream: Upstream,
    events: Option<KvEvents>,
    hosts: AllowedHosts,
    renderer: Renderer,
    accounts: Option<Arc<dyn Accounts>>,
    rules: Option<Arc<Stabiliser>>,
    bodies: usize,
    limits: Limits,
    tally: Arc<Tally>,
}

/// Bytes that requests for token ids take together, unless it is said otherwise.
pub const BODIES: usize = 512 << 20;

impl Gateway {
    /// For this server, which publishes its events there.
    #[must_use]
    pub fn new(upstream: Upstream, events: Option<KvEvents>) -> Self {
        let tally = Arc::<Tally>::default();
        Self {
            upstream,
            events,
            hosts: AllowedHosts::default(),
            renderer: Renderer::new(BODIES, Arc::clone(&tally)),
            accounts: None,
            rules: None,
            bodies: BODIES,
            limits: Limits::default(),
            tally,
        }
    }

    /// With another bound for the bytes that requests for token ids take together while they are received, worked on
    /// and answered. With [`Gateway::with_usage`] or [`Gateway::with_rules`], a quarter as much more.
    #[must_use]
    pub fn with_bodies(self, bodies: usize) -> Self {
        let renderer = Renderer::new(bodies, Arc::clone(&self.tally));
        Self {
            renderer,
            bodies,
            ..self
        }
    }

    /// With the usage in answers put right by these accounts: what a prefix store has loaded counts as cached.
    /// Requests for which there is no room pass as they are, and so do their answers.
    #[must_use]
    pub fn with_usage(self, accounts: Arc<dyn Accounts>) -> Self {
        let accounts = Some(accounts);
        Self { accounts, ..self }
    }

    /// With prompts put right by these rules. Those for which there is no room pass as they are.
    #[must_use]
    pub fn with_rules(self, rules: Arc<Stabiliser>) -> Self {
        let rules = Some(rules);
        Self { rules, ..self }
    }

    /// With more hosts by which clients may name it.
    #[must_use]
    pub fn with_hosts(self, hosts: AllowedHosts) -> Self {
        Self { hosts, ..self }
    }

    /// With other limits for clients.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Serves for as long as the process lives.
    ///
    /// # Errors
    /// The system has no threads or sockets left.
    pub fn run(self, listener: TcpListener) -> io::Result<()> {
        let (hosts, limits, tally) = (self.hosts.clone(), self.limits, self.tally.clone());
        contextpilot_proxy::run(listener, self.serving(), hosts, limits, tally)
    }

    /// What answers single requests.
    #[must_use]
    pub fn serving(self) -> Serving {
        Serving {
            passing: Passing::new(self.bodies / 4, self.accounts, self.rules),
            upstream: self.upstream,
            events: self.events,
            renderer: self.renderer,
            tally: self.tally,
        }
    }
}

/// A gateway that runs.
pub struct Serving {
    upstream: Upstream,
    events: Option<KvEvents>,
    renderer: Renderer,
    passing: Option<Passing>,
    tally: Arc<Tally>,
}

const METRICS: &str = "/gateway/metrics";
/// The beginning of its metrics' names.
const NAME: &str = "contextpilot_gateway";

impl Handler for Serving {
    fn urgent(&self, _: &str, path: &str) -> bool {
        matches!(path, "/health" | METRICS)
    }

    async fn handle(&self, request: Request) -> Response {
        let only = match request.uri().path() {
            "/v1/completions/render" | "/v1/chat/completions/render" => Method::POST,
            "/kv_event_sources" | METRICS => Method::GET,
            _ => {
                return match &self.passing {
                    Some(passing) => passing.forward(&self.upstream, request).await,
                    None => self.upstream.forward(request).await,
                };
            }
        };
        if request.method() != only {
            let message = format!("use {only} here");
            return error_response(405, "invalid_request_error", &message);
        }
        match request.uri().path() {
            "/v1/completions/render" => self.renderer.completion(&self.upstream, request).await,
            "/v1/chat/completions/render" => self.renderer.chat(&self.upstream, request).await,
            METRICS => {
                let counts = self.tally.counts();
                let reading = self.passing.as_ref().map(|passing| &passing.reading);
                let rooms: Vec<_> = std::iter::once(&self.renderer.room)
                    .chain(reading.map(Reading::room))
                    .collect();
                let mut text = metrics(NAME, counts, &rooms);
                if let Some(rules) = reading.and_then(Reading::rules) {
                    text.push_str(&rules.metrics(NAME));
                }
                metrics_response(text)
            }
            _ => json_response(200, sources::describe(self.events.as_ref(), &request)),
        }
    }
}
