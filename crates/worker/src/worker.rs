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

use contextpilot_delivery::Sender;
use contextpilot_journal::Journal;
use contextpilot_kv_publisher::Publication;
use contextpilot_observer::Stamp;
use contextpilot_residency::{Effect, Event, Ledger, Prompts, RequestId};
use contextpilot_settings::Settings;

use crate::beliefs::Beliefs;
use crate::library::{Item, Library, Lost, Rest, Source, Waiting, What, Withdrawn};
use crate::observe::{self, Attendant, Question, Remains};
use crate::peers::{Peers, Told};
use crate::routers::Routers;
use crate::silence::Silence;
use crate::trace::Trace;
use crate::turns::{CLOSE, LEAVE, NOTHING, Shared, Turns};

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
}

/// A running worker.
pub struct Handle {
    turns: Turns,
    remains: Remains,
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
    let turns = Turns::new(library);
    let index = task.index;
    let told = index.as_ref();
    let told = told.map(|index| (Arc::clone(&index.sender), index.endpoint.clone()));
    let publication = task.publication;
    let published = publication.as_ref().map(Publication::watch);
    let (settings, by_prompts) = (task.settings, task.by_prompts);
    let is_program = task.is_program;
    let (attendant, remains) =
        observe::start(settings, library, &turns, told, published, by_prompts)?;
    let (trace, shared) = (task.trace, Arc::clone(&turns.shared));
    thread::Builder::new()
        .name("contextpilot".to_owned())
        .spawn(move || {
            library.enter_thread();
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let beliefs = index.map(|index| {
                    let (journal, lost) = (index.journal)();
                    Beliefs::new(index.sender, journal, lost, library)
                });
                shared.opened.store(true, Ordering::SeqCst);
                let mut worker = Worker {
                    library,
                    source,
                    shared: Arc::clone(&shared),
                    beliefs,
                    attendant,
                    routers: Routers::new(library, publication),
                    trace,
                    ledger: Some(Ledger::new()),
                    prompts: by_prompts.then(Prompts::new),
                    peers: is_program.then(Peers::default),
                    told: Told::new(),
                    passed: Vec::new(),
                    effects: Vec::new(),
                    at_hand: None,
                };
                if catch_unwind(AssertUnwindSafe(|| worker.run())).is_err() {
                    library.break_down();
                    worker.give_up();
                    worker.run();
                }
                // Dropping this writes the waiting lines of the log file.
                drop(worker.attendant);
                if let Some(beliefs) = worker.beliefs {
                    beliefs.close();
                }
            }));
            if ended.is_err() {
                library.break_down();
            }
            shared.ended.store(true, Ordering::SeqCst);
        })?;
    Ok(Handle { turns, remains })
}

impl Handle {
    /// Waits until the journal is open, at most until `deadline`. Afterwards, the next start knows every
    /// request that the server receives.
    pub fn opened(&self, deadline: Instant) {
        let opened = || self.turns.shared.opened.load(Ordering::SeqCst);
        self.turns.wait(deadline, opened);
    }

    /// Makes the worker apply all events that were sent before this call, and report all live ids as
    /// evicted. Waits until that is done, at most until `deadline`.
    pub fn leave(&self, deadline: Instant) {
        let shared = &self.turns.shared;
        shared.asked.store(LEAVE, Ordering::SeqCst);
        // The current turn may have read the command before we set it; the next turn will see it.
        let target = shared.turns.load(Ordering::SeqCst) + 2;
        let done = || shared.turns.load(Ordering::SeqCst) >= target;
        self.turns.wait(deadline, done);
    }

    /// Makes the worker close the journal and end. Waits until that is done, at most until `deadline`.
    pub fn close(&self, deadline: Instant) {
        let shared = &self.turns.shared;
        shared.asked.store(CLOSE, Ordering::SeqCst);
        self.turns.wait(deadline, || false);
    }

    /// Removes the control endpoint's Unix socket, if it has one.
    pub fn remove_socket(&self) {
        self.remains.remove_socket();
    }

    /// Whether all lines of the log file are written.
    #[must_use]
    pub fn log_is_written(&self) -> bool {
        self.remains.log_is_written()
    }
}

struct Worker<S> {
    library: &'static dyn Library,
    source: S,
    shared: Arc<Shared>,
    /// `None`: there is no index.
    beliefs: Option<Beliefs>,
    /// `None`: there is no telemetry.
    attendant: Option<Attendant>,
    routers: Routers,
    trace: Option<Trace>,
    /// `None`: it panicked.
    ledger: Option<Ledger>,
    /// `None`: the server's launches of tasks are seen.
    prompts: Option<Prompts>,
    /// `None`: this is a server, whose oldest context is the one that is followed.
    peers: Option<Peers>,
    /// The items that `peers` returns. Kept to save allocations.
    told: Told,
    /// The events that `prompts` returns. Kept to save allocations.
    passed: Vec<Event>,
    effects: Vec<Effect>,
    /// The request of the current event. If the ledger panics, this id must be reported, too.
    at_hand: Option<RequestId>,
}

impl<S: Source> Worker<S> {
    fn run(&mut self) {
        let mut silence = Silence::new(Instant::now());
        let mut changes = self.library.model_changes();
        loop {
            self.library.before_turn();
            while let Some(item) = self.source.next() {
                let Some(peers) = &mut self.peers else {
                    self.take(item, &mut silence);
                    continue;
                };
                peers.pass(item, &mut self.told);
                while let Some(item) = self.told.pop_front() {
                    self.take(item, &mut silence);
                }
            }
            if self.source.close_gap() {
                self.library.count_gap();
                if let Some(peers) = &mut self.peers {
                    peers.lose_step();
                }
                silence.note(&Event::OutOfStep);
                self.apply(Event::OutOfStep, Stamp::default());
                self.take_back_stranded();
                continue;
            }
            self.routers.follow(self.ledger.as_mut());
            let asked = self.shared.asked.load(Ordering::SeqCst);
            if asked != NOTHING {
                self.take_back_stranded();
                if let Some(beliefs) = &mut self.beliefs {
                    beliefs.take_back_all();
                }
            }
            self.review_claims();
            self.answer_questions();
            let now = Instant::now();
            let began = silence.just_ended(now);
            if let Some(beliefs) = &mut self.beliefs {
                beliefs.keep(now, began);
            }
            if asked == CLOSE {
                return;
            }
            let since = std::mem::replace(&mut changes, self.library.model_changes());
            if since != changes {
                silence.interrupt();
            }
            self.shared.turns.fetch_add(1, Ordering::SeqCst);
            let due = silence.due(now);
            let settles = self.library.model_settles();
            if settles.is_some_and(|age| silence.has_lasted(age, now)) {
                self.library.settle_model();
            }
            if let Some(elapsed) = due {
                self.apply(Event::Quiet { elapsed }, Stamp::default());
                continue;
            }
            let beliefs = self.beliefs.as_ref().filter(|_| !began);
            let keep = beliefs.and_then(|beliefs| beliefs.rest(now));
            let awaited = self.ledger.as_ref().is_some_and(Ledger::awaits_silence);
            let rests = silence.rest(now, awaited).into_iter().chain(keep);
            self.source.rest(Rest {
                longest: rests.min(),
                generating: silence.generating() && !awaited,
                telling: self.beliefs.as_ref().is_some_and(Beliefs::telling),
                watched: self.attendant.is_some() || self.routers.publish(),
            });
        }
    }

    /// Applies an item of the source.
    fn take(&mut self, Item { what, at }: Item, silence: &mut Silence) {
        match what {
            What::Event(event) => {
                silence.note(&event);
                if let Event::Launched { .. } = event {
                    self.library.settle_model();
                }
                self.apply(event, at);
            }
            What::Note(note) => {
                if let Some(attendant) = &mut self.attendant {
                    attendant.note(note, at);
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
        if let Some(beliefs) = &mut self.beliefs {
            beliefs.about(match &event {
                Event::Posted { arrival, .. } | Event::Answered { arrival, .. } => Some(*arrival),
                _ => None,
            });
        }
        let Some(ledger) = &mut self.ledger else {
            self.apply_blindly(event);
            return;
        };
        if let Event::Posted { id, .. } | Event::Answered { id, .. } = &event {
            self.at_hand = Some(id.clone());
        }
        if !matches!(event, Event::Quiet { .. }) {
            self.library.before_event();
        }
        let attendant = &mut self.attendant;
        let after = attendant.as_mut().map(|a| a.before(&event, at, ledger));
        self.routers.note(&event);
        ledger.apply(event, &mut self.effects);
        for effect in self.effects.drain(..) {
            if let Some(trace) = &mut self.trace {
                trace.effect(&effect);
            }
            if let Some(attendant) = attendant {
                attendant.effect(&effect);
            }
            if let Some(beliefs) = &mut self.beliefs {
                beliefs.apply(effect);
            }
        }
        if let (Some(attendant), Some(after)) = (attendant, after) {
            attendant.after(after, ledger);
        }
        self.at_hand = None;
    }

    /// Without a ledger it is not known what is cached, so every new id is reported as evicted.
    fn apply_blindly(&mut self, event: Event) {
        if let Event::Posted { id, .. } | Event::Answered { id, .. } = event {
            self.take_back(id);
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
        while let Some(question) = self.attendant.as_ref().and_then(Attendant::next_question) {
            if let Question::Reset(to) = question {
                let count = self.ledger.as_ref().map_or(0, Ledger::live);
                self.apply(Event::Reset, Stamp::default());
                // The client may have left.
                let _ = to.send(count as u64);
            } else if let Some(attendant) = &mut self.attendant {
                attendant.answer(question, self.ledger.as_ref());
            }
        }
    }

    fn take_back(&mut self, id: RequestId) {
        if let Some(beliefs) = &mut self.beliefs {
            beliefs.take_back(id);
        }
    }

    /// Reports the ids of requests whose first event was lost.
    fn take_back_stranded(&mut self) {
        while let Some((arrival, id)) = self.source.stranded() {
            if let Some(beliefs) = &mut self.beliefs {
                beliefs.about(Some(arrival));
                beliefs.take_back(id);
            }
        }
    }

    /// The ledger panicked: passes on its last effects, and then reports all live ids as evicted.
    fn give_up(&mut self) {
        self.ledger = None;
        self.trace = None;
        for effect in std::mem::take(&mut self.effects) {
            if let Some(beliefs) = &mut self.beliefs {
                beliefs.apply(effect);
            }
        }
        if let Some(id) = self.at_hand.take() {
            self.take_back(id);
        }
        if let Some(beliefs) = &mut self.beliefs {
            beliefs.take_back_all();
        }
        self.routers.lose_all();
        if let Some(attendant) = &mut self.attendant {
            attendant.lose_all();
        }
    }
}
