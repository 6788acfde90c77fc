//! `agent`: a server for coding agents, in one command.
//!
//! As with `up`, this process *becomes* the server, through the launcher: so signals, the terminal and the
//! exit code are the server's own.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;
use contextpilot_private_folder::{Base, PrivateFolder};
use contextpilot_settings::env;

use super::up;
use crate::say::say;
use crate::variables::{Lookup, of_process};
use crate::{beside, share};

pub(super) mod lines;

/// The folder of the prefix store, in this user's cache folder.
const STORE: &str = "store";

/// Run a server for coding agents, and say how to point them at it
///
/// Becomes contextpilot-llama-server, with all arguments that are not its own. What it turns on: a control
/// endpoint for this user (CONTEXTPILOT_LISTEN=auto), with text around differences (CONTEXTPILOT_EXPLAIN_TEXT=1);
/// the tokens of earlier answers (CONTEXTPILOT_KEEP_TOKENS=1); a prefix store in the cache folder, of a tenth of the
/// free disk and at most 50 GB; and a recording without text for `advise`, of at most 64 MiB. Whatever you set
/// yourself wins. When the model is loaded, it prints a line for each agent.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama agent -m model.gguf")]
pub(super) struct AgentOptions {
    /// Keep no prefix store
    #[arg(long)]
    no_store: bool,
    /// Record nothing for `advise`
    #[arg(long)]
    no_recording: bool,
    /// llama-server's own arguments, such as -m model.gguf
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "LLAMA-SERVER ARGUMENTS"
    )]
    arguments: Vec<OsString>,
}

/// Returns only if there is an error.
pub(super) fn run(options: &AgentOptions) -> Result<ExitCode, String> {
    let mut server = Command::new(beside::find("contextpilot-llama-server")?);
    server.args(&options.arguments);
    let flags = up::flags(&options.arguments);
    up::must_be_free(&flags, &options.arguments)?;
    let mut settings: Vec<(&str, OsString)> = vec![
        (env::LISTEN, "auto".into()),
        (env::EXPLAIN_TEXT, "1".into()),
        (env::KEEP_TOKENS, "1".into()),
    ];
    if !options.no_store && of_process.non_empty(env::STORE).is_none() {
        let cache = PrivateFolder::open(Base::Cache, of_process).map_err(|why| {
            format!(
                "There is no place for a prefix store ({why}): set {}, or give --no-store",
                env::STORE
            )
        })?;
        settings.push((env::STORE, cache.path().join(STORE).into()));
    }
    if !options.no_recording {
        let file = up::recording(&flags, &format!("agent-{}", flags.port()));
        settings.extend(file.map(|file| (env::TRAFFIC_FILE, file.into())));
    }
    settings.retain(|(name, _)| of_process.non_empty(name).is_none());
    server.envs(settings);
    if !share::only_ask(&options.arguments) {
        if let Err(why) = lines::start(&flags, &options.arguments) {
            say(format_args!(
                "How to point an agent at the server cannot be said ({why}): see docs/agents.md"
            ));
        }
    }
    let error = server.exec();
    Err(format!(
        "contextpilot-llama-server cannot be started: {error}"
    ))
}

/// The folder of the prefix store that an earlier `agent` has made.
pub(super) fn store_there() -> Option<PathBuf> {
    let cache = PrivateFolder::look_for(Base::Cache, of_process).ok()?;
    Some(cache.join(STORE)).filter(|folder| folder.is_dir())
}
