//! `store sync`: several machines, one store.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use contextpilot_client::control::{StoreRemote, Timestamp};
use contextpilot_kv_files::{Door, Folder};
use contextpilot_kv_remote::{Known, Mirror, Moved, Remote, RemoteError, Supplier, Turn};
use contextpilot_random::Random;
use contextpilot_settings::env;
use rustix::process::{Pid, getppid, test_kill_process};
use serde_json::json;
use signal_hook::consts::SIGTERM;
use signal_hook::flag::{register, register_conditional_default};

use super::users::limit;
use crate::companion::progress::Progress;
use crate::companion::servers::Running;
use crate::companion::show::{Visible, bytes, count, counted, print, print_json};
use crate::say::say;
use crate::variables::{Lookup, of_process};

/// From an error to the next attempt. Each further error doubles it, as far as the remote allows.
const RETRY: Duration = Duration::from_secs(5);
/// How often it looks is said as it was on average over about so many looks.
const LOOKS: u32 = 16;
/// How late it may be seen that the server has ended.
const GLANCE: Duration = Duration::from_millis(200);
/// How often what is said of the remote is written down again, so that others see that this process is there.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);
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
    let url = options
        .url
        .clone()
        .or_else(|| of_process.text(env::STORE_REMOTE))
        .ok_or_else(|| {
            format!(
                "No remote is known: give redis://host:6379 or s3://bucket/prefix, or set {}",
                env::STORE_REMOTE
            )
        })?;
    let connect = move || Remote::new(&url, |name| of_process.text(name));
    let remote = connect().map_err(|error| error.to_string())?;
    let began = SystemTime::now();
    let folder = Folder::open(path).map_err(|e| format!("The store cannot be opened: {e}"))?;
    let limit = limit(&folder, path, running)?;
    let mut mirror = Mirror::new(folder.clone(), remote, limit)
        .map_err(|e| format!("No thread can be had: {e}"))?;
    if options.once {
        let mut moved = Moved::default();
        mirror
            .reach()
            .map_err(|error| format!("{error}: check the address, and that it runs"))?;
        let progress = Progress::new("chunks sent or fetched");
        loop {
            progress.at(moved.sent + moved.fetched, None);
            let turn = mirror.turn(&mut moved);
            if turn.map_err(|e| format!("{e}; {}", text(&moved)))? == Turn::Alike {
                break;
            }
        }
        drop(progress);
        return if json {
            print_json(&json!({
                "sent": moved.sent, "sent_bytes": moved.sent_bytes,
                "fetched": moved.fetched, "fetched_bytes": moved.fetched_bytes,
                "damaged": moved.damaged, "refused": moved.refused,
            }))
        } else {
            print(&format!("{}\n{}", text(&moved), unused(&folder)))
        };
    }
    let server = options.of.and_then(WatchedServer::new).transpose();
    let server = server
        .map_err(|e| format!("SIGTERM cannot be taken: {e}"))?
        .map(Arc::new);
    let is_over = server.clone();
    mirror.fetch_until(move || {
        is_over
            .as_ref()
            .is_some_and(|server| server.is_to_end() || server.has_ended())
    });
    let said = Arc::new(Said::new(mirror.remote().shown()));
    let asked = Asked {
        known: mirror.known(),
        folder: folder.clone(),
        limit,
        connect: Box::new(connect),
        door: None,
    };
    let worker = Worker {
        mirror,
        path: path.to_owned(),
        server: server.clone(),
        said: Arc::clone(&said),
        asked,
    };
    // Nothing that a remote does makes this process wait longer than it is to: so all that waits for it is on another thread.
    let thread = thread::Builder::new()
        .name("contextpilot-sync".to_owned())
        .spawn(move || worker.follow());
    let thread = thread.map_err(|e| format!("No thread can be had: {e}"))?;
    watch(&folder, server.as_deref(), &said, began, || {
        thread.is_finished()
    });
    Ok(())
}

/// Waits until all is done, or it is late.
fn watch(
    folder: &Folder,
    server: Option<&WatchedServer>,
    said: &Said,
    began: SystemTime,
    is_done: impl Fn() -> bool,
) {
    let mut since: Option<Instant> = None;
    let mut has_ended = false;
    while !is_done() {
        said.write(folder);
        thread::sleep(GLANCE);
        let Some(server) = server else { continue };
        if since.is_none() && (server.is_to_end() || server.has_ended()) {
            since = Some(Instant::now());
        }
        if !has_ended && server.has_ended() {
            has_ended = true;
            // It printed its version, or did not start: then the remote is not waited for.
            if !said.has_begun() && !folder.has_changed_since(began) {
                break;
            }
        }
        if since.is_some_and(|since| since.elapsed() > LAST) {
            say("The server has ended, and not all of what it wrote last was sent");
            break;
        }
    }
    folder.forget_remote();
}

/// Why nothing may have been fetched.
fn unused(folder: &Folder) -> &'static str {
    if folder.origins().is_empty() {
        "No server has stored anything in this folder yet, so it is not known which chunks are for it, and none is \
             fetched: start the server, and send it a prompt\n"
    } else {
        ""
    }
}

fn text(moved: &Moved) -> String {
    let damaged = match moved.damaged {
        0 => String::new(),
        damaged => format!("; {} were damaged there and are removed", count(damaged)),
    };
    let refused = match moved.why_refused {
        Some(why) => format!("; {} refused: {why}", count(moved.refused)),
        None => String::new(),
    };
    format!(
        "{} sent, {}; {} fetched, {}{damaged}{refused}",
        counted(moved.sent, "chunk"),
        bytes(moved.sent_bytes),
        count(moved.fetched),
        bytes(moved.fetched_bytes)
    )
}

/// What servers and people are told of the remote.
struct Said {
    now: Mutex<StoreRemote>,
    /// What was written down last, and when.
    written: Mutex<Option<(StoreRemote, Instant)>>,
}

impl Said {
    fn new(address: &str) -> Self {
        let now = StoreRemote {
            address: address.to_owned(),
            ..StoreRemote::default()
        };
        Self {
            now: Mutex::new(now),
            written: Mutex::new(None),
        }
    }

    /// Whether the remote could be used, at least once.
    fn has_begun(&self) -> bool {
        let now = lock(&self.now);
        now.reachable || now.sent + now.fetched > 0
    }

    fn note(
        &self,
        moved: &Moved,
        (waiting, known): (usize, usize),
        look: Duration,
        problem: Option<&str>,
    ) {
        let mut now = lock(&self.now);
        let is_reachable = problem.is_none();
        if now.since.is_none() || now.reachable != is_reachable {
            now.since = Some(Timestamp::from(SystemTime::now()));
        }
        now.reachable = is_reachable;
        now.problem = problem.map(str::to_owned);
        (now.sent, now.sent_bytes) = (moved.sent, moved.sent_bytes);
        (now.fetched, now.fetched_bytes) = (moved.fetched, moved.fetched_bytes);
        now.waiting = waiting as u64;
        now.known = known as u64;
        now.look_ms = look.as_millis() as u64;
        now.refused = moved.refused + moved.damaged;
        now.last_refused = match moved.why_refused {
            None if moved.damaged > 0 => Some("a chunk was damaged".to_owned()),
            why => why.map(str::to_owned),
        };
    }

    /// Writes it into the folder if it has changed, and now and then.
    fn write(&self, folder: &Folder) {
        let now = lock(&self.now).clone();
        let mut written = lock(&self.written);
        let is_known = |(said, at): &(StoreRemote, Instant)| {
            let look_ms = now.look_ms;
            let is_same = StoreRemote {
                look_ms,
                ..said.clone()
            } == now;
            is_same && at.elapsed() < SIGN_OF_LIFE
        };
        if now.since.is_none() || written.as_ref().is_some_and(is_known) {
            return;
        }
        let with_time = StoreRemote {
            at: Some(Timestamp::from(SystemTime::now())),
            ..now.clone()
        };
        // If the folder is gone, it is made again by the server.
        let _ = folder.note_remote(json!(with_time).to_string().as_bytes());
        *written = Some((now, Instant::now()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What prompts want at once.
struct Asked {
    folder: Folder,
    known: Known,
    limit: u64,
    /// A second connection: what is moved over the first makes no prompt wait.
    connect: Box<dyn Fn() -> Result<Remote, RemoteError> + Send>,
    door: Option<Arc<Door>>,
}

impl Asked {
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
        let (folder, known) = (self.folder.clone(), self.known.clone());
        let started = Supplier::start(&door, folder, remote, known, self.limit);
        self.door = started.is_ok().then_some(door);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(door) = &self.door {
            door.close();
        }
    }
}

/// Keeps both alike.
struct Worker {
    mirror: Mirror,
    path: PathBuf,
    server: Option<Arc<WatchedServer>>,
    said: Arc<Said>,
    asked: Asked,
}

impl Worker {
    /// Until the server has ended, and what it wrote last is sent; without one, for ever.
    fn follow(mut self) {
        let mut moved = Moved::default();
        let mut told: Option<String> = None;
        let mut told_refused = false;
        let mut begun = false;
        let mut retry = RETRY;
        let mut spread = Random::of_system();
        let (mut looked, mut look) = (None, Duration::ZERO);
        loop {
            let now = Instant::now();
            if let Some(took) = looked.replace(now).map(|before| now - before) {
                look = match look {
                    Duration::ZERO => took,
                    look => (look * (LOOKS - 1) + took) / LOOKS,
                };
            }
            let server = self.server.as_deref();
            let ended = server.is_some_and(WatchedServer::has_ended);
            self.asked.keep();
            let turn = if ended {
                self.mirror.send_some(&mut moved)
            } else if !begun || told.is_some() {
                // If nothing is to be moved, only this tells that the remote is there.
                let reached = self.mirror.reach();
                reached.and_then(|()| self.mirror.turn(&mut moved))
            } else {
                self.mirror.turn(&mut moved)
            };
            let shown = self.mirror.remote().shown();
            let problem = turn.as_ref().err().map(ToString::to_string);
            let chunks = (self.mirror.waiting(), self.mirror.known().count());
            self.said.note(&moved, chunks, look, problem.as_deref());
            if let Some(why) = moved.why_refused.filter(|_| !told_refused) {
                told_refused = true;
                say(format_args!(
                    "Of what {shown} has, something was refused: {why}. The rest is fetched; contextpilot-llama store counts it"
                ));
            }
            let pause = match turn {
                Ok(Turn::More) => continue,
                // Perhaps nothing was asked: there is nothing to say of the remote.
                Ok(Turn::Alike) if ended && moved == Moved::default() => return,
                Ok(turn) => {
                    if told.take().is_some() {
                        say(format_args!("{shown} is there again: {}", text(&moved)));
                    } else if !begun {
                        let path = Visible(&self.path.to_string_lossy()).to_string();
                        say(format_args!(
                            "The store {path} and {shown} are kept alike: {}",
                            text(&moved)
                        ));
                    }
                    begun = true;
                    retry = RETRY;
                    match turn {
                        Turn::Later if ended => continue,
                        _ if ended => return,
                        _ => self.mirror.remote().pause(),
                    }
                }
                Err(_) => {
                    if let Some(error) = problem.filter(|error| told.as_ref() != Some(error)) {
                        say(format_args!(
                            "The store is not kept alike: {error}. Trying again"
                        ));
                        told = Some(error);
                    }
                    let pause = retry;
                    retry = (2 * retry).min(self.mirror.remote().longest_retry());
                    pause
                }
            };
            // Two that began together would else go on writing at the same moments, and each remove what the other one tells.
            let pause = pause.mul_f64(0.8 + spread.below(400) as f64 / 1000.0);
            match server {
                // It knows that already, and has little time left.
                Some(_) if ended => thread::sleep(pause.min(RETRY)),
                Some(server) if server.is_to_end() => {
                    wait(pause.min(RETRY), || server.has_ended());
                }
                server => wait(pause, || {
                    server.is_some_and(|server| server.is_to_end() || server.has_ended())
                }),
            }
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

/// The server that this process works for.
struct WatchedServer {
    process: Pid,
    is_parent: bool,
    /// SIGTERM came.
    is_to_end: Arc<AtomicBool>,
}

impl WatchedServer {
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
        if self.is_parent {
            getppid() != Some(self.process)
        } else {
            // Or this process began after its end.
            test_kill_process(self.process).is_err() || is_zombie(self.process)
        }
    }
}

/// Whether a process has ended and was not waited for.
fn is_zombie(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    // Its name, in brackets, may have anything in it.
    let state = stat
        .ok()
        .and_then(|stat| stat.rsplit(") ").next()?.chars().next());
    matches!(state, Some('Z' | 'X'))
}
