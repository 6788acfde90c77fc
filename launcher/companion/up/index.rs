//! The index of `up`: a process of its own, which the server has as a child.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use contextpilot_client::Control;
use contextpilot_client::control::{Stats, nearest};
use contextpilot_server_flags::ServerFlags;
use rustix::process::{Pid, getppid};

use super::sockets;
use crate::companion::connect::ControlAt;
use crate::companion::index::{self, Behind, KnownServer, Serving};
use crate::companion::servers::running;
use crate::companion::stabilise::Edits;
use crate::say::say;

/// The command that runs in this process. Users have no use for it.
pub(in crate::companion) const COMMAND: &str = "index-of-up";

/// How often to look for the server: at first, and later.
const LOOK: Duration = Duration::from_millis(50);
const LATER: Duration = Duration::from_millis(500);
const AT_FIRST: Duration = Duration::from_secs(5);
/// How long the hook may take to say where the server listens. It says so when the server begins to load
/// its model, a moment after it listens.
const SAYS: Duration = Duration::from_secs(1);

/// Serve the index of up
///
/// `contextpilot-llama up` starts this. Users have no use for it.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama up -m model.gguf")]
pub(in crate::companion) struct UpIndexOptions {
    /// The process that becomes the server
    server: i32,
    /// The server was asked to speak TLS
    #[arg(long)]
    tls: bool,
    #[command(flatten)]
    edits: Edits,
}

/// Starts the process. The socket is its standard input. `flags`: the server's.
pub(super) fn start(
    listener: TcpListener,
    flags: &ServerFlags,
    edits: &Edits,
) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(COMMAND).arg(std::process::id().to_string());
    if flags.tls() {
        command.arg("--tls");
    }
    if edits.engine_usage {
        command.arg("--engine-usage");
    }
    if let Some(rules) = &edits.stabilise.file {
        command.arg("--stabilise").arg(rules);
    }
    command.stdin(Stdio::from(OwnedFd::from(listener))).spawn()
}

/// Serves until the server ends.
pub(in crate::companion) fn run(options: &UpIndexOptions) -> Result<ExitCode, String> {
    let process = Pid::from_raw(options.server).filter(|pid| end_with(*pid));
    let Some(process) = process else {
        // The server has ended already.
        return Ok(ExitCode::SUCCESS);
    };
    let fail = |e| format!("There is no socket for the index ({e}): start it with up");
    let socket = io::stdin().as_fd().try_clone_to_owned().map_err(fail)?;
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().map_err(fail)?;
    let server = ParentServer {
        process,
        tls: options.tls,
        index: format!("http://{address}"),
        given: ControlAt::default().given()?,
    };
    let behind = Behind::default();
    let (asked, shown) = (server.clone(), behind.clone());
    thread::spawn(move || asked.wait(&shown));
    let hook = Box::new(move || server.hook());
    index::serve(
        &Serving::at_port(address.port()).with(options.edits.clone()),
        listener,
        behind,
        Some(hook),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Makes this process end when `server` does, which must be its parent. False: the server has ended.
fn end_with(server: Pid) -> bool {
    #[cfg(target_os = "linux")]
    // If this fails, the index stays and answers that there is no server.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    #[cfg(not(target_os = "linux"))]
    thread::spawn(move || {
        while getppid() == Some(server) {
            thread::sleep(LATER);
        }
        std::process::exit(0);
    });
    getppid() == Some(server)
}

/// The server that this process is a child of.
#[derive(Clone)]
struct ParentServer {
    process: Pid,
    tls: bool,
    /// The URL of the index in front of it.
    index: String,
    /// The hook's endpoint, if the user has chosen one.
    given: Option<Control>,
}

impl ParentServer {
    /// The hooks that have this index in front: one, or one for each model of a server in router mode.
    fn hooks(&self) -> Vec<(Control, Stats)> {
        let all = match &self.given {
            Some(control) => vec![(control.clone(), control.stats())],
            None => {
                let running = running().into_iter();
                running
                    .map(|server| (server.control, server.stats))
                    .collect()
            }
        };
        let answered = all
            .into_iter()
            .filter_map(|(control, stats)| Some((control, stats.ok()?)));
        let is_ours = |stats: &Stats| stats.index_in_front.as_ref() == Some(&self.index);
        answered.filter(|(_, stats)| is_ours(stats)).collect()
    }

    /// The hook to follow. The index follows one, so of several models only one is followed.
    fn hook(&self) -> Option<Control> {
        let mut hooks = self.hooks();
        if hooks.len() > 1 {
            say(format_args!(
                "The server has {} models: the index knows what is cached of the first only",
                hooks.len()
            ));
        }
        (!hooks.is_empty()).then(|| hooks.swap_remove(0).0)
    }

    /// Where it listens, as its hook says.
    fn said(&self) -> Option<String> {
        let hooks = self.hooks();
        // A router's children do not say where the router listens.
        let own = hooks.iter().find(|(_, stats)| !stats.routed);
        own.and_then(|(_, stats)| nearest(&stats.listening))
    }

    /// Waits until it is known where the server listens.
    fn wait(&self, behind: &Behind) {
        behind.waits(
            "llama-server is starting and does not listen yet: try again in a moment".to_owned(),
        );
        let began = Instant::now();
        let mut seen = None;
        let url = loop {
            if let Some(url) = self.said() {
                break url;
            }
            // Routers, and servers that could not be hooked, say nothing.
            let sockets = sockets::listening(self.process, self.tls);
            match (sockets.is_empty(), seen) {
                (true, _) => seen = None,
                (false, None) => seen = Some(Instant::now()),
                (false, Some(since)) if since.elapsed() < SAYS => {}
                (false, Some(_)) => {
                    if let Some(url) = sockets::of_server(&sockets) {
                        break url;
                    }
                }
            }
            thread::sleep(if began.elapsed() < AT_FIRST {
                LOOK
            } else {
                LATER
            });
        };
        match KnownServer::at(&url) {
            Ok(known) => {
                behind.found(known);
                say(format_args!("Index at {}, in front of {url}", self.index));
                say(format_args!(
                    "Send prompts to {0}, and documents to {0}/reorder. In another terminal: contextpilot-llama top, why",
                    self.index
                ));
            }
            Err(why) => {
                say(format_args!("The index cannot speak to the server: {why}"));
                behind.waits(format!("the index cannot speak to the server: {why}"));
            }
        }
    }
}
