//! `up`: server, hook and index in one command.
//!
//! This process *becomes* the server, as the launcher does. So signals, the terminal and the exit code are the
//! server's own: Ctrl-C reaches it once. The index is a child of it ([`index`]), with a socket that
//! already listens, and ends with it.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;
use contextpilot_private_folder::{Base, PrivateFolder};
use contextpilot_server_flags::{Address, Flag, Generation, ServerFlags, Source};
use contextpilot_settings::env;

use super::index::Serving;
use super::servers::running;
use super::stabilise::Edits;
use crate::say::say;
use crate::variables::{Lookup, of_process};
use crate::{beside, share};

pub(super) mod index;
pub(super) mod sockets;

/// Run a server with its hook, and an index in front of it
///
/// Becomes contextpilot-llama-server, with all arguments that are not the
/// index's, and starts the index beside it. The index ends with the server.
/// `contextpilot-llama top`, `stats`, `why` and `advise` find the server.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama up --index-port 8765 -m model.gguf --parallel 4")]
pub(super) struct UpOptions {
    /// Port of the index; 0 chooses a free one
    #[arg(long, value_name = "PORT", default_value_t = 8765)]
    index_port: u16,
    #[command(flatten)]
    edits: Edits,
    /// Record nothing for `advise`. Otherwise up to 64 MiB of the traffic are
    /// recorded in the state folder, without its text, unless
    /// CONTEXTPILOT_TRAFFIC_FILE names another file
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
pub(super) fn run(options: &UpOptions) -> Result<ExitCode, String> {
    let launcher = beside::find("contextpilot-llama-server")?;
    // Before the server starts, so that an error leaves no server behind.
    options.edits.stabilise.check()?;
    let (listener, address) = Serving::at_port(options.index_port).bind("--index-port")?;
    let url = format!("http://{address}");
    let flags = flags(&options.arguments);
    must_be_free(&flags, &options.arguments)?;
    let mut server = Command::new(launcher);
    server.args(&options.arguments);
    for (name, value) in settings(options, &flags, &url, address.port()) {
        server.env(name, value);
    }
    let mut index = index::start(listener, &flags, &options.edits)
        .map_err(|e| format!("The index cannot be started: {e}"))?;
    say(format_args!(
        "Index at {url}, in front of the server that starts now"
    ));
    let error = server.exec();
    let _ = index.kill();
    Err(format!(
        "contextpilot-llama-server cannot be started: {error}"
    ))
}

/// The server's flags. What we ask for does not depend on its version.
pub(super) fn flags(arguments: &[OsString]) -> ServerFlags {
    let name = std::iter::once(OsString::new());
    let all = name.chain(arguments.iter().cloned());
    ServerFlags::read(all, of_process, Generation::Late2026)
}

/// Says who has the port that the server was given, before anything is started. Without one the server's version decides, which
/// is not known here: then it is a line beside the server's own.
pub(super) fn must_be_free(flags: &ServerFlags, arguments: &[OsString]) -> Result<(), String> {
    let port = u16::try_from(flags.port()).ok().filter(|port| *port > 0);
    let is_given = flags.source(Flag::Port) != Source::Default;
    let Some(port) = port.filter(|_| !share::only_ask(arguments)) else {
        return Ok(());
    };
    for address in flags.addresses() {
        let Address::Tcp(host, _) = address else {
            continue;
        };
        let Some(host) = host.to_str() else { continue };
        let tried = TcpListener::bind((host, port));
        if tried.is_err_and(|why| why.kind() == ErrorKind::AddrInUse) {
            let url = format!("http://{host}:{port}");
            let running = running();
            let holder = running.iter().find(|server| server.listens_at(&url));
            let by = match holder {
                Some(server) => format!("server {}, which runs already", server.process()),
                None => "another program".to_owned(),
            };
            if is_given {
                return Err(format!(
                    "Port {port} of {host} is taken by {by}: give another --port, or end that first"
                ));
            }
            say(format_args!(
                "Port {port} of {host}, llama-server's usual one since 0.7.0, is taken by {by}: if this server ends at once, give --port"
            ));
        }
    }
    Ok(())
}

/// What the hook is told, unless the user has said something else.
fn settings(
    options: &UpOptions,
    flags: &ServerFlags,
    index: &str,
    port: u16,
) -> Vec<(&'static str, OsString)> {
    let mut settings = vec![
        (env::LISTEN, "auto".into()),
        (env::INDEX_IN_FRONT, index.into()),
    ];
    if !options.no_recording {
        let file = recording(flags, &format!("up-{port}"));
        settings.extend(file.map(|file| (env::TRAFFIC_FILE, file.into())));
    }
    // This is ours to say.
    let is_free = |name: &str| name == env::INDEX_IN_FRONT || of_process.non_empty(name).is_none();
    settings.retain(|(name, _)| is_free(name));
    settings
}

/// The recording of this name, in the state folder. `None`: there is no such folder, or the servers that a router
/// starts would all write to one file.
pub(super) fn recording(flags: &ServerFlags, name: &str) -> Option<PathBuf> {
    flags.model()?;
    let folder = PrivateFolder::open(Base::State, of_process).ok()?;
    Some(folder.path().join(format!("{name}.traffic")))
}
