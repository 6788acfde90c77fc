//! Changes of slots: erased, restored, chosen for a request that is refused, or lost in sleep.

use contextpilot_traffic::{ChangeKind, Refusal};

use super::serve::keeps_for;
use super::{SimulatedServer, Slot};
use crate::content::Content;
use crate::window::Positions;

impl SimulatedServer<'_> {
    /// Applies a recorded change. Returns false, and does nothing, while the slot is busy.
    pub(super) fn change(&mut self, nth: usize) -> bool {
        let change = &self.traffic.changes[nth];
        let record = &change.record;
        if record.kind == ChangeKind::Slept {
            // At another setting it sleeps when it has nothing to do for long enough: see `run`.
            if self.sleeps_as_recorded() {
                self.sleep();
            }
            return true;
        }
        if matches!(record.kind, ChangeKind::Swapped { .. }) {
            self.sleep();
            return true;
        }
        // `get_slot_by_id`
        let slot = record.slot as usize % self.slots.len();
        if let ChangeKind::Refused(refusal) = record.kind {
            return self.refuse(nth, &refusal);
        }
        if self.slots[slot].job.is_some() {
            return false;
        }
        match record.kind {
            // `SERVER_TASK_TYPE_SLOT_RESTORE`
            ChangeKind::Restored if change.tokens.len() <= self.setting.server.slot_context => {
                self.restore(slot, nth);
            }
            // `SERVER_TASK_TYPE_SLOT_ERASE`, or a state file that does not fit
            _ => self.erase(slot),
        }
        true
    }

    /// The model is freed, and loaded again for the next request (`handle_sleeping_state`). While anything is at work, the
    /// server does not sleep.
    pub(super) fn sleep(&mut self) {
        if self.slots.iter().any(|slot| slot.job.is_some()) {
            return;
        }
        for nth in 0..self.slots.len() {
            self.erase(nth);
            self.slots[nth] = Slot::default();
        }
        self.positions = Positions::new(self.setting);
        if let Some(host) = &mut self.host {
            host.clear();
        }
    }

    /// `prompt_clear`
    pub(super) fn erase(&mut self, slot: usize) {
        self.slots[slot].prompt.forget(self.setting.generation);
        self.cut(slot, 0);
    }

    /// `nth`: the change.
    fn restore(&mut self, slot: usize, nth: usize) {
        let change = &self.traffic.changes[nth];
        self.erase(slot);
        let length = change.tokens.len();
        let file = self.files.find(&change.tokens);
        let (kept, checkpoints) =
            file.unwrap_or_else(|| (self.positions.guess(length), Vec::new()));
        let restored = &mut self.slots[slot];
        restored.prompt.content = Content::of_change(self.alike, nth, &change.tokens, length);
        restored.media.clone_from(&change.record.media);
        if self.setting.generation.saves_checkpoints() {
            restored.prompt.checkpoints = checkpoints;
        }
        self.positions.restore(slot, &kept);
        if let Some(store) = &mut self.store {
            store.obscure(slot);
        }
        self.save_file(slot);
    }

    /// Remembers the slot's state, in case a client saves it to a file now.
    pub(super) fn save_file(&mut self, slot: usize) {
        let prompt = &self.slots[slot].prompt;
        self.files
            .save(prompt, self.alike, || self.positions.keep(slot));
    }

    /// A request that is refused. Its prompt is not known, so it gets the slot that it asked for, or the
    /// one that it got in the recording, or else the idle slot that is taken first. It looks in the host
    /// prompt cache for what it found there in the recording. Returns false while there is no such slot.
    fn refuse(&mut self, nth: usize, refusal: &Refusal) -> bool {
        let change = &self.traffic.changes[nth];
        let is_idle = |&slot: &usize| self.slots[slot].job.is_none();
        let asked = refusal.id_slot.map(|slot| slot as usize % self.slots.len());
        let chosen = match asked {
            Some(asked) => Some(asked).filter(is_idle),
            None => {
                let same = Some(change.record.slot as usize)
                    .filter(|&slot| slot < self.slots.len())
                    .filter(is_idle);
                same.or_else(|| self.first_idle())
            }
        };
        let Some(chosen) = chosen else { return false };
        if refusal.saved || refusal.loaded {
            let found = Content::of_change(self.alike, nth, &change.tokens, change.tokens.len());
            self.exchange(chosen, &found);
        }
        if refusal.names_adapters && !keeps_for(self.slots[chosen].adapters, refusal.adapters) {
            self.slots[chosen].prompt.forget(self.setting.generation);
        }
        self.slots[chosen].adapters = refusal.adapters;
        if !refusal.declined {
            self.save_idle_but(Some(chosen));
            self.releases += 1;
            self.slots[chosen].last_used = self.releases;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use contextpilot_traffic::{
        ChangeKind, Memory, Setup, SlotChange, Tokens, TrafficChange, TrafficRequest,
    };

    use crate::made::{self, recorded, row};
    use crate::{Generation, Setting, simulate};

    /// Of a recurrent model: a prompt in slot 0, what that holds restored into slot 1, and a branch of it there.
    #[test]
    fn a_file_brings_the_checkpoints_of_its_slot_where_the_server_writes_them() {
        let request = |order, tokens: Tokens, slot| {
            let mut request: TrafficRequest = made::request(order, tokens);
            request.record.slot = slot;
            request.record.id_slot = Some(slot);
            request
        };
        let first = request(0, row(&[(0, 2000)]), 0);
        let restored = TrafficChange {
            record: SlotChange {
                order: 1,
                at: 900_000,
                slot: 1,
                media: Vec::new(),
                kind: ChangeKind::Restored,
            },
            tokens: Arc::clone(&first.tokens),
        };
        let setup = Setup {
            memory: Memory::Recurrent,
            parallel: 2,
            ctx_checkpoints: 8,
            ..Setup::default()
        };
        let branch = request(1, row(&[(0, 1900), (5000, 100)]), 1);
        let mut traffic = made::traffic(setup, vec![first, branch]);
        traffic.changes.push(restored);
        let reused = |generation| {
            let setting = Setting {
                generation,
                ..recorded(&traffic)
            };
            simulate(&traffic, &setting).outcomes[1].map(|outcome| outcome.reused)
        };
        let saved = reused(Generation::Late2026);
        assert!(saved.is_some_and(|tokens| tokens > 1000), "{saved:?}");
        assert_eq!(reused(Generation::Older), Some(0));
    }
}
