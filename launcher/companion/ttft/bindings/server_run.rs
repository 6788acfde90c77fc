//! A llama-server with the same model, and the same room and threads.

use std::path::Path;

use contextpilot_client::{Control, Prompt};
use contextpilot_settings::env;

use super::super::hook::Hook;
use super::super::trial::{Measured, measured};
use super::compared::Plan;
use crate::companion::demo::running::{Running, bare, launcher, temporary_folder};

pub(super) struct OwnServer {
    running: Running,
    /// Says what was loaded from the store, which the server counts as evaluated.
    hook: Option<Hook>,
}

impl OwnServer {
    /// Starts it, and waits until it is ready. `store`: with the hook, and a store in that folder.
    pub(super) fn start(plan: &Plan, server: &Path, store: Option<&Path>) -> Result<Self, String> {
        let folder = temporary_folder()?;
        let socket = format!("unix:{}", folder.path().join("control").display());
        let mut command = match store {
            Some(_) => bare(launcher()),
            None => bare(server),
        };
        command.args(["--parallel", "1", "--ctx-size", &plan.n_ctx.to_string()]);
        command.args(["--threads", &plan.threads.to_string()]);
        let mut control = None;
        if let Some(store) = store {
            command.env("LLAMA_SERVER_BIN", server);
            command.env(env::STORE, store).env(env::LISTEN, &socket);
            control = Some(Control::new(&socket).map_err(|e| e.to_string())?);
        }
        let running = Running::spawn(command, plan.model, folder)?;
        Ok(Self {
            running,
            hook: control.map(Hook::new),
        })
    }

    pub(super) fn complete(&mut self, text: &str) -> Result<Measured, String> {
        let before = self.loaded()?;
        let answer = self.running.ask(&Prompt::new(text).predict(1))?;
        let mut measured = measured(&answer);
        let loaded = self.loaded()?.saturating_sub(before);
        measured.cached += loaded;
        measured.evaluated = measured.evaluated.saturating_sub(loaded);
        Ok(measured)
    }

    fn loaded(&self) -> Result<u64, String> {
        let loaded = self.hook.as_ref().map(Hook::loaded).transpose();
        let loaded = loaded.map_err(|e| e.to_string())?;
        Ok(loaded.flatten().unwrap_or(0))
    }
}
