//! What slots and host entries are about to lose.

use super::open::Before;
use super::types::Through;
use super::{Accounts, Going};
use crate::fact::Reason;
use crate::ids::{BufferId, CacheEntry, SequenceId};
use crate::ledger::Ledger;
use crate::token::{Position, Token};

impl Accounts {
    /// Records what a slot holds, if that is more than was recorded.
    pub(super) fn keep(&mut self, slot: SequenceId, ledger: &Ledger) {
        let Some(place) = self.slots.get(&slot) else {
            return;
        };
        // A prompt must not find itself in the past before it is accounted for.
        let unfinished = place.open.as_ref().is_some_and(|open| open.begun.is_some());
        if !unfinished {
            self.keep_anyway(slot, ledger);
        }
    }

    fn keep_anyway(&mut self, slot: SequenceId, ledger: &Ledger) {
        let place = self.slots.entry(slot).or_default();
        if !std::mem::take(&mut place.dirty) {
            return;
        }
        let tokens = ledger.tokens_from(CacheEntry::Slot(slot), 0);
        if !tokens.iter().any(|&token| crate::token::is_unseen(token)) {
            self.past.record(&tokens, place.owner);
        }
    }

    /// Positions of a slot are removed or moved; the same tokens may be written again.
    pub(super) fn leaving(
        &mut self,
        slot: SequenceId,
        from: Position,
        to: Position,
        ledger: &Ledger,
    ) {
        // Drafted tokens that were rejected belong to no prompt. Where launches cannot be seen, a
        // removal that makes room for a prompt looks the same: only the batch before it differs.
        let is_emptied = from < 0 && to < 0;
        let (drafted, erased) = self.slots.get_mut(&slot).map_or((0, false), |place| {
            let erased = is_emptied && std::mem::take(&mut place.erasing);
            (std::mem::take(&mut place.drafted), erased)
        });
        let are_drafts = || {
            if self.rules.tied {
                ledger.held(slot).saturating_sub(from as u32) < drafted
            } else {
                ledger.is_without_task(slot)
            }
        };
        let rejected = from > 0 && to < 0 && are_drafts();
        if rejected || from >= 0 && from as u32 >= ledger.held(slot) || ledger.held(slot) == 0 {
            return;
        }
        if is_emptied {
            // The slot is emptied, not for a prompt. The next prompt is not compared with this.
            let through = match (erased, self.no_room) {
                (true, _) => Some(Through::Erase),
                (false, true) => Some(Through::NoRoom),
                (false, false) => None,
            };
            return self.going(slot, Reason::Cleared, through, ledger);
        }
        self.keep(slot, ledger);
        let tied = self.rules.tied;
        let place = self.slots.entry(slot).or_default();
        let held = ledger.tokens_from(CacheEntry::Slot(slot), 0);
        if place.own.is_none() || tied && place.prepared.moved == 0 {
            place.own = Some(held.clone());
        }
        if place.left.is_none() {
            place.left = Some(ledger.left_by(slot).unwrap_or(held));
        }
    }

    /// A slot loses all that it holds.
    pub(super) fn going(
        &mut self,
        slot: SequenceId,
        reason: Reason,
        through: Option<Through>,
        ledger: &Ledger,
    ) {
        let held = ledger.tokens_from(CacheEntry::Slot(slot), 0);
        // Either its prompt has been given up, or only its request tells its end (embeddings).
        let open = self.slots.get_mut(&slot).and_then(|it| it.open.as_mut());
        let evaluated = open.and_then(|open| Some((open.begun.as_ref()?.moment, open)));
        if let Some((begun, open)) = evaluated {
            open.before
                .get_or_insert_with(|| Before::new(&self.past, &held, open.nth, begun));
        }
        self.keep_anyway(slot, ledger);
        let place = self.slots.get_mut(&slot);
        let left = place.and_then(|place| place.left.take());
        for tokens in [left, Some(held)] {
            self.note_going(tokens.unwrap_or_default(), reason, through);
        }
    }

    pub(super) fn going_host(&mut self, buffer: BufferId, reason: Reason, ledger: &Ledger) {
        let tokens = ledger.tokens_from(CacheEntry::Host(buffer), 0);
        self.note_going(tokens, reason, None);
    }

    fn note_going(&mut self, tokens: Vec<Token>, reason: Reason, through: Option<Through>) {
        if !tokens.is_empty() {
            self.going.push(Going {
                tokens,
                reason,
                by: None,
                through,
            });
        }
    }
}
