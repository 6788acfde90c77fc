//! Batches: where the evaluation of a prompt begins and goes on.

use super::Accounts;
use super::open::Begun;
use crate::entries::Entry;
use crate::ids::{BufferId, CacheEntry, SequenceId};
use crate::ledger::Ledger;
use crate::token::Position;
use std::collections::HashMap;

impl Accounts {
    pub(super) fn submitting(&mut self, entries: &[Entry], ledger: &Ledger) {
        self.batched = self.clock;
        self.launched = None;
        self.losses.unclaim();
        self.batch.clear();
        let begins = entries
            .chunk_by(|a, b| a.sequence == b.sequence)
            .filter_map(|run| self.slots.get(&run[0].sequence))
            .any(|place| place.open.as_ref().is_some_and(|open| open.begun.is_none()));
        let mut moment = 0;
        if begins {
            // The prompt will be compared with the past: record what all slots hold by now.
            for slot in ledger.slots() {
                self.keep(slot, ledger);
            }
            moment = self.past.begin();
        }
        for run in entries.chunk_by(|a, b| a.sequence == b.sequence) {
            let slot = run[0].sequence;
            let place = self.slots.entry(slot).or_default();
            // A batch for no prompt is the server's warm-up, before it serves.
            let serves = place.open.is_some() || place.owner > 0;
            let drafts = run.len() > 1 && run.iter().all(|entry| entry.output);
            place.drafted = if drafts { run.len() as u32 } else { 0 };
            place.dirty |= serves;
            if serves {
                place.used = self.clock;
            }
            let Some(open) = &mut place.open else {
                continue;
            };
            if open.begun.is_none() {
                place.owner = open.nth;
                let mut prepared = std::mem::take(&mut place.prepared);
                prepared.adapted = self.adapted;
                let own = place.own.take();
                let decided = open.decided;
                let was = |holds| was_in(holds, decided, &self.saved);
                let now = (moment, self.clock);
                open.begun = Some(Begun::look(slot, own, run, ledger, was, prepared, now));
            }
            open.submitting(run);
            let ends = run.last().is_some_and(|entry| entry.output);
            self.batch.push((slot, ends));
        }
    }

    /// Entries of the batch came from the prefix store.
    pub(super) fn loaded(
        &mut self,
        sequence: SequenceId,
        positions: (Position, Position),
        entries: u32,
    ) {
        let place = self.slots.get_mut(&sequence);
        if let Some(open) = place.and_then(|place| place.open.as_mut()) {
            open.loaded(positions, entries);
        }
    }

    pub(super) fn evaluated(&mut self, failed: bool) {
        for place in self.slots.values_mut() {
            if let Some(open) = &mut place.open {
                open.evaluated(failed);
            }
        }
    }
}

/// Where a holder was when the engine chose a slot, at time `decided`: a host entry that was saved
/// later was still in its slot.
fn was_in(
    holds: CacheEntry,
    decided: u64,
    saved: &HashMap<BufferId, (u64, SequenceId)>,
) -> CacheEntry {
    let CacheEntry::Host(buffer) = holds else {
        return holds;
    };
    match saved.get(&buffer) {
        Some(&(at, slot)) if at > decided => CacheEntry::Slot(slot),
        _ => holds,
    }
}
