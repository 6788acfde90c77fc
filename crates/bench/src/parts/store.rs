//! What the prefix store brings, and what it costs where it can bring nothing.

mod latency;
mod restarts;
mod traffic;

use contextpilot_client::Control;
use contextpilot_control::PrefixStore;
use contextpilot_testbed::{Builder, Result, Server, Sessions};
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::lab::{Lab, failed};
use crate::page::Page;

pub(crate) use traffic::Rows;

/// Agents' sessions, with and without it.
pub(super) fn sessions(sessions: &Sessions, rows: &Rows, lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("The prefix store");
    traffic::run(sessions, rows, lab, page)
}

/// The same while the server ends and starts again.
pub(super) fn restarts(sessions: &Sessions, lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("The prefix store: restarts");
    restarts::run(sessions, lab, page)
}

/// Single prompts.
pub(super) fn prompts(lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("The prefix store: single prompts");
    latency::run(lab, page)
}

/// The longest gap of a slot while the other one is saved.
pub(super) fn neighbour(lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("The prefix store: a neighbour");
    latency::neighbour(lab, page)
}

/// A server with a store.
struct Stored {
    server: Server,
    control: Control,
}

impl Stored {
    fn start(lab: &Lab, plain: &Builder, folder: &Path) -> Result<Self> {
        let mut server = plain
            .clone()
            .launcher(&lab.launcher)
            .env("XDG_CACHE_HOME", lab.cache())
            .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0")
            .env("CONTEXTPILOT_STORE", folder)
            .env("CONTEXTPILOT_STORE_GB", "20")
            .start()?;
        let control = Control::new(&server.await_control()?.to_string())
            .map_err(|e| failed(e.to_string()))?;
        server.await_ready()?;
        let stored = Self { server, control };
        while !stored.figures()?.ready {
            thread::sleep(Duration::from_millis(10));
        }
        Ok(stored)
    }

    fn figures(&self) -> Result<PrefixStore> {
        let stats = self.control.stats().map_err(|e| failed(e.to_string()))?;
        let store = stats
            .store
            .ok_or_else(|| failed("the server has no store"))?;
        match (&store.problem, &store.refused[..]) {
            (None, []) => Ok(store),
            (problem, refused) => Err(failed(format!("the store: {problem:?} {refused:?}"))),
        }
    }
}
