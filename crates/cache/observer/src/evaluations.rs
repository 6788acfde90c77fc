//! The last evaluations of prompts, and why each was necessary.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use contextpilot_control::{
    AppliedAdapter, Causes, Diverged, Evaluated, Evaluation, Lost, RequestName, Sections,
    Timestamp, Title,
};
use contextpilot_request::Sent;
use contextpilot_residency::{self as residency, Account, Asker, RequestId, Taking};

use crate::difference::Difference;
use crate::names::{choice_out, reason_out, through_out};
use crate::note::{Stamp, Took};

/// The evaluations of this many requests are remembered.
pub const MOST_EVALUATIONS: usize = 10_000;
/// Which dates and numbers were sent is remembered of so many requests whose prompts differ from earlier ones.
pub const MOST_SENT: usize = 256;

/// A request's evaluation.
#[derive(Debug)]
struct Known {
    /// The number of its last prompt.
    nth: u64,
    /// How many prompts it has.
    prompts: u32,
    /// The most tokens that were evaluated of one of its prompts.
    most: u64,
    evaluated: Evaluated,
    took: Took,
    /// The place where its prompt differs from an earlier one.
    difference: Option<Difference>,
}

/// A bounded memory of evaluations.
#[derive(Debug, Default)]
pub(crate) struct Evaluations {
    /// Oldest first.
    all: VecDeque<Known>,
    /// How many were forgotten: the number of the first one in `all`.
    before: u64,
    /// The entries of which is known what was sent, the oldest first.
    sent: VecDeque<u64>,
    by_id: HashMap<RequestId, u64>,
    /// All evaluated prompt tokens, by cause.
    pub(crate) causes: Causes,
}

impl Evaluations {
    /// Counts the tokens of a prompt by cause.
    pub(crate) fn count(&mut self, account: &Account) {
        self.causes.add(evaluation(account).causes);
    }

    /// `None`: the entry was dropped.
    fn known_at(&mut self, entry: u64) -> Option<&mut Known> {
        let place = self.place(entry)?;
        self.all.get_mut(place)
    }

    /// The last request with this id.
    fn last_of(&self, id: &str) -> Option<&Known> {
        self.all.get(self.place(*self.by_id.get(id)?)?)
    }

    fn place(&self, entry: u64) -> Option<usize> {
        usize::try_from(entry.checked_sub(self.before)?).ok()
    }

    /// A prompt of the request at this entry was launched, and had been evaluated, then.
    pub(crate) fn took(&mut self, entry: u64, since: Stamp, until: Stamp) {
        if let Some(known) = self.known_at(entry) {
            known.evaluated.evaluation.seconds = known.took.add(since, until);
        }
    }

    /// The request at this entry was answered.
    pub(crate) fn ended(&mut self, entry: u64, first_token: Option<f64>, unix_ms: u64) {
        if let Some(known) = self.known_at(entry) {
            known.evaluated.time_to_first_token_seconds = first_token;
            known.evaluated.ended = Some(Timestamp::from_unix_ms(unix_ms));
        }
    }

    /// The request at this entry has these sections, is about this, and so many tokens of its prompts were kept.
    pub(crate) fn describe(
        &mut self,
        entry: u64,
        sections: Option<Sections>,
        title: Option<&Title>,
        kept: u64,
    ) {
        if let Some(known) = self.known_at(entry) {
            known.evaluated.sections = sections;
            known.evaluated.evaluation.title = title.cloned();
            known.evaluated.evaluation.kept = kept;
        }
    }

    /// The request at this entry has these dates and numbers.
    pub(crate) fn sent(&mut self, entry: u64, sent: &Arc<Sent>) {
        let Some(difference) = self
            .known_at(entry)
            .and_then(|known| known.difference.as_mut())
        else {
            return;
        };
        if difference.sent.replace(Arc::clone(sent)).is_none() {
            self.sent.push_back(entry);
        }
        if self.sent.len() > MOST_SENT {
            let oldest = self.sent.pop_front();
            let known = oldest.and_then(|oldest| self.known_at(oldest));
            if let Some(difference) = known.and_then(|known| known.difference.as_mut()) {
                difference.sent = None;
            }
        }
    }

    /// The evaluation at this entry belongs to another request.
    pub(crate) fn rename(&mut self, entry: u64, asker: &Asker) {
        let Some(known) = self.known_at(entry) else {
            return;
        };
        known.evaluated.number = asker.number;
        let id = asker.id.as_deref().map(str::to_owned);
        let old = std::mem::replace(&mut known.evaluated.id, id);
        if let Some(old) = old.filter(|old| self.by_id.get(&**old) == Some(&entry)) {
            self.by_id.remove(&*old);
        }
        if let Some(id) = &asker.id {
            self.by_id.insert(id.clone(), entry);
        }
    }

    /// Remembers why a prompt was evaluated. `entry`: the entry of its request, if an earlier prompt of
    /// that has one. Returns its entry.
    pub(crate) fn remember(
        &mut self,
        account: &Account,
        slot: i32,
        unix_ms: u64,
        entry: Option<u64>,
    ) -> u64 {
        let evaluation = evaluation(account);
        let at = Timestamp::from_unix_ms(unix_ms);
        let earlier = entry.and_then(|entry| Some((entry, self.known_at(entry)?)));
        if let Some((entry, known)) = earlier {
            let is_largest = account.evaluated > known.most;
            if is_largest {
                known.most = account.evaluated;
                known.difference = difference(account);
            }
            known.nth = account.nth;
            known.prompts = known.prompts.saturating_add(1);
            known.evaluated.at = at;
            known.evaluated.slot = slot;
            known.evaluated.evaluation.add(evaluation, is_largest);
            return entry;
        }
        let Asker { number, id } = &account.asker;
        let entry = self.before + self.all.len() as u64;
        if let Some(id) = id {
            self.by_id.insert(id.clone(), entry);
        }
        self.all.push_back(Known {
            nth: account.nth,
            prompts: 1,
            most: account.evaluated,
            took: Took::default(),
            difference: difference(account),
            evaluated: Evaluated {
                number: *number,
                id: id.as_deref().map(str::to_owned),
                at,
                slot,
                time_to_first_token_seconds: None,
                ended: None,
                sections: None,
                evaluation,
            },
        });
        if self.all.len() > MOST_EVALUATIONS {
            let oldest = self.all.pop_front();
            let id = oldest.and_then(|oldest| oldest.evaluated.id);
            if let Some(id) = id.filter(|id| self.by_id.get(&**id) == Some(&self.before)) {
                self.by_id.remove(&*id);
            }
            self.before += 1;
        }
        entry
    }

    /// The evaluation of the last request with this id, and the number of its prompt.
    pub(crate) fn get(&self, id: &str) -> Option<(u64, &Evaluation)> {
        let known = self.last_of(id)?;
        Some((known.nth, &known.evaluated.evaluation))
    }

    /// The last evaluation of the request with this number, the number of its (last) prompt, and how many it has.
    pub(crate) fn numbered(&self, number: u64) -> Option<(u64, u32, &Evaluated)> {
        let mut latest = self.all.iter().rev();
        let known = latest.find(|known| known.evaluated.number == number)?;
        Some((known.nth, known.prompts, &known.evaluated))
    }

    /// The place where the prompt of the last request with this id differs from an earlier one.
    pub(crate) fn difference(&self, id: &str) -> Option<Difference> {
        self.last_of(id)?.difference.clone()
    }

    /// The latest first. Each comes with the place where its prompt differs.
    pub(crate) fn latest(&self, most: usize) -> Vec<(Evaluated, Option<Difference>)> {
        let latest = self.all.iter().rev().take(most);
        latest
            .map(|known| (known.evaluated.clone(), known.difference.clone()))
            .collect()
    }
}

fn difference(account: &Account) -> Option<Difference> {
    let around = account.diverged.as_ref()?.around.clone()?;
    Some(Difference { around, sent: None })
}

/// Converts an account to the control endpoint's type.
pub(crate) fn evaluation(account: &Account) -> Evaluation {
    Evaluation {
        prompt_tokens: account.tokens,
        reused: account.reused,
        evaluated: account.evaluated,
        seconds: None,
        causes: account.causes,
        from: account.from,
        adapters: account.adapters.as_ref().map(|adapters| {
            let shown = |adapter: residency::AppliedAdapter| AppliedAdapter {
                id: adapter.index,
                scale: adapter.scale.get(),
            };
            adapters.iter().copied().map(shown).collect()
        }),
        given_up: account.given_up,
        attempts: account.attempts.into(),
        kept: 0,
        diverged: account.diverged.as_ref().map(|diverged| Diverged {
            at: diverged.at.into(),
            request: diverged.request.as_ref().and_then(name),
            differing: diverged.differing.into(),
            same_after: diverged.same_after.into(),
            repeated: diverged.repeated.into(),
            reordered: diverged.reordered.into(),
            unmatched: diverged.unmatched.into(),
            inserted: diverged.inserted.into(),
            deleted: diverged.deleted.into(),
            answer: diverged.answer,
            earlier_answer: diverged.earlier_answer,
            block: diverged.block.into(),
            media: diverged.media,
            sent: None,
            text: None,
        }),
        lost: account.lost.as_ref().map(|lost| {
            let share =
                |of: fn(&Taking) -> u16| Some(f64::from(of(lost.taking.as_ref()?)) / 1000.0);
            Lost {
                when: Timestamp::from_unix_ms(lost.at_unix_ms),
                reason: reason_out(lost.reason),
                by: lost.by.as_ref().and_then(name),
                through: lost.through.map(through_out),
                tokens: lost.tokens.into(),
                chosen_by: lost.taking.map(|taking| choice_out(taking.choice)),
                similarity: share(|taking| taking.similarity),
                kept: share(|taking| taking.kept),
            }
        }),
        title: None,
    }
}

/// How a request is named. `None`: it was not seen.
pub(crate) fn name(asker: &Asker) -> Option<RequestName> {
    match (&asker.id, asker.number) {
        (Some(id), _) => Some(RequestName::Id(id.to_string())),
        (None, 0) => None,
        (None, number) => Some(RequestName::Number(number)),
    }
}
