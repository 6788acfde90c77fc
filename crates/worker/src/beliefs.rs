//! What the index believes to be cached here, and what has to be said about it.
//!
//! Kept apart from the ledger, so that everything can still be taken back after an error in the
//! ledger; and on disk, so that the next start can take it back after a crash.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use contextpilot_delivery::Sender;
use contextpilot_journal::{Journal, Recent};
use contextpilot_residency::{Arrival, Effect, RequestId};

use crate::library::Library;

/// While the index is being told, how often to look whether it has been; and how long the journal
/// gives way to the engine.
const LOOK: Duration = Duration::from_millis(250);

/// The ids that the index believes in.
pub(crate) struct Beliefs {
    sender: Arc<Sender>,
    journal: Journal,
    live: HashSet<RequestId>,
    /// What the last process left, until it is told.
    lost: Vec<RequestId>,
    /// Requests whose ids are kept until the journal has them.
    recent: Vec<Arrival>,
    /// That of the request that is spoken about is.
    kept: bool,
    /// An id came that is kept nowhere but in memory.
    unwritten: bool,
    /// Evictions are on their way to the index.
    telling: bool,
    /// Since when nothing was written because the engine was busy.
    put_off: Option<Instant>,
}

impl Beliefs {
    /// The ids that the last process of this instance left are gone. They are told so by the
    /// first [`keep`](Self::keep), when it is known which of them have come back already.
    pub(crate) fn new(
        sender: Arc<Sender>,
        journal: Journal,
        lost: Vec<RequestId>,
        library: &dyn Library,
    ) -> Self {
        if let Some(recent) = journal.recent() {
            library.keep_recent(recent);
        }
        Self {
            sender,
            journal,
            live: HashSet::new(),
            lost,
            recent: Vec::new(),
            kept: false,
            unwritten: false,
            telling: false,
            put_off: None,
        }
    }

    /// What is said next is about this request, if about any.
    pub(crate) fn about(&mut self, arrival: Option<Arrival>) {
        let kept = arrival.filter(|arrival| {
            let recent = self.journal.recent();
            recent.is_some_and(|recent| recent.holds(arrival.0))
        });
        self.kept = kept.is_some();
        if let Some(arrival) = kept {
            self.recent.push(arrival);
            // So that none is overwritten before it is written.
            let first = self.recent.first().unwrap_or(&arrival);
            self.unwritten |= Recent::is_far(first.0, arrival.0);
        }
    }

    pub(crate) fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Awaited { id } | Effect::Cached { id, .. } => {
                self.sender.withdraw(&id);
                if !self.live.contains(&id) {
                    self.journal.note_live(&id);
                    self.live.insert(id);
                    self.unwritten |= !self.kept;
                }
            }
            Effect::Evicted { id, .. } => self.take_back(id),
        }
    }

    /// The index is to be told that this id is gone, whether it was ever here or not.
    pub(crate) fn take_back(&mut self, id: RequestId) {
        if !self.live.remove(&id) {
            // If the process dies before it is told, the next one has to.
            self.journal.note_live(&id);
            self.unwritten |= !self.kept;
        }
        self.journal.note_evicted(&id);
        self.sender.evict(id);
        self.telling = true;
    }

    /// Everything that is believed is to be told as gone. Returns how many ids that were.
    pub(crate) fn take_back_all(&mut self) -> usize {
        let ids = std::mem::take(&mut self.live);
        let count = ids.len();
        for id in &ids {
            self.journal.note_evicted(id);
        }
        self.telling |= count > 0;
        self.sender.evict_all(ids);
        count
    }

    /// Brings the journal up to date, as far as that is due.
    ///
    /// New ids can wait, as the thread that received them has kept them: a few writes a second.
    /// One that is not is written as soon as there is nothing else to do, since it would stay in
    /// the index if the process were killed. What is gone can wait: at worst it is told twice.
    /// `busy`: somebody waits for a first token, so what can wait does, for at most [`LOOK`] more.
    pub(crate) fn keep(&mut self, now: Instant, busy: bool) {
        if !self.lost.is_empty() {
            let mut lost = std::mem::take(&mut self.lost);
            lost.retain(|id| !self.live.contains(id));
            self.telling |= !lost.is_empty();
            self.sender.evict_all(lost);
        }
        if self.telling {
            // Asked first: what is settled in between is found the next time.
            let stats = self.sender.stats();
            self.telling = stats.waiting + stats.in_flight > 0;
            for id in self.sender.take_settled() {
                self.journal.note_gone(&id);
            }
        }
        if std::mem::take(&mut self.unwritten) {
            self.journal.flush();
        } else if busy && now.saturating_duration_since(*self.put_off.get_or_insert(now)) < LOOK {
            return;
        } else {
            self.journal.flush_if_due(now);
        }
        self.put_off = None;
        if !self.recent.is_empty() && self.journal.is_written() {
            let recent = self.journal.recent();
            for arrival in self.recent.drain(..) {
                if let Some(recent) = &recent {
                    recent.release(arrival.0);
                }
            }
        }
    }

    /// Whether evictions are on their way to the index.
    pub(crate) fn telling(&self) -> bool {
        self.telling
    }

    /// When to [`keep`](Self::keep) next, from now on; `None`: when something has happened.
    pub(crate) fn rest(&self, now: Instant) -> Option<Duration> {
        let due = self.journal.due(now);
        let due = due.map(|due| due.saturating_duration_since(now));
        let look = self.telling.then_some(LOOK);
        due.into_iter().chain(look).min()
    }

    /// The end: what was not told remains for the next start.
    pub(crate) fn close(mut self) {
        for id in self.sender.take_settled() {
            self.journal.note_gone(&id);
        }
        self.journal.close();
    }
}
