//! `store sync`: several machines, one store.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use contextpilot_kv_files::{Door, Folder};
use contextpilot_kv_remote::{Known, Mirror, Moved, Remote, RemoteError, Supplier};
use contextpilot_random::Random;
use contextpilot_settings::env;
use rustix::process::{Pid, getppid, test_kill_process};
use serde_json::json;
use signal_hook::consts::SIGTERM;
use signal_hook::flag::{register, register_conditional_default};

use super::limit;
use crate::companion::servers::Running;
use crate::companion::show::{Visible, bytes, count, counted, print, print_json};
use crate::say::say;
use crate::variables::{Lookup, of_process};

/// From an error to the next attempt. Each further error doubles it, as far as the remote allows.
const RETRY: Duration = Duration::from_secs(5);
/// How late it may be seen that the server has ended.
const GLANCE: Duration = Duration::from_millis(500);
/// When the server has ended, or this process was asked to, what it wrote last is sent within this time, or not at all.
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
    let connect = || Remote::new(&url, |name| of_process.text(name));
    let remote = connect().map_err(|error| error.to_string())?;
    let folder = Folder::open(path).map_err(|e| format!("The store cannot be opened: {e}"))?;
    let limit = limit(&folder, path, running)?;
    let mirror = Mirror::new(folder.clone(), remote, limit);
    let mut mirror = mirror.map_err(|e| format!("No thread can be had: {e}"))?;
    if options.once {
        let mut moved = Moved::default();
        mirror.reach().map_err(|error| error.to_string())?;
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
    let server = options.of.and_then(Server::new);
    let server = server.transpose();
    let server = server.map_err(|e| format!("SIGTERM cannot be taken: {e}"))?;
    let mut asked = Asked {
        known: mirror.known(),
        folder,
        connect: &connect,
        door: None,
    };
    follow(&mut mirror, path, server.as_ref(), || asked.keep());
    Ok(())
}

fn text(moved: &Moved) -> String {
    let damaged = match moved.damaged {
        0 => String::new(),
        damaged => format!("; {} were damaged there and are removed", count(damaged)),
    };
    format!(
        "{} sent, {}; {} fetched, {}{damaged}",
        counted(moved.sent, "chunk"),
        bytes(moved.sent_bytes),
        count(moved.fetched),
        bytes(moved.fetched_bytes)
    )
}

/// What prompts want at once.
struct Asked<'a> {
    folder: Folder,
    known: Known,
    /// A second connection: what is moved over the first makes no prompt wait.
    connect: &'a dyn Fn() -> Result<Remote, RemoteError>,
    door: Option<Arc<Door>>,
}

impl Asked<'_> {
    /// Sees to it that servers can ask this process, or another one. If that cannot be had, they evaluate.
    fn keep(&mut self) {
        if self.door.as_ref().is_some_and(|door| door.is_open()) {
            return;
        }
        if let Some(door) = self.door.take() {
            door.close();
        }
        let (Ok(Some(door)), Ok(remote)) = (Door::open(&self.folder), (self.connect)()) else {
            return;
        };
        let door = Arc::new(door);
        let started = Supplier::start(&door, self.folder.clone(), remote, self.known.clone());
        self.door = started.is_ok().then_some(door);
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(door) = &self.door {
            door.close();
        }
    }
}

/// Until the server has ended; without one, for ever. `meanwhile`: to be done in each turn.
fn follow(mirror: &mut Mirror, path: &Path, server: Option<&Server>, mut meanwhile: impl FnMut()) {
    let mut moved = Moved::default();
    let mut told: Option<String> = None;
    let mut asked: Option<Instant> = None;
    let mut ended: Option<Instant> = None;
    let mut begun = false;
    let mut retry = RETRY;
    let mut spread = Random::of_system();
    loop {
        if asked.is_none() && server.is_some_and(Server::is_to_end) {
            asked = Some(Instant::now());
        }
        let is_overdue = asked.is_some_and(|asked| asked.elapsed() > LAST);
        if ended.is_none() && (is_overdue || has_ended(server)) {
            ended = Some(asked.unwrap_or_else(Instant::now));
        }
        meanwhile();
        let turn = match ended {
            Some(_) => mirror.send_some(&mut moved),
            // If nothing is to be moved, only this tells that the remote is there.
            None if !begun || told.is_some() => {
                let reached = mirror.reach();
                reached.and_then(|()| mirror.turn(&mut moved))
            }
            None => mirror.turn(&mut moved),
        };
        let shown = mirror.remote().shown();
        let is_late = ended.is_some_and(|ended| ended.elapsed() > LAST);
        let pause = match turn {
            // There is more.
            Ok(false) if !is_late => continue,
            // Perhaps nothing was asked: there is nothing to say of the remote.
            Ok(true) if ended.is_some() && moved == Moved::default() => return,
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
        match (ended, asked) {
            // It knows that already, and has little time left.
            (Some(_), _) => thread::sleep(pause.min(RETRY)),
            (None, Some(_)) => wait(pause.min(RETRY), || has_ended(server)),
            (None, None) => wait(pause, || {
                server.is_some_and(|server| server.is_to_end() || server.has_ended())
            }),
        }
    }
}

/// Waits so long, or until it is over.
fn wait(pause: Duration, is_over: impl Fn() -> bool) {
    let begin = Instant::now();
    loop {
        let left = pause.saturating_sub(begin.elapsed());
        if left.is_zero() || is_over() {
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
    /// SIGTERM came.
    is_to_end: Arc<AtomicBool>,
}

impl Server {
    /// From here on SIGTERM does not end this process at once. systemd sends it to all processes of a service, and the
    /// server writes to the folder until its end. The second one ends it.
    fn new(process: i32) -> Option<io::Result<Self>> {
        let process = Pid::from_raw(process)?;
        let is_to_end = Arc::new(AtomicBool::new(false));
        let second = register_conditional_default(SIGTERM, Arc::clone(&is_to_end));
        let registered = second.and_then(|_| register(SIGTERM, Arc::clone(&is_to_end)));
        Some(registered.map(|_| Self {
            process,
            is_parent: getppid() == Some(process),
            is_to_end,
        }))
    }

    /// Whether the server and this process were asked to end.
    fn is_to_end(&self) -> bool {
        self.is_to_end.load(Ordering::Relaxed)
    }

    fn has_ended(&self) -> bool {
        // A process that has ended and was not waited for is still there, but no parent any more.
        match self.is_parent {
            true => getppid() != Some(self.process),
            false => test_kill_process(self.process).is_err(),
        }
    }
}
