//! From the host's threads to the worker: a bounded queue that never makes the host wait.
//!
//! **Cost.** [Sending](Sender::send) is one compare-and-swap and some stores. The receiver does not
//! block in the [queue](mod@queue); it rests in `thread::park`. Waking it takes a futex call of one to five
//! microseconds, and more in a virtual machine, so this module decides which events wake it: see [`Attention`]. Where it is
//! woken more than once in a millisecond, it is woken no more: it looks by itself ([`SOON`]).
//!
//! **Overflow.** An event that does not fit opens a *gap*. From then on everything is dropped
//! until the worker has emptied the queue, has applied `Event::OutOfStep` to the ledger, and closes the
//! gap. So no event from after the gap is ever applied to the state from before it. If the first event
//! of a request is dropped, its id is *stranded*: it is kept aside, and reported as evicted. Otherwise
//! the index would keep the id for ever.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use contextpilot_observer::{Note, Stamp};
use contextpilot_residency::{Arrival, ContextId, Entries, Entry, Event, RequestId};
use contextpilot_worker::{DOZE, Item, NAP, Rest, Waiting, What};

use crate::base::bounds::{ENTRIES, EVENTS, EVENTS_BEFORE_WORKER, STRANDED};
use crate::base::clock;
use crate::base::status::STATUS;
use crate::base::{faults, mode};
use queue::{Receiver, Sender, queue};

mod queue;

/// Which events wake the worker: a set of [weights](Weight).
struct Attention(AtomicU8);

/// The worker is awake, and will look into the queue without being woken.
const AWAKE: u8 = 0;
/// The worker sleeps. Everything wakes it but a [`Weight::Announcement`], which is followed by an event that does.
const ASLEEP: u8 = Weight::Token as u8 | DOZING;
/// The worker looks again within [`DOZE`]; generated tokens do not wake it.
const DOZING: u8 = Weight::News as u8 | Weight::Result as u8 | NAPPING;
/// The worker looks again within [`NAP`]; only an event that cannot wait that long wakes it.
const NAPPING: u8 = Weight::Urgent as u8;

/// In place of being woken, the worker looks within [`LOOK`] whether it was to be.
const SOON: u8 = 32;
/// Some of these looks take less than being woken takes the host's thread. The index hears of an eviction that much later.
const LOOK: Duration = Duration::from_micros(300);
/// If it was woken twice within this time, the worker is not woken until it had nothing to do for as long.
const DENSE: Duration = Duration::from_millis(1);

/// How soon the worker must apply an event, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Weight {
    /// A request came, and its id is stored outside of the process: when the request's prompt is
    /// submitted, or before ids are reported that have waited ([`catch_up`]).
    Announcement = 1,
    /// A token was generated: within a [`DOZE`].
    Token = 2,
    /// Within a [`NAP`].
    News = 4,
    /// A prompt was evaluated: within a [`NAP`] for the index, but at once if there is an observer.
    Result = 8,
    /// At once.
    Urgent = 16,
}

/// After so many requests that did not wake the worker, the next one does, so that their ids
/// are in the journal before the ring reuses their places.
const ANNOUNCEMENTS: usize = 64;

/// How long the sender waits for the worker before it reports what has waited; and how often it looks.
const CATCH_UP: Duration = Duration::from_millis(50);
const CATCH_UP_LOOK: Duration = Duration::from_micros(100);

/// A request whose first event was dropped.
type Stranded = (Arrival, RequestId);

/// The queue, and what decides about waking and gaps.
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
    /// Something else than an evaluation has happened since the last evaluation.
    news: AtomicBool,
    /// The current evaluation is one of a prompt.
    prompt_evaluation: AtomicBool,
    /// Requests that did not wake the worker.
    announcements: AtomicUsize,
    /// How often the worker had applied everything, and rested. Wraps.
    rests: AtomicUsize,
}

/// The worker's end of the queue.
pub(crate) struct Inbox {
    events: Receiver<Item>,
    stranded: Receiver<Stranded>,
    /// When an event last ended the worker's rest.
    woken: Option<Instant>,
    /// That was so soon after the time before that it is not to be woken.
    is_dense: bool,
}

/// Created at the first event, so that inert processes have none.
static CHANNEL: OnceLock<Channel> = OnceLock::new();

/// The channel of this process.
pub(crate) fn get() -> &'static Channel {
    CHANNEL.get_or_init(Channel::new)
}

/// Sends an event to the worker. Call within [`guarded`](crate::base::guard::guarded) only.
pub(crate) fn push(event: Event) {
    let _ = try_push(event);
}

/// As [`push`], for an event that only an observer needs: it is not sent if there is none.
pub(crate) fn push_observed(event: Event) {
    if clock::is_engaged() {
        push(event);
    }
}

/// As [`push`]; false if there was no room. Everything that follows is then dropped, until the
/// ledger has started from empty.
#[inline(never)]
pub(crate) fn try_push(event: Event) -> bool {
    get().push(event)
}

/// As [`push`], of a batch that is passed to the engine. This one and [`evaluated`] are sent for every generated token: so it is
/// not asked of them which event they are.
#[inline(never)]
pub(crate) fn submitted(context: ContextId, entries: Entries) {
    get().submitted(context, entries);
}

/// As [`push`], of an evaluation that succeeded.
#[inline(never)]
pub(crate) fn evaluated(context: ContextId) {
    get().evaluated(context);
}

/// How many gaps were opened. What was sent before a gap no longer counts.
pub(crate) fn gaps() -> usize {
    CHANNEL
        .get()
        .map_or(0, |channel| channel.gaps.load(Ordering::Acquire))
}

/// Sends a note for the control endpoint and the log file, if there is one. Does not wake the
/// worker, and is dropped if there is no room.
pub(crate) fn note(note: impl FnOnce() -> Note) {
    if clock::is_engaged() {
        get().note(note(), clock::stamp());
    }
}

/// Sends the prompt with which a request waits. If there is no room, the request
/// counts as never cached.
pub(crate) fn tell_waiting(waiting: Waiting) {
    get().wait(waiting);
}

/// Sends the first event of a request. If there is no room, the id is stranded, and `false` says
/// that later events of the request need not be sent: its id will be reported as evicted.
/// (A request whose first event arrived needs no such care: the gap reports its id as evicted,
/// together with all others.)
///
/// `kept`: if the process dies, the next start will know the id.
pub(crate) fn introduce(event: Event, arrival: Arrival, id: &RequestId, kept: bool) -> bool {
    get().introduce(event, arrival, id, kept)
}

/// Something happened that no event can express: the ledger must start from empty.
pub(crate) fn desync() {
    if let Some(channel) = CHANNEL.get() {
        channel.open_gap();
        channel.wake(Weight::Urgent);
    }
}

/// Waits until the worker has applied all that was sent before this call, at most for [`CATCH_UP`]. Not on a thread of the
/// host's, nor on the worker.
pub(crate) fn catch_up() {
    if let Some(channel) = CHANNEL.get() {
        channel.catch_up();
    }
}

/// Wakes the worker, if there is one.
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
                woken: None,
                is_dense: false,
            })),
            worker: OnceLock::new(),
            attention: Attention(AtomicU8::new(AWAKE)),
            gap: AtomicBool::new(false),
            gaps: AtomicUsize::new(0),
            entries: AtomicUsize::new(0),
            news: AtomicBool::new(false),
            prompt_evaluation: AtomicBool::new(false),
            announcements: AtomicUsize::new(0),
            rests: AtomicUsize::new(0),
        }
    }

    fn push(&self, event: Event) -> bool {
        let weight = self.weigh(&event);
        self.push_or_strand(event, weight, None)
    }

    #[inline(always)]
    fn submitted(&self, context: ContextId, entries: Entries) {
        let weight = self.weigh_batch(&entries);
        let at = clock::stamp();
        let count = entries.len();
        let make = || Item {
            what: What::Event(Event::Submitted { context, entries }),
            at,
        };
        if self.send(count, make) {
            self.wake(weight);
        } else {
            self.lose(None);
        }
    }

    #[inline(always)]
    fn evaluated(&self, context: ContextId) {
        let weight = self.weigh_result();
        let at = clock::stamp();
        let make = || Item {
            what: What::Event(Event::Evaluated {
                context,
                failed: Vec::new(),
                no_room: false,
            }),
            at,
        };
        if self.send(0, make) {
            self.wake(weight);
        } else {
            self.lose(None);
        }
    }

    fn introduce(&self, event: Event, arrival: Arrival, id: &RequestId, kept: bool) -> bool {
        let can_wait = kept && self.announcements.fetch_add(1, Ordering::Relaxed) < ANNOUNCEMENTS;
        let weight = match event {
            Event::Posted { .. } if can_wait => Weight::Announcement,
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
        self.lose(newcomer);
        false
    }

    #[cold]
    fn lose(&self, newcomer: Option<(Arrival, &RequestId)>) {
        STATUS.events_lost.add(1);
        // Before the gap is opened, so that the thread that closes it finds the id.
        if let Some((arrival, id)) = newcomer {
            let stranded = (arrival, RequestId::clone(id));
            if self.stranded.send(stranded, STRANDED).is_err() {
                STATUS.ids_lost.add(1);
            }
        }
        self.open_gap();
        self.wake(Weight::Urgent);
    }

    /// False if there is no room.
    fn enqueue(&self, event: Event) -> bool {
        let entries = entries_of(&event);
        let at = match event {
            Event::Posted { .. }
            | Event::Launched { .. }
            | Event::Submitted { .. }
            | Event::Evaluated { .. }
            | Event::Answered { .. }
            | Event::Replaced { .. }
            | Event::Obscured { .. }
            // The whole of a sequence.
            | Event::Removed { from: ..=0, to: ..0, .. } => clock::stamp(),
            _ => Stamp::default(),
        };
        self.send(entries, || Item {
            what: What::Event(event),
            at,
        })
    }

    fn note(&self, note: Note, at: Stamp) {
        let tokens = tokens_in(&note);
        let make = || Item {
            what: What::Note(note),
            at,
        };
        if self.send(tokens, make) {
            self.wake(Weight::News);
        }
    }

    fn wait(&self, waiting: Waiting) {
        let tokens = tokens_of(&waiting);
        let make = || Item {
            what: What::Waiting(waiting),
            at: Stamp::default(),
        };
        if self.send(tokens, make) {
            self.wake(Weight::News);
        }
    }

    /// Reserves room for so many entries; false if there is none.
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

    /// Sends an item of so many entries, which is made where it is put. False if a gap is open, or there is no room.
    #[inline(always)]
    fn send(&self, entries: usize, make: impl FnOnce() -> Item) -> bool {
        if self.has_gap() || !self.take_room(entries) {
            return false;
        }
        let sent = self.events.send_made(most(), make);
        if !sent {
            self.give_room(entries);
        }
        sent
    }

    /// How soon the worker must apply this event.
    ///
    /// Evictions are decided when the batch of a prompt is submitted. That is a batch with more
    /// than one token of some sequence, or the first batch after something else than evaluations
    /// happened. Such a batch wakes the worker. The events just before it (the request, on an HTTP
    /// thread; a launch, removals, saves) would only wake the worker more often, and the events after
    /// it evict nothing. A generated token does not wake the worker. If no batch follows (an erased slot), the
    /// worker's next look is soon enough, unless the worker dozes and expects only tokens.
    fn weigh(&self, event: &Event) -> Weight {
        match event {
            Event::Submitted { entries, .. } => self.weigh_batch(entries),
            Event::Evaluated { failed, .. } if !failed.is_empty() => Weight::Urgent,
            Event::Evaluated { .. } => self.weigh_result(),
            // Only an observer needs it.
            Event::Posted { id: None, .. } => Weight::News,
            // On an HTTP thread: the journal must have the id soon.
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

    #[inline(always)]
    fn weigh_batch(&self, entries: &[Entry]) -> Weight {
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

    /// Of a batch that was evaluated.
    #[inline(always)]
    fn weigh_result(&self) -> Weight {
        if self.prompt_evaluation.load(Ordering::Relaxed) {
            Weight::Result
        } else {
            Weight::Token
        }
    }

    fn open_gap(&self) {
        // Counted first: a thread that sends something in the gap must not take it for received.
        self.gaps.fetch_add(1, Ordering::AcqRel);
        self.gap.store(true, Ordering::Release);
    }

    #[inline]
    fn wake(&self, weight: Weight) {
        // SeqCst pairs with `rest`: either we see that the worker is about to rest, or it sees
        // the event (whose place in the queue was taken by a SeqCst operation too).
        if weight as u8 & self.attention.0.load(Ordering::SeqCst) != 0 {
            // The first sender to notice wakes the worker; the others need not.
            let before = self.attention.0.swap(AWAKE, Ordering::SeqCst);
            if before != AWAKE && before & SOON == 0 {
                if let Some(worker) = self.worker.get() {
                    worker.unpark();
                }
            }
        }
    }

    /// Wakes the worker.
    pub(crate) fn nudge(&self) {
        self.wake(Weight::Urgent);
    }

    fn catch_up(&self) {
        let before = self.rests.load(Ordering::SeqCst);
        self.nudge();
        let end = Instant::now() + CATCH_UP;
        while self.rests.load(Ordering::SeqCst) == before && Instant::now() < end {
            thread::sleep(CATCH_UP_LOOK);
        }
    }

    // The worker's side.

    /// The receiving end, for the one worker.
    pub(crate) fn take_inbox(&self) -> Option<Inbox> {
        self.inbox
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Makes the calling thread the one to wake.
    pub(crate) fn attend(&self) {
        let _ = self.worker.set(thread::current());
    }

    /// The next item, if there is one.
    pub(crate) fn next(&self, inbox: &mut Inbox) -> Option<Item> {
        let item = inbox.events.take()?;
        match &item.what {
            What::Event(event) => self.give_room(entries_of(event)),
            What::Waiting(waiting) => self.give_room(tokens_of(waiting)),
            What::Note(note) => self.give_room(tokens_in(note)),
        }
        Some(item)
    }

    /// Closes the gap, and says whether there was one. Call when the queue is empty: all events from
    /// before the gap have been applied then, and all events that are sent from now on come after it.
    pub(crate) fn close_gap(&self) -> bool {
        self.gap.load(Ordering::Relaxed) && self.gap.swap(false, Ordering::AcqRel)
    }

    /// Rests until there is something to do.
    pub(crate) fn rest(&self, inbox: &mut Inbox, rest: Rest) {
        self.announcements.store(0, Ordering::Relaxed);
        let start = Instant::now();
        let soon = inbox.looks_by_itself(start);
        let attention = attention(rest) | if soon { SOON } else { 0 };
        self.attention.0.store(attention, Ordering::SeqCst);
        if inbox.events.is_empty() && !self.gap.load(Ordering::SeqCst) {
            self.rests.fetch_add(1, Ordering::SeqCst);
            match rest.longest {
                _ if soon => self.look(start, rest.longest.unwrap_or(DENSE).min(DENSE)),
                Some(longest) => thread::park_timeout(longest),
                None => thread::park(),
            }
        }
        if self.attention.0.swap(AWAKE, Ordering::SeqCst) == AWAKE {
            inbox.note_woken(Instant::now());
        }
    }

    /// Rests until an event asks for the worker, at most so long.
    fn look(&self, start: Instant, longest: Duration) {
        loop {
            let left = longest.saturating_sub(start.elapsed());
            if left.is_zero() || self.attention.0.load(Ordering::SeqCst) == AWAKE {
                return;
            }
            thread::park_timeout(LOOK.min(left));
        }
    }
}

/// The weights that wake a worker in this state of rest.
fn attention(rest: Rest) -> u8 {
    let expected = match rest.longest {
        Some(longest) if rest.generating && longest <= DOZE => DOZING,
        Some(longest) if longest <= NAP => NAPPING,
        _ => ASLEEP,
    };
    if rest.watched {
        expected | Weight::Result as u8
    } else {
        expected
    }
}

impl Inbox {
    /// An event has ended the worker's rest.
    fn note_woken(&mut self, now: Instant) {
        let before = self.woken.replace(now);
        self.is_dense = before.is_some_and(|before| now.duration_since(before) < DENSE);
    }

    /// Whether the worker is not to be woken in the rest that begins.
    fn looks_by_itself(&self, now: Instant) -> bool {
        let is_recent = |woken: Instant| now.duration_since(woken) < DENSE;
        self.is_dense && self.woken.is_some_and(is_recent)
    }

    /// The next stranded request.
    pub(crate) fn stranded(&mut self) -> Option<Stranded> {
        self.stranded.take()
    }
}

/// How many events may wait.
#[inline]
fn most() -> usize {
    if mode::is_running() {
        EVENTS
    } else {
        EVENTS_BEFORE_WORKER
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

fn tokens_in(note: &Note) -> usize {
    match note {
        Note::Kept { kept, .. } => kept.weight(),
        _ => 0,
    }
}

/// Whether a batch has more than one entry of some sequence. llama-server submits the entries of a
/// sequence side by side. If some server does not, the worker applies the event one nap later.
fn is_prompt(entries: &[Entry]) -> bool {
    entries
        .windows(2)
        .any(|pair| pair[0].sequence == pair[1].sequence)
}

#[cfg(test)]
mod tests;
