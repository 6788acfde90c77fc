//! The control endpoint of a llama-server or a program whose engine is not followed. It says so, and why; nothing else runs.
//!
//! It is there only if `CONTEXTPILOT_LISTEN` asks for it. If the program then loads an engine that can be followed, the worker
//! of that one takes the endpoint over.

use std::ffi::OsString;
use std::fmt;
use std::panic;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use contextpilot_control::{Engine, KeptTokens, Losses, ModelState, PrefixStore, Requests};
use contextpilot_journal::Recent;
use contextpilot_kept_tokens::{AnswerId, Answers};
use contextpilot_observer::{Now, Stored};
use contextpilot_residency::{Arrival, RequestId, Token};
use contextpilot_server_flags::{Generation, ServerFlags};
use contextpilot_settings::Settings;
use contextpilot_worker::{self as worker, Handle, Item, Library, Rest, Source, Task, Withdrawn};

use crate::base::{clock, environment, guard, log, mode, signals};

struct Running {
    worker: Handle,
    process: u32,
}

static RUNNING: Mutex<Option<Running>> = Mutex::new(None);

/// Says at the control endpoint why nothing is followed, if these settings ask for one. Of several engines the first one's
/// reason is said.
pub(super) fn listen(settings: &Settings, why: &str) {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    if settings.listen.is_none() || running.is_some() {
        return;
    }
    let mut settings = settings.clone();
    settings.log_file = None;
    settings.traffic_file = None;
    settings.index_in_front = None;
    settings.explain_text = false;
    settings.explain_limit = None;
    settings.recent_limit = None;
    settings.strict = false;
    panic::set_hook(Box::new(mode::note_panic));
    clock::engage();
    // For as long as the process lives, as what is followed is.
    let library: &'static Unfollowed = Box::leak(Box::new(Unfollowed::new(why)));
    let task = Task {
        settings: &settings,
        index: None,
        publication: None,
        trace: None,
        by_prompts: false,
        is_program: false,
        earlier: None,
    };
    match signals::blocked(|| worker::start(library, Nothing(library), task)) {
        Ok(worker) => {
            let process = std::process::id();
            *running = Some(Running { worker, process });
        }
        Err(error) => log::line(format_args!(
            "There is no control endpoint: no thread can be had ({error})"
        )),
    }
}

/// An engine is followed from now on. Returns what has listened, which has ended.
pub(super) fn end() -> Option<Handle> {
    let Running { worker, process } = take()?;
    if process != std::process::id() {
        return None;
    }
    worker.close(Instant::now() + ENDING);
    Some(worker)
}

/// It has nothing to write.
const ENDING: Duration = Duration::from_secs(1);

/// The process ends.
pub(super) fn remove_socket() {
    if let Some(Running { worker, process }) = take()
        && process == std::process::id()
    {
        guard::guarded_at_end(|| worker.remove_socket());
    }
}

/// `None`, too, if a thread of the parent held the lock when this process was forked.
fn take() -> Option<Running> {
    RUNNING.try_lock().ok()?.take()
}

/// What the worker needs of the hook, where nothing is hooked.
struct Unfollowed {
    why: String,
    flags: ServerFlags,
    /// The worker's thread, once it runs.
    thread: OnceLock<Thread>,
}

impl Unfollowed {
    fn new(why: &str) -> Self {
        let nothing = std::iter::empty::<OsString>();
        Self {
            why: why.to_owned(),
            flags: ServerFlags::read(nothing, |_| None, Generation::Late2026),
            thread: OnceLock::new(),
        }
    }
}

impl Library for Unfollowed {
    fn enter_thread(&self) {
        guard::enter_for_life();
    }

    fn say(&self, line: fmt::Arguments<'_>) {
        log::line(line);
    }

    fn now(&self) -> Now {
        clock::now()
    }

    fn nudge(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn is_running(&self) -> bool {
        true
    }

    fn break_down(&self) {
        mode::disable_after_panic();
    }

    fn place_of_panic(&self) -> String {
        mode::place_of_panic()
    }

    fn engine(&self) -> Engine {
        Engine {
            name: "llama.cpp".to_owned(),
            missing: vec!["KV cache: nothing counts as cached".to_owned()],
            not_followed: Some(self.why.clone()),
            ..Engine::default()
        }
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        environment::variable(name)
    }

    fn flags(&self) -> &ServerFlags {
        &self.flags
    }

    fn sees_host_cache(&self) -> bool {
        false
    }

    fn review_claims(&self) -> Option<Withdrawn> {
        None
    }

    fn model_changes(&self) -> usize {
        0
    }

    fn model_settles(&self) -> Option<Duration> {
        None
    }

    fn settle_model(&self) {}

    fn model_state(&self) -> ModelState {
        ModelState::Loading
    }

    fn listening(&self) -> Vec<String> {
        Vec::new()
    }

    fn requests(&self) -> Requests {
        Requests::default()
    }

    fn losses(&self) -> Losses {
        Losses::default()
    }

    fn store(&self) -> Option<PrefixStore> {
        None
    }

    fn has_store(&self) -> bool {
        false
    }

    fn store_keeps(&self) -> bool {
        false
    }

    fn stored(&self, _tokens: &[Token]) -> Option<Stored> {
        None
    }

    fn kept(&self) -> Option<KeptTokens> {
        None
    }

    fn answers(&self) -> Option<&'static Mutex<Answers>> {
        None
    }

    fn keep_answer(&self, _answer: AnswerId) {}

    fn note_turn(&self) {}

    fn count_gap(&self) {}

    fn count_lost_log_line(&self) {}

    fn keep_recent(&self, _recent: Recent) {}

    fn piece(&self, _token: Token) -> Option<Vec<u8>> {
        None
    }
}

/// No events: the worker only answers.
struct Nothing(&'static Unfollowed);

impl Source for Nothing {
    fn next(&mut self) -> Option<Item> {
        // Before the worker looks for queries: each that comes from now on wakes it.
        self.0.thread.get_or_init(thread::current);
        None
    }

    fn close_gap(&mut self) -> bool {
        false
    }

    fn stranded(&mut self) -> Option<(Arrival, RequestId)> {
        None
    }

    fn rest(&mut self, rest: Rest) {
        match rest.longest {
            Some(longest) => thread::park_timeout(longest),
            None => thread::park(),
        }
    }
}
