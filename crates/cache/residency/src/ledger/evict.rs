//! Evictions: a request ends because its tokens are gone, because it was never cached, or because it
//! can no longer be tracked.

use super::Ledger;
use crate::fact::{Fact, Place, Reason};
use crate::ids::{RequestId, SequenceId};
use crate::jobs::Jobs;
use crate::requests::{MarkKind, RequestKey, Requests};
use crate::tree::Holder;

impl Ledger {
    /// Removes a request and its marks, and says nothing of it.
    pub(super) fn forget(&mut self, name: RequestKey) -> Option<RequestId> {
        let request = self.requests.remove(name)?;
        for mark in request.all_marks() {
            self.tree.unmark(mark);
        }
        Some(request.id)
    }

    /// A request is not cached any more, or cannot be: reports it as evicted.
    pub(super) fn end(
        &mut self,
        name: RequestKey,
        reason: Reason,
        place: Place,
        facts: &mut Vec<Fact>,
    ) {
        let request = self.requests.get(name);
        if let Some(evaluation) = request.and_then(|request| request.evaluation) {
            self.lose_unclaimed(evaluation, reason, place, facts);
        } else if let Some(id) = self.forget(name) {
            let jobs = self.jobs.as_ref();
            let by = jobs.and_then(|jobs| jobs.evicts(reason, place));
            facts.push(Fact::Evicted {
                id,
                reason,
                place,
                by,
            });
        }
    }

    /// Removes a holder and evicts the requests that only this holder kept cached.
    pub(super) fn release(
        &mut self,
        holder: Holder,
        reason: Reason,
        place: Place,
        facts: &mut Vec<Fact>,
    ) {
        let above = self.wanting_above(holder);
        self.tree.release(holder, &mut self.lost);
        self.evict_lost(reason, place, facts);
        self.review_wanting(&above, reason, place, facts);
    }

    pub(super) fn evict_lost(&mut self, reason: Reason, place: Place, facts: &mut Vec<Fact>) {
        if self.lost.is_empty() {
            return;
        }
        let mut lost = std::mem::take(&mut self.lost);
        // Lost marks are no longer in the tree: they must not be removed from it again.
        for label in &lost {
            if let Some(request) = self.requests.get_mut(label.request) {
                request.lose_mark(label.nth(), label.kind);
            }
        }
        for label in lost.iter().filter(|label| label.kind != MarkKind::End) {
            self.end(label.request, reason, place, facts);
        }
        lost.clear();
        self.lost = lost;
    }

    /// Decides that the undecided branch of a slot is lost.
    pub(super) fn release_ghost(&mut self, id: SequenceId, reason: Reason, facts: &mut Vec<Fact>) {
        let ghost = self
            .sequences
            .get_mut(&id)
            .and_then(|sequence| sequence.ghost.take());
        if let Some(ghost) = ghost {
            let reason = if ghost.shifted {
                Reason::Shifted
            } else {
                reason
            };
            self.release(ghost.holder, reason, Place::Slot(id), facts);
        }
    }

    pub(super) fn reset(&mut self, facts: &mut Vec<Fact>) {
        for name in self.requests.live() {
            let request = self.requests.get(name);
            if request.is_some_and(|request| request.evaluation.is_none()) {
                self.give_up(name, Reason::Reset, facts);
            }
        }
    }

    /// Reports a request as evicted although it may still be cached: it is no longer tracked.
    pub(super) fn give_up(&mut self, name: RequestKey, reason: Reason, facts: &mut Vec<Fact>) {
        let request = self.requests.get(name);
        let found = request.and_then(|request| self.whereabouts(&request.id));
        let place = found.unwrap_or_default().place();
        self.end(name, reason, place, facts);
    }

    pub(super) fn out_of_step(&mut self, facts: &mut Vec<Fact>) {
        self.tell(facts, || Fact::OutOfStep);
        let jobs = self.jobs.take().map(|_| Jobs::default());
        for name in self.requests.live() {
            self.end(name, Reason::OutOfStep, Place::Nowhere, facts);
        }
        self.requests.clear();
        self.reaches.clear();
        self.adapters.desync();
        self.gap.open();
        *self = Self {
            contexts: std::mem::take(&mut self.contexts),
            requests: std::mem::replace(&mut self.requests, Requests::new()),
            reaches: std::mem::take(&mut self.reaches),
            adapters: std::mem::take(&mut self.adapters),
            jobs,
            gap: std::mem::take(&mut self.gap),
            ..Self::new()
        };
    }
}
