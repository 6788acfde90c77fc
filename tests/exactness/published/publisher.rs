//! A server that publishes, and what its hook says of that.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use contextpilot_testbed::{Builder, Connection, Error, Result, Server};
use serde_json::Value;

use crate::LAUNCHER;
use crate::indexer::PATIENCE;

pub(crate) struct Publisher {
    pub(crate) server: Server,
    /// Where its events are; replays one port further.
    pub(crate) events: u16,
    control: SocketAddr,
}

impl Publisher {
    /// `state`: the folder that outlives it, if it is to have one.
    pub(crate) fn start(builder: &Builder, events: u16, state: Option<&Path>) -> Result<Self> {
        let mut builder = builder
            .clone()
            .launcher(LAUNCHER)
            .env(
                "CONTEXTPILOT_KV_EVENTS",
                format!("tcp://127.0.0.1:{events}"),
            )
            .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0");
        if let Some(state) = state {
            builder = builder.env("XDG_STATE_HOME", state);
        }
        let server = builder.spawn()?;
        let control = until("the hook says where it listens", || {
            const SAYS: &str = "[ContextPilot] Control endpoint: http://";
            let log = server.stderr();
            let said = log.lines().find_map(|line| line.strip_prefix(SAYS));
            Ok(said.and_then(|said| said.parse().ok()))
        })?;
        Ok(Self {
            server,
            events,
            control,
        })
    }

    /// What `/stats` says of the events.
    pub(crate) fn figures(&self) -> Result<Value> {
        Ok(self.stats()?["kv_events"].clone())
    }

    /// All that `/stats` says.
    pub(crate) fn stats(&self) -> Result<Value> {
        let mut connection = Connection::open(self.control)?;
        connection.exchange("GET", "/stats", b"")?.json()
    }

    /// Waits until so many routers are subscribed.
    pub(crate) fn await_subscribers(&self, count: u64) -> Result<()> {
        until("the routers are subscribed", || {
            Ok((self.figures()?["subscribers"] == count).then_some(()))
        })
    }
}

/// Looks again and again until there is something.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look()? {
            return Ok(seen);
        }
        if begun.elapsed() > PATIENCE {
            return Err(Error::new(format!("it did not happen that {what}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
