//! The account of a prompt, once all of it has been evaluated.

use super::Accounts;
use super::difference::{Difference, difference};
use super::open::{Begun, Open};
use super::order::{Shared, block, shared};
use super::past::{LossId, Nearest, common};
use super::rules::Rules;
use super::types::{Account, Around, Cause, Causes, Choice, Diverged, Kind, Loss, Sources, Taking};
use crate::ids::{CacheEntry, SequenceId};
use crate::ledger::Ledger;
use crate::token::{Token, is_unseen};
use std::ops::Range;

/// Stretches of a prompt, each with the cause of its evaluation: in order and without gaps.
struct Stretches {
    done: u32,
    end: u32,
    all: Vec<(u32, u32, Cause)>,
}

impl Stretches {
    /// The tokens without a cause up to `to` get this cause.
    fn upto(&mut self, to: u32, cause: Cause) {
        let to = to.min(self.end);
        if to > self.done {
            self.all.push((self.done, to, cause));
            self.done = to;
        }
    }

    /// The tokens without a cause up to `to` get this cause, but those in `ranges` get
    /// [`Cause::Moved`].
    fn upto_around(&mut self, ranges: &[(u32, u32)], to: u32, cause: Cause) {
        for &(from, until) in ranges {
            self.upto(from.min(to), cause);
            self.upto(until.min(to), Cause::Moved);
        }
        self.upto(to, cause);
    }

    /// The first token that is new.
    fn first_new(&self) -> Option<u32> {
        let mut all = self.all.iter();
        all.find_map(|&(from, _, cause)| (cause == Cause::New).then_some(from))
    }

    /// The new tokens in `ranges` (in order) get [`Cause::Repeated`].
    fn repeat(&mut self, ranges: &[Range<u32>]) {
        for (from, to, cause) in std::mem::take(&mut self.all) {
            if cause != Cause::New {
                self.all.push((from, to, cause));
                continue;
            }
            let mut at = from;
            for range in ranges {
                let (start, end) = (range.start.clamp(at, to), range.end.clamp(at, to));
                let parts = [(at, start, Cause::New), (start, end, Cause::Repeated)];
                self.all
                    .extend(parts.iter().filter(|(from, to, _)| from < to));
                at = end;
            }
            if at < to {
                self.all.push((at, to, Cause::New));
            }
        }
    }
}

impl Accounts {
    /// Makes the account of a prompt. `reused` and `evaluated` are its tokens by the engine's count.
    pub(super) fn account(
        &mut self,
        open: &Open,
        reused: u64,
        evaluated: u64,
        ledger: &Ledger,
    ) -> Account {
        let mut account = Account {
            nth: open.nth,
            asker: open.asker.clone(),
            tokens: reused + evaluated,
            reused,
            evaluated,
            given_up: open.given_up,
            ..Account::default()
        };
        let (Some(begun), Some(prompt)) = (&open.begun, &open.prompt) else {
            account.causes = all_unknown(evaluated);
            account.from.store = open.loaded_tokens().min(reused);
            account.from.slot = reused - account.from.store;
            return account;
        };
        account.adapters.clone_from(&begun.adapters);
        account.from = sources(begun, reused, open.loaded_tokens());
        let seen = begun.from as usize <= prompt.len() && !prompt.iter().any(|&t| is_unseen(t));
        let nearest = match &open.before {
            Some(before) => before.nearest.clone(),
            None => self.past.nearest(prompt, open.nth, begun.moment),
        };
        let nearest = nearest.filter(|_| seen);
        account.attempts = nearest.as_ref().map_or(0, |earlier| self.attempts(earlier));
        if open.given_up {
            self.losses.give_up(open.nth, account.attempts);
        }
        let mut stretches = Stretches {
            done: begun.from,
            end: (prompt.len() as u32).saturating_sub(u32::from(!open.given_up)),
            all: Vec::new(),
        };
        let beside = self.beside(open, begun, prompt, ledger);
        self.explain(
            open,
            begun,
            prompt,
            (nearest.as_ref(), beside),
            &mut stretches,
        );
        account.causes = count(open, &stretches, evaluated);
        if account.causes.evicted > 0 {
            account.lost = self.lost(open, begun, prompt, &stretches);
        }
        let diverged = nearest.as_ref();
        account.diverged = diverged.and_then(|nearest| self.diverged(open, prompt, nearest));
        if let Some(nearest) = nearest {
            self.losses.follow(open.nth, nearest.nth, nearest.common);
        }
        self.losses
            .take(open.nth, taking(open, begun, prompt, &self.rules));
        if seen {
            let end = self.past.record(prompt, open.nth);
            self.losses.place(open.nth, end);
        }
        account
    }

    /// How many prompts were given up whose evaluated tokens this one begins with: the last of them is the nearest.
    fn attempts(&self, nearest: &Nearest) -> u32 {
        let end = self.losses.end(nearest.nth);
        if end.is_some_and(|end| end.depth() <= nearest.common) {
            self.losses.attempts(nearest.nth)
        } else {
            0
        }
    }

    /// How many of a prompt's tokens a slot holds for one that was launched earlier, and was in a batch since this one began; and
    /// how many it holds in all. Of several, that which has the most in common.
    fn beside(
        &self,
        open: &Open,
        begun: &Begun,
        prompt: &[Token],
        ledger: &Ledger,
    ) -> Option<(u32, u32)> {
        let was_at_work = |slot: &SequenceId| {
            let place = self.slots.get(slot);
            place
                .is_some_and(|place| place.used >= begun.at && (1..open.nth).contains(&place.owner))
        };
        if !self.slots.keys().any(&was_at_work) {
            return None;
        }
        let all = ledger.holdings(prompt).into_iter();
        all.filter(|held| matches!(&held.holds, CacheEntry::Slot(slot) if was_at_work(slot)))
            .map(|held| (held.common, held.tokens))
            .max()
    }

    fn explain(
        &self,
        open: &Open,
        begun: &Begun,
        prompt: &[Token],
        (nearest, beside): (Option<&Nearest>, Option<(u32, u32)>),
        stretches: &mut Stretches,
    ) {
        let all = prompt.len() as u32;
        if open.is_forgotten() {
            return stretches.upto(all, Cause::Uncached);
        }
        if begun.blind {
            return stretches.upto(all, Cause::NotKnown);
        }
        let uncached = open.wishes.uncached.then_some(Cause::Uncached);
        let own = match uncached {
            Some(cause) => cause,
            None if begun.prepared.readapted => Cause::Adapter,
            None if begun.no_way_back => Cause::NoWayBack,
            None if begun.prepared.adapted => Cause::Adapter,
            None => Cause::NotKnown,
        };
        stretches.upto(common(&begun.own, prompt) as u32, own);
        // The other that holds the most of the prompt; of several, a slot.
        let best = begun
            .others
            .iter()
            .map(|other| (other.common(prompt), other))
            .max_by_key(|(common, other)| (*common, matches!(other.holds, CacheEntry::Slot(_))));
        if let Some((common, other)) = best {
            let cause = match (uncached, other.holds) {
                (Some(cause), _) => cause,
                (None, _) if other.of_other_adapters => Cause::Adapter,
                (None, CacheEntry::Host(_)) => Cause::Elsewhere(Kind::HostRule),
                (None, CacheEntry::Slot(_)) => {
                    Cause::Elsewhere(in_slot(open, other.tokens, (common, all), &self.rules))
                }
            };
            stretches.upto(common, cause);
        }
        let movable = match uncached {
            Some(_) => Vec::new(),
            None => begun.movable(prompt, &self.rules),
        };
        let endless = begun.others.iter().any(|other| {
            // It held all that was known of the prompt then, and its next tokens were not copied.
            other.endless && other.common(prompt) >= stretches.done
        });
        // Had it stayed, or been there, it would not have been reused.
        let unless_uncached = |cause| uncached.unwrap_or(cause);
        if let Some(nearest) = nearest {
            let known = nearest.nth > self.gap && !endless;
            let cause = if known {
                unless_uncached(Cause::Evicted)
            } else {
                Cause::NotKnown
            };
            stretches.upto_around(&movable, nearest.before, cause);
        }
        let forgotten = match &open.before {
            Some(before) => before.forgotten,
            None => self.past.has_forgotten(prompt, begun.moment),
        };
        let forgotten = endless || forgotten;
        // An earlier prompt was being evaluated up to here at the same time: in a slot, or in one that was used again since.
        let earlier = nearest.map(|nearest| {
            let held = nearest.common + nearest.rest.len() as u32;
            (nearest.earlier, held)
        });
        if let Some((common, held)) = earlier.max(beside).filter(|_| !forgotten) {
            let kind = in_slot(open, held, (common, all), &self.rules);
            let cause = unless_uncached(Cause::Elsewhere(kind));
            stretches.upto_around(&movable, common, cause);
        }
        let cause = if forgotten {
            Cause::NotKnown
        } else {
            Cause::New
        };
        stretches.upto_around(&movable, all, cause);
        if let Some(first) = stretches.first_new() {
            match &open.before {
                Some(before) => stretches.repeat(&before.repeats),
                None => stretches.repeat(&self.past.repeats(prompt, first, begun.moment)),
            }
        }
    }

    /// The loss that took most of the tokens that were evicted, and had to be evaluated; of several, the first.
    fn lost(
        &self,
        open: &Open,
        begun: &Begun,
        prompt: &[Token],
        stretches: &Stretches,
    ) -> Option<Loss> {
        let mut losses: Vec<(LossId, u32)> = Vec::new();
        let all = stretches.all.iter();
        for &(from, to, _) in all.filter(|(_, _, cause)| *cause == Cause::Evicted) {
            let lost = match &open.before {
                Some(before) => within(&before.losses, from, to),
                None => self.past.losses(prompt, (from, to), begun.moment),
            };
            for (loss, lost) in lost {
                let evaluated = open.entries(lost.start, lost.end);
                let tokens = u32::try_from(evaluated).unwrap_or(u32::MAX);
                match losses.iter_mut().find(|(known, _)| *known == loss) {
                    Some((_, sum)) => *sum = sum.saturating_add(tokens),
                    None => losses.push((loss, tokens)),
                }
            }
        }
        // A loss does not count if the prefix store has loaded all of its tokens.
        let losses = losses.into_iter().filter(|&(_, tokens)| tokens > 0);
        let most = losses.rev().max_by_key(|&(_, tokens)| tokens);
        most.and_then(|(loss, tokens)| self.losses.get(loss, tokens))
    }

    /// How many tokens of an earlier prompt, behind those that this prompt has in common with it, were
    /// cached when this prompt came.
    fn cached_behind(&self, open: &Open, nearest: &Nearest) -> usize {
        let was_cached = |loss: Option<LossId>| match loss {
            None => true,
            Some(loss) => self.losses.is_overwritten_by(loss, open.nth),
        };
        let runs = nearest.lost.iter();
        let cached = runs.take_while(|(_, loss)| was_cached(*loss));
        cached.map(|(tokens, _)| tokens).sum()
    }

    fn diverged(&self, open: &Open, prompt: &[Token], nearest: &Nearest) -> Option<Diverged> {
        // The slot may have held more of the prompt before it was emptied.
        let ours = prompt.get(nearest.common as usize..)?;
        if ours.is_empty() || nearest.rest.is_empty() {
            return None;
        }
        let Difference {
            inserted,
            deleted,
            same_after,
        } = difference(ours, &nearest.rest);
        let cached = &nearest.rest[..self.cached_behind(open, nearest)];
        // If nearly all of the rest is the same, nothing was reordered.
        let same = (cached.len() as u32)
            .saturating_sub(deleted)
            .min(same_after);
        let shared = if same as usize * 8 < ours.len() * 7 {
            shared(ours, cached)
        } else {
            Shared {
                unmatched: inserted,
                ..Shared::default()
            }
        };
        let end = self.losses.end(nearest.nth);
        // Or in what the prompt asks with, if it goes on into the answer, and what follows that is the same.
        let reach = if same_after > 0 && deleted > 0 {
            nearest.common + (deleted - 1).min(ASKS)
        } else {
            nearest.common
        };
        let answered = end.is_some_and(|end| end.depth() <= reach);
        let asked = end.map_or(cached.len(), |end| {
            end.depth().saturating_sub(nearest.common) as usize
        });
        let came_back = self.losses.came_back(nearest.nth, reach);
        Some(Diverged {
            answer: answered && self.losses.attempts(nearest.nth) == 0,
            earlier_answer: !answered && came_back,
            block: block(ours, cached, asked),
            media: ours[0] < 0 && nearest.rest[0] < 0,
            repeated: shared.repeated.max(same),
            reordered: shared.reordered,
            unmatched: shared.unmatched,
            at: nearest.common,
            request: self.losses.asker(nearest.nth),
            differing: inserted.max(deleted),
            inserted,
            deleted,
            same_after,
            around: self.quotes.then(|| {
                let at = nearest.common as usize;
                Box::new(Around::new(prompt, at, &nearest.rest))
            }),
        })
    }
}

/// A prompt ends with a few tokens that the history may lack, such as the beginning of a think block: a difference in so many may
/// be one of the answer behind.
const ASKS: u32 = 8;

/// What of these losses is in the range `[from, to)` of a prompt.
fn within(losses: &[(LossId, Range<u32>)], from: u32, to: u32) -> Vec<(LossId, Range<u32>)> {
    let inside = losses
        .iter()
        .map(|(loss, lost)| (*loss, lost.start.max(from)..lost.end.min(to)));
    inside.filter(|(_, lost)| !lost.is_empty()).collect()
}

/// Why tokens of another slot were not used, by the server's rules (`get_available_slot`).
fn in_slot(open: &Open, held: u32, (common, prompt): (u32, u32), rules: &Rules) -> Kind {
    if open.wishes.slot.is_some() {
        Kind::Pinned
    } else if rules.similarity == 0.0 {
        Kind::LeastRecentlyUsed
    } else if rules.similarity(common, prompt, held).is_some() {
        // An idle slot that is similar enough would have been taken.
        Kind::Busy
    } else {
        Kind::Similarity
    }
}

/// How a prompt came into its slot. `None`: not known, or the slot's content was saved to host memory and
/// exchanged for other content before.
fn taking(open: &Open, begun: &Begun, prompt: &[Token], rules: &Rules) -> Option<Taking> {
    let held = begun.own.len();
    if begun.blind || begun.prepared.restored || held == 0 {
        return None;
    }
    let same = common(&begun.own, prompt);
    let similar = rules.similarity(same as u32, prompt.len() as u32, held as u32);
    let thousandths = |of: usize| (same * 1000 / of.max(1)) as u16;
    Some(Taking {
        choice: match (open.wishes.slot, similar) {
            (Some(_), _) => Choice::Pinned,
            (None, Some(_)) => Choice::Similarity,
            (None, None) => Choice::LeastRecentlyUsed,
        },
        similarity: thousandths(prompt.len()),
        kept: thousandths(held),
    })
}

fn sources(begun: &Begun, reused: u64, store: u64) -> Sources {
    let store = store.min(reused);
    let moved = u64::from(begun.prepared.moved).min(reused - store);
    let rest = reused - store - moved;
    let mut sources = Sources {
        moved,
        store,
        ..Sources::default()
    };
    match (begun.checkpoint, begun.prepared.restored) {
        (true, _) => sources.checkpoint = rest,
        (false, true) => sources.host = rest,
        (false, false) => sources.slot = rest,
    }
    sources
}

/// Evaluated entries by cause. The last token of a prompt is always evaluated.
fn count(open: &Open, stretches: &Stretches, evaluated: u64) -> Causes {
    let mut causes = Causes {
        last_token: u64::from(!open.given_up),
        ..Causes::default()
    };
    for &(from, to, cause) in &stretches.all {
        *causes.count_of(cause) += open.entries(from, to);
    }
    let sum = causes.sum();
    if sum > evaluated {
        return all_unknown(evaluated);
    }
    causes.not_known += evaluated - sum;
    causes
}

fn all_unknown(evaluated: u64) -> Causes {
    Causes {
        last_token: evaluated.min(1),
        not_known: evaluated - evaluated.min(1),
        ..Causes::default()
    }
}
