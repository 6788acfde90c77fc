//! The addresses of the server and its hook, and the messages if they do not answer.

use clap::Args;
use contextpilot_client::{Control, Error, LlamaServer};
use contextpilot_settings::env;

use crate::variables::{Lookup, of_process};

const CONTROL: &str = "127.0.0.1:8890";
const SERVER: &str = "http://127.0.0.1:8080";
/// llama-server's own variable for the same.
const API_KEY: &str = "LLAMA_API_KEY";

#[derive(Args)]
pub(super) struct ControlAt {
    /// The hook's endpoint: what the server was given as CONTEXTPILOT_LISTEN.
    /// Its token is taken from CONTEXTPILOT_LISTEN_TOKEN
    /// [default: CONTEXTPILOT_LISTEN, else 127.0.0.1:8890]
    #[arg(long, value_name = "ADDRESS", global = true)]
    pub(super) control: Option<String>,
}

impl ControlAt {
    pub(super) fn client(&self) -> Result<Control, String> {
        let address = self.control.clone().or_else(|| text(env::LISTEN));
        let control = Control::new(address.as_deref().unwrap_or(CONTROL))
            .map_err(|e| format!("--control: {e}"))?;
        match text(env::LISTEN_TOKEN) {
            Some(token) => control
                .with_token(&token)
                .map_err(|_| format!("{} cannot be sent: check it", env::LISTEN_TOKEN)),
            None => Ok(control),
        }
    }
}

#[derive(Args)]
pub(super) struct ServerAt {
    /// The server. Its key, if it asks for one, is taken from LLAMA_API_KEY
    #[arg(long, value_name = "URL", default_value = SERVER, global = true)]
    pub(super) server: String,
}

impl ServerAt {
    pub(super) fn client(&self) -> Result<LlamaServer, String> {
        let server = LlamaServer::new(&self.server).map_err(|e| format!("--server: {e}"))?;
        match api_key() {
            Some(key) => server
                .with_api_key(&key)
                .map_err(|_| format!("{API_KEY} cannot be sent: check it")),
            None => Ok(server),
        }
    }
}

/// The server's key, if it asks for one.
pub(super) fn api_key() -> Option<String> {
    text(API_KEY)
}

fn text(name: &str) -> Option<String> {
    of_process.non_empty(name)?.into_string().ok()
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
        other => match versions_differ(control) {
            Some(why) => why,
            None => format!("The hook at {address}: {other}"),
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

/// The message for an error of the server.
pub(super) fn server_says(server: &LlamaServer, error: &Error) -> String {
    let address = server.address();
    match error {
        Error::Unreachable { why, .. } => format!(
            "No llama-server answers at {address} ({why}): start it, \
             or say with --server where it is"
        ),
        Error::Unauthorized { .. } => format!(
            "The server at {address} asks for a key: set {API_KEY} to the one of its --api-key"
        ),
        other => format!("The server at {address}: {other}"),
    }
}
