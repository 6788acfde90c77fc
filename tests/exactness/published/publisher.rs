//! A server that publishes KV cache events, and what its control endpoint says about them.

use std::net::SocketAddr;
use std::path::Path;

use contextpilot_testbed::{Builder, Connection, Error, Result, Server, try_until};
use serde_json::Value;

use crate::LAUNCHER;

/// The names of the adapters, in the server's order.
pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];

pub(crate) struct Publisher {
    pub(crate) server: Server,
    /// The port of its events. Replays are at the next port.
    pub(crate) events: u16,
    pub(crate) control: SocketAddr,
}

impl Publisher {
    /// Starts a server. `state`: a state folder that outlives the server.
    pub(crate) fn start(builder: &Builder, events: u16, state: Option<&Path>) -> Result<Self> {
        let mut builder = builder
            .clone()
            .launcher(LAUNCHER)
            .env(
                "CONTEXTPILOT_KV_EVENTS",
                format!("tcp://127.0.0.1:{events}"),
            )
            .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0");
        if builder.has_adapters() {
            let names = NAMES[..builder.adapters()].join(",");
            builder = builder.env("CONTEXTPILOT_KV_LORA_NAMES", names);
        }
        if let Some(state) = state {
            builder = builder.env("XDG_STATE_HOME", state);
        }
        let server = builder.spawn()?;
        let control = server.await_control()?;
        Ok(Self {
            server,
            events,
            control,
        })
    }

    /// The field `kv_events` of `/stats`.
    pub(crate) fn figures(&self) -> Result<Value> {
        Ok(self.stats()?["kv_events"].clone())
    }

    /// The answer of `/stats`.
    pub(crate) fn stats(&self) -> Result<Value> {
        let mut connection = Connection::open(self.control)?;
        connection.exchange("GET", "/stats", b"")?.json()
    }

    /// Waits until this many routers are subscribed.
    pub(crate) fn await_subscribers(&self, count: u64) -> Result<()> {
        let mut last = Value::Null;
        try_until("the routers are subscribed", || {
            last = self.figures()?;
            Ok((last["subscribers"] == count).then_some(()))
        })
        .map_err(|error| Error::new(format!("{error}: {count} expected, {last}")))
    }
}
