//! What the server would reuse for a prompt, by the server's own rules.

use super::Accounts;
use super::past::common;
use super::rules::Rules;
use super::types::{Choice, Match, Matched, Occupied};
use crate::ids::{BufferId, CacheEntry, SequenceId};
use crate::ledger::Ledger;
use crate::token::Token;
use std::cmp::Reverse;

impl Accounts {
    /// What the engine would reuse for a prompt if it came now, for a completion: the rules of
    /// `get_available_slot`, `server_prompt_cache::load` and `update_slots`.
    #[must_use]
    pub fn matching(
        &self,
        prompt: &[Token],
        pinned: Option<SequenceId>,
        occupied: &Occupied,
        ledger: &Ledger,
    ) -> Match {
        let most = (prompt.len() as u32).saturating_sub(1);
        let mut holdings = ledger.holdings(prompt);
        holdings.sort_unstable_by_key(|holding| match holding.holds {
            CacheEntry::Slot(slot) => (0, i64::from(slot), holding.holds),
            CacheEntry::Host(buffer) => (1, self.age_of(buffer), holding.holds),
        });
        let all: Vec<Matched> = holdings
            .iter()
            .map(|holding| {
                let slot = match holding.holds {
                    CacheEntry::Slot(slot) => Some(slot),
                    CacheEntry::Host(_) => None,
                };
                let reusable = self
                    .reusable(holding.holds, holding.common, prompt, ledger)
                    .min(most);
                Matched {
                    slot,
                    tokens: holding.tokens,
                    common: holding.common,
                    reusable,
                    busy: slot.is_some_and(|slot| occupied.busy.contains(&slot)),
                }
            })
            .collect();
        let choice = self.choose(prompt.len() as u32, &all, pinned, occupied, ledger);
        let Some((slot, how)) = choice else {
            return Match {
                all,
                ..Match::default()
            };
        };
        let own = all.iter().find(|held| held.slot == Some(slot));
        let loads = if updates_host(&self.rules, own, how) {
            load(&all, own, prompt.len() as u32)
        } else {
            None
        };
        let used = loads.map(|place| all[place]).or(own.copied());
        Match {
            reused: used.map_or(0, |held| held.reusable),
            choice,
            loads,
            all,
        }
    }

    fn age_of(&self, buffer: BufferId) -> i64 {
        let saved = self.saved.get(&buffer).map_or(0, |&(at, _)| at);
        i64::try_from(saved).unwrap_or(i64::MAX)
    }

    fn reusable(&self, holds: CacheEntry, shared: u32, prompt: &[Token], ledger: &Ledger) -> u32 {
        if self.rules.cache_reuse == 0 || ledger.is_bounded() || shared == 0 {
            return ledger.way_back_in(holds, shared, (shared as usize) < prompt.len());
        }
        let held = ledger.tokens_from(holds, 0);
        let (mut cached, mut place) = (shared as usize, shared as usize);
        while cached < held.len() && place < prompt.len() {
            let alike = common(&held[cached..], &prompt[place..]);
            if alike >= self.rules.cache_reuse as usize {
                cached += alike;
                place += alike;
            } else {
                cached += 1;
            }
        }
        let place = place as u32;
        ledger.way_back_in(holds, place, (place as usize) < prompt.len())
    }

    fn choose(
        &self,
        prompt: u32,
        all: &[Matched],
        pinned: Option<SequenceId>,
        occupied: &Occupied,
        ledger: &Ledger,
    ) -> Option<(SequenceId, Choice)> {
        let is_idle = |slot: &SequenceId| !occupied.busy.contains(slot);
        if let Some(slot) = pinned {
            return is_idle(&slot).then_some((slot, Choice::Pinned));
        }
        let mut best: Option<(f32, SequenceId)> = None;
        let idle = all.iter().filter(|held| !held.busy);
        for (slot, held) in idle.filter_map(|held| Some((held.slot?, held))) {
            let share = self.rules.similarity(held.common, prompt, held.tokens);
            // Servers of 2025 take the longest common beginning among the similar slots.
            let rank = share.map(|share| {
                if self.rules.of_slot {
                    held.common as f32
                } else {
                    share
                }
            });
            if let Some(rank) = rank.filter(|&rank| best.is_none_or(|(most, _)| rank > most)) {
                best = Some((rank, slot));
            }
        }
        if let Some((_, slot)) = best {
            return Some((slot, Choice::Similarity));
        }
        let slots = SequenceId::try_from(occupied.slots?).ok()?;
        let used = |slot: SequenceId| self.slots.get(&slot).map_or(0, |place| place.used);
        let idle = (0..slots).filter(is_idle);
        let oldest = match self.from_the_end {
            Some(true) => idle.min_by_key(|&slot| (used(slot), Reverse(slot))),
            // Servers of late 2026 first take a slot that holds nothing, whether it was used or not.
            _ => idle.min_by_key(|&slot| (!ledger.is_certainly_empty(slot), used(slot), slot)),
        };
        oldest.map(|slot| (slot, Choice::LeastRecentlyUsed))
    }
}

/// Whether the server searches the host prompt cache: if the slot was chosen by age, or if less than
/// half of its tokens would be kept.
fn updates_host(rules: &Rules, own: Option<&Matched>, how: Choice) -> bool {
    match (how, own) {
        (Choice::LeastRecentlyUsed, _) => true,
        (_, Some(own)) => rules.similarity != 0.0 && (own.common as f32 / own.tokens as f32) < 0.5,
        (_, None) => false,
    }
}

/// The host entry that the server would load: it has at least a quarter of its tokens in common with
/// the prompt, and is better than the slot in both shares (of its own tokens, and of the prompt).
fn load(all: &[Matched], own: Option<&Matched>, prompt: u32) -> Option<usize> {
    let shares = |matched: &Matched| {
        let same = matched.common as f32;
        (same / matched.tokens as f32, same / prompt as f32)
    };
    let mut best = own.map_or((-1.0, 0.0), shares);
    let mut found = None;
    for (place, held) in all
        .iter()
        .enumerate()
        .filter(|(_, held)| held.slot.is_none())
    {
        let these = shares(held);
        if these.0 >= 0.25 && best.0 < these.0 && best.1 < these.1 {
            (best, found) = (these, Some(place));
        }
    }
    found
}
