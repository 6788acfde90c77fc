//! `store sync`: several machines, one store.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use contextpilot_kv_files::Folder;
use contextpilot_kv_remote::{Mirror, Moved, Remote};
use contextpilot_random::Random;
use contextpilot_settings::env;
use rustix::process::{Pid, getppid, test_kill_process};
use serde_json::json;

use super::limit;
use crate::companion::servers::Running;
use crate::companion::show::{Visible, bytes, count, print, print_json};
use crate::say::say;
use crate::variables::{Lookup, of_process};

/// From an error to the next attempt. Each further error doubles it, as far as the remote allows.
const RETRY: Duration = Duration::from_secs(5);
/// How late it may be seen that the server has ended.
const GLANCE: Duration = Duration::from_millis(500);
/// When the server has ended, what it wrote last is sent within this time, or not at all.
const LAST: Duration = Duration::from_secs(30);

#[derive(Args)]
pub(super) struct Sync {
    /// A Redis: redis://[user:password@]host[:port][/number], the same with rediss for TLS, or redis+unix:///path;
    /// or a bucket: s3://bucket[/prefix], with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL
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
    let url = options.url.clone();
    let url = url.or_else(|| of_process.text(env::STORE_REMOTE));
    let url = url.ok_or_else(|| {
        format!(
            "No remote is known: give redis://host:6379 or s3://bucket/prefix, or set {}",
            env::STORE_REMOTE
        )
    })?;
    let remote =
        Remote::new(&url, |name| of_process.text(name)).map_err(|error| error.to_string())?;
    let folder = Folder::open(path).map_err(|e| format!("The store cannot be opened: {e}"))?;
    let limit = limit(&folder, path, running)?;
    let mirror = Mirror::new(folder, remote, limit);
    let mut mirror = mirror.map_err(|e| format!("No thread can be had: {e}"))?;
    if options.once {
        let mut moved = Moved::default();
        loop {
            let turn = mirror.turn(&mut moved);
            if turn.map_err(|e| format!("{e}; {}", text(&moved)))? {
                break;
            }
        }
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
    let mut retry = RETRY;
    let mut spread = Random::of_system();
    loop {
        if ended.is_none() && has_ended(server.as_ref()) {
            ended = Some(Instant::now());
        }
        let turn = match ended {
            Some(_) => mirror.send_some(&mut moved),
            None => mirror.turn(&mut moved),
        };
        let shown = mirror.remote().shown();
        let is_late = ended.is_some_and(|ended| ended.elapsed() > LAST);
        let pause = match turn {
            // There is more.
            Ok(false) if !is_late => continue,
            Ok(true) => {
                if told.take().is_some() {
                    say(format_args!("{shown} is there again: {}", text(&moved)));
                } else if !begun {
                    let path = Visible(&path.to_string_lossy()).to_string();
                    say(format_args!(
                        "The store {path} and {shown} are kept alike: {}",
                        text(&moved)
                    ));
                }
                begun = true;
                retry = RETRY;
                if ended.is_some() {
                    return;
                }
                mirror.remote().pause()
            }
            failed => {
                if let Err(error) = failed {
                    let error = error.to_string();
                    if told.as_ref() != Some(&error) {
                        say(format_args!(
                            "The store is not kept alike: {error}. Trying again"
                        ));
                        told = Some(error);
                    }
                }
                if is_late {
                    say("The server has ended, and not all of what it wrote last was sent");
                    return;
                }
                let pause = retry;
                retry = (2 * retry).min(mirror.remote().longest_retry());
                pause
            }
        };
        // Two that began together would else go on writing at the same moments, and each remove what the other one tells.
        let pause = pause.mul_f64(0.8 + spread.below(400) as f64 / 1000.0);
        match ended {
            // It knows that already, and has little time left.
            Some(_) => thread::sleep(pause.min(RETRY)),
            None => wait(pause, server.as_ref()),
        }
    }
}

/// Waits so long, or until the server has ended.
fn wait(pause: Duration, server: Option<&Server>) {
    let begin = Instant::now();
    loop {
        let left = pause.saturating_sub(begin.elapsed());
        if left.is_zero() || has_ended(server) {
            return;
        }
        thread::sleep(left.min(GLANCE));
    }
}

fn has_ended(server: Option<&Server>) -> bool {
    server.is_some_and(Server::has_ended)
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
