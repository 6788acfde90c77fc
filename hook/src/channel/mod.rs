//! From the host's threads to the worker: a bounded queue that never makes the host wait.
//!
//! **Cost.** To [send](Sender::send) is one compare-and-swap and some stores. The receiver never
//! blocks in the [queue] but rests in `thread::park`, so whether anybody is woken (a futex call of
//! one to five microseconds) is decided here: see [`Attention`].
//!
//! **Overflow.** An event that finds no room opens a *gap*: from then on everything is dropped
//! until the worker has emptied the queue, has declared the ledger out of step, and closes the
//! gap. So no event from after the gap is ever applied to what was believed before it. The ids
//! of requests whose first event is dropped so are *stranded*: kept aside, for the index to be
//! told that they are gone, as nobody would know otherwise that it believes in them.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};

use contextpilot_observer::{Note, Stamp};
use contextpilot_residency::{Arrival, Entry, Event, RequestId};
use contextpilot_worker::{DOZE, Item, NAP, Rest, Waiting, What};

use crate::base::bounds::{ENTRIES, EVENTS, EVENTS_BEFORE_WORKER, STRANDED};
use crate::base::clock;
use crate::base::status::STATUS;
use crate::base::{faults, mode};
use queue::{Receiver, Sender, queue};

mod queue;

/// What the worker wants to be woken for: a set of [weights](Weight).
struct Attention(AtomicU8);

/// It is awake and will look by itself.
const AWAKE: u8 = 0;
/// All but what something else follows that will wake it.
const ASLEEP: u8 = Weight::Token as u8 | DOZING;
/// It looks again within [`DOZE`]; generated tokens do not wake it.
const DOZING: u8 = Weight::News as u8 | Weight::Result as u8 | NAPPING;
/// It looks again within [`NAP`]; only what cannot wait that long wakes it.
const NAPPING: u8 = Weight::Urgent as u8;

/// Why the worker must hear of an event, and how soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Weight {
    /// A request came whose id is kept elsewhere: with what is made of it. At once where an eviction
    /// of the same id may be about to be told.
    Herald = 1,
    /// Generation goes on: within a [`DOZE`].
    Token = 2,
    /// Within a [`NAP`].
    News = 4,
    /// A prompt is evaluated: within a [`NAP`] for the index's sake, but at once where others watch.
    Result = 8,
    /// At once.
    Urgent = 16,
}

/// Whoever receives so many requests of which the worker has not heard wakes it, so that their ids
/// are in the journal before the place where they are kept is used again.
const HERALDS: usize = 64;

/// A request of which the worker could not hear.
type Stranded = (Arrival, RequestId);

/// The queue and what surrounds it.
pub(crate) struct Channel {
    events: Sender<Item>,
    stranded: Sender<Stranded>,
    inbox: Mutex<Option<Inbox>>,
    worker: OnceLock<Thread>,
    attention: Attention,
    gap: AtomicBool,
    /// How often a gap was opened.
    gaps: AtomicUsize,
    entries: AtomicUsize,
    /// Something other than an evaluation has happened since the last evaluation.
    news: AtomicBool,
    /// The evaluation under way is one of a prompt.
    prompt_evaluation: AtomicBool,
    /// Requests of which the worker was not woken.
    heralds: AtomicUsize,
}

/// What the worker gets.
pub(crate) struct Inbox {
    events: Receiver<Item>,
    stranded: Receiver<Stranded>,
}

/// Made at the first event, so that inert processes do without.
static CHANNEL: OnceLock<Channel> = OnceLock::new();

/// The channel of this process.
pub(crate) fn get() -> &'static Channel {
    CHANNEL.get_or_init(Channel::new)
}

/// Tells the worker what happened. Call in [`observe`](crate::base::guard::observe) only.
pub(crate) fn push(event: Event) {
    let _ = get().push(event);
}

/// As [`push`]; false if there was no room. Nothing that follows is heard then, until the ledger has
/// started anew.
pub(crate) fn push_heard(event: Event) -> bool {
    get().push(event)
}

/// How often the worker did not hear of something: what it was told before counts no more.
pub(crate) fn gaps() -> usize {
    CHANNEL
        .get()
        .map_or(0, |channel| channel.gaps.load(Ordering::Acquire))
}

/// Tells whoever observes, if somebody does. Wakes nobody, and is dropped where there is no room.
pub(crate) fn note(note: impl FnOnce() -> Note) {
    if clock::is_engaged() {
        get().note(note(), clock::stamp());
    }
}

/// Tells the worker with which prompt a request waits. Where there is no room for that, the
/// request will count as never cached.
pub(crate) fn tell_waiting(waiting: Waiting) {
    get().wait(waiting);
}

/// Tells the worker of a request of which it has not heard before. Where there is no room for
/// that, its id is stranded, and `false` says that nothing more need be told of the request: the
/// index will have been told that it is gone. (Of a request of which the worker *has* heard,
/// nothing needs to be kept aside: to be out of step takes that back with the others.)
///
/// `kept`: should the process die, the next start will know of the id.
pub(crate) fn introduce(event: Event, arrival: Arrival, id: &RequestId, kept: bool) -> bool {
    get().introduce(event, arrival, id, kept)
}

/// Something happened that cannot be told: the ledger is to start anew.
pub(crate) fn lose_step() {
    if let Some(channel) = CHANNEL.get() {
        channel.open_gap();
        channel.wake(Weight::Urgent);
    }
}

/// Has the worker take a look, if there is one.
pub(crate) fn nudge() {
    if let Some(channel) = CHANNEL.get() {
        channel.nudge();
    }
}

impl Channel {
    fn new() -> Self {
        Self::with_room(faults::room(EVENTS))
    }

    fn with_room(events: usize) -> Self {
        let (events, received) = queue(events);
        let (stranded, found) = queue(STRANDED);
        Self {
            events,
            stranded,
            inbox: Mutex::new(Some(Inbox {
                events: received,
                stranded: found,
            })),
            worker: OnceLock::new(),
            attention: Attention(AtomicU8::new(AWAKE)),
            gap: AtomicBool::new(false),
            gaps: AtomicUsize::new(0),
            entries: AtomicUsize::new(0),
            news: AtomicBool::new(false),
            prompt_evaluation: AtomicBool::new(false),
            heralds: AtomicUsize::new(0),
        }
    }

    fn push(&self, event: Event) -> bool {
        let weight = self.weigh(&event);
        self.push_or_strand(event, weight, None)
    }

    fn introduce(&self, event: Event, arrival: Arrival, id: &RequestId, kept: bool) -> bool {
        let can_wait = kept && self.heralds.fetch_add(1, Ordering::Relaxed) < HERALDS;
        let weight = match event {
            Event::Posted { .. } if can_wait => Weight::Herald,
            _ => self.weigh(&event),
        };
        self.push_or_strand(event, weight, Some((arrival, id)))
    }

    fn push_or_strand(
        &self,
        event: Event,
        weight: Weight,
        newcomer: Option<(Arrival, &RequestId)>,
    ) -> bool {
        if self.enqueue(event) {
            self.wake(weight);
            return true;
        }
        STATUS.events_lost.add(1);
        // Before the gap: whoever closes that finds the id.
        if let Some((arrival, id)) = newcomer {
            let stranded = (arrival, RequestId::clone(id));
            if self.stranded.send(stranded, STRANDED).is_err() {
                STATUS.ids_lost.add(1);
            }
        }
        self.open_gap();
        self.wake(Weight::Urgent);
        false
    }

    /// False if there is no room.
    fn enqueue(&self, event: Event) -> bool {
        let entries = entries_of(&event);
        if self.has_gap() || !self.take_room(entries) {
            return false;
        }
        let at = match event {
            Event::Posted { .. }
            | Event::Launched { .. }
            | Event::Evaluated { .. }
            | Event::Answered { .. }
            | Event::Replaced { .. }
            | Event::Obscured { .. }
            // The whole of a sequence.
            | Event::Removed { from: ..=0, to: ..0, .. } => clock::stamp(),
            _ => Stamp::default(),
        };
        let what = What::Event(event);
        let sent = self.send(Item { what, at });
        if !sent {
            self.give_room(entries);
        }
        sent
    }

    fn note(&self, note: Note, at: Stamp) {
        let what = What::Note(note);
        if !self.has_gap() && self.send(Item { what, at }) {
            self.wake(Weight::News);
        }
    }

    fn wait(&self, waiting: Waiting) {
        let tokens = tokens_of(&waiting);
        if self.has_gap() || !self.take_room(tokens) {
            return;
        }
        let (what, at) = (What::Waiting(waiting), Stamp::default());
        if self.send(Item { what, at }) {
            self.wake(Weight::News);
        } else {
            self.give_room(tokens);
        }
    }

    /// For so many entries; false if there is none.
    fn take_room(&self, entries: usize) -> bool {
        let full = entries > 0 && self.entries.fetch_add(entries, Ordering::Relaxed) > ENTRIES;
        if full {
            self.give_room(entries);
        }
        !full
    }

    fn give_room(&self, entries: usize) {
        if entries > 0 {
            self.entries.fetch_sub(entries, Ordering::Relaxed);
        }
    }

    fn has_gap(&self) -> bool {
        self.gap.load(Ordering::Acquire)
    }

    /// False if there is no room.
    fn send(&self, item: Item) -> bool {
        let most = match mode::is_running() {
            true => EVENTS,
            false => EVENTS_BEFORE_WORKER,
        };
        self.events.send(item, most).is_ok()
    }

    /// Why the worker must hear of this.
    ///
    /// What becomes of a prompt is decided when a batch is submitted after something else than
    /// evaluations happened, or with more than a token of some sequence: that wakes. All that
    /// comes before it (the request, on an HTTP thread; a launch, removals, saves) comes moments
    /// before, and would only wake more often; all that comes after it evicts nothing. Generating a
    /// token wakes nobody. Where nothing follows (an erased slot), the next look is soon enough,
    /// but not that of a worker that expects nothing but tokens.
    fn weigh(&self, event: &Event) -> Weight {
        match event {
            Event::Submitted { entries, .. } => {
                let news = self.news.load(Ordering::Relaxed);
                if news {
                    self.news.store(false, Ordering::Relaxed);
                }
                let prompt = news || is_prompt(entries);
                self.prompt_evaluation.store(prompt, Ordering::Relaxed);
                if prompt {
                    Weight::Urgent
                } else {
                    Weight::Token
                }
            }
            Event::Evaluated { failed, .. } if !failed.is_empty() => Weight::Urgent,
            Event::Evaluated { .. } => match self.prompt_evaluation.load(Ordering::Relaxed) {
                true => Weight::Result,
                false => Weight::Token,
            },
            // On an HTTP thread: an eviction of the same id may be about to be told.
            Event::Posted { .. } | Event::ContextFreed { .. } => Weight::Urgent,
            Event::Answered { .. } | Event::Uncached { .. } | Event::NamedAdapters { .. } => {
                Weight::News
            }
            // After each evaluation of some models.
            Event::Reaches { .. } => Weight::Token,
            _ => {
                self.news.store(true, Ordering::Relaxed);
                Weight::News
            }
        }
    }

    fn open_gap(&self) {
        // Before: whoever tells something in the gap must not take it for heard.
        self.gaps.fetch_add(1, Ordering::AcqRel);
        self.gap.store(true, Ordering::Release);
    }

    #[inline]
    fn wake(&self, weight: Weight) {
        // SeqCst pairs with `rest`: either we see that the worker is about to rest, or it sees
        // the event (whose place in the queue was taken by a SeqCst operation too).
        if weight as u8 & self.attention.0.load(Ordering::SeqCst) != 0 {
            // The first to notice wakes; the others need not.
            if self.attention.0.swap(AWAKE, Ordering::SeqCst) != AWAKE {
                if let Some(worker) = self.worker.get() {
                    worker.unpark();
                }
            }
        }
    }

    /// Has the worker take a look.
    pub(crate) fn nudge(&self) {
        self.wake(Weight::Urgent);
    }

    // The worker's side.

    /// The receiving end, for the one worker.
    pub(crate) fn take_inbox(&self) -> Option<Inbox> {
        self.inbox
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Makes the calling thread the one that is woken.
    pub(crate) fn attend(&self) {
        let _ = self.worker.set(thread::current());
    }

    /// What happened next, if anything has.
    pub(crate) fn next(&self, inbox: &mut Inbox) -> Option<Item> {
        let item = inbox.events.take()?;
        match &item.what {
            What::Event(event) => self.give_room(entries_of(event)),
            What::Waiting(waiting) => self.give_room(tokens_of(waiting)),
            What::Note(_) => {}
        }
        Some(item)
    }

    /// Whether events were lost. Asked when the queue is empty: all that came before the gap has
    /// been applied, and whatever is sent from now on comes after it.
    pub(crate) fn close_gap(&self) -> bool {
        self.gap.load(Ordering::Relaxed) && self.gap.swap(false, Ordering::AcqRel)
    }

    /// Rests until there is something to do.
    pub(crate) fn rest(&self, inbox: &Inbox, rest: Rest) {
        self.heralds.store(0, Ordering::Relaxed);
        self.attention.0.store(attention(rest), Ordering::SeqCst);
        if inbox.events.is_empty() && !self.gap.load(Ordering::SeqCst) {
            match rest.longest {
                Some(longest) => thread::park_timeout(longest),
                None => thread::park(),
            }
        }
        self.attention.0.store(AWAKE, Ordering::SeqCst);
    }
}

/// What wakes a worker that rests so.
fn attention(rest: Rest) -> u8 {
    let expected = match rest.longest {
        Some(longest) if rest.generating && longest <= DOZE => DOZING,
        Some(longest) if longest <= NAP => NAPPING,
        _ => ASLEEP,
    };
    let if_so = |weight: Weight, so: bool| if so { weight as u8 } else { 0 };
    expected | if_so(Weight::Herald, rest.telling) | if_so(Weight::Result, rest.watched)
}

impl Inbox {
    /// A request whose event was lost.
    pub(crate) fn stranded(&mut self) -> Option<Stranded> {
        self.stranded.take()
    }
}

fn entries_of(event: &Event) -> usize {
    match event {
        Event::Submitted { entries, .. } => entries.len(),
        Event::Replaced { tokens, .. } => tokens.len(),
        _ => 0,
    }
}

fn tokens_of(waiting: &Waiting) -> usize {
    match waiting {
        Waiting::Prompt { prompt, .. } => prompt.tokens.len(),
        Waiting::Over { .. } => 0,
    }
}

/// Whether a batch has more than one entry of some sequence. Those of one sequence stand side by
/// side in what llama-server submits; if ever they do not, the worker learns a nap later.
fn is_prompt(entries: &[Entry]) -> bool {
    entries
        .windows(2)
        .any(|pair| pair[0].sequence == pair[1].sequence)
}

#[cfg(test)]
mod tests;
