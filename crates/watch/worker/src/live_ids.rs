//! The live ids: those that the index believes to be cached here.
//!
//! They are kept apart from the ledger, so that all of them can be reported as evicted after a panic in
//! the ledger. They are also kept on disk (the journal), so that the next start can do that after a crash.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use contextpilot_delivery::Sender;
use contextpilot_journal::{Journal, Recent};
use contextpilot_residency::{Arrival, Fact, RequestId};

use crate::library::Library;

/// How often to look whether reports were confirmed, while some are under way; and how long a write to
/// the journal may be put off while the engine is busy.
const LOOK: Duration = Duration::from_millis(250);

/// More than there are at once, unless the journal cannot be written.
const MOST_RECENT: usize = 1 << 13;

/// The live ids, and what has to be reported about them.
pub(crate) struct LiveIds {
    sender: Arc<Sender>,
    journal: Journal,
    live: HashSet<RequestId>,
    /// Live ids that the last process left, until they are reported.
    lost: Vec<RequestId>,
    /// Requests whose ids are in the ring until the journal has them.
    recent: Vec<Arrival>,
    /// The id of the request that the current event is about. If the ledger panics, it must be reported,
    /// too.
    current: Option<RequestId>,
    /// That id is already in the ring.
    kept: bool,
    /// An id came that is neither in the ring nor in the journal.
    unwritten: bool,
    /// Evictions are being reported to the index.
    reporting: bool,
    /// Since when writing was put off because the engine was busy.
    put_off: Option<Instant>,
}

impl LiveIds {
    /// `lost`: the live ids that the last process of this instance left. The first [`update_journal`](Self::update_journal)
    /// reports them as evicted, except those that have come again by then.
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
            current: None,
            kept: false,
            unwritten: false,
            reporting: false,
            put_off: None,
        }
    }

    /// An event about this request is about to be applied.
    pub(crate) fn begin(&mut self, request: Option<(Arrival, &RequestId)>) {
        self.current = request.map(|(_, id)| id.clone());
        self.kept = false;
        let kept = request.map(|(arrival, _)| arrival).filter(|arrival| {
            let recent = self.journal.recent();
            recent.is_some_and(|recent| recent.holds(arrival.0))
        });
        self.kept = kept.is_some();
        if let Some(arrival) = kept {
            self.recent.push(arrival);
            if self.recent.len() > MOST_RECENT {
                // The journal cannot be written, and the ring holds later ids in their slots.
                let recent = self.journal.recent();
                self.recent
                    .retain(|arrival| recent.as_ref().is_some_and(|ring| ring.holds(arrival.0)));
            }
            // The ring must not overwrite an id before the journal has it.
            let first = self.recent.first().unwrap_or(&arrival);
            self.unwritten |= Recent::is_far(first.0, arrival.0);
        }
    }

    /// All facts of the event were passed to [`apply`](Self::apply).
    pub(crate) fn end(&mut self) {
        self.current = None;
    }

    pub(crate) fn apply(&mut self, fact: Fact) {
        match fact {
            Fact::Awaited { id } | Fact::Cached { id, .. } => {
                self.sender.withdraw(&id);
                if !self.live.contains(&id) {
                    self.journal.note_live(&id);
                    self.live.insert(id);
                    self.unwritten |= !self.kept;
                }
            }
            Fact::Evicted { id, .. } => self.report(id),
            // The other facts are for observers.
            _ => {}
        }
    }

    /// Reports this id as evicted, whether it was live or not.
    pub(crate) fn report(&mut self, id: RequestId) {
        if !self.live.remove(&id) {
            // If the process dies before the report, the next process has to make it.
            self.journal.note_live(&id);
            self.unwritten |= !self.kept;
        }
        self.journal.note_evicted(&id);
        self.sender.evict(id);
        self.reporting = true;
    }

    /// The ledger panicked: reports all live ids, and that of the current request.
    pub(crate) fn report_all_after_panic(&mut self) {
        if let Some(id) = self.current.take() {
            self.report(id);
        }
        self.report_all();
    }

    /// Reports all live ids as evicted. Returns their number.
    pub(crate) fn report_all(&mut self) -> usize {
        let ids = std::mem::take(&mut self.live);
        let count = ids.len();
        for id in &ids {
            self.journal.note_evicted(id);
        }
        self.reporting |= count > 0;
        self.sender.evict_all(ids);
        count
    }

    /// Brings the journal up to date, as far as that is due.
    ///
    /// New ids can wait for one of a few writes a second, because the thread that received them has
    /// stored them in the ring. An id that is not in the ring is written as soon as there is nothing else
    /// to do: the index would keep it if the process were killed. Evictions can wait: at worst they are
    /// reported twice. `busy`: a client waits for a first token, so writes that can wait are put off, for at
    /// most [`LOOK`].
    pub(crate) fn update_journal(&mut self, now: Instant, busy: bool) {
        if !self.lost.is_empty() {
            let mut lost = std::mem::take(&mut self.lost);
            lost.retain(|id| !self.live.contains(id));
            self.reporting |= !lost.is_empty();
            self.sender.evict_all(lost);
        }
        if self.reporting {
            // Read this first: what is settled in between is found at the next call.
            let stats = self.sender.stats();
            self.reporting = stats.waiting + stats.in_flight > 0;
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

    /// When to call [`update_journal`](Self::update_journal) next, from now; `None`: after the next event.
    pub(crate) fn rest(&self, now: Instant) -> Option<Duration> {
        let due = self.journal.due(now);
        let due = due.map(|due| due.saturating_duration_since(now));
        let look = self.reporting.then_some(LOOK);
        due.into_iter().chain(look).min()
    }

    /// Closes the journal. Ids whose eviction is not confirmed remain in it for the next start. Returns whether all of
    /// them do.
    pub(crate) fn close(mut self) -> bool {
        for id in self.sender.take_settled() {
            self.journal.note_gone(&id);
        }
        self.journal.close()
    }
}
