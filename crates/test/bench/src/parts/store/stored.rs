//! A server with a store.

use contextpilot_client::Control;
use contextpilot_control::{Evaluation, PrefixStore};
use contextpilot_testbed::{Builder, Result, Server};
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::lab::{Lab, failed};

/// So many requests are looked through for one that has just ended.
const KNOWN: usize = 8;

/// A server with a store.
pub(super) struct Stored {
    pub(super) server: Server,
    control: Control,
}

impl Stored {
    pub(super) fn start(lab: &Lab, plain: &Builder, folder: &Path) -> Result<Self> {
        let stored = Self::starting(lab, plain, folder)?;
        stored.await_store()?;
        Ok(stored)
    }

    /// The server is ready. Its store may not be.
    pub(super) fn starting(lab: &Lab, plain: &Builder, folder: &Path) -> Result<Self> {
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

    pub(super) fn await_store(&self) -> Result<()> {
        while !self.figures()?.ready {
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Why a request that has its answer was evaluated.
    pub(super) fn account(&self, id: &str) -> Result<Evaluation> {
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

    pub(super) fn figures(&self) -> Result<PrefixStore> {
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
