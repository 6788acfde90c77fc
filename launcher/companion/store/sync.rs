//! `store sync`: several machines, one store.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use contextpilot_kv_files::Folder;
use contextpilot_kv_remote::{Mirror, MirrorError, Moved, Remote, Trouble};
use contextpilot_settings::env;
use rustix::process::{Pid, getppid, test_kill_process};
use serde_json::json;

use super::limit;
use crate::companion::servers::Running;
use crate::companion::show::{Visible, bytes, count, print, print_json};
use crate::say::say;
use crate::variables::{Lookup, of_process};

/// From one look at folder and Redis to the next.
const PAUSE: Duration = Duration::from_millis(500);
/// From an error to the next attempt.
const RETRY: Duration = Duration::from_secs(5);
/// When the server has ended, what it wrote last is sent within this time, or not at all.
const LAST: Duration = Duration::from_secs(30);

#[derive(Args)]
pub(super) struct Sync {
    /// The Redis: redis://[user:password@]host[:port][/number], the same with rediss for TLS, or redis+unix:///path
    /// [default: CONTEXTPILOT_STORE_REMOTE]
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// Send and fetch what is there now, say how much that was, and end
    #[arg(long)]
    once: bool,
    /// End after this process, when what it wrote last is sent: that of a server
    #[arg(long, value_name = "PID")]
    of: Option<i32>,
}

pub(super) fn run(
    options: &Sync,
    path: &Path,
    running: &[Running],
    json: bool,
) -> Result<(), String> {
    let set = of_process.non_empty(env::STORE_REMOTE);
    let url = options.url.clone();
    let url = url.or_else(|| set.map(|url| url.to_string_lossy().into_owned()));
    let url = url.ok_or_else(|| {
        format!(
            "No Redis is known: give redis://host:6379, or set {}",
            env::STORE_REMOTE
        )
    })?;
    let remote = Remote::new(&url).map_err(|error| error.to_string())?;
    let folder = Folder::open(path).map_err(|e| format!("The store cannot be opened: {e}"))?;
    let limit = limit(&folder, path, running)?;
    let mirror = Mirror::new(folder, remote, limit);
    let mut mirror = mirror.map_err(|e| format!("No thread can be had: {e}"))?;
    if options.once {
        let mut moved = Moved::default();
        mirror
            .turn(&mut moved)
            .map_err(|e| format!("{e}; {}", text(&moved)))?;
        return match json {
            true => print_json(&json!({
                "sent": moved.sent, "sent_bytes": moved.sent_bytes,
                "fetched": moved.fetched, "fetched_bytes": moved.fetched_bytes,
                "damaged": moved.damaged,
            })),
            false => print(&format!("{}\n", text(&moved))),
        };
    }
    follow(&mut mirror, path, options.of.and_then(Server::new));
    Ok(())
}

fn text(moved: &Moved) -> String {
    let damaged = match moved.damaged {
        0 => String::new(),
        damaged => format!("; {} were damaged there and are removed", count(damaged)),
    };
    format!(
        "{} chunks sent, {}; {} fetched, {}{damaged}",
        count(moved.sent),
        bytes(moved.sent_bytes),
        count(moved.fetched),
        bytes(moved.fetched_bytes)
    )
}

/// Until the server has ended; without one, for ever.
fn follow(mirror: &mut Mirror, path: &Path, server: Option<Server>) {
    let mut moved = Moved::default();
    let mut told: Option<String> = None;
    let mut ended: Option<Instant> = None;
    let mut begun = false;
    loop {
        if ended.is_none() && server.as_ref().is_some_and(Server::has_ended) {
            ended = Some(Instant::now());
        }
        let turn = match ended {
            Some(_) => mirror.send_all(&mut moved),
            None => mirror.turn(&mut moved),
        };
        let shown = mirror.remote().shown();
        let pause = match turn {
            Ok(()) => {
                if !std::mem::replace(&mut begun, true) {
                    let path = Visible(&path.to_string_lossy()).to_string();
                    say(format_args!(
                        "The store {path} and {shown} are kept alike: {}",
                        text(&moved)
                    ));
                } else if told.is_some() {
                    say(format_args!("{shown} is there again: {}", text(&moved)));
                }
                told = None;
                if ended.is_some() {
                    return;
                }
                PAUSE
            }
            Err(error) => {
                let error = problem(&error);
                if told.as_ref() != Some(&error) {
                    say(format_args!(
                        "The store is not kept alike: {error}. Trying again"
                    ));
                    told = Some(error);
                }
                if ended.is_some_and(|ended| ended.elapsed() > LAST) {
                    say("The server has ended, and what it wrote last was not sent");
                    return;
                }
                RETRY
            }
        };
        thread::sleep(pause);
    }
}

/// What is wrong, and what to do.
fn problem(error: &MirrorError) -> String {
    match error {
        MirrorError::Remote(remote) if remote.trouble == Trouble::Full => {
            format!("{error}; set maxmemory-policy allkeys-lru there, or give it more memory")
        }
        _ => error.to_string(),
    }
}

/// The server that this process works for.
struct Server {
    process: Pid,
    is_parent: bool,
}

impl Server {
    fn new(process: i32) -> Option<Self> {
        let process = Pid::from_raw(process)?;
        Some(Self {
            process,
            is_parent: getppid() == Some(process),
        })
    }

    fn has_ended(&self) -> bool {
        // A process that has ended and was not waited for is still there, but no parent any more.
        match self.is_parent {
            true => getppid() != Some(self.process),
            false => test_kill_process(self.process).is_err(),
        }
    }
}
