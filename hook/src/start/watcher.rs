//! Starts the process that reports what this one held as soon as it was killed.
//!
//! It is `contextpilot-llama killed --at-end`, and reads from a pipe whose other end is ours and is never written to. The
//! system closes that end with this process, however it ends. So nothing is asked meanwhile, and nothing wakes up.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use contextpilot_settings::{Watcher, env};

use crate::base::environment;
use crate::base::log;

/// The library is for this process.
const PRELOADS: [&str; 2] = ["LD_PRELOAD", "DYLD_INSERT_LIBRARIES"];

/// On the worker's thread. Without it all else goes on, and the next start reports.
pub(super) fn start(watcher: &Watcher) {
    let Watcher::At(program) = watcher else {
        log::line(format_args!(
            "{0}=auto does nothing here, as no launcher started this server: set {0} to the path of contextpilot-llama",
            env::WATCHER
        ));
        return;
    };
    let variables = environment::variables();
    let started = Command::new(program)
        .args(["killed", "--at-end"])
        // Not those of now, which other threads may be changing.
        .env_clear()
        .envs(variables.filter(|(name, _)| PRELOADS.iter().all(|preload| name != preload)))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        // A program that reads the server's stderr to its end must see that end when the server ends.
        .stderr(Stdio::null())
        // Ctrl-C is for the server.
        .process_group(0)
        .spawn();
    match started {
        // The pipe stays open for the life of this process.
        Ok(mut child) => std::mem::forget(child.stdin.take()),
        Err(error) => log::line(format_args!(
            "{}: {} cannot be started ({error}), so what this server holds is reported by the next start if it is killed",
            env::WATCHER,
            program.display()
        )),
    }
}
