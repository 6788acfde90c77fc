//! The process that keeps the prefix store and a Redis alike, for several machines.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use contextpilot_settings::env;

use crate::say::say;

const COMPANION: &str = "contextpilot-llama";

/// Starts it. It ends after the server that this process becomes, when what is new is sent. So it is in a process
/// group of its own: Ctrl-C is for the server.
pub(crate) fn start() {
    let started = companion().and_then(|companion| {
        let mut command = Command::new(companion);
        command.args(["store", "sync", "--of", &std::process::id().to_string()]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0);
        command.spawn().map(drop).map_err(|error| error.to_string())
    });
    if let Err(why) = started {
        say(format_args!(
            "{} does nothing: {COMPANION} cannot be started ({why}); install it beside contextpilot-llama-server",
            env::STORE_REMOTE
        ));
    }
}

/// The companion command beside this one, else that of `PATH`.
fn companion() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map(|own| own.with_file_name(COMPANION));
    match own {
        Ok(beside) if beside.is_file() => Ok(beside),
        _ => which::which(COMPANION).map_err(|error| error.to_string()),
    }
}
