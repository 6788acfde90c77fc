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
use contextpilot_observer::Stamp;
use contextpilot_residency::{BufferId, Effect, Event, Ledger, Prompts, RequestId};

use crate::attach::claims::{self, Claim};
use crate::base::status::STATUS;
use crate::base::{faults, guard, log, mode};
use crate::beliefs::Beliefs;
use crate::capture::prompts::{self, Waiting};
use crate::capture::{model, saved};
use crate::channel::{self, Channel, Inbox, Item, What};
use crate::observe::{Attendant, Question};
use crate::silence::Silence;
use crate::trace::Trace;

/// Raised each time the worker has found the queue empty, for those who wait for that.
static TURNS: AtomicU64 = AtomicU64::new(0);

/// What the worker is asked for, beyond its work.
static ASKED: AtomicU8 = AtomicU8::new(NOTHING);
const NOTHING: u8 = 0;
/// To take everything back.
const LEAVE: u8 = 1;
/// To end.
const CLOSE: u8 = 2;

/// The worker has opened the journal.
static OPENED: AtomicBool = AtomicBool::new(false);

/// The worker has ended, in whatever way.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Opens the journal: on the worker thread, since it reads files.
pub(crate) type OpenJournal = Box<dyn FnOnce() -> (Journal, Vec<RequestId>) + Send>;

/// Who is to be told of evictions.
pub(crate) struct Index {
    pub(crate) sender: Arc<Sender>,
    pub(crate) journal: OpenJournal,
}

/// Starts the worker. The caller has blocked all signals: this thread handles none. Without an
/// index, nobody is told anything; without an attendant, nobody observes.
pub(crate) fn start(
    index: Option<Index>,
    attendant: Option<Attendant>,
    trace: Option<Trace>,
) -> std::io::Result<()> {
    let channel = channel::get();
    let Some(inbox) = channel.take_inbox() else {
        return Err(std::io::Error::other("it was started before"));
    };
    thread::Builder::new()
        .name("contextpilot".to_owned())
        .spawn(move || {
            guard::enter_for_life();
            channel.attend();
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let beliefs = index.map(|Index { sender, journal }| {
                    let (journal, lost) = journal();
                    Beliefs::new(sender, journal, lost)
                });
                let mut worker = Worker {
                    channel,
                    inbox,
                    beliefs,
                    attendant,
                    trace,
                    ledger: Some(Ledger::new()),
                    prompts: prompts::are_engaged().then(Prompts::new),
                    passed: Vec::new(),
                    effects: Vec::new(),
                    at_hand: None,
                };
                OPENED.store(true, Ordering::SeqCst);
                if catch_unwind(AssertUnwindSafe(|| worker.run())).is_err() {
                    mode::break_down();
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
                mode::break_down();
            }
            ENDED.store(true, Ordering::SeqCst);
        })?;
    Ok(())
}

/// Waits until the journal is open, at most until `deadline`: so that whatever the server is
/// asked, the next start will know of it.
pub(crate) fn opened(deadline: Instant) {
    wait(deadline, || OPENED.load(Ordering::SeqCst));
}

/// Has the worker apply what was pushed before this call and take back all that the index
/// believes. Waits until it has, at most until `deadline`.
pub(crate) fn leave(deadline: Instant) {
    ASKED.store(LEAVE, Ordering::SeqCst);
    // The turn that is under way may have passed our request by; the next one has not.
    let target = TURNS.load(Ordering::SeqCst) + 2;
    wait(deadline, || TURNS.load(Ordering::SeqCst) >= target);
}

/// Has the worker close the journal and end. Waits until it has, at most until `deadline`.
pub(crate) fn close(deadline: Instant) {
    ASKED.store(CLOSE, Ordering::SeqCst);
    wait(deadline, || false);
}

/// Whether the worker is there no more.
pub(crate) fn has_ended() -> bool {
    ENDED.load(Ordering::SeqCst)
}

fn wait(deadline: Instant, done: impl Fn() -> bool) {
    while !done() && !ENDED.load(Ordering::SeqCst) && Instant::now() < deadline {
        channel::get().nudge();
        thread::sleep(Duration::from_micros(200));
    }
}

struct Worker {
    channel: &'static Channel,
    inbox: Inbox,
    /// `None`: there is no index.
    beliefs: Option<Beliefs>,
    /// `None`: nobody observes.
    attendant: Option<Attendant>,
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

impl Worker {
    fn run(&mut self) {
        let mut silence = Silence::new(Instant::now());
        let mut changes = model::changes();
        loop {
            faults::stall();
            while let Some(Item { what, at }) = self.channel.next(&mut self.inbox) {
                match what {
                    What::Event(event) => {
                        silence.note(&event);
                        if let Event::Launched { .. } = event {
                            model::settle();
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
            if self.channel.close_gap() {
                STATUS.gaps.add(1);
                silence.note(&Event::OutOfStep);
                self.apply(Event::OutOfStep, Stamp::default());
                self.take_back_stranded();
                continue;
            }
            let asked = ASKED.load(Ordering::SeqCst);
            if asked != NOTHING {
                self.take_back_stranded();
                if let Some(beliefs) = &mut self.beliefs {
                    beliefs.take_back_all();
                }
            }
            self.review_claims();
            self.answer_questions();
            let now = Instant::now();
            if let Some(beliefs) = &mut self.beliefs {
                beliefs.keep(now);
            }
            if asked == CLOSE {
                return;
            }
            let since = std::mem::replace(&mut changes, model::changes());
            if since != changes {
                silence.interrupt();
            }
            TURNS.fetch_add(1, Ordering::SeqCst);
            let due = silence.due(now);
            if silence.has_lasted(model::SILENCE, now) && model::is_there() {
                model::settle();
            }
            if let Some(elapsed) = due {
                self.apply(Event::Quiet { elapsed }, Stamp::default());
                continue;
            }
            let keep = self.beliefs.as_ref().and_then(|beliefs| beliefs.rest(now));
            let awaited = self.ledger.as_ref().is_some_and(Ledger::awaits_silence);
            let rests = silence.rest(now, awaited).into_iter().chain(keep);
            let generating = silence.generating() && !awaited;
            self.channel.rest(&self.inbox, rests.min(), generating);
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
            faults::at_event();
        }
        let attendant = &mut self.attendant;
        let after = attendant.as_mut().map(|a| a.before(&event, at, ledger));
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
        while let Some(withdrawn) = claims::review() {
            log::line(format_args!("{withdrawn}"));
            match withdrawn.claim {
                Claim::HostCache => {
                    for address in saved::refuse() {
                        let buffer = BufferId(address);
                        self.apply(Event::Freed { buffer }, Stamp::default());
                    }
                }
                Claim::KvCache | Claim::Requests => {
                    self.apply(Event::OutOfStep, Stamp::default());
                }
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
        while let Some((arrival, id)) = self.inbox.stranded() {
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
        if let Some(attendant) = &mut self.attendant {
            attendant.lose_all();
        }
    }
}
