//! What the engine's silence decides: whether a slot stays empty, and whether a branch that the slot
//! left is lost.

use super::Ledger;
use crate::fact::{Fact, Place, Reason};
use crate::ids::SequenceId;
use std::time::Duration;

/// After this silence, a sequence that was emptied and has no task stays empty.
/// The server empties a slot and gives it a task within one pass of its queue.
const EMPTIED: Duration = Duration::from_millis(10);
/// After this silence, no slot is at work: the server submits the next batch of
/// a task as soon as the last one is done.
const IDLE: Duration = Duration::from_millis(100);
/// After this silence, a task is over, even if nothing else says so. This is longer, because the
/// encoding of an image is silent too.
const ABANDONED: Duration = Duration::from_secs(1);

impl Ledger {
    pub(super) fn quiet(&mut self, elapsed: Duration, facts: &mut Vec<Fact>) {
        if elapsed < EMPTIED {
            return;
        }
        let idle = elapsed >= IDLE && !self.batch.evaluating;
        let decided: Vec<(SequenceId, Reason)> = self
            .sequences
            .iter()
            .filter(|(_, sequence)| sequence.ghost.is_some() || self.has_unsettled_blend(sequence))
            .filter_map(|(&id, sequence)| {
                let emptied = self.is_empty(sequence);
                let certain = match &sequence.launch {
                    None => emptied || idle,
                    // An embedding task that is done: the server has emptied its slot.
                    Some(launch) if launch.mark.is_some() && emptied => true,
                    Some(launch) => match launch.request {
                        None => idle && elapsed >= ABANDONED,
                        Some(name) => {
                            idle && self.requests.get(name).is_none_or(|request| {
                                let unclaimed = request.evaluation.is_some();
                                request.answered || (unclaimed && elapsed >= ABANDONED)
                            })
                        }
                    },
                };
                let reason = if emptied {
                    Reason::Cleared
                } else {
                    Reason::Overwritten
                };
                certain.then_some((id, reason))
            })
            .collect();
        for (id, reason) in decided {
            self.release_ghost(id, reason, facts);
            self.settle_blend(id, facts);
        }
        self.review_changed(facts);
        if idle {
            for name in self.requests.answered_incomplete().collect::<Vec<_>>() {
                self.end(name, Reason::NeverCached, Place::Nowhere, facts);
            }
        }
    }
}
