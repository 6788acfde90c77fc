//! What the server would use again of what a slot or a host entry holds, for whoever tells others:
//! routers that send a prompt to the server that has most of it.
//!
//! [`Ledger::take_unchanged`] says how much of the content is still the same since it was asked
//! last. So whoever follows a slot reads only what is new of it.

use super::*;
use crate::adapters::Compared;

/// What holds tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Keeper {
    /// A slot.
    Slot(SequenceId),
    /// A buffer of the host prompt cache.
    Host(BufferId),
}

impl Ledger {
    /// How many tokens, from the beginning on, the server would use again of what this holds, for
    /// a prompt that has them all and names no LoRA adapters. 0 if it is not known.
    ///
    /// * In memory that slides or only goes forward ([`Event::Bounded`]): up to the last point
    ///   that the server can go back to.
    /// * A slot that worked under other adapters than a request without any is for: nothing,
    ///   where the server compares them ([`Compared::Always`]).
    #[must_use]
    pub fn reusable_of(&self, keeper: Keeper) -> u32 {
        match self.is_for_all(keeper) {
            true => self.reusable_if_served(keeper),
            false => 0,
        }
    }

    /// The same for a prompt that names one LoRA adapter, by its place among the server's (0 is the
    /// first), at scale 1. 0 wherever it is not certain that the server would serve it:
    ///
    /// * of host entries, since whichever slot loads one may have to be emptied for the request;
    /// * for adapters that are activated by tokens;
    /// * where the server compares the adapters of all requests ([`Compared::Always`]): there it is
    ///   not known which places they have.
    #[must_use]
    pub fn reusable_under(&self, keeper: Keeper, adapter: usize) -> u32 {
        match self.is_for_adapter(keeper, adapter) {
            true => self.reusable_if_served(keeper),
            false => 0,
        }
    }

    fn reusable_if_served(&self, keeper: Keeper) -> u32 {
        let Some(holder) = self.holder_of(keeper) else {
            return 0;
        };
        let held = self.tree.depth(holder);
        if held == 0 {
            return 0;
        }
        match self.window() {
            Some(window) => self.reaches.furthest(keeper, held, window),
            None => held,
        }
    }

    /// Whether tokens were submitted for this slot that may not have been computed yet.
    #[must_use]
    pub fn is_in_flight(&self, keeper: Keeper) -> bool {
        let Keeper::Slot(id) = keeper else {
            return false;
        };
        let sequence = self.sequences.get(&id);
        sequence.is_some_and(|sequence| sequence.flight.is_some())
    }

    /// How many tokens, from the beginning on, have been there ever since this was asked last for
    /// the same keeper. Less than it holds, unless nothing was added.
    pub fn take_unchanged(&mut self, keeper: Keeper) -> u32 {
        let holder = self.holder_of(keeper);
        holder.map_or(0, |holder| self.tree.take_lowest(holder))
    }

    /// The tokens that it holds, from one on.
    #[must_use]
    pub fn tokens_from(&self, keeper: Keeper, from: u32) -> Vec<Token> {
        let holder = self.holder_of(keeper);
        holder.map_or_else(Vec::new, |holder| self.tree.read(holder, from))
    }

    fn holder_of(&self, keeper: Keeper) -> Option<Holder> {
        match keeper {
            Keeper::Slot(id) => self.sequences.get(&id).map(|sequence| sequence.holder),
            Keeper::Host(buffer) => self.buffers.get(&buffer).copied(),
        }
    }

    /// Whether a request that names no adapters would be served from it.
    fn is_for_all(&self, keeper: Keeper) -> bool {
        let (Keeper::Slot(id), Some(in_force)) = (keeper, self.in_force()) else {
            return true;
        };
        match in_force.map(adapters::InForce::compared) {
            Some(Compared::WhenNamed) => true,
            Some(Compared::Always) => match (self.sequences.get(&id), self.adapters.unnamed()) {
                (Some(sequence), Some(unnamed)) => sequence.suits(Wanted::Blend(unnamed)),
                _ => false,
            },
            None => false,
        }
    }

    /// Whether a request that names this adapter alone would be served from it.
    fn is_for_adapter(&self, keeper: Keeper, adapter: usize) -> bool {
        let Keeper::Slot(id) = keeper else {
            return false;
        };
        let (Some(Some(in_force)), Some(sequence)) = (self.in_force(), self.sequences.get(&id))
        else {
            return false;
        };
        let wanted = in_force.blend_of_one(adapter);
        let wanted = wanted.filter(|blend| !blend.is_invoked());
        in_force.compared() == Compared::WhenNamed
            && !self.has_unsettled_blend(sequence)
            && wanted.is_some_and(|wanted| sequence.suits(Wanted::Blend(wanted)))
    }
}
