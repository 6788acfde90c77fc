//! Waits until a hooked server has reported all that happened so far.

use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::{Builder, Server};
use crate::wait::try_until;
use crate::{Connection, Error, Result};

/// Longer than the longest silence after which the ledger decides what is lost (a second:
/// `crates/watch/worker/src/silence.rs`), by enough for the report. A server without a control endpoint has
/// reported everything when it was silent for so long.
pub const SILENCE: Duration = Duration::from_millis(1250);

impl Builder {
    /// With a control endpoint, so that [`Server::come_to_rest`] can be called.
    pub fn observed(self) -> Self {
        self.env("CONTEXTPILOT_LISTEN", "127.0.0.1:0")
    }
}

impl Server {
    /// Waits until all that has happened is decided and reported. Needs [`Builder::observed`].
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
