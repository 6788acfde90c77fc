//! What the engine would reuse for a prompt.

use std::borrow::Cow;

use contextpilot_control::{HostMatch, Like, Match, MatchRequest, SlotMatch};
use contextpilot_residency::{Ledger, Occupied, Token};

use crate::asked::Stored;
use crate::names::choice_out;
use crate::observer::Observer;

/// Stands for tokens that no slot has: no vocabulary has it.
const NO_TOKEN: Token = Token::MAX;

/// The most tokens of a prompt that is described as being like another one. It bounds the memory that a
/// query can ask for.
const LONGEST: u32 = 1 << 20;

impl Observer {
    /// What the engine would reuse for a prompt. `None`: this observer has no accounts. `store` says what the prefix
    /// store has of some tokens, if that is known; it is `None` if there is no store.
    #[must_use]
    pub fn matching(
        &self,
        asked: &MatchRequest,
        ledger: &Ledger,
        store: Option<impl FnOnce(&[Token]) -> Option<Stored>>,
    ) -> Option<Match> {
        let accounts = self.accounts.as_ref()?;
        let context = ledger.primary().and_then(|id| self.contexts.get(&id));
        let is_busy = |&slot: &_| ledger.works_for(slot).is_some_and(|(_, busy)| busy);
        let occupied = Occupied {
            busy: self.slots.keys().copied().filter(is_busy).collect(),
            slots: context.and_then(|context| context.slots),
        };
        let pinned = asked.id_slot.filter(|&slot| slot >= 0);
        let tokens = match &asked.like {
            None => Cow::from(&asked.tokens),
            Some(like) => match self.prompt_like(like, ledger, store.is_some()) {
                Some(tokens) => Cow::from(tokens),
                None => return Some(Match::default()),
            },
        };
        let found = accounts.matching(&tokens, pinned, &occupied, ledger);
        let mut answer = Match {
            tokens: tokens.len() as u64,
            slot: found.choice.map(|(slot, _)| slot),
            chosen_by: found.choice.map(|(_, how)| choice_out(how)),
            reused: found.reused.into(),
            ..Match::default()
        };
        for (place, held) in found.all.iter().enumerate() {
            if found.loads == Some(place) {
                answer.loads = Some(answer.host.len() as u64);
            }
            answer.best = answer.best.max(held.reusable.into());
            let [tokens, common, reusable] =
                [held.tokens, held.common, held.reusable].map(u64::from);
            match held.slot {
                Some(slot) => answer.slots.push(SlotMatch {
                    slot,
                    tokens,
                    common,
                    reusable,
                    busy: held.busy,
                }),
                None => answer.host.push(HostMatch {
                    tokens,
                    common,
                    reusable,
                }),
            }
        }
        let stored = store.and_then(|store| store(&tokens));
        answer.stored = stored.map(|stored| stored.tokens);
        answer.loaded = stored.map(|stored| loaded(&answer, stored));
        answer.kept = stored.and_then(|stored| stored.kept);
        Some(answer)
    }

    /// A prompt that begins like that of an earlier request, followed by tokens that no slot has. `None`: that request is
    /// not cached, and not `stored` or forgotten.
    ///
    /// What a request that was evicted left in the store is found by its tokens, which accounts remember anyway. The
    /// names of its chunks would take less, but a chunk at the end of a prompt leaves the store before the others do: then
    /// a name that is gone says nothing of the beginning that is still there. And an eviction costs nothing more: while
    /// it is told, the thread that made it often has the store, to load what comes in place of the prompt.
    fn prompt_like(&self, like: &Like, ledger: &Ledger, stored: bool) -> Option<Vec<Token>> {
        let length = like.tokens.min(LONGEST);
        let common = like.common.min(length);
        let live = ledger.beginning_of(&like.id, common);
        let mut tokens = match live {
            None if stored => self.remembered(&like.id)?,
            live => live?,
        };
        tokens.truncate(common as usize);
        tokens.resize(length as usize, NO_TOKEN);
        Some(tokens)
    }

    /// The last prompt of a request, whether anything of it is cached or not.
    #[must_use]
    pub fn remembered(&self, id: &str) -> Option<Vec<Token>> {
        let (nth, _) = self.evaluations.get(id)?;
        self.accounts.as_ref()?.prompt(nth)
    }
}

/// Tokens that would be loaded beyond those that are reused.
fn loaded(found: &Match, stored: Stored) -> u64 {
    let is_other = |slot: &&SlotMatch| Some(slot.slot) != found.slot;
    let fits = |slot: &&SlotMatch| slot.common == slot.tokens && slot.common < found.tokens;
    let slots = found.slots.iter().filter(is_other);
    let usable = slots.filter(|slot| !stored.whole || fits(slot));
    let other = usable.map(|slot| slot.common).max().unwrap_or(0);
    // A slot's content is copied to the store if it has enough that is in neither.
    let shared = other >= stored.tokens.max(found.reused) + stored.least;
    let there = if shared { other } else { stored.tokens };
    // The last token is always evaluated.
    let loadable = there.min(found.tokens.saturating_sub(1));
    let more = loadable.saturating_sub(found.reused);
    if more < stored.least { 0 } else { more }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_loaded_comes_from_the_store_or_from_another_slot() {
        let slot = |slot, common| SlotMatch {
            slot,
            common,
            ..SlotMatch::default()
        };
        let found = |reused| Match {
            tokens: 100,
            slot: Some(0),
            slots: vec![slot(0, 90), slot(1, 60)],
            reused,
            ..Match::default()
        };
        let stored = |tokens, whole| Stored {
            tokens,
            least: 8,
            whole,
            kept: None,
        };
        let loads = |reused, tokens| loaded(&found(reused), stored(tokens, false));
        assert_eq!(loads(0, 70), 70, "more than another slot has");
        assert_eq!(loads(20, 70), 50, "beyond what is reused");
        assert_eq!(loads(0, 40), 60, "another slot has more");
        assert_eq!(loads(0, 53), 53, "but not enough more for a copy");
        assert_eq!(loads(63, 70), 0, "too few");
        assert_eq!(loads(62, 70), 8);
        assert_eq!(loads(20, 100), 79, "not the last token");
        assert_eq!(loads(95, 40), 0);
        let mut other = found(0);
        assert_eq!(loaded(&other, stored(40, true)), 40, "it goes on otherwise");
        other.slots[1].tokens = 60;
        assert_eq!(loaded(&other, stored(40, true)), 60);
        (other.slots[1].tokens, other.slots[1].common) = (100, 100);
        assert_eq!(
            loaded(&other, stored(40, true)),
            40,
            "the last token is not wanted"
        );
    }
}
