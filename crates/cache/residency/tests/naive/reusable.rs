//! Which of the cached tokens the server would reuse.

use super::Naive;
use super::adapters::Wants;
use contextpilot_residency::{Compared, SequenceId, Token};

impl Naive {
    /// What the server would reuse for a prompt that names no adapters: the tokens of slots that are not
    /// in the batch being evaluated, and of host entries.
    pub(crate) fn reusable(&self) -> (Vec<&[Token]>, Vec<&[Token]>) {
        let all = self.slots.iter();
        let idle = all.filter(|&(&id, _)| !self.is_in_flight(id));
        let slots = idle.filter(|(_, slot)| match self.applied() {
            None => true,
            Some(None) => false,
            Some(Some(applied)) => match applied.compared {
                Compared::WhenNamed => true,
                Compared::Always => self
                    .unnamed
                    .as_ref()
                    .is_some_and(|set| slot.suits(&Wants::Set(set.clone()))),
            },
        });
        let slots = slots.map(|(_, slot)| slot.tokens.as_slice());
        let hosts = self.buffers.values().map(Vec::as_slice);
        (slots.collect(), hosts.collect())
    }

    /// What the server would reuse of slots for a prompt that names only the adapter at this index, at
    /// scale 1. Nothing if that adapter is activated by tokens.
    pub(crate) fn reusable_under(&self, place: usize) -> Vec<&[Token]> {
        let Some(Some(applied)) = self.applied() else {
            return Vec::new();
        };
        if applied.compared == Compared::Always {
            return Vec::new();
        }
        let Some(set) = applied.at_full_scale(place) else {
            return Vec::new();
        };
        let all = self.slots.iter();
        let slots = all.filter(|&(&id, slot)| {
            !self.is_in_flight(id)
                && !self.is_unsettled(slot)
                && slot.suits(&Wants::Set(set.clone()))
        });
        slots.map(|(_, slot)| slot.tokens.as_slice()).collect()
    }

    /// The tokens of the slots in the batch that is being evaluated.
    pub(crate) fn in_flight(&self) -> Vec<&[Token]> {
        let all = self.slots.iter();
        let in_flight = all.filter(|&(&id, _)| self.is_in_flight(id));
        in_flight.map(|(_, slot)| slot.tokens.as_slice()).collect()
    }

    fn is_in_flight(&self, id: SequenceId) -> bool {
        let mut batch = self.batch.iter().flatten();
        batch.any(|entry| entry.slot == id)
    }
}
