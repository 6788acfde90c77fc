//! Prompts that were evaluated: how many tokens each took and why, for which request, and how long.

use contextpilot_residency::{
    Account, Arrival, Asker, EvaluationId, Ledger, SequenceId, TokenCounts, Wishes,
};

use super::Observer;
use super::known::{Done, Launch, Unclaimed, Untimed};
use crate::histogram::class_of;
use crate::note::{Now, Stamp};

/// Prompts with fewer evaluated tokens say nothing of how long others take.
const TIMED: u64 = 64;

impl Observer {
    pub(super) fn launched(&mut self, launch: &Launch<'_>, at: Stamp, now: Now) {
        let Launch {
            sequence,
            task,
            asker,
            evaluation,
            goes_on,
        } = *launch;
        let wishes = self.wishes_of(asker);
        match (evaluation, asker.arrival()) {
            (Some(evaluation), _) => {
                self.unclaimed.insert(evaluation, Unclaimed::default());
            }
            (None, Some(arrival)) => {
                if let Some(work) = self.works.get_mut(&arrival) {
                    work.slot.get_or_insert(sequence);
                }
            }
            (None, None) => {}
        }
        if let Some(accounts) = &mut self.accounts {
            accounts.launch(sequence, task, asker.clone(), wishes);
        }
        let work = asker.arrival().and_then(|arrival| self.works.get(&arrival));
        let title = work.and_then(|work| work.title.clone());
        let tokens = work.and_then(|work| work.prompt_tokens);
        let slot = self.slots.entry(sequence).or_default();
        slot.title = title;
        slot.tokens = tokens;
        if !goes_on {
            slot.launched = at;
        }
        slot.launched_unix_ms = Some(now.unix_ms);
    }

    /// A request claims an evaluation, which may still go on in the slot `running`.
    pub(super) fn claimed(
        &mut self,
        evaluation: EvaluationId,
        asker: &Asker,
        running: Option<SequenceId>,
    ) {
        let wishes = self.wishes_of(asker);
        let Some(unclaimed) = self.unclaimed.get_mut(&evaluation) else {
            return;
        };
        unclaimed.claimed = true;
        let (done, entry) = (unclaimed.done.clone(), unclaimed.entry);
        if let (Some(sequence), Some(accounts)) = (running, &mut self.accounts) {
            accounts.rename(sequence, asker.clone(), wishes);
        }
        if let Some(entry) = entry {
            self.evaluations.rename(entry, asker);
        }
        for done in done {
            let entry = self.deliver(asker.arrival(), Some(asker), done, entry);
            if let Some(unclaimed) = self.unclaimed.get_mut(&evaluation) {
                unclaimed.entry = unclaimed.entry.or(entry);
            }
        }
    }

    /// No request will claim an evaluation any more. If none did, it counts for the most likely one.
    pub(super) fn claims_closed(&mut self, evaluation: EvaluationId, likely: Option<Arrival>) {
        let unclaimed = self.unclaimed.remove(&evaluation);
        for done in unclaimed
            .filter(|evaluated| !evaluated.claimed)
            .into_iter()
            .flat_map(|evaluated| evaluated.done)
        {
            self.deliver(likely, None, done, None);
        }
    }

    pub(super) fn batch_evaluated(&mut self, sequence: SequenceId, at: Stamp) {
        self.slots.entry(sequence).or_default().evaluated = at;
    }

    /// A slot's prompt is evaluated to its end. `answers`: the first token of an answer follows.
    pub(super) fn prompt_evaluated(
        &mut self,
        sequence: SequenceId,
        asker: &Asker,
        evaluation: Option<EvaluationId>,
        (counts, answers): (TokenCounts, bool),
        now: Now,
        ledger: &Ledger,
    ) {
        let accounts = self.accounts.as_mut();
        let account = accounts
            .and_then(|accounts| accounts.close(sequence, counts.reused, counts.evaluated, ledger));
        let entry = self.completed(sequence, asker, evaluation, (counts, None), account, now);
        let slot = self.slots.entry(sequence).or_default();
        let seconds = slot.evaluated.seconds_since(slot.launched);
        let timed = seconds.filter(|seconds| counts.evaluated >= TIMED && *seconds > 0.0);
        let rate = timed.map(|seconds| counts.evaluated as f64 / seconds);
        self.usual_rate = rate.or(self.usual_rate);
        if answers {
            slot.untimed = Some(Untimed {
                since: slot.launched,
                asker: asker.arrival(),
                entry,
            });
        }
    }

    /// The client of a slot's prompt has left, and no more of it will be evaluated.
    pub(super) fn prompt_given_up(
        &mut self,
        sequence: SequenceId,
        asker: &Asker,
        evaluation: Option<EvaluationId>,
        counts: TokenCounts,
        now: Now,
        ledger: &Ledger,
    ) {
        if counts.evaluated == 0 {
            return;
        }
        let account = self.accounts.as_mut().and_then(|accounts| {
            accounts.give_up(sequence, counts.reused, counts.evaluated, ledger)
        });
        let slot = self.slots.entry(sequence).or_default();
        let since = slot.launched;
        self.counts.seconds += slot.evaluated.seconds_since(since).unwrap_or(0.0);
        let counts = (counts, Some(since));
        self.completed(sequence, asker, evaluation, counts, account, now);
    }

    /// A slot takes over the prompt that another has evaluated. Nothing is evaluated for it, and nothing counted: the
    /// server's own sums do not have it either.
    pub(super) fn took_over(
        &mut self,
        (source, target): (SequenceId, SequenceId),
        asker: &Asker,
        unseen: bool,
    ) {
        let parent = self.slots.entry(source).or_default();
        let (launched, unix_ms) = (parent.launched, parent.launched_unix_ms);
        let evaluated = parent.evaluated;
        let slot = self.slots.entry(target).or_default();
        slot.evaluated = evaluated;
        if unseen {
            slot.launched = launched;
            slot.launched_unix_ms = unix_ms;
        }
        if let Some(accounts) = &mut self.accounts {
            accounts.take_over(source, target);
        }
        let work = asker
            .arrival()
            .and_then(|arrival| self.works.get_mut(&arrival));
        if let Some(work) = work {
            work.took_over();
        }
    }

    /// The first token of a slot's answer is there.
    pub(super) fn has_first_token(&mut self, sequence: SequenceId, at: Stamp) {
        let slot = self.slots.get_mut(&sequence);
        let Some(prompt) = slot.and_then(|slot| slot.untimed.take()) else {
            return;
        };
        let Some(seconds) = at.seconds_since(prompt.since) else {
            return;
        };
        self.counts.seconds += seconds;
        if let Some(entry) = prompt.entry {
            self.evaluations.took(entry, prompt.since, at);
        }
        let work = prompt.asker.and_then(|asker| self.works.get_mut(&asker));
        if let Some(work) = work {
            work.took(prompt.since, at);
        }
    }

    fn wishes_of(&self, asker: &Asker) -> Wishes {
        let work = asker.arrival().and_then(|arrival| self.works.get(&arrival));
        work.map_or_else(Wishes::default, |work| work.wishes)
    }

    /// Counts a prompt. Returns the entry of its evaluation, if it has one.
    fn completed(
        &mut self,
        sequence: SequenceId,
        asker: &Asker,
        evaluation: Option<EvaluationId>,
        (counts, given_up): (TokenCounts, Option<Stamp>),
        account: Option<Account>,
        now: Now,
    ) -> Option<u64> {
        self.counts.prompts += 1;
        self.counts.taken.add(counts);
        self.count_for_context(sequence, counts);
        self.minute.add(counts, now.stamp);
        if let Some(account) = &account {
            self.evaluations.count(account);
        }
        let done = Done {
            sequence,
            counts,
            account,
            at: self.slots.entry(sequence).or_default().evaluated,
            unix_ms: now.unix_ms,
            given_up,
        };
        let unclaimed = evaluation.and_then(|id| self.unclaimed.get_mut(&id));
        if let Some(unclaimed) = unclaimed {
            unclaimed.done.push(done.clone());
            if !unclaimed.claimed {
                return None;
            }
        }
        let entry = self.deliver(asker.arrival(), None, done, None);
        let unclaimed = evaluation.and_then(|id| self.unclaimed.get_mut(&id));
        if let Some(unclaimed) = unclaimed {
            unclaimed.entry = unclaimed.entry.or(entry);
        }
        entry
    }

    /// Counts an evaluated prompt for its request. `asker`: the request, if it was not known before.
    /// `entry`: the entry of this evaluation, if it has one. Returns its entry.
    fn deliver(
        &mut self,
        arrival: Option<Arrival>,
        asker: Option<&Asker>,
        done: Done,
        entry: Option<u64>,
    ) -> Option<u64> {
        let Done {
            sequence,
            counts,
            account,
            at,
            unix_ms,
            given_up,
        } = done;
        let mut work = arrival.and_then(|arrival| self.works.get_mut(&arrival));
        if let Some(work) = &mut work {
            work.slot.get_or_insert(sequence);
        }
        let mut remembered = entry;
        if let Some(mut account) = account {
            if let Some(asker) = asker {
                account.asker = asker.clone();
                if let Some(accounts) = &mut self.accounts {
                    accounts.name(account.nth, asker.clone());
                }
            }
            let known = remembered.or_else(|| work.as_ref()?.entry);
            let evaluations = &mut self.evaluations;
            let place = match entry {
                Some(entry) => entry,
                None => evaluations.remember(&account, sequence, unix_ms, known),
            };
            remembered = Some(place);
            if let Some(work) = &mut work {
                work.accounted(&account, place);
                evaluations.describe(place, work.sections, work.title.as_deref(), work.kept);
                if let Some(sent) = &work.sent {
                    evaluations.sent(place, sent);
                }
            }
        }
        if let Some(since) = given_up {
            if let Some(entry) = remembered {
                self.evaluations.took(entry, since, at);
            }
            if let Some(work) = work {
                work.took(since, at);
                work.gave_up(counts);
            }
            return remembered;
        }
        if let Some(seconds) = work.and_then(|work| work.completed(counts, at)) {
            self.counts.first_token[class_of(counts)].observe(seconds);
        }
        remembered
    }
}
