//! From an inert library to a working one, and the end of it.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::panic;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use contextpilot_delivery::{Config, Sender};
use contextpilot_journal::{Identity, Journal, Place};
use contextpilot_residency::Event;
use contextpilot_settings::Settings;

use crate::attach::{self, Attached, Host, claims};
use crate::trace::{self, Trace};
use crate::{channel, contexts, guard, log, mode, observe, recent, worker};

/// What was decided and found when the library was loaded.
struct Prepared {
    settings: Settings,
    attached: Attached,
}

static PREPARED: OnceLock<Prepared> = OnceLock::new();

/// What is needed at the end.
struct Running {
    /// `None`: there is no index.
    sender: Option<Arc<Sender>>,
    exit_drain: Option<Duration>,
    journal: bool,
    process: u32,
}

static RUNNING: OnceLock<Running> = OnceLock::new();

#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
static ON_LOAD: extern "C" fn() = on_load;

#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".fini_array"))]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_term_func"))]
static ON_EXIT: extern "C" fn() = on_exit;

/// Decides whether this process is one for us. The preload variable is inherited by everything
/// that the server starts, and by the shell script that starts the server.
extern "C" fn on_load() {
    let wanted = is_set(c"CONTEXTPILOT_INDEX_URL")
        || is_set(c"CONTEXTPILOT_LISTEN")
        || is_set(c"CONTEXTPILOT_LOG_FILE")
        || is_set(c"CONTEXTPILOT_TRAFFIC_FILE");
    if !wanted {
        return;
    }
    if let Ok(Some(prepared)) = panic::catch_unwind(prepare) {
        let observes = prepared.settings.observes();
        if PREPARED.set(prepared).is_ok() {
            if observes {
                observe::engage();
            }
            mode::arm();
        }
    }
}

/// None for a process that is none of our business, or in which nothing can be done.
fn prepare() -> Option<Prepared> {
    let host = Host::find()?;
    let settings = match Settings::from(|name| std::env::var_os(name)) {
        Ok(settings) if settings.is_engaged() => settings,
        Ok(_) => return None,
        Err(error) => {
            log::line(format_args!("Inactive: {error}"));
            return None;
        }
    };
    // SAFETY: this is called from the constructor.
    match unsafe { host.attach() } {
        Ok(attached) => Some(Prepared { settings, attached }),
        Err(why) => {
            log::line(format_args!("Inactive: {why}"));
            None
        }
    }
}

fn is_set(name: &CStr) -> bool {
    // SAFETY: the name is a C string, and constructors run before there are threads to change
    // the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: a C string, if it is there.
    !value.is_null() && unsafe { *value } != 0
}

/// Starts the threads, once: when the server begins to load its first model, or has made a context
/// without that having been seen. So `--version`, `--help` and the parent of a router have none.
pub(crate) fn ensure_running() {
    if !mode::begin_running() {
        return;
    }
    let Some(prepared) = PREPARED.get() else {
        mode::withdraw();
        return;
    };
    panic::set_hook(Box::new(mode::note_panic));
    attach::patch_late();
    let started = without_signals(|| run(&prepared.settings, &prepared.attached));
    match started {
        Ok(()) => prepared.attached.announce(&prepared.settings),
        Err(error) => {
            mode::withdraw();
            log::line(format_args!(
                "Inactive: {error}; the server runs as usual, nothing is reported to the index"
            ));
        }
    }
}

fn run(settings: &Settings, attached: &Attached) -> io::Result<()> {
    let config = Config::from_settings(
        settings,
        |name| std::env::var(name).ok(),
        Arc::new(log::complete_line),
    );
    let index = match config {
        Some(config) => Some(tell_index(settings, config)?),
        None => None,
    };
    let sender = index.as_ref().map(|(index, _)| Arc::clone(&index.sender));
    let trace = match std::env::var_os(trace::VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => Some(Trace::open(Path::new(&path))?),
        None => None,
    };
    let (index, endpoint) = index.unzip();
    let attendant = observe::start(settings, *attached, sender.clone().zip(endpoint))?;
    if let Some(bytes) = observe::host_limit(attached) {
        claims::expect_host_limit(bytes);
    }
    worker::start(index, attendant, trace)?;
    worker::opened(Instant::now() + OPENING);
    let _ = RUNNING.set(Running {
        sender,
        exit_drain: settings.exit_drain,
        journal: settings.journal,
        process: std::process::id(),
    });
    // SAFETY: the handler does nothing that is not allowed between fork and exec.
    unsafe { libc::pthread_atfork(None, None, Some(in_forked_child)) };
    Ok(())
}

/// How long the server's start may wait for the journal, which takes some milliseconds.
const OPENING: Duration = Duration::from_secs(1);

/// Starts the thread that tells the index; also says where that is.
fn tell_index(settings: &Settings, config: Config) -> io::Result<(worker::Index, String)> {
    let config = Config {
        keep_settled: settings.journal,
        ..config
    };
    let endpoint = config.endpoint.clone();
    let journal = open_journal(settings, endpoint.clone());
    let sender = Arc::new(Sender::start(config, guard::enter_for_life)?);
    Ok((worker::Index { sender, journal }, endpoint))
}

/// The journal of this instance: of this index, at this address.
fn open_journal(settings: &Settings, endpoint: String) -> worker::OpenJournal {
    if !settings.journal {
        return Box::new(|| (Journal::off(log::complete_line), Vec::new()));
    }
    Box::new(move || {
        let lookup = |name: &str| std::env::var_os(name);
        let identity = Identity::of(&endpoint, std::env::args_os(), lookup, &Place::here());
        Journal::in_state_folder(lookup, Some(recent::map), identity, log::complete_line)
    })
}

/// A child has the parent's memory but not its threads: nobody would listen.
unsafe extern "C" fn in_forked_child() {
    mode::withdraw();
}

/// Runs with all signals blocked, for threads to inherit: the host's handlers are the host's
/// threads' business.
fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: fills the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: one set is filled, the other there to be filled.
    let blocked =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let result = work();
    if blocked == 0 {
        // SAFETY: the set was filled by the successful call above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    result
}

/// Of the time at the end, for putting the journal in order.
const CLOSING: Duration = Duration::from_millis(50);

/// The process ends, and everything that it held with it: the index is told, within the time
/// set for that. The other threads still run while this does.
///
/// After an internal error too, when there may be something left that is to be taken back.
extern "C" fn on_exit() {
    let Some(running) = RUNNING.get() else {
        return;
    };
    // In a child there are no threads, and what lies on disk is the parent's.
    if running.process != std::process::id() {
        return;
    }
    guard::observe_end(observe::remove_socket);
    let Some(longest) = running.exit_drain else {
        return;
    };
    guard::observe_end(|| {
        let deadline = Instant::now() + longest;
        for context in contexts::all() {
            channel::push(Event::ContextFreed { context });
        }
        let drain_until = deadline - CLOSING.min(longest / 2);
        worker::leave(drain_until);
        let left = drain_until.saturating_duration_since(Instant::now());
        let sender = running.sender.as_ref();
        let untold = sender.map_or(0, |sender| sender.drain(left).left);
        worker::close(deadline);
        while !observe::log_is_written() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        if untold > 0 {
            let then = if running.journal {
                "the next start does"
            } else {
                "reset it, as CONTEXTPILOT_JOURNAL=0 keeps the next start from telling them"
            };
            log::line(format_args!(
                "{untold} evictions could not be told to the index before the end; {then}"
            ));
        }
    });
}
