//! The hook is armed by the constructor, and starts its threads when the first model is about to be loaded.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::panic;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use contextpilot_delivery::{Config, Sender};
use contextpilot_journal::{Identity, Journal, Origin};
use contextpilot_kv_publisher::Publication;
use contextpilot_settings::{IndexUrl, Settings, env};
use contextpilot_worker::{self as worker, Handle, Task, Trace};

use super::{unfollowed, watcher};
use crate::attach::{self, claims};
use crate::base::inactive::stay_inactive;
use crate::base::mode::{self, Transitions};
use crate::base::{clock, environment, guard, log, signals};
use crate::capture::{kept, prompts, recent, requests};
use crate::channel;
use crate::library::{Events, HookLibrary};
use crate::store;

/// What the constructor found out.
pub(super) struct Prepared {
    pub(super) settings: Settings,
    pub(super) library: HookLibrary,
}

pub(super) static PREPARED: OnceLock<Prepared> = OnceLock::new();

/// What is needed at the end of the process.
pub(super) struct Running {
    pub(super) worker: Handle,
    /// `None`: there is no index.
    pub(super) sender: Option<Arc<Sender>>,
    pub(super) exit_drain: Option<Duration>,
    /// The setting. The worker knows whether there is a journal.
    pub(super) journal: bool,
    pub(super) process: u32,
}

pub(super) static RUNNING: OnceLock<Running> = OnceLock::new();

/// From now on hooks observe.
pub(super) fn arm(prepared: Prepared) {
    let observes = prepared.settings.observes();
    let shows_text = contextpilot_worker::shows_text(&prepared.settings);
    if PREPARED.set(prepared).is_ok() {
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
pub(super) fn keep_environment(settings: &Settings) {
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
