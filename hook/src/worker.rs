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
use contextpilot_residency::{Effect, Event, Ledger, RequestId};
use crossbeam_channel::Receiver;

use crate::beliefs::Beliefs;
use crate::channel::{self, Channel};
use crate::silence::Silence;
use crate::status::STATUS;
use crate::trace::Trace;
use crate::{faults, guard, mode};

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

/// Starts the worker. The caller has blocked all signals: this thread handles none.
pub(crate) fn start(
    sender: Arc<Sender>,
    journal: OpenJournal,
    trace: Option<Trace>,
) -> std::io::Result<()> {
    let channel = channel::get();
    let Some(receiver) = channel.take_receiver() else {
        return Err(std::io::Error::other("it was started before"));
    };
    thread::Builder::new()
        .name("contextpilot".to_owned())
        .spawn(move || {
            guard::enter_for_life();
            channel.attend();
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let (journal, lost) = journal();
                let mut worker = Worker {
                    channel,
                    receiver,
                    beliefs: Beliefs::new(sender, journal, lost),
                    trace,
                    ledger: Some(Ledger::new()),
                    effects: Vec::new(),
                    at_hand: None,
                };
                OPENED.store(true, Ordering::SeqCst);
                if catch_unwind(AssertUnwindSafe(|| worker.run())).is_err() {
                    mode::break_down();
                    worker.give_up();
                    worker.run();
                }
                worker.beliefs.close();
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

fn wait(deadline: Instant, done: impl Fn() -> bool) {
    while !done() && !ENDED.load(Ordering::SeqCst) && Instant::now() < deadline {
        channel::get().nudge();
        thread::sleep(Duration::from_micros(200));
    }
}

struct Worker {
    channel: &'static Channel,
    receiver: Receiver<Event>,
    beliefs: Beliefs,
    trace: Option<Trace>,
    /// `None`: it panicked, and nothing is known any more.
    ledger: Option<Ledger>,
    effects: Vec<Effect>,
    /// The request that the event under way is about: lost with the ledger, if that panics.
    at_hand: Option<RequestId>,
}

impl Worker {
    fn run(&mut self) {
        let mut silence = Silence::new(Instant::now());
        loop {
            faults::stall();
            while let Ok(event) = self.receiver.try_recv() {
                self.channel.taken(&event);
                silence.note(&event, Instant::now());
                self.apply(event);
            }
            if self.channel.close_gap() {
                STATUS.gaps.add(1);
                silence.note(&Event::OutOfStep, Instant::now());
                self.apply(Event::OutOfStep);
                self.take_back_stranded();
                continue;
            }
            let asked = ASKED.load(Ordering::SeqCst);
            if asked != NOTHING {
                self.take_back_stranded();
                self.beliefs.take_back_all();
            }
            let now = Instant::now();
            self.beliefs.keep(now);
            if asked == CLOSE {
                return;
            }
            TURNS.fetch_add(1, Ordering::SeqCst);
            if let Some(elapsed) = silence.due(now) {
                self.apply(Event::Quiet { elapsed });
                continue;
            }
            let rests = silence.rest(now).into_iter().chain(self.beliefs.rest(now));
            self.channel.rest(&self.receiver, rests.min());
        }
    }

    fn apply(&mut self, event: Event) {
        if let Some(trace) = &mut self.trace {
            trace.event(&event);
        }
        self.beliefs.about(match &event {
            Event::Posted { arrival, .. } | Event::Answered { arrival, .. } => Some(*arrival),
            _ => None,
        });
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
        ledger.apply(event, &mut self.effects);
        for effect in self.effects.drain(..) {
            if let Some(trace) = &mut self.trace {
                trace.effect(&effect);
            }
            self.beliefs.apply(effect);
        }
        self.at_hand = None;
    }

    /// Without a ledger, whatever the index believes in is not certain, and so not cached.
    fn apply_blindly(&mut self, event: Event) {
        if let Event::Posted { id, .. } | Event::Answered { id, .. } = event {
            self.beliefs.take_back(id);
        }
    }

    /// Requests that came while there was no room to say so.
    fn take_back_stranded(&mut self) {
        for (arrival, id) in self.channel.stranded() {
            self.beliefs.about(Some(arrival));
            self.beliefs.take_back(id);
        }
    }

    /// The ledger panicked: what it has said last is said, and then everything is taken back.
    fn give_up(&mut self) {
        self.ledger = None;
        self.trace = None;
        for effect in std::mem::take(&mut self.effects) {
            self.beliefs.apply(effect);
        }
        if let Some(id) = self.at_hand.take() {
            self.beliefs.take_back(id);
        }
        self.beliefs.take_back_all();
    }
}
