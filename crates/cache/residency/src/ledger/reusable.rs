//! How many of a slot's or host entry's tokens the server would reuse. KV cache events tell this to
//! routers, which send a prompt to the server that has most of it.
//!
//! [`Ledger::take_unchanged`] says how many tokens are the same as at its last call. So a caller that
//! follows a slot reads only what is new in it.

use super::Ledger;
use super::in_force::InForce;
use crate::adapters::{Compared, Wanted};
use crate::ids::CacheEntry;
use crate::token::Token;
use crate::tree::Holder;

impl Ledger {
    /// How many tokens of this entry, from the first on, the server would reuse for a prompt that
    /// begins with all of them and names no LoRA adapters. 0 if that is not known.
    ///
    /// * In a bounded context ([`Event::Bounded`](crate::Event::Bounded)): the tokens up to the last point that the server
    ///   can go back to.
    /// * Where the server compares the adapters of all requests ([`Compared::Always`]): none of a
    ///   slot that worked under other adapters than a request that names none gets.
    #[must_use]
    pub fn reusable_of(&self, entry: CacheEntry) -> u32 {
        if self.is_for_all(entry) {
            self.reusable_if_served(entry)
        } else {
            0
        }
    }

    /// Like [`Self::reusable_of`], for a prompt that names one LoRA adapter at scale 1. `adapter` is
    /// its index in the server's list. 0 if it is not certain that the server would reuse anything:
    ///
    /// * for a host entry, since the slot that loads it may have to be emptied for the request;
    /// * for an adapter that is activated by tokens;
    /// * where the server compares the adapters of all requests ([`Compared::Always`]), since there
    ///   the indices of the adapters are not known.
    #[must_use]
    pub fn reusable_under(&self, entry: CacheEntry, adapter: usize) -> u32 {
        if self.is_for_adapter(entry, adapter) {
            self.reusable_if_served(entry)
        } else {
            0
        }
    }

    fn reusable_if_served(&self, entry: CacheEntry) -> u32 {
        let Some(holder) = self.holder_of(entry) else {
            return 0;
        };
        let held = self.tree.depth(holder);
        if held == 0 {
            return 0;
        }
        match self.bounds() {
            Some(bounds) => self.reaches.furthest(entry, held, bounds),
            None => held,
        }
    }

    /// Whether tokens were submitted for this slot that may not have been computed yet.
    #[must_use]
    pub fn is_in_flight(&self, entry: CacheEntry) -> bool {
        let CacheEntry::Slot(id) = entry else {
            return false;
        };
        let sequence = self.sequences.get(&id);
        sequence.is_some_and(|sequence| sequence.in_flight.is_some())
    }

    /// How many tokens, from the first on, have been there without a break since the last call for
    /// the same entry. 0 at the first call.
    pub fn take_unchanged(&mut self, entry: CacheEntry) -> u32 {
        let holder = self.holder_of(entry);
        holder.map_or(0, |holder| self.tree.take_lowest(holder))
    }

    /// The tokens that it holds, from depth `from` on.
    #[must_use]
    pub fn tokens_from(&self, entry: CacheEntry, from: u32) -> Vec<Token> {
        let holder = self.holder_of(entry);
        holder.map_or_else(Vec::new, |holder| self.tree.read(holder, from))
    }

    fn holder_of(&self, entry: CacheEntry) -> Option<Holder> {
        match entry {
            CacheEntry::Slot(id) => self.sequences.get(&id).map(|sequence| sequence.holder),
            CacheEntry::Host(buffer) => self.buffers.get(&buffer).copied(),
        }
    }

    /// Whether the server would reuse this holder's tokens for a request that names no adapters.
    fn is_for_all(&self, entry: CacheEntry) -> bool {
        let (CacheEntry::Slot(id), Some(in_force)) = (entry, self.in_force()) else {
            return true;
        };
        match in_force.map(InForce::compared) {
            Some(Compared::WhenNamed) => true,
            Some(Compared::Always) => match (self.sequences.get(&id), self.adapters.unnamed()) {
                (Some(sequence), Some(unnamed)) => sequence.suits(Wanted::Blend(unnamed)),
                _ => false,
            },
            None => false,
        }
    }

    /// Whether the server would reuse this holder's tokens for a request that names this adapter
    /// alone.
    fn is_for_adapter(&self, entry: CacheEntry, adapter: usize) -> bool {
        let CacheEntry::Slot(id) = entry else {
            return false;
        };
        let (Some(Some(in_force)), Some(sequence)) = (self.in_force(), self.sequences.get(&id))
        else {
            return false;
        };
        let ordered = in_force.blend_of_one(adapter);
        let wanted = ordered.filter(|blend| !blend.is_invoked());
        in_force.compared() == Compared::WhenNamed
            && !self.has_unsettled_blend(sequence)
            && wanted.is_some_and(|wanted| sequence.suits(Wanted::Blend(wanted)))
    }
}
