//! `contextpilot-llama`: what surrounds the server.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::say::say;
use crate::{hook_lib, variables};

mod doctor;
mod listen;

/// The companion of contextpilot-llama-server.
///
/// contextpilot-llama-server is llama-server with one thing more: it tells an
/// index which requests have fallen out of its KV cache. All its arguments are
/// llama-server's. It is configured by environment variables:
///
///   CONTEXTPILOT_INDEX_URL   where the index is; without it, the hook is not used
///   CONTEXTPILOT_INDEX_TOKEN bearer token for the index
///   CONTEXTPILOT_HOOK_LIB    hook library to use instead of the built-in one
///   CONTEXTPILOT_STRICT      1: exit 3 instead of running without the hook
///   LLAMA_SERVER_BIN         llama-server to run instead of the one on PATH
#[derive(Parser)]
#[command(name = "contextpilot-llama", version, verbatim_doc_comment)]
#[command(after_help = "Example:
  contextpilot-llama listen &
  CONTEXTPILOT_INDEX_URL=http://127.0.0.1:8765 contextpilot-llama-server -m model.gguf")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Doctor(doctor::Options),
    Listen(listen::Options),
    /// Print the path of the hook library
    ///
    /// The built-in library is put into the cache folder first if it is not
    /// there; with CONTEXTPILOT_HOOK_LIB set, its path is printed instead.
    #[command(after_help = "Example:
  nm -D --defined-only \"$(contextpilot-llama hook-path)\"")]
    HookPath,
}

/// Runs the command.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Doctor(options) => doctor::run(&options),
        Command::Listen(options) => listen::run(&options).map(|()| ExitCode::SUCCESS),
        Command::HookPath => hook_path().map(|()| ExitCode::SUCCESS),
    };
    match result {
        Ok(code) => code,
        Err(why) => {
            say(why);
            ExitCode::FAILURE
        }
    }
}

fn hook_path() -> Result<(), String> {
    let path = hook_lib::locate(variables::of_process).map_err(|e| e.to_string())?;
    let line = [path.as_os_str().as_bytes(), b"\n"].concat();
    match io::stdout().write_all(&line) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(cannot_print(&e)),
        _ => Ok(()),
    }
}

fn cannot_print(error: &io::Error) -> String {
    format!("standard output cannot be written to ({error}): check where it leads")
}
