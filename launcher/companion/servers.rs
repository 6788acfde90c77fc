//! The servers of this user that run with `CONTEXTPILOT_LISTEN=auto`.

use std::thread;
use std::time::SystemTime;

use contextpilot_client::control::{Stats, Timestamp};
use contextpilot_client::{Control, Error};
use contextpilot_settings::env;

use super::show::{Moment, Visible, seconds_of};
use super::table::Table;
use crate::variables::{Lookup, of_process};

/// A server that runs, and what its hook says of it.
pub(super) struct Running {
    process: u32,
    pub(super) control: Control,
    pub(super) stats: Result<Stats, Error>,
}

/// Adds the token of the environment.
pub(super) fn with_token(control: Control) -> Result<Control, String> {
    match of_process.text(env::LISTEN_TOKEN) {
        Some(token) => control
            .with_token(&token)
            .map_err(|_| format!("{} cannot be sent: check it", env::LISTEN_TOKEN)),
        None => Ok(control),
    }
}

/// All of them, by process id.
pub(super) fn running() -> Vec<Running> {
    let sockets = contextpilot_discovery::sockets(of_process);
    let clients = sockets.into_iter().filter_map(|socket| {
        let control = Control::new(&socket.address()).ok()?;
        Some((socket.process, with_token(control).ok()?))
    });
    let clients: Vec<_> = clients.collect();
    thread::scope(|scope| {
        // Side by side, so that one that does not answer does not hold up the others.
        let asked: Vec<_> = clients
            .into_iter()
            .map(|(process, control)| {
                scope.spawn(move || Running {
                    process,
                    stats: control.stats(),
                    control,
                })
            })
            .collect();
        let answered = asked.into_iter().filter_map(|asked| asked.join().ok());
        // One that ended meanwhile is none.
        answered.filter(Running::is_there).collect()
    })
}

impl Running {
    fn is_there(&self) -> bool {
        !matches!(self.stats, Err(Error::Unreachable { .. }))
    }

    /// What its model is called.
    fn model(&self) -> Option<&str> {
        let model = self.stats.as_ref().ok()?.model.as_ref();
        model.map(|model| &*model.name)
    }

    pub(super) fn process(&self) -> u32 {
        self.process
    }

    /// The folder of its prefix store.
    pub(super) fn store(&self) -> Option<&str> {
        let store = self.stats.as_ref().ok()?.store.as_ref();
        store.map(|store| &*store.folder)
    }

    /// Whether it listens at this URL.
    pub(super) fn listens_at(&self, url: &str) -> bool {
        let stats = self.stats.as_ref();
        stats.is_ok_and(|stats| stats.listens_at(url))
    }
}

/// The server that is meant, by its process id and by its model's name or a part of that. `None`: no
/// server runs, and none was asked for in particular.
pub(super) fn choose(
    mut all: Vec<Running>,
    process: Option<u32>,
    model: Option<&str>,
) -> Result<Option<Running>, String> {
    all.retain(|server| process.is_none_or(|process| server.process == process));
    if let Some(name) = model {
        let is_named = |server: &Running, fits: fn(&str, &str) -> bool| {
            server.model().is_some_and(|model| fits(model, name))
        };
        let whole = |model: &str, name: &str| {
            model.strip_suffix(".gguf").unwrap_or(model) == name || model == name
        };
        if all.iter().any(|server| is_named(server, whole)) {
            all.retain(|server| is_named(server, whole))
        } else {
            all.retain(|server| is_named(server, |model, name| model.contains(name)))
        }
    }
    match (all.len(), process, model) {
        (0, None, None) => Ok(None),
        (0, Some(process), _) => Err(format!(
            "No server of this user with the process id {process} has a control endpoint that is \
             found{LOOK}"
        )),
        (0, None, Some(name)) => Err(format!(
            "No server of this user whose model is called {} has a control endpoint that is \
             found{LOOK}",
            Visible(name)
        )),
        (1, ..) => Ok(all.pop()),
        (count, ..) => Err(format!(
            "{count} servers of this user run: choose one with --pid or --control\n{}",
            listed(&all).trim_end()
        )),
    }
}

const LOOK: &str = ": contextpilot-llama stats, without that, names those that run";

/// A line for each of them.
fn listed(running: &[Running]) -> String {
    let mut table = Table::new(&["pid", "model", "address", "since"], &[1, 2, 3]);
    for server in running {
        let (address, since) = match &server.stats {
            Ok(stats) => {
                let up = seconds_of(stats.uptime_seconds);
                let start = SystemTime::from(stats.at)
                    .checked_sub(up)
                    .map(|start| Moment::from(Timestamp::from(start)).minute());
                (stats.listening.join(", "), start.unwrap_or_default())
            }
            Err(error) => (String::new(), error.to_string()),
        };
        table.row(vec![
            server.process.to_string(),
            Visible(server.model().unwrap_or("?")).to_string(),
            Visible(&address).to_string(),
            since,
        ]);
    }
    table.text()
}
