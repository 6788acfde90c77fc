//! What the prefix store brings, and what it costs where it can bring nothing.

mod latency;
mod nothing;
mod restarts;
mod resumed;
mod traffic;

use contextpilot_client::Control;
use contextpilot_control::{Evaluation, PrefixStore};
use contextpilot_testbed::{Builder, Result, Server, Sessions};
use std::path::{Path, PathBuf};
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

/// The first token of a conversation that goes on after a restart. `also`: models to try besides the usual ones.
pub(super) fn resumed(also: &[PathBuf], lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("The prefix store: the first token after a restart");
    resumed::run(also, lab, page)
}

/// Single prompts.
pub(super) fn prompts(lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("The prefix store: single prompts");
    latency::again(lab, page)?;
    nothing::dense(lab, page)
}

/// Single prompts with sliding windows. `also`: models to try besides a random one.
pub(super) fn windows(also: &[PathBuf], lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("The prefix store: sliding windows");
    nothing::windowed(also, lab, page)
}

/// The longest gap of a slot while the other one is saved.
pub(super) fn neighbour(lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("The prefix store: a neighbour");
    latency::neighbour(lab, page)
}

/// So many requests are looked through for one that has just ended.
const KNOWN: usize = 8;

/// A server with a store.
struct Stored {
    server: Server,
    control: Control,
}

impl Stored {
    fn start(lab: &Lab, plain: &Builder, folder: &Path) -> Result<Self> {
        let stored = Self::starting(lab, plain, folder)?;
        stored.await_store()?;
        Ok(stored)
    }

    /// The server is ready. Its store may not be.
    fn starting(lab: &Lab, plain: &Builder, folder: &Path) -> Result<Self> {
        let mut server = lab
            .launched(plain)
            .observed()
            .env("CONTEXTPILOT_STORE", folder)
            .env("CONTEXTPILOT_STORE_GB", "20")
            .start()?;
        let control = Control::new(&server.await_control()?.to_string())
            .map_err(|e| failed(e.to_string()))?;
        server.await_ready()?;
        Ok(Self { server, control })
    }

    fn await_store(&self) -> Result<()> {
        while !self.figures()?.ready {
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Why a request that has its answer was evaluated.
    fn account(&self, id: &str) -> Result<Evaluation> {
        loop {
            let latest = self.control.latest(KNOWN);
            let mut all = latest
                .map_err(|e| failed(e.to_string()))?
                .requests
                .into_iter();
            if let Some(account) = all.find(|one| one.id.as_deref() == Some(id)) {
                return Ok(account.evaluation);
            }
            thread::sleep(Duration::from_millis(1));
        }
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
