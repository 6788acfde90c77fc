//! The contexts of a program that is no llama-server, side by side: see
//! [`program`](contextpilot_residency::program).

use contextpilot_control::{ProgramContext, ReuseOver, Slot};
use contextpilot_residency::program::{PROGRAM, sequence_of};
use contextpilot_residency::{ContextId, Ledger, SequenceId, TokenCounts};

use super::Observer;
use super::known::{Context, ReuseCounts};

impl Observer {
    pub(super) fn count_for_context(&mut self, slot: SequenceId, taken: TokenCounts) {
        let counts = self.of_contexts.entry(sequence_of(slot).0.0).or_default();
        counts.prompts += 1;
        counts.taken.add(taken);
    }

    /// A context of a program is freed. The next one at its place begins anew.
    pub(super) fn program_context_freed(&mut self, context: ContextId) {
        self.contexts.remove(&context);
        self.of_contexts.remove(&context.0);
        self.slots.retain(|&slot, _| sequence_of(slot).0 != context);
    }

    /// The context of a slot, or if no slot is given the one that is described at the top of the figures: the
    /// primary one, in a program the first.
    pub(crate) fn context_of(
        &self,
        slot: Option<SequenceId>,
        ledger: Option<&Ledger>,
    ) -> Option<&Context> {
        let primary = ledger.and_then(Ledger::primary)?;
        if primary != PROGRAM {
            return self.contexts.get(&primary);
        }
        let place = match slot {
            Some(slot) => sequence_of(slot).0,
            None => self.places().min_by_key(|context| context.0)?,
        };
        self.contexts.get(&place)
    }

    fn places(&self) -> impl Iterator<Item = ContextId> {
        let contexts = self.contexts.keys().copied();
        contexts.filter(|&context| context != PROGRAM)
    }

    /// The living contexts of a program; none in a server.
    pub(crate) fn program_contexts(
        &self,
        ledger: Option<&Ledger>,
        slots: &[Slot],
    ) -> Vec<ProgramContext> {
        if ledger.and_then(Ledger::primary) != Some(PROGRAM) {
            return Vec::new();
        }
        let mut places: Vec<ContextId> = self.places().collect();
        places.sort_unstable_by_key(|context| context.0);
        let described = places.into_iter().filter_map(|place| {
            let context = self.contexts.get(&place)?;
            let counts = self.of_contexts.get(&place.0).copied();
            let ReuseCounts { prompts, taken } = counts.unwrap_or_default();
            let number = u32::try_from(place.0).ok()?;
            let slots = slots.iter().filter(|slot| slot.context == Some(number));
            Some(ProgramContext {
                context: number,
                model: context.model.as_deref().map(str::to_owned),
                sequences: context.slots,
                capacity: context.capacity,
                can_shift: context.can_shift,
                memory: context.memory,
                tokens: slots.map(|slot| u64::from(slot.tokens)).sum(),
                bytes_per_token: context.bytes_per_token(),
                reuse: ReuseOver::new(prompts, taken.reused, taken.evaluated),
            })
        });
        described.collect()
    }
}
