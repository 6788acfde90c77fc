//! Which sequences of a program are at work.
//!
//! A program does not say when it has had enough of an answer: it just evaluates nothing more. So a sequence is at work
//! while a batch with tokens of it is being evaluated, and for a second after that.

use std::collections::{BTreeMap, BTreeSet};

use contextpilot_observer::Stamp;
use contextpilot_residency::program::{context_of, slot_of};
use contextpilot_residency::{Event, SequenceId};

/// How long a sequence counts as at work after its last batch, nanoseconds.
const AFTER: u64 = 1_000_000_000;

/// What each context does, by its place. It gets each event when it comes, also those that wait for the ledger.
#[derive(Default)]
pub(super) struct AtWork {
    contexts: BTreeMap<usize, ContextWork>,
}

#[derive(Default)]
struct ContextWork {
    /// The sequences in the batch that is being evaluated.
    now: BTreeSet<SequenceId>,
    /// When the last batch of each ended.
    ended: BTreeMap<SequenceId, Stamp>,
}

impl AtWork {
    pub(super) fn note(&mut self, event: &Event, at: Stamp) {
        let Some(context) = context_of(event) else {
            return;
        };
        match event {
            Event::ContextCreated { .. } | Event::ContextFreed { .. } => {
                self.contexts.remove(&context.0);
            }
            Event::Submitted { entries, .. } => {
                let work = self.contexts.entry(context.0).or_default();
                work.end(at);
                let runs = entries.chunk_by(|a, b| a.sequence == b.sequence);
                work.now = runs.map(|run| slot_of(context, run[0].sequence)).collect();
            }
            // The second: the engine threw.
            Event::Evaluated { .. } | Event::Obscured { sequence: ..0, .. } => {
                let work = self.contexts.entry(context.0).or_default();
                work.end(at);
            }
            _ => {}
        }
    }

    /// Events were lost, perhaps the end of a batch.
    pub(super) fn desync(&mut self) {
        self.contexts.clear();
    }

    pub(super) fn slots(&self, now: Stamp) -> BTreeSet<SequenceId> {
        let is_recent = |at: Stamp| at.0 > 0 && now.0.saturating_sub(at.0) < AFTER;
        let each = self.contexts.values().flat_map(|work| {
            let ended = work.ended.iter().filter(move |(_, at)| is_recent(**at));
            work.now.iter().chain(ended.map(|(slot, _)| slot))
        });
        each.copied().collect()
    }
}

impl ContextWork {
    fn end(&mut self, at: Stamp) {
        let ended = std::mem::take(&mut self.now).into_iter();
        self.ended.extend(ended.map(|slot| (slot, at)));
    }
}

#[cfg(test)]
mod tests {
    use contextpilot_residency::{ContextId, Entry};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn submitted(place: usize, sequences: &[i32]) -> Event {
        let entry = |&sequence: &i32| Entry {
            sequence,
            position: 0,
            token: 1,
            output: true,
        };
        Event::Submitted {
            context: ContextId(place),
            entries: sequences.iter().map(entry).collect(),
        }
    }

    fn evaluated(place: usize) -> Event {
        Event::Evaluated {
            context: ContextId(place),
            failed: Vec::new(),
            no_room: false,
        }
    }

    #[track_caller]
    fn must_be(work: &AtWork, at: u64, slots: &[i32]) {
        assert_eq!(work.slots(Stamp(at)), slots.iter().copied().collect());
    }

    #[test]
    fn a_sequence_is_at_work_while_it_is_evaluated_and_for_a_second_after_that() {
        let mut work = AtWork::default();
        must_be(&work, 1, &[]);
        work.note(&submitted(0, &[0, 3]), Stamp(1));
        // Another context begins and ends meanwhile.
        work.note(&submitted(1, &[2]), Stamp(2));
        must_be(&work, 60 * SECOND, &[0, 3, 1002]);
        work.note(&evaluated(1), Stamp(60 * SECOND));
        must_be(&work, 61 * SECOND - 1, &[0, 3, 1002]);
        must_be(&work, 61 * SECOND, &[0, 3]);
        work.note(&evaluated(0), Stamp(61 * SECOND));
        // A generated token.
        work.note(&submitted(0, &[3]), Stamp(61 * SECOND + 1));
        work.note(&evaluated(0), Stamp(61 * SECOND + SECOND / 2));
        must_be(&work, 62 * SECOND, &[3]);
        must_be(&work, 63 * SECOND, &[]);
    }

    #[test]
    fn what_is_freed_or_has_thrown_is_not_at_work() {
        let context = ContextId(0);
        for (over, until) in [
            (Event::ContextFreed { context }, 1),
            (
                Event::Obscured {
                    context,
                    sequence: -1,
                },
                SECOND + 1,
            ),
        ] {
            let mut work = AtWork::default();
            work.note(&submitted(0, &[0]), Stamp(1));
            work.note(&over, Stamp(1));
            must_be(&work, until, &[]);
        }
        let mut work = AtWork::default();
        work.note(&submitted(0, &[0]), Stamp(1));
        work.desync();
        must_be(&work, 1, &[]);
    }
}
