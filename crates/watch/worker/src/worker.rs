//! The thread that owns the ledger.
//!
//! It ends in one of two ways. At the end of the process, [`leave`](Handle::leave) makes it report all live ids as
//! evicted, and [`close`](Handle::close) makes it close the journal. After a panic in the ledger it also
//! reports all live ids, and then goes on without a ledger as long as there is something to report.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use contextpilot_admission::STACK;
use contextpilot_delivery::Sender;
use contextpilot_journal::Journal;
use contextpilot_kv_publisher::Publication;
use contextpilot_observer::Stamp;
use contextpilot_residency::{EngineWork, Event, Fact, Ledger, Prompts, RequestId};
use contextpilot_settings::Settings;

use crate::commands::{CLOSE, Commands, LEAVE, NOTHING, WorkerState};
use crate::idle_timer::IdleTimer;
use crate::learner::Learner;
use crate::library::{Item, Library, Lost, Rest, Source, Waiting, What, Withdrawn};
use crate::live_ids::LiveIds;
use crate::observe::{self, Cleanup, Question, Telemetry};
use crate::peers::{Outgoing, Peers};
use crate::routers::Routers;
use crate::trace::Trace;

/// Opens the journal. Called on the worker thread, because it reads files.
pub type OpenJournal = Box<dyn FnOnce() -> (Journal, Vec<RequestId>) + Send>;

/// The index to report evictions to.
pub struct Index {
    /// Sends the evictions.
    pub sender: Arc<Sender>,
    /// The address, for messages.
    pub endpoint: String,
    /// Opens the journal of live ids.
    pub journal: OpenJournal,
}

/// What a worker has to do.
pub struct Task<'a> {
    /// The settings of control endpoint, log file and recording.
    pub settings: &'a Settings,
    /// `None`: there is no index.
    pub index: Option<Index>,
    /// `None`: nothing is published for routers.
    pub publication: Option<Publication>,
    /// `None`: no trace is written.
    pub trace: Option<Trace>,
    /// Requests are tied to slots by their prompts.
    pub by_prompts: bool,
    /// This is a program that is no llama-server: all of its contexts are followed.
    pub is_program: bool,
    /// A worker that has ended, whose control endpoint is taken over.
    pub earlier: Option<Handle>,
}

/// A running worker.
pub struct Handle {
    commands: Commands,
    cleanup: Cleanup,
}

/// Starts the worker and the threads that it needs. The caller has blocked all signals, which our threads
/// inherit.
///
/// This is generic, so that the code that runs for each token is compiled with the caller: for size, but
/// not at any price, as the rest of this crate is (`"s"` and `"z"` in Cargo.toml).
///
/// # Errors
/// No thread can be had.
pub fn start<S: Source + Send + 'static>(
    library: &'static dyn Library,
    source: S,
    task: Task<'_>,
) -> std::io::Result<Handle> {
    let commands = Commands::new(library);
    let index = task.index;
    let told = index
        .as_ref()
        .map(|index| (Arc::clone(&index.sender), index.endpoint.clone()));
    let publication = task.publication;
    let published = publication.as_ref().map(Publication::watch);
    let (settings, by_prompts) = (task.settings, task.by_prompts);
    let is_program = task.is_program;
    let earlier = task.earlier.and_then(|handle| handle.cleanup.endpoint());
    let (telemetry, cleanup) = observe::start(
        settings, library, &commands, told, published, by_prompts, earlier,
    )?;
    let (trace, state) = (task.trace, Arc::clone(&commands.state));
    thread::Builder::new()
        .name("contextpilot".to_owned())
        .stack_size(STACK)
        .spawn(move || {
            library.enter_thread();
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let live_ids = index.map(|index| {
                    let (journal, lost) = (index.journal)();
                    LiveIds::new(index.sender, journal, lost, library)
                });
                state.opened.store(true, Ordering::SeqCst);
                let routers = Routers::new(library, publication);
                let ledger = if telemetry.is_some() || routers.publish() {
                    Ledger::observed()
                } else {
                    Ledger::new()
                };
                let mut worker = Worker {
                    library,
                    source,
                    state: Arc::clone(&state),
                    live_ids,
                    telemetry,
                    routers,
                    trace,
                    ledger: Some(ledger),
                    prompts: by_prompts.then(Prompts::new),
                    peers: is_program.then(Peers::default),
                    learner: library
                        .answers()
                        .map(|answers| Learner::new(library, answers, is_program)),
                    told: Outgoing::new(),
                    passed: Vec::new(),
                    facts: Vec::new(),
                };
                if catch_unwind(AssertUnwindSafe(|| worker.run())).is_err() {
                    library.break_down();
                    worker.give_up();
                    worker.run();
                }
                // Dropping this writes the waiting lines of the log file.
                if let Some(mut telemetry) = worker.telemetry {
                    telemetry.finish(worker.ledger.as_ref());
                }
                if let Some(live_ids) = worker.live_ids {
                    let kept = live_ids.close();
                    state.kept.store(kept, Ordering::SeqCst);
                }
            }));
            if ended.is_err() {
                library.break_down();
            }
            state.ended.store(true, Ordering::SeqCst);
        })?;
    Ok(Handle { commands, cleanup })
}

impl Handle {
    /// Waits until the journal is open, at most until `deadline`. Afterwards, the next start knows every
    /// request that the server receives.
    pub fn opened(&self, deadline: Instant) {
        let opened = || self.commands.state.opened.load(Ordering::SeqCst);
        self.commands.wait(deadline, opened);
    }

    /// Makes the worker apply all events that were sent before this call, and report all live ids as
    /// evicted. Waits until that is done, at most until `deadline`.
    pub fn leave(&self, deadline: Instant) {
        let state = &self.commands.state;
        state.asked.store(LEAVE, Ordering::SeqCst);
        // The current turn may have read the command before we set it; the next turn will see it.
        let target = state.turns.load(Ordering::SeqCst) + 2;
        let done = || state.turns.load(Ordering::SeqCst) >= target;
        self.commands.wait(deadline, done);
    }

    /// Makes the worker close the journal and end. Waits until that is done, at most until `deadline`. Returns whether
    /// the next start knows every id whose eviction is not confirmed, as far as that is known by then.
    pub fn close(&self, deadline: Instant) -> bool {
        let state = &self.commands.state;
        state.asked.store(CLOSE, Ordering::SeqCst);
        self.commands.wait(deadline, || false);
        state.kept.load(Ordering::SeqCst)
    }

    /// Removes the control endpoint's Unix socket, if it has one.
    pub fn remove_socket(&self) {
        self.cleanup.remove_socket();
    }

    /// Whether all lines of the log file are written.
    #[must_use]
    pub fn log_is_written(&self) -> bool {
        self.cleanup.log_is_written()
    }
}

struct Worker<S> {
    library: &'static dyn Library,
    source: S,
    state: Arc<WorkerState>,
    /// `None`: there is no index.
    live_ids: Option<LiveIds>,
    /// `None`: there is no telemetry.
    telemetry: Option<Telemetry>,
    routers: Routers,
    trace: Option<Trace>,
    /// `None`: it panicked.
    ledger: Option<Ledger>,
    /// `None`: the server's launches of tasks are seen.
    prompts: Option<Prompts>,
    /// `None`: this is a server, whose oldest context is the one that is followed.
    peers: Option<Peers>,
    /// `None`: answers are not remembered.
    learner: Option<Learner>,
    /// The items that `peers` returns. Kept to save allocations.
    told: Outgoing,
    /// The events that `prompts` returns. Kept to save allocations.
    passed: Vec<Event>,
    facts: Vec<Fact>,
}

impl<S: Source> Worker<S> {
    fn run(&mut self) {
        let mut idle = IdleTimer::new(Instant::now());
        let mut changes = self.library.model_changes();
        loop {
            self.library.before_turn();
            if let Some(telemetry) = &mut self.telemetry {
                telemetry.begin_turn();
            }
            while let Some(item) = self.source.next() {
                let Some(peers) = &mut self.peers else {
                    self.take(item, &mut idle);
                    continue;
                };
                peers.pass(item, &mut self.told);
                while let Some(item) = self.told.pop_front() {
                    self.take(item, &mut idle);
                }
            }
            if self.source.close_gap() {
                self.library.count_gap();
                if let Some(peers) = &mut self.peers {
                    peers.desync();
                }
                idle.note(Event::OutOfStep.engine_work());
                self.apply(Event::OutOfStep, Stamp::default());
                self.report_stranded();
                continue;
            }
            self.routers.follow(self.ledger.as_mut());
            let asked = self.state.asked.load(Ordering::SeqCst);
            if asked != NOTHING {
                self.report_stranded();
                if let Some(live_ids) = &mut self.live_ids {
                    live_ids.report_all();
                }
            }
            self.review_claims();
            self.answer_questions();
            let now = Instant::now();
            let began = idle.just_ended(now);
            if let Some(live_ids) = &mut self.live_ids {
                live_ids.update_journal(now, began);
            }
            if asked == CLOSE {
                return;
            }
            let since = std::mem::replace(&mut changes, self.library.model_changes());
            if since != changes {
                idle.interrupt();
            }
            self.state.turns.fetch_add(1, Ordering::SeqCst);
            self.library.note_turn();
            let due = idle.due(now);
            let settles = self.library.model_settles();
            if settles.is_some_and(|age| idle.has_lasted(age, now)) {
                self.library.settle_model();
            }
            if let Some(elapsed) = due {
                self.apply(Event::Quiet { elapsed }, Stamp::default());
                continue;
            }
            let live_ids = self.live_ids.as_ref().filter(|_| !began);
            let keep = live_ids.and_then(|live_ids| live_ids.rest(now));
            let awaited = self.ledger.as_ref().is_some_and(Ledger::awaits_silence);
            let rests = idle.rest(now, awaited).into_iter().chain(keep);
            self.source.rest(Rest {
                longest: rests.min(),
                generating: idle.generating() && !awaited,
                watched: self.telemetry.is_some() || self.routers.publish(),
            });
        }
    }

    /// Applies an item of the source.
    fn take(&mut self, Item { what, at }: Item, idle: &mut IdleTimer) {
        match what {
            What::Event(event) => {
                let work = event.engine_work();
                idle.note(work);
                if work == EngineWork::Awaited {
                    self.library.settle_model();
                }
                self.apply(event, at);
            }
            What::Note(note) => {
                if let Some(telemetry) = &mut self.telemetry {
                    telemetry.note(note, at);
                }
            }
            What::Waiting(waiting) => self.wait(waiting),
        }
    }

    fn wait(&mut self, waiting: Waiting) {
        let (Some(prompts), Some(ledger)) = (&mut self.prompts, &self.ledger) else {
            return;
        };
        match waiting {
            Waiting::Prompt {
                arrival,
                task,
                prompt,
            } => {
                prompts.expect(arrival, task, prompt);
            }
            Waiting::Over { arrival, served } => {
                let mut passed = std::mem::take(&mut self.passed);
                prompts.over(arrival, served, ledger, &mut passed);
                self.apply_passed(passed, Stamp::default());
            }
        }
    }

    /// Applies an event, and everything that follows from it.
    fn apply(&mut self, event: Event, at: Stamp) {
        let (Some(prompts), Some(ledger)) = (&mut self.prompts, &self.ledger) else {
            self.apply_one(event, at);
            return;
        };
        let mut passed = std::mem::take(&mut self.passed);
        prompts.pass(event, ledger, &mut passed);
        self.apply_passed(passed, at);
    }

    fn apply_passed(&mut self, mut passed: Vec<Event>, at: Stamp) {
        passed.drain(..).for_each(|event| self.apply_one(event, at));
        self.passed = passed;
    }

    fn apply_one(&mut self, event: Event, at: Stamp) {
        if let Some(trace) = &mut self.trace {
            trace.event(&event);
        }
        if let Some(live_ids) = &mut self.live_ids {
            live_ids.begin(event.request());
        }
        let Some(ledger) = &mut self.ledger else {
            self.apply_blindly(&event);
            return;
        };
        if !matches!(event, Event::Quiet { .. }) {
            self.library.before_event();
        }
        if let Some(learner) = &mut self.learner {
            learner.note(&event, ledger);
        }
        let telemetry = &mut self.telemetry;
        if let Some(telemetry) = telemetry {
            ledger.upcoming(&event, &mut |upcoming| {
                telemetry.upcoming(upcoming, at, ledger);
            });
        }
        ledger.apply(event, &mut self.facts);
        self.routers.note(&self.facts);
        for fact in self.facts.drain(..) {
            if let Some(trace) = &mut self.trace {
                trace.fact(&fact);
            }
            if let Some(telemetry) = telemetry {
                telemetry.fact(&fact, at, ledger);
            }
            if let Some(live_ids) = &mut self.live_ids {
                live_ids.apply(fact);
            }
        }
        if let Some(telemetry) = telemetry {
            telemetry.after(ledger);
        }
        if let Some(live_ids) = &mut self.live_ids {
            live_ids.end();
        }
    }

    /// Without a ledger it is not known what is cached, so every new id is reported as evicted.
    fn apply_blindly(&mut self, event: &Event) {
        if let (Some((_, id)), Some(live_ids)) = (event.request(), &mut self.live_ids) {
            live_ids.report(id.clone());
        }
    }

    /// Withdraws claims that no longer hold, and reports the ids that depend on them as evicted.
    fn review_claims(&mut self) {
        while let Some(Withdrawn { message, lost }) = self.library.review_claims() {
            self.library.say(format_args!("{message}"));
            match lost {
                Lost::Buffers(buffers) => {
                    for buffer in buffers {
                        self.apply(Event::Freed { buffer }, Stamp::default());
                    }
                }
                Lost::Everything => self.apply(Event::OutOfStep, Stamp::default()),
            }
        }
    }

    fn answer_questions(&mut self) {
        while let Some(question) = self.telemetry.as_ref().and_then(Telemetry::next_question) {
            if let Question::Reset(to) = question {
                let count = self.ledger.as_ref().map_or(0, Ledger::live);
                self.apply(Event::Reset, Stamp::default());
                // The client may have left.
                let _ = to.send(count as u64);
            } else if let Some(telemetry) = &mut self.telemetry {
                telemetry.answer(question, self.ledger.as_ref(), self.peers.as_ref());
            }
        }
    }

    /// Reports the ids of requests whose first event was lost.
    fn report_stranded(&mut self) {
        while let Some((arrival, id)) = self.source.stranded() {
            if let Some(live_ids) = &mut self.live_ids {
                live_ids.begin(Some((arrival, &id)));
                live_ids.report(id);
                live_ids.end();
            }
        }
    }

    /// The ledger panicked: passes on its last facts, and then reports all live ids as evicted.
    fn give_up(&mut self) {
        self.ledger = None;
        self.trace = None;
        for fact in std::mem::take(&mut self.facts) {
            if let Some(live_ids) = &mut self.live_ids {
                live_ids.apply(fact);
            }
        }
        if let Some(live_ids) = &mut self.live_ids {
            live_ids.report_all_after_panic();
        }
        self.routers.lose_all();
        if let Some(telemetry) = &mut self.telemetry {
            telemetry.lose_all();
        }
    }
}
