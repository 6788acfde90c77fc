//! What the index believes to be cached here, and what has to be said about it.
//!
//! Kept apart from the ledger, so that everything can still be taken back after an error in the
//! ledger; and on disk, so that the next start can take it back after a crash.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use contextpilot_delivery::Sender;
use contextpilot_journal::Journal;
use contextpilot_residency::{Effect, RequestId};

/// While the index is being told, how often to look whether it has been.
const LOOK: Duration = Duration::from_millis(250);

/// The ids that the index believes in.
pub(crate) struct Beliefs {
    sender: Arc<Sender>,
    journal: Journal,
    live: HashSet<RequestId>,
    /// What the last process left, until it is told.
    lost: Vec<RequestId>,
    /// An id came that the journal has not written.
    unwritten: bool,
    /// Evictions are on their way to the index.
    telling: bool,
}

impl Beliefs {
    /// The ids that the last process of this instance left are gone. They are told so by the
    /// first [`keep`](Self::keep), when it is known which of them have come back already.
    pub(crate) fn new(sender: Arc<Sender>, journal: Journal, lost: Vec<RequestId>) -> Self {
        Self {
            sender,
            journal,
            live: HashSet::new(),
            lost,
            unwritten: false,
            telling: false,
        }
    }

    pub(crate) fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Awaited { id } | Effect::Cached { id, .. } => {
                self.sender.withdraw(&id);
                if !self.live.contains(&id) {
                    self.journal.note_live(&id);
                    self.live.insert(id);
                    self.unwritten = true;
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
            self.unwritten = true;
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
    /// A new id is written as soon as there is nothing else to do, since one that is not on disk
    /// when the process is killed stays in the index. That is a write a request at most, and for
    /// many that come at once a single one. What is gone can wait: at worst it is told twice.
    pub(crate) fn keep(&mut self, now: Instant) {
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
        } else {
            self.journal.flush_if_due(now);
        }
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
