//! What slots and host entries hold, for accounts: compared with a prompt, or read out.

use super::Ledger;
use crate::adapters::Blend;
use crate::ids::{CacheEntry, SequenceId};
use crate::token::Token;

/// A slot or a host entry, compared with some tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) holds: CacheEntry,
    /// How many tokens both have in common from the beginning.
    pub(crate) common: u32,
    /// How many tokens the slot or host entry holds.
    pub(crate) tokens: u32,
}

impl Ledger {
    /// All slots and host entries that hold tokens, compared with these. Slots come first,
    /// ascending. Undecided branches, which slots have left and may come back to, do not count.
    pub(crate) fn holdings(&self, tokens: &[Token]) -> Vec<Holding> {
        let path = self.tree.path(tokens);
        let compare = |holds, holder| Holding {
            holds,
            common: self.tree.common(&path, holder),
            tokens: self.tree.depth(holder),
        };
        let sequences = self.sequences.iter();
        let of_slots =
            sequences.map(|(&id, sequence)| compare(CacheEntry::Slot(id), sequence.holder));
        let buffers = self.buffers.iter();
        let of_host = buffers.map(|(&id, &holder)| compare(CacheEntry::Host(id), holder));
        let mut all: Vec<Holding> = of_slots
            .chain(of_host)
            .filter(|holding| holding.tokens > 0)
            .collect();
        all.sort_unstable_by_key(|holding| holding.holds);
        all
    }

    /// The undecided branch of a slot: tokens that it has left and may come back to.
    pub(crate) fn left_by(&self, id: SequenceId) -> Option<Vec<Token>> {
        let ghost = self.sequences.get(&id)?.ghost.as_ref()?;
        Some(self.tree.read(ghost.holder, 0))
    }

    /// Whether a slot has an undecided branch.
    pub(crate) fn has_left(&self, id: SequenceId) -> bool {
        let sequence = self.sequences.get(&id);
        sequence.is_some_and(|sequence| sequence.ghost.is_some())
    }

    /// Whether tokens of that branch were moved, or cut out of its middle.
    pub(crate) fn has_shifted(&self, id: SequenceId) -> bool {
        let ghost = self
            .sequences
            .get(&id)
            .and_then(|sequence| sequence.ghost.as_ref());
        ghost.is_some_and(|ghost| ghost.shifted)
    }

    /// Whether a slot holds nothing.
    pub(crate) fn is_slot_empty(&self, id: SequenceId) -> bool {
        let sequence = self.sequences.get(&id);
        sequence.is_none_or(|sequence| self.is_empty(sequence))
    }

    /// Whether a slot holds no tokens, and none that the ledger did not see being written.
    pub(crate) fn is_certainly_empty(&self, id: SequenceId) -> bool {
        self.is_slot_empty(id) && !self.may_hold_more(id)
    }

    /// Whether a slot may hold tokens that the ledger did not see being written.
    pub(crate) fn may_hold_more(&self, id: SequenceId) -> bool {
        let sequence = self.sequences.get(&id);
        sequence.map_or(self.gap.unheard, |sequence| sequence.unknown)
    }

    /// Whether a slot is known to have no task whose prompt is still to be evaluated. False where
    /// launches cannot be seen.
    pub(crate) fn is_without_task(&self, id: SequenceId) -> bool {
        let sequence = self.sequences.get(&id);
        self.launches && sequence.is_some_and(|sequence| sequence.launch.is_none())
    }

    /// Whether the primary context is bounded: it cannot go back to every position that it has been
    /// at.
    pub(crate) fn is_bounded(&self) -> bool {
        self.window().is_some_and(|window| !window.is_whole)
    }

    /// The LoRA adapters that a slot worked under last; `None`: not known.
    pub(crate) fn blend(&self, id: SequenceId) -> Option<Blend> {
        self.sequences.get(&id)?.blend
    }

    /// Whether two slots worked under different LoRA adapters last.
    pub(crate) fn blends_differ(&self, slot: SequenceId, other: SequenceId) -> bool {
        let blend = |id| self.sequences.get(&id).map(|sequence| sequence.blend);
        blend(slot) != blend(other)
    }
}
