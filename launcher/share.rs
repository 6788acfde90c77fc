//! The process that keeps the prefix store and a Redis or a bucket alike, for several machines.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use contextpilot_settings::env;

use crate::beside::{self, COMPANION};
use crate::say::say;

/// Whether these arguments ask the server something that it answers without a model.
pub(crate) fn only_ask(arguments: &[OsString]) -> bool {
    const QUESTIONS: [&str; 9] = [
        "-h",
        "--help",
        "--usage",
        "--version",
        "--license",
        "--list-devices",
        "--cache-list",
        "-cl",
        "--completion-bash",
    ];
    arguments
        .iter()
        .any(|argument| QUESTIONS.iter().any(|question| argument == question))
}

/// Starts it. It ends after the server that this process becomes, when what is new is sent. So it is in a process
/// group of its own: Ctrl-C is for the server.
pub(crate) fn start() {
    let started = beside::find(COMPANION).and_then(|companion| {
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
            "{} does nothing, as {COMPANION} cannot be started: {why}",
            env::STORE_REMOTE
        ));
    }
}
