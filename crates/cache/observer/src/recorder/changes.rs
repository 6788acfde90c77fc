//! Changes of slots other than by evaluation: clients erase and restore slots, and requests are
//! refused.
//!
//! The server also empties slots by itself: idle slots when it launches a task (`--cache-idle-slots`),
//! idle slots when a batch failed, and the slot of a further answer to a prompt (`n`) that is over. A
//! simulation knows these rules, so such changes are not recorded. A slot that is emptied otherwise was
//! erased by a client.

use std::collections::HashMap;

use contextpilot_residency::{Adapter, Ledger, Scale, SequenceId, Token};
use contextpilot_traffic::{Applied, ChangeKind, Refusal, SlotChange};

use super::slot::{Emptied, Open, media_in, with_rows};
use super::{Recorder, append, micros};
use crate::note::Stamp;

impl Recorder {
    /// Call when positions of a slot are removed. The server removes the end of a slot's content before it
    /// evaluates something else there. It removes the middle when it shifts the context.
    pub(super) fn removed(
        &mut self,
        sequence: SequenceId,
        (from, to): (i32, i32),
        at: Stamp,
        ledger: &Ledger,
    ) {
        let held = ledger.held(sequence);
        let upto_end = u32::try_from(to).map_or(true, |to| to >= held);
        let is_whole = from <= 0 && upto_end;
        let mut is_own = self.stage.empties_slots(self.clears_idle());
        let slot = self.slots.get_mut(&sequence);
        if let Some(open) = slot.and_then(|slot| slot.open.as_mut()) {
            if open.prompting {
                // The server removes what the new prompt cannot reuse. Or its work on the prompt is over: it was an
                // embedding's, its client has left, or a batch of it has failed.
                if is_whole && held > 0 && !open.record.breaks.is_empty() {
                    open.emptied = Some(Emptied {
                        held: ledger.tokens_in(sequence),
                        at,
                        failed: self.stage.fails() || !is_own,
                    });
                }
                return;
            }
            is_own |= open.record.child;
            if !upto_end {
                open.record.keep = u32::try_from(from).unwrap_or(0);
            } else if is_whole || open.over {
                // A part that is removed before the answer is over is a rejected draft. Other removals
                // of the end come after the answer.
                self.close(sequence, ledger);
            }
        }
        if is_whole && held > 0 && !is_own {
            self.changed(sequence, ChangeKind::Erased, Vec::new(), at);
        }
    }

    /// Call when a slot's content becomes unknown, so that nothing of it will be found again.
    pub(super) fn obscured(&mut self, sequence: SequenceId, at: Stamp, ledger: &Ledger) {
        let slot = self.slots.get(&sequence);
        let open = slot.and_then(|slot| slot.open.as_ref());
        if open.is_some_and(|open| !open.over) {
            return;
        }
        self.close(sequence, ledger);
        if ledger.held(sequence) > 0 {
            self.changed(sequence, ChangeKind::Erased, Vec::new(), at);
        }
    }

    /// Call when a slot is restored from a state file.
    pub(super) fn replaced(
        &mut self,
        sequence: SequenceId,
        tokens: &[Token],
        at: Stamp,
        ledger: &Ledger,
    ) {
        self.close(sequence, ledger);
        self.changed(sequence, ChangeKind::Restored, tokens.to_vec(), at);
    }

    /// Records a request of which nothing was evaluated: it was refused.
    pub(super) fn refused(&mut self, sequence: SequenceId, open: &Open, ledger: &Ledger) {
        let record = &open.record;
        let refusal = Refusal {
            id_slot: record.id_slot,
            names_adapters: record.names_adapters,
            adapters: record.adapters,
            declined: open.declined,
            saved: open.exchange.saved,
            loaded: open.exchange.loaded,
        };
        let held = if refusal.loaded {
            ledger.tokens_in(sequence)
        } else {
            Vec::new()
        };
        let (order, at) = (record.order, record.launched);
        self.write_change(sequence, ChangeKind::Refused(refusal), held, (order, at));
    }

    pub(super) fn changed(
        &mut self,
        sequence: SequenceId,
        kind: ChangeKind,
        held: Vec<Token>,
        at: Stamp,
    ) {
        self.write_change(sequence, kind, held, (self.launches, micros(at)));
    }

    pub(super) fn write_change(
        &mut self,
        sequence: SequenceId,
        kind: ChangeKind,
        held: Vec<Token>,
        (order, at): (u64, u64),
    ) {
        let Ok(slot) = u32::try_from(sequence) else {
            return;
        };
        let tokens = with_rows(held, &self.rows);
        let change = SlotChange {
            order,
            at,
            slot,
            media: media_in(&tokens),
            kind,
        };
        let recorded = self.writer.change(&change, &tokens);
        append(recorded, &mut self.out, &mut self.full);
    }

    /// The adapters that a task names, as the server would apply them. Adapters that are not named have a
    /// scale of 0.
    pub(super) fn named(&self, scales: &[(i32, Scale)]) -> Applied {
        let scales: HashMap<i32, Scale> = scales.iter().copied().collect();
        let of = |(nth, adapter): (usize, &Adapter)| {
            let scale = i32::try_from(nth).ok().and_then(|nth| scales.get(&nth));
            Adapter {
                scale: scale.copied().unwrap_or(Scale::new(0.0)),
                ..adapter.clone()
            }
        };
        let named: Vec<Adapter> = self.adapters.iter().enumerate().map(of).collect();
        self.applied(&named)
    }
}
