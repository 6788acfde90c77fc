//! What accounts note of each event, before the ledger applies it and after.

use super::open::{Open, Prepared};
use super::types::Through;
use super::{Accounts, Going};
use crate::fact::{Fact, Reason};
use crate::ids::{CacheEntry, SequenceId};
use crate::ledger::Ledger;
use crate::ledger::upcoming::{Successor, Upcoming};

impl Accounts {
    /// The ledger is about to apply an event that changes this.
    pub fn upcoming(&mut self, upcoming: Upcoming<'_>, ledger: &Ledger) {
        match upcoming {
            Upcoming::Launch { sequence, .. } => self.launching(sequence, ledger),
            Upcoming::Batch { entries } => self.submitting(entries, ledger),
            Upcoming::Loaded {
                sequence,
                from,
                to,
                entries,
            } => self.loaded(sequence, (from, to), entries),
            Upcoming::BatchEnd { failed, no_room } => {
                self.no_room = no_room;
                self.evaluated(failed);
            }
            Upcoming::Removal { sequence, from, to } => self.leaving(sequence, from, to, ledger),
            Upcoming::Shift {
                sequence,
                from,
                to,
                delta,
            } => {
                self.leaving(sequence, from, to, ledger);
                let place = self.slots.entry(sequence).or_default();
                if delta < 0 {
                    let tokens = i64::from(to) - i64::from(from.max(0));
                    place.prepared.moved += u32::try_from(tokens).unwrap_or(0);
                }
                place.dirty = true;
            }
            Upcoming::Emptied { sequence, reason } => self.going(sequence, reason, None, ledger),
            Upcoming::Replaced { sequence, by } => {
                let through = matches!(by, Successor::File(_)).then_some(Through::Restore);
                self.going(sequence, Reason::Overwritten, through, ledger);
                let place = self.slots.entry(sequence).or_default();
                match by {
                    Successor::Host => {
                        place.prepared.restored = true;
                        place.prepared.at = self.clock;
                    }
                    Successor::File(_) => place.dirty = true,
                    Successor::Slot => {}
                }
            }
            Upcoming::Save { sequence, buffer } => {
                self.keep(sequence, ledger);
                self.going_host(buffer, Reason::DroppedFromHost, ledger);
                self.saved.insert(buffer, (self.clock, sequence));
            }
            Upcoming::Dropped { buffer, reason } => {
                self.going_host(buffer, reason, ledger);
                self.saved.remove(&buffer);
            }
        }
    }

    fn launching(&mut self, sequence: SequenceId, ledger: &Ledger) {
        self.no_room = false;
        self.keep(sequence, ledger);
        if let Some(place) = self.slots.get_mut(&sequence) {
            place.erasing = false;
        }
        if let (false, Some(place)) = (self.rules.tied, self.slots.get_mut(&sequence)) {
            place.own = None;
            let unused = |open: &Open| open.begun.is_none();
            let given_up = place.open.as_ref().filter(|open| unused(open));
            if given_up.is_some_and(|open| place.prepared.at <= open.decided) {
                place.prepared = Prepared::default();
            }
            // Room was made for a prompt that was given up before its first batch.
            if let Some(left) = place.left.take() {
                let by = place.open.as_ref().map(|open| open.nth);
                self.going.push(Going {
                    tokens: left,
                    reason: overwritten(std::mem::take(&mut place.shifted)),
                    by,
                    through: None,
                });
            }
        }
        self.launching = Some(sequence).filter(|&slot| !ledger.has_left(slot));
    }

    /// The ledger tells this of the event that it has applied.
    pub fn fact(&mut self, fact: &Fact) {
        match fact {
            Fact::Adapters { adapters, .. } => self.adapted |= !adapters.is_empty(),
            Fact::OutOfStep => {
                self.slots.clear();
                self.saved.clear();
                self.batch.clear();
                self.gap = self.last;
            }
            _ => {}
        }
    }

    /// The ledger has applied the event, at this time in milliseconds since 1970.
    pub fn after(&mut self, ledger: &Ledger, at_unix_ms: u64) {
        if let Some(slot) = self.launching.take() {
            // The server empties a slot without a call where a task names other adapters.
            if let Some(left) = ledger.left_by(slot) {
                let place = self.slots.entry(slot).or_default();
                place.left = Some(left.clone());
                place.own = Some(left);
                place.prepared.readapted = true;
            }
        }
        for (slot, ends) in std::mem::take(&mut self.batch) {
            let place = self.slots.get_mut(&slot);
            let Some(place) = place else {
                continue;
            };
            let blend = ledger.blend(slot);
            let before = std::mem::replace(&mut place.blend, blend);
            let Some(open) = place.open.as_mut() else {
                continue;
            };
            if let Some(begun) = &mut open.begun {
                begun.look_again(slot, ledger);
                // Where launches cannot be seen, the adapters must tell that the slot was emptied.
                let others = before.is_some() && before != blend;
                begun.prepared.readapted |= self.rules.tied && others;
            }
            if ends {
                open.prompt = Some(ledger.tokens_from(CacheEntry::Slot(slot), 0));
            }
        }
        for (&slot, place) in &mut self.slots {
            if ledger.has_left(slot) {
                place.shifted = ledger.has_shifted(slot);
            } else if place.left.is_some() {
                let shifted = std::mem::take(&mut place.shifted);
                let reason = if ledger.is_slot_empty(slot) {
                    Reason::Cleared
                } else {
                    overwritten(shifted)
                };
                // Room may be made for a prompt, and be lost, before its first batch.
                let taker = place.open.as_ref().map_or(place.owner, |open| open.nth);
                let by = (reason != Reason::Cleared).then_some(taker);
                let left = place.left.take().unwrap_or_default();
                self.going.push(Going {
                    tokens: left,
                    reason,
                    by,
                    through: None,
                });
            }
        }
        for going in std::mem::take(&mut self.going) {
            let Going {
                tokens,
                reason,
                by,
                through,
            } = going;
            let holdings = ledger.holdings(&tokens).into_iter();
            let held = holdings.map(|holding| holding.common).max().unwrap_or(0);
            if held as usize >= tokens.len() {
                continue;
            }
            let loss = match (through, by.or(self.launched)) {
                (Some(through), _) => self.losses.note_through(at_unix_ms, reason, through),
                (None, None) => self.losses.note_unclaimed(at_unix_ms, reason),
                (None, by) => self.losses.note(at_unix_ms, reason, by),
            };
            self.past.lose(&tokens, held, loss);
        }
        self.clock += 1;
    }
}

/// Why tokens are lost that a slot had, and for which it holds others: the words of the ledger.
fn overwritten(shifted: bool) -> Reason {
    if shifted {
        Reason::Shifted
    } else {
        Reason::Overwritten
    }
}
