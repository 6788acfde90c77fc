//! `up`: server, hook and index in one command.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, exit};
use std::thread;

use clap::Args;
use contextpilot_client::Control;
use contextpilot_private_folder::{Base, PrivateFolder};
use contextpilot_settings::env;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::connect::with_token;
use super::index::{self, Serving};
use crate::say::say;
use crate::variables::{Lookup, of_process};

/// Run a server with its hook, and an index in front of it
///
/// Starts contextpilot-llama-server with all arguments that are not the
/// index's, and the index with it. They end together, with the server's code.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama up --index-port 8765 -m model.gguf --parallel 4")]
pub(super) struct Options {
    /// Port of the index; 0 chooses a free one
    #[arg(long, value_name = "PORT", default_value_t = 8765)]
    index_port: u16,
    /// llama-server's own arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    arguments: Vec<OsString>,
}

pub(super) fn run(options: &Options) -> Result<ExitCode, String> {
    let engine = engine(&options.arguments);
    let serving = Serving::at_port(options.index_port);
    let (listener, address) = serving.bind()?;
    let listen = listen()?;
    let control = Control::new(&listen.to_string_lossy()).map_err(|e| e.to_string())?;
    let control = with_token(control)?;
    // Before the server starts, so that an error leaves no server behind.
    let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])
        .map_err(|e| format!("Signals cannot be received ({e}): try again"))?;
    let server = Command::new(launcher()?)
        .args(&options.arguments)
        .env(env::LISTEN, &listen)
        .spawn()
        .map_err(|e| format!("contextpilot-llama-server cannot be started: {e}"))?;
    say(format_args!(
        "Index at http://{address}, in front of {engine}"
    ));
    let id = server.id();
    pass_signals(signals, id);
    end_with(server);
    let served = index::serve(&serving, listener, &engine, Some(control));
    signal(id, SIGTERM);
    served.map(|()| ExitCode::SUCCESS)
}

/// The URL at which the server will listen, by its arguments and its variables.
fn engine(arguments: &[OsString]) -> String {
    let given = |flag: &str, variable: &str| {
        let at = arguments.iter().rposition(|one| one == flag);
        let after = at.and_then(|at| arguments.get(at + 1)).cloned();
        let with_sign = |one: &OsString| {
            let value = one.to_str()?.strip_prefix(flag)?.strip_prefix('=')?;
            Some(OsString::from(value))
        };
        after
            .or_else(|| arguments.iter().rev().find_map(with_sign))
            .or_else(|| of_process.non_empty(variable))
            .map(|value| value.to_string_lossy().into_owned())
    };
    let host = given("--host", "LLAMA_ARG_HOST").unwrap_or_else(|| "127.0.0.1".to_owned());
    let port = given("--port", "LLAMA_ARG_PORT").unwrap_or_else(|| "8080".to_owned());
    let scheme = match given("--ssl-key-file", "LLAMA_ARG_SSL_KEY_FILE") {
        Some(_) => "https",
        None => "http",
    };
    match &*host {
        path if path.ends_with(".sock") => format!("unix:{path}"),
        // All addresses, including loopback.
        "0.0.0.0" | "::" => format!("{scheme}://127.0.0.1:{port}"),
        host if host.contains(':') => format!("{scheme}://[{host}]:{port}"),
        host => format!("{scheme}://{host}:{port}"),
    }
}

/// The address for the hook: by the settings, else a Unix socket of this process.
fn listen() -> Result<OsString, String> {
    if let Some(listen) = of_process.non_empty(env::LISTEN).filter(|at| at != "auto") {
        return Ok(listen);
    }
    let folder = PrivateFolder::in_memory()
        .map_or_else(|| PrivateFolder::open(Base::State, of_process), Ok)
        .map_err(|e| format!("There is no private folder ({e}): set {}", env::LISTEN))?;
    let name = format!("control-{}.sock", std::process::id());
    let mut listen = OsString::from("unix:");
    listen.push(folder.path().join(name));
    Ok(listen)
}

/// The launcher beside this program, else the one on `PATH`.
fn launcher() -> Result<PathBuf, String> {
    const NAME: &str = "contextpilot-llama-server";
    let beside = std::env::current_exe()
        .ok()
        .map(|this| this.with_file_name(NAME))
        .filter(|beside| beside.is_file());
    match beside {
        Some(beside) => Ok(beside),
        None => which::which(NAME).map_err(|_| {
            format!("{NAME} is neither beside this program nor on PATH: install it there")
        }),
    }
}

/// Signals that would end this process end the server, and the end of the server ends this process.
fn pass_signals(mut signals: Signals, server: u32) {
    thread::spawn(move || {
        for number in signals.forever() {
            signal(server, number);
        }
    });
}

fn signal(server: u32, number: i32) {
    let pid = i32::try_from(server).ok().and_then(Pid::from_raw);
    if let (Some(pid), Some(number)) = (pid, Signal::from_named_raw(number)) {
        // It may have ended already.
        let _ = kill_process(pid, number);
    }
}

/// Ends this process as the server ends.
fn end_with(mut server: Child) {
    thread::spawn(move || {
        let code = server.wait().map_or(1, |status| code_of(&status));
        exit(code);
    });
}

/// The exit code, as a shell would give it.
fn code_of(status: &ExitStatus) -> i32 {
    let signal = status.signal().map(|number| 128 + number);
    status.code().or(signal).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_address_is_found_in_its_arguments() {
        let at =
            |arguments: &[&str]| engine(&arguments.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(at(&["-m", "x"]), "http://127.0.0.1:8080");
        assert_eq!(at(&["--port", "1", "--port", "2"]), "http://127.0.0.1:2");
        assert_eq!(at(&["--port=3", "--host", "0.0.0.0"]), "http://127.0.0.1:3");
        assert_eq!(at(&["--host", "::1"]), "http://[::1]:8080");
        assert_eq!(at(&["--host", "/run/a.sock"]), "unix:/run/a.sock");
    }
}
