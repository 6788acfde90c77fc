//! What the engine would reuse for a prompt.

use std::borrow::Cow;

use contextpilot_control::{HostMatch, Like, Match, MatchRequest, SlotMatch};
use contextpilot_residency::{Ledger, Occupied, Token};

use crate::names::choice_out;
use crate::observer::Observer;

/// Stands for tokens that no slot has: no vocabulary has it.
const NO_TOKEN: Token = Token::MAX;

/// The most tokens of a prompt that is described as being like another one. It bounds the memory that a
/// query can ask for.
const LONGEST: u32 = 1 << 20;

impl Observer {
    /// What the engine would reuse for a prompt. `None`: this observer has no accounts.
    #[must_use]
    pub fn matching(
        &self,
        asked: &MatchRequest,
        ledger: &Ledger,
        stored: impl FnOnce(&[Token]) -> Option<u64>,
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
            Some(like) => match prompt_like(like, ledger) {
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
            stored: stored(&tokens),
            ..Match::default()
        };
        for (place, one) in found.all.iter().enumerate() {
            if found.loads == Some(place) {
                answer.loads = Some(answer.host.len() as u64);
            }
            answer.best = answer.best.max(one.reusable.into());
            let [tokens, common, reusable] = [one.tokens, one.common, one.reusable].map(u64::from);
            match one.slot {
                Some(slot) => answer.slots.push(SlotMatch {
                    slot,
                    tokens,
                    common,
                    reusable,
                    busy: one.busy,
                }),
                None => answer.host.push(HostMatch {
                    tokens,
                    common,
                    reusable,
                }),
            }
        }
        Some(answer)
    }
}

/// A prompt that begins like that of a live request, followed by tokens that no slot has. `None`: that
/// request is not cached.
fn prompt_like(like: &Like, ledger: &Ledger) -> Option<Vec<Token>> {
    let length = like.tokens.min(LONGEST);
    let mut tokens = ledger.beginning_of(&like.id, like.common.min(length))?;
    tokens.resize(length as usize, NO_TOKEN);
    Some(tokens)
}
