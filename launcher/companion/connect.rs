//! The hook that a command asks: given, or found; and the messages if it does not answer.

use clap::Args;
use contextpilot_client::control::{RequestState, Stats};
use contextpilot_client::{Control, Error};
use contextpilot_settings::{Listen, ListenAddress, ListenAddressError, env};

use super::doctor::others as other_users;
use super::servers::{Running, choose, running, with_token};
use crate::others;
use crate::variables::{Lookup, of_process};

/// Where the endpoint of older examples is. It is tried if nothing else is known.
const CONTROL: &str = "127.0.0.1:8890";

/// Which server's hook is asked.
#[derive(Args, Clone, Default)]
pub(super) struct ControlAt {
    /// The hook's endpoint: what the server was given as CONTEXTPILOT_LISTEN.
    /// Its token is taken from CONTEXTPILOT_LISTEN_TOKEN
    /// [default: CONTEXTPILOT_LISTEN, else the server of this user that runs]
    #[arg(long, value_name = "ADDRESS", global = true)]
    pub(super) control: Option<String>,
    /// Of several servers, the one with this process id
    #[arg(long, global = true, conflicts_with = "control")]
    pub(super) pid: Option<u32>,
    /// Of several servers, the one with this model, by its name or a part of it
    #[arg(long, value_name = "NAME", global = true, conflicts_with = "control")]
    pub(super) model: Option<String>,
}

impl ControlAt {
    /// A client for the endpoint that was given, or of the one server that runs.
    pub(super) fn client(&self) -> Result<Control, String> {
        self.client_or(String::new)
    }

    /// The same. `instead`: what else can be named if no server runs.
    pub(super) fn client_or(&self, instead: impl FnOnce() -> String) -> Result<Control, String> {
        match self.given()? {
            Some(control) => Ok(control),
            None => match self.found()? {
                Some(found) => Ok(found.control),
                None => self
                    .usual()
                    .map(|(control, _)| control)
                    .ok_or_else(|| none_runs(&instead())),
            },
        }
    }

    /// The same, and what its hook says.
    pub(super) fn stats(&self) -> Result<(Control, Stats), String> {
        let control = self.client()?;
        let stats = control.stats().map_err(|e| hook_says(&control, &e))?;
        Ok((control, stats))
    }

    /// The endpoint that was given.
    pub(super) fn given(&self) -> Result<Option<Control>, String> {
        let chosen = self.pid.is_some() || self.model.is_some();
        let from_variable = || of_process.text(env::LISTEN).filter(|_| !chosen);
        let address = self.control.clone().or_else(from_variable);
        let name = match self.control {
            Some(_) => "--control",
            None => env::LISTEN,
        };
        match address.filter(|address| address.parse() != Ok(Listen::Auto)) {
            Some(address) => {
                if let Some(why) = no_address(&address) {
                    return Err(format!("{name} is {address:?}: {why}"));
                }
                let control = Control::new(&address).map_err(|e| format!("{name}: {e}"))?;
                with_token(control).map(Some)
            }
            None => Ok(None),
        }
    }

    /// The one server that runs and is meant. `None`: no server runs.
    pub(super) fn found(&self) -> Result<Option<Running>, String> {
        choose(running(), self.pid, self.model.as_deref())
    }

    /// The endpoint of older examples, if something answers there and nothing was asked for in particular.
    pub(super) fn usual(&self) -> Option<(Control, Stats)> {
        if self.pid.is_some() || self.model.is_some() {
            return None;
        }
        let control = with_token(Control::new(CONTROL).ok()?).ok()?;
        let stats = control.stats().ok()?;
        Some((control, stats))
    }
}

/// Why no server can have been started with this address, in the launcher's words. `None`: one can, or it is the address
/// of something in front of it.
fn no_address(address: &str) -> Option<ListenAddressError> {
    let why = address.parse::<ListenAddress>().err()?;
    let is_none = matches!(why, ListenAddressError::NoPort | ListenAddressError::Switch);
    (is_none && !address.contains('/')).then_some(why)
}

/// What to type if no server is found.
pub(super) const START: &str = "CONTEXTPILOT_LISTEN=auto contextpilot-llama-server -m model.gguf";

fn none_runs(instead: &str) -> String {
    let other =
        others::instead_of_launcher(of_process).map_or(String::new(), |other| format!(". {other}"));
    format!(
        "No server of this user with a control endpoint runs (nothing answers at {CONTROL} either; one \
         in router mode has none until a model is loaded): start it as {START}, or say with --control \
         where it listens{instead}{other}{}",
        of_others(&other_users::lines())
    )
}

/// What is said if other users' servers run: these are not looked into.
fn of_others(lines: &[String]) -> String {
    let lines = lines
        .iter()
        .map(|line| format!("\nOf another user: {line}"));
    lines.collect()
}

/// What the hook knows of a request, and its name. A number is an id first; if no request has that id, it is the
/// number in lists, since a shell takes `#17` without quotes for a comment.
pub(super) fn request(control: &Control, name: &str) -> Result<(String, RequestState), String> {
    let ask = |name: &str| control.request(name).map_err(|e| hook_says(control, &e));
    let state = ask(name)?;
    let is_unknown = |state: &RequestState| matches!(state, RequestState::Unknown { .. });
    if is_unknown(&state) && name.parse::<u64>().is_ok() {
        let numbered = format!("#{name}");
        let of_number = ask(&numbered)?;
        if !is_unknown(&of_number) {
            return Ok((numbered, of_number));
        }
    }
    Ok((name.to_owned(), state))
}

/// The message for an error of the hook's endpoint.
pub(super) fn hook_says(control: &Control, error: &Error) -> String {
    let address = control.address();
    match error {
        Error::Unreachable { why, .. } => format!(
            "No hook answers at {address} ({why}): start the server as \
             CONTEXTPILOT_LISTEN={address} contextpilot-llama-server …, \
             or say with --control where it listens"
        ),
        Error::Unauthorized { .. } => format!(
            "The hook at {address} asks for a token: set {} to the one that the server \
             was started with",
            env::LISTEN_TOKEN
        ),
        other => match (versions_differ(control), other) {
            (Some(why), _) => why,
            (None, Error::Refused { status: 404, .. }) if control.hook_version().is_err() => {
                format!(
                    "What answers at {address} is no hook; llama-server itself, perhaps: start the server \
                     with {}=auto, or another address than its own, and give --control that",
                    env::LISTEN
                )
            }
            (None, other) => format!("The hook at {address}: {other}"),
        },
    }
}

/// Hook and companion are installed together and have the same version. But a running server keeps
/// the hook that it was started with.
pub(super) const OUR_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The message if the hook has another version than this command, and so may not know the query, or
/// answer it differently.
fn versions_differ(control: &Control) -> Option<String> {
    let address = control.address();
    let theirs = control.hook_version().ok()?;
    (theirs != OUR_VERSION).then(|| {
        format!(
            "The hook at {address} is version {theirs}, this command is {OUR_VERSION}, and they do \
             not understand each other in this: start the server again, with \
             contextpilot-llama-server {OUR_VERSION}"
        )
    })
}
