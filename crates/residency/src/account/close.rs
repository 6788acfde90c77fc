//! The account of a prompt, once all of it has been evaluated.

use super::difference::{Difference, difference};
use super::open::{Begun, Open, Other};
use super::past::{Nearest, common};
use super::types::{Account, Around, Cause, Causes, Diverged, Kind, Sources};
use super::{Accounts, Rules};
use crate::ledger::Keeper;
use crate::token::{Token, is_unseen};

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

    fn first(&self, wanted: Cause) -> Option<u32> {
        let mut all = self.all.iter();
        let found = all.find(|(_, _, cause)| *cause == wanted);
        found.map(|&(from, _, _)| from)
    }
}

impl Accounts {
    /// Makes the account of a prompt. `reused` and `evaluated` are its tokens by the engine's count.
    pub(super) fn account(&mut self, open: &Open, reused: u64, evaluated: u64) -> Account {
        let mut account = Account {
            nth: open.nth,
            asker: open.asker.clone(),
            tokens: reused + evaluated,
            reused,
            evaluated,
            ..Account::default()
        };
        let (Some(begun), Some(prompt)) = (&open.begun, &open.prompt) else {
            account.causes = all_unknown(evaluated);
            account.from.store = open.loaded_tokens().min(reused);
            account.from.slot = reused - account.from.store;
            return account;
        };
        account.from = sources(begun, reused, open.loaded_tokens());
        let seen = begun.from as usize <= prompt.len() && !prompt.iter().any(|&t| is_unseen(t));
        let nearest = self.past.nearest(prompt).filter(|_| seen);
        let mut stretches = Stretches {
            done: begun.from,
            end: (prompt.len() as u32).saturating_sub(1),
            all: Vec::new(),
        };
        self.explain(open, begun, prompt, nearest.as_ref(), &mut stretches);
        account.causes = count(open, &stretches, evaluated);
        let evicted = stretches.first(Cause::Evicted);
        let loss = evicted.and_then(|at| self.past.loss(prompt, at));
        account.lost = loss.and_then(|loss| self.losses.get(loss));
        account.diverged = nearest.and_then(|nearest| self.diverged(prompt, &nearest));
        if seen {
            let end = self.past.record(prompt, open.nth);
            self.losses.place(open.nth, end);
        }
        account
    }

    fn explain(
        &self,
        open: &Open,
        begun: &Begun,
        prompt: &[Token],
        nearest: Option<&Nearest>,
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
            None if begun.bounded => Cause::NoWayBack,
            None if begun.prepared.adapted => Cause::Adapter,
            None => Cause::NotKnown,
        };
        stretches.upto(common(&begun.own, prompt) as u32, own);
        // The other that holds the most of the prompt; of several, a slot.
        let best = begun
            .others
            .iter()
            .map(|other| (other.common(prompt), other))
            .max_by_key(|(common, other)| (*common, matches!(other.holds, Keeper::Slot(_))));
        if let Some((common, other)) = best {
            let kind = || Cause::Elsewhere(kind(open, other, (common, all), &self.rules));
            let cause = match uncached {
                Some(cause) => cause,
                None if other.of_other_adapters => Cause::Adapter,
                None => kind(),
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
        if let Some(nearest) = nearest {
            let known = nearest.nth > self.gap && !endless;
            let cause = if known {
                Cause::Evicted
            } else {
                Cause::NotKnown
            };
            stretches.upto_around(&movable, nearest.common, cause);
        }
        let forgotten = endless || self.past.has_forgotten(prompt);
        let cause = if forgotten {
            Cause::NotKnown
        } else {
            Cause::New
        };
        stretches.upto_around(&movable, all, cause);
    }

    fn diverged(&self, prompt: &[Token], nearest: &Nearest) -> Option<Diverged> {
        let ours = &prompt[nearest.common as usize..];
        if ours.is_empty() || nearest.rest.is_empty() {
            return None;
        }
        let Difference {
            inserted,
            deleted,
            same_after,
        } = difference(ours, &nearest.rest);
        Some(Diverged {
            at: nearest.common,
            request: self.losses.asker(nearest.nth),
            differing: inserted.max(deleted),
            inserted,
            deleted,
            same_after,
            around: self.quotes.then(|| {
                let at = nearest.common as usize;
                Box::new(Around::of(prompt, at, &nearest.rest))
            }),
        })
    }
}

/// Why tokens that are cached elsewhere were not used, by the server's rules (`get_available_slot`).
fn kind(open: &Open, other: &Other, (common, prompt): (u32, u32), rules: &Rules) -> Kind {
    match other.holds {
        Keeper::Host(_) => Kind::HostRule,
        Keeper::Slot(_) if open.wishes.slot.is_some() => Kind::Pinned,
        Keeper::Slot(_) if rules.similarity == 0.0 => Kind::LeastRecentlyUsed,
        // An idle slot that is similar enough would have been taken.
        Keeper::Slot(_) if rules.similarity(common, prompt, other.tokens).is_some() => Kind::Busy,
        Keeper::Slot(_) => Kind::Similarity,
    }
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
        last_token: 1,
        ..Causes::default()
    };
    for &(from, to, cause) in &stretches.all {
        *causes.of(cause) += open.entries(from, to);
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
