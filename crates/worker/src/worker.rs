//! The thread that owns the ledger.
//!
//! It ends in one of two ways. At the end of the process, [`leave`] has it take back all that the
//! index believes, and [`close`] has it put the journal in order. After a panic in the ledger it
//! takes everything back too, and then lives on without a ledger for as long as there is
//! something to be told.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_delivery::Sender;
use contextpilot_journal::Journal;
use contextpilot_kv_publisher::Publication;
use contextpilot_observer::Stamp;
use contextpilot_residency::{Effect, Event, Ledger, Prompts, RequestId};
use contextpilot_settings::Settings;

use crate::beliefs::Beliefs;
use crate::library::{Item, Library, Lost, Rest, Source, Waiting, What, Withdrawn};
use crate::observe::{self, Attendant, Question, Remains};
use crate::routers::Routers;
use crate::silence::Silence;
use crate::trace::Trace;

/// What the worker is asked for, beyond its work.
const NOTHING: u8 = 0;
/// To take everything back.
const LEAVE: u8 = 1;
/// To end.
const CLOSE: u8 = 2;

/// How far the worker is, for those who wait for it.
#[derive(Clone)]
pub(crate) struct Turns {
    library: &'static dyn Library,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Raised each time the worker has found nothing to do.
    turns: AtomicU64,
    asked: AtomicU8,
    /// The journal is open.
    opened: AtomicBool,
    /// The worker has ended, in whatever way.
    ended: AtomicBool,
}

impl Turns {
    pub(crate) fn nudge(&self) {
        self.library.nudge();
    }

    pub(crate) fn have_ended(&self) -> bool {
        self.shared.ended.load(Ordering::SeqCst)
    }

    fn wait(&self, deadline: Instant, done: impl Fn() -> bool) {
        while !done() && !self.have_ended() && Instant::now() < deadline {
            self.nudge();
            thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Opens the journal: on the worker thread, since it reads files.
pub type OpenJournal = Box<dyn FnOnce() -> (Journal, Vec<RequestId>) + Send>;

/// Who is to be told of evictions.
pub struct Index {
    /// Tells it.
    pub sender: Arc<Sender>,
    /// Where, for people.
    pub endpoint: String,
    /// What it believes.
    pub journal: OpenJournal,
}

/// How a worker is to work.
pub struct Task<'a> {
    /// What is to be observed, and by whom.
    pub settings: &'a Settings,
    /// None: nobody is told anything.
    pub index: Option<Index>,
    /// None: nothing is published for routers.
    pub publication: Option<Publication>,
    /// None: nobody looks for an error.
    pub trace: Option<Trace>,
    /// Requests are tied to slots by their prompts.
    pub by_prompts: bool,
}

/// A worker that was started.
pub struct Handle {
    turns: Turns,
    remains: Remains,
}

/// Starts the worker and what it needs. The caller has blocked all signals: our threads handle none.
///
/// Generic, so that what runs for each token is compiled with the caller, for speed: the rest of
/// this crate is compiled for size.
///
/// # Errors
/// No thread can be had.
pub fn start<S: Source + Send + 'static>(
    library: &'static dyn Library,
    source: S,
    task: Task<'_>,
) -> std::io::Result<Handle> {
    let turns = Turns {
        library,
        shared: Arc::default(),
    };
    let index = task.index;
    let told = index.as_ref();
    let told = told.map(|index| (Arc::clone(&index.sender), index.endpoint.clone()));
    let publication = task.publication;
    let published = publication.as_ref().map(Publication::watch);
    let (settings, by_prompts) = (task.settings, task.by_prompts);
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
                    passed: Vec::new(),
                    effects: Vec::new(),
                    at_hand: None,
                };
                if catch_unwind(AssertUnwindSafe(|| worker.run())).is_err() {
                    library.break_down();
                    worker.give_up();
                    worker.run();
                }
                // What waits for the log file is written when the attendant goes.
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
    /// Waits until the journal is open, at most until `deadline`: so that whatever the server is
    /// asked, the next start will know of it.
    pub fn opened(&self, deadline: Instant) {
        let opened = || self.turns.shared.opened.load(Ordering::SeqCst);
        self.turns.wait(deadline, opened);
    }

    /// Has the worker apply what was pushed before this call and take back all that the index
    /// believes. Waits until it has, at most until `deadline`.
    pub fn leave(&self, deadline: Instant) {
        let shared = &self.turns.shared;
        shared.asked.store(LEAVE, Ordering::SeqCst);
        // The turn that is under way may have passed our request by; the next one has not.
        let target = shared.turns.load(Ordering::SeqCst) + 2;
        let done = || shared.turns.load(Ordering::SeqCst) >= target;
        self.turns.wait(deadline, done);
    }

    /// Has the worker close the journal and end. Waits until it has, at most until `deadline`.
    pub fn close(&self, deadline: Instant) {
        let shared = &self.turns.shared;
        shared.asked.store(CLOSE, Ordering::SeqCst);
        self.turns.wait(deadline, || false);
    }

    /// Takes the control endpoint's Unix socket away, if it has one.
    pub fn remove_socket(&self) {
        self.remains.remove_socket();
    }

    /// Whether all lines of the log file are written that will be.
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
    /// `None`: nobody observes.
    attendant: Option<Attendant>,
    routers: Routers,
    trace: Option<Trace>,
    /// `None`: it panicked, and nothing is known any more.
    ledger: Option<Ledger>,
    /// `None`: the server can be seen to launch tasks.
    prompts: Option<Prompts>,
    /// What `prompts` lets pass, kept to spare allocations.
    passed: Vec<Event>,
    effects: Vec<Effect>,
    /// The request that the event under way is about: lost with the ledger, if that panics.
    at_hand: Option<RequestId>,
}

impl<S: Source> Worker<S> {
    fn run(&mut self) {
        let mut silence = Silence::new(Instant::now());
        let mut changes = self.library.model_changes();
        loop {
            self.library.before_turn();
            while let Some(Item { what, at }) = self.source.next() {
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
            if self.source.close_gap() {
                self.library.count_gap();
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

    /// An event, with what is known only through it.
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

    /// Without a ledger, whatever the index believes in is not certain, and so not cached.
    fn apply_blindly(&mut self, event: Event) {
        if let Event::Posted { id, .. } | Event::Answered { id, .. } = event {
            self.take_back(id);
        }
    }

    /// Withdraws what does not hold any more: what was believed on its strength is gone.
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
                // Whoever asked may be gone by now.
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

    /// Requests that came while there was no room to say so.
    fn take_back_stranded(&mut self) {
        while let Some((arrival, id)) = self.source.stranded() {
            if let Some(beliefs) = &mut self.beliefs {
                beliefs.about(Some(arrival));
                beliefs.take_back(id);
            }
        }
    }

    /// The ledger panicked: what it has said last is said, and then everything is taken back.
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
