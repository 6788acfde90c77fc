//! The constructor, the start of the threads, and the end of the process.

mod embedded;
mod unfollowed;
mod watcher;

use std::ffi::CStr;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::panic;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use contextpilot_delivery::{Config, Sender};
use contextpilot_journal::{Identity, Journal, Origin};
use contextpilot_kv_publisher::Publication;
use contextpilot_residency::Event;
use contextpilot_settings::{IndexUrl, Settings, env};
use contextpilot_worker::{self as worker, Handle, Task, Trace};

use crate::attach::{self, Host, claims};
use crate::base::inactive::stay_inactive;
use crate::base::mode::{self, Transitions};
use crate::base::{clock, environment, guard, log, signals};
use crate::capture::{contexts, host_buffers, kept, prompts, recent, requests, usage};
use crate::channel;
use crate::hooks::REPLACEMENTS;
use crate::library::{Events, HookLibrary};
use crate::store;

/// What the constructor found out.
struct Prepared {
    settings: Settings,
    library: HookLibrary,
}

static PREPARED: OnceLock<Prepared> = OnceLock::new();

/// What is needed at the end of the process.
struct Running {
    worker: Handle,
    /// `None`: there is no index.
    sender: Option<Arc<Sender>>,
    exit_drain: Option<Duration>,
    /// The setting. The worker knows whether there is a journal.
    journal: bool,
    process: u32,
}

static RUNNING: OnceLock<Running> = OnceLock::new();

#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
static ON_LOAD: extern "C" fn() = on_load;

/// On macOS the constructor registers it: dyld runs `__mod_term_func` for old binaries' sake, and not
/// at all in those for arm64e.
#[cfg(target_os = "linux")]
#[used]
#[unsafe(link_section = ".fini_array")]
static ON_EXIT: extern "C" fn() = on_exit;

/// The constructor: attaches if this process is a llama-server. The preload variable is inherited by
/// everything that the server starts, and by the shell script that starts the server.
extern "C" fn on_load() {
    let wanted = is_set(c"CONTEXTPILOT_INDEX_URL")
        || is_set(c"CONTEXTPILOT_LISTEN")
        || is_set(c"CONTEXTPILOT_LOG_FILE")
        || is_set(c"CONTEXTPILOT_KV_EVENTS")
        || is_set(c"CONTEXTPILOT_TRAFFIC_FILE")
        || is_set(c"CONTEXTPILOT_STORE")
        || is_set(c"CONTEXTPILOT_KEEP_TOKENS");
    if !wanted {
        return;
    }
    let prepared = panic::catch_unwind(prepare);
    if prepared.is_err() {
        stay_inactive("an internal error; please report this");
    }
    if let Ok(Some(prepared)) = prepared {
        arm(prepared);
    }
}

/// From now on hooks observe.
fn arm(prepared: Prepared) {
    let observes = prepared.settings.observes();
    let shows_text = contextpilot_worker::shows_text(&prepared.settings);
    if PREPARED.set(prepared).is_ok() {
        // SAFETY: the function is there as long as the process: the library is never unloaded.
        #[cfg(target_os = "macos")]
        unsafe {
            libc::atexit(on_exit)
        };
        if observes {
            clock::engage();
        }
        if shows_text {
            requests::expect_titles();
        }
        mode::arm(Transitions {
            start: ensure_running,
            desync: channel::desync,
        });
    }
}

/// `None` if this process is not a llama-server, or cannot be hooked.
fn prepare() -> Option<Prepared> {
    environment::keep();
    let read = || Settings::from(environment::variable);
    let Some(host) = Host::find(REPLACEMENTS) else {
        if is_set(c"CONTEXTPILOT_ENGINE") {
            // SAFETY: this is called from the constructor.
            unsafe { embedded::watch(read()) };
        }
        return None;
    };
    environment::keep_folder();
    let settings = match read() {
        Ok(settings) if settings.is_engaged() => settings,
        Ok(_) => return None,
        Err(error) => {
            stay_inactive(error);
            return None;
        }
    };
    if settings.store.is_some() {
        attach::want_store();
    }
    if settings.wants_tokens() {
        attach::want_tokens();
    }
    if settings.keep_tokens {
        kept::engage(settings.keep_calls);
    }
    // SAFETY: this is called from the constructor.
    match unsafe { host.attach() } {
        Ok(attached) => {
            keep_environment(&settings);
            if attached.hides_releases() {
                host_buffers::refuse();
            }
            if attached.ties_by_prompts() {
                prompts::engage();
            }
            if attached.forgets_uncached() {
                requests::expect_forgetting();
            }
            if let Some(at) = &settings.store {
                store::engage();
                if at.usage && !prompts::are_engaged() {
                    usage::engage();
                }
            }
            let library = HookLibrary(attached);
            Some(Prepared { settings, library })
        }
        Err(why) => {
            stay_inactive(&why);
            unfollowed::listen(&settings, &why.to_string());
            None
        }
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "while the constructor runs, nobody changes it"
)]
fn is_set(name: &CStr) -> bool {
    // SAFETY: the name is a C string, and constructors run before there are threads to change
    // the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: a C string, if it is there.
    !value.is_null() && unsafe { *value } != 0
}

/// Starts the threads, once: when the server begins to load its first model, or at its first context
/// if no load was seen. So `--version`, `--help` and the parent process in router mode have no threads.
fn ensure_running() {
    if !mode::begin_running() {
        return;
    }
    let Some(prepared) = PREPARED.get() else {
        mode::disable();
        return;
    };
    panic::set_hook(Box::new(mode::note_panic));
    attach::patch_late();
    let started = signals::blocked(|| run(&prepared.settings, &prepared.library));
    match started {
        Ok(()) => {
            let has_store = store::is_on();
            prepared.library.0.announce(&prepared.settings, has_store);
            let wants_usage = prepared.settings.store.as_ref().is_some_and(|at| at.usage);
            if has_store && wants_usage && prompts::are_engaged() {
                log::line(format_args!(
                    "Answers count what the prefix store loads as evaluated, as which slot takes a request cannot be seen in this server; through contextpilot-llama index or gateway they count it as cached"
                ));
            }
        }
        Err(error) => {
            mode::disable();
            stay_inactive(error);
        }
    }
}

fn run(settings: &Settings, library: &'static HookLibrary) -> io::Result<()> {
    let Some(events) = Events::take() else {
        return Err(io::Error::other(
            "the hook was started twice; please report this",
        ));
    };
    if settings.strict {
        check_sockets(settings)?;
    }
    let index = match delivery(settings) {
        Some(config) => Some(tell_index(settings, config)?),
        None => None,
    };
    let sender = index.as_ref().map(|index| Arc::clone(&index.sender));
    let trace = match &settings.trace_file {
        Some(path) => open_trace(path, settings.strict)?,
        None => None,
    };
    let limit = worker::host_limit(attach::flags(), library.0.sees_host_cache());
    // What a program has set is not known.
    if let Some(bytes) = limit.filter(|_| !attach::is_embedded()) {
        claims::expect_host_limit(bytes);
    }
    if !attach::flags().cache_prompt() {
        requests::expect_no_cache();
    }
    let publication = publish(settings)?;
    let routers = publication.as_ref().and_then(Publication::stored);
    let task = Task {
        settings,
        index,
        publication,
        trace,
        by_prompts: prompts::are_engaged(),
        is_program: attach::is_program(),
        earlier: unfollowed::end(),
    };
    if let Some(at) = &settings.store {
        let problem = match store::start(at, routers, settings.strict) {
            Err(why) => Some(format!("There is no prefix store: {why}")),
            Ok(()) => kept::keep_in(&at.folder)
                .err()
                .map(|why| format!("Tokens of answers are not kept for the next start: {why}")),
        };
        match problem {
            Some(text) if settings.strict => return Err(io::Error::other(text)),
            Some(text) => log::line(format_args!("{text}")),
            None => {}
        }
    }
    let worker = worker::start(library, events, task)?;
    worker.opened(Instant::now() + OPENING);
    let _ = RUNNING.set(Running {
        worker,
        sender,
        exit_drain: settings.exit_drain,
        journal: settings.journal,
        process: std::process::id(),
    });
    // SAFETY: the handler does nothing that is not allowed between fork and exec.
    unsafe { libc::pthread_atfork(None, None, Some(in_forked_child)) };
    Ok(())
}

/// `None`: it cannot be written. All else goes on without it.
///
/// # Errors
/// The same, if `strict`.
fn open_trace(path: &Path, strict: bool) -> io::Result<Option<Trace>> {
    let error = match Trace::open(path) {
        Ok(trace) => return Ok(Some(trace)),
        Err(error) => error,
    };
    let variable = env::TRACE_FILE;
    let text = format!("{variable} is {path:?}, which cannot be written ({error})");
    if strict {
        return Err(io::Error::new(error.kind(), text));
    }
    log::line(format_args!("No trace is written: {text}"));
    Ok(None)
}

/// How evictions are delivered, if there is an index.
fn delivery(settings: &Settings) -> Option<Config> {
    let log = Arc::new(log::complete_line);
    Config::from_settings(settings, environment::text, log)
}

/// Reads the rest of what the environment says, in the constructor.
fn keep_environment(settings: &Settings) {
    if let Some(config) = delivery(settings) {
        contextpilot_delivery::keep_environment(&config);
    }
}

/// How long the server's start may wait until the journal is open, which takes some milliseconds.
const OPENING: Duration = Duration::from_secs(1);

/// A socket that is missing may be made later by the program that answers there.
///
/// # Errors
/// There is a file of another kind: nothing will answer at this address.
fn check_sockets(settings: &Settings) -> io::Result<()> {
    let urls = [
        (env::INDEX_URL, &settings.index),
        (env::INDEX_IN_FRONT, &settings.index_in_front),
    ];
    for (variable, url) in urls {
        let Some(path) = url.as_ref().and_then(IndexUrl::socket) else {
            continue;
        };
        let found = std::fs::metadata(path);
        if found.is_ok_and(|found| !found.file_type().is_socket()) {
            let why = "is no socket; name the socket at which the index answers";
            return Err(io::Error::other(format!("{variable}: {path:?} {why}")));
        }
    }
    Ok(())
}

/// Starts the thread that reports to the index.
fn tell_index(settings: &Settings, config: Config) -> io::Result<worker::Index> {
    let config = Config {
        keep_settled: settings.journal,
        catch_up: channel::catch_up,
        ..config
    };
    let endpoint = config.endpoint.clone();
    let journal = open_journal(settings, endpoint.clone());
    let sender = Arc::new(Sender::start(config, guard::enter_for_life)?);
    Ok(worker::Index {
        sender,
        endpoint,
        journal,
    })
}

/// Starts the thread that publishes KV cache events for routers, if they are asked for.
fn publish(settings: &Settings) -> io::Result<Option<Publication>> {
    let host = contextpilot_kv_publisher::Host {
        on_thread: guard::enter_for_life,
        log: log::complete_line,
        lookup: environment::variable,
    };
    let Some(of) = &settings.kv_events else {
        return Ok(None);
    };
    let flags = attach::flags();
    let model = flags.model().map(|model| model.name).unwrap_or_default();
    let routed = flags.router_port().is_some();
    match of.server(&model.to_string_lossy(), routed) {
        Ok(events) => Publication::start(events.clone(), host).map(Some),
        Err(why) => {
            let why = why.to_string();
            log::complete_line(&format!("[ContextPilot] KV cache events: {why}"));
            Ok(Some(Publication::none(of.block_size(), why)))
        }
    }
}

/// The journal of this instance: of this index, at this address.
fn open_journal(settings: &Settings, endpoint: String) -> worker::OpenJournal {
    if !settings.journal {
        return Box::new(|| (Journal::off(log::complete_line), Vec::new()));
    }
    let watcher = settings.watcher.clone();
    Box::new(move || {
        if let Some(watcher) = &watcher {
            watcher::start(watcher);
        }
        let identity = Identity::of(
            &endpoint,
            attach::flags(),
            &Origin::at(environment::folder()),
        );
        Journal::in_state_folder(
            environment::variable,
            Some(recent::map),
            identity,
            log::complete_line,
        )
    })
}

/// A forked child has the parent's memory but not its threads, so nothing would read the queue.
unsafe extern "C" fn in_forked_child() {
    mode::disable();
}

/// How much of the time at the end is kept for closing the journal: a moment, but on a busy machine the worker waits for a processor.
const CLOSING: Duration = Duration::from_millis(500);

/// The process ends, and its cache with it: reports all live ids as evicted, within
/// `CONTEXTPILOT_EXIT_DRAIN_MS`. The other threads still run meanwhile.
///
/// This also runs after an internal error, when live ids may still have to be reported.
extern "C" fn on_exit() {
    let Some(running) = RUNNING.get() else {
        unfollowed::remove_socket();
        embedded::say_nothing_ran();
        return;
    };
    // A forked child has no threads, and the files on disk are the parent's.
    if running.process != std::process::id() {
        return;
    }
    let worker = &running.worker;
    guard::guarded_at_end(|| worker.remove_socket());
    attach::say_evaluated(store::is_on());
    if let Some(why) = claims::never_evaluated() {
        log::line(format_args!("{why}"));
    }
    store::finish(Instant::now() + store::FLUSH);
    // Of what a server's store did, `stats` and `store` say more.
    if let Some(sum) = store::figures::sum().filter(|_| environment::is_run()) {
        log::line(format_args!("{sum}"));
    }
    let Some(longest) = running.exit_drain else {
        return;
    };
    guard::guarded_at_end(|| {
        let deadline = Instant::now() + longest;
        for context in contexts::all() {
            channel::push(Event::ContextFreed { context });
        }
        let drain_until = deadline - CLOSING.min(longest / 4);
        worker.leave(drain_until);
        kept::finish(drain_until);
        let left = drain_until.saturating_duration_since(Instant::now());
        let sender = running.sender.as_ref();
        let untold = sender.map_or(0, |sender| sender.drain(left).left);
        let kept = worker.close(deadline);
        while !worker.log_is_written() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        if untold > 0 {
            let then = match (running.journal, kept) {
                (_, true) => "the next start of this server will report them",
                (true, false) => {
                    "reset the index, because the journal does not have all of them, so the next start may not know of them"
                }
                (false, false) => {
                    "reset the index, because with CONTEXTPILOT_JOURNAL=0 the next start does not know of them"
                }
            };
            let evictions = if untold == 1 { "eviction" } else { "evictions" };
            log::line(format_args!(
                "{untold} {evictions} could not be reported to the index before the server ended; {then}"
            ));
        }
    });
}
