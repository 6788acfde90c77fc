//! Which request a slot works for, and how many tokens its prompt took.

use contextpilot_residency::{
    Account, Arrival, Asker, EvaluationId, RequestId, SequenceId, TaskId, UNTIED,
};

use super::Observer;
use crate::histogram::class_of;
use crate::note::{Now, Stamp};
use crate::prompt::{Prompt, TokenCounts};
use crate::work::{Launch, Untimed};

/// An evaluation of a prompt for which several requests wait. Which of them it belongs to is known
/// later. Until then it belongs to none of them, as in the ledger.
#[derive(Debug)]
pub(super) struct Unclaimed {
    sequence: SequenceId,
    likely: TaskId,
    claimed: bool,
    /// Its prompts that are evaluated: several if there are several answers.
    done: Vec<Done>,
    /// Its entry in [`Evaluations`](crate::evaluations::Evaluations), if it has one.
    entry: Option<u64>,
}

/// A prompt that is evaluated: how many tokens it took, and why.
#[derive(Clone, Debug)]
struct Done {
    sequence: SequenceId,
    taken: TokenCounts,
    account: Option<Account>,
    at: Stamp,
    unix_ms: u64,
}

impl Observer {
    pub(super) fn launched(
        &mut self,
        sequence: SequenceId,
        task: TaskId,
        evaluation: Option<EvaluationId>,
        at: Stamp,
        now: Now,
    ) {
        let arrival = match evaluation {
            None => self.tasks.remove(&task),
            // The evaluation may turn out to belong to another task.
            Some(_) => self.tasks.get(&task).copied(),
        };
        let work = arrival.and_then(|arrival| self.works.get_mut(&arrival));
        let (id, wishes) = work.map_or_else(Default::default, |work| {
            if evaluation.is_none() {
                work.slot.get_or_insert(sequence);
            }
            (work.id.clone(), work.wishes)
        });
        self.end_prompt(sequence, now);
        if let Some(accounts) = &mut self.accounts {
            let asker = asker(arrival, id.clone());
            accounts.launch(sequence, task, asker, wishes);
        }
        if let Some(evaluation) = evaluation {
            let unclaimed = Unclaimed {
                sequence,
                likely: task,
                claimed: false,
                done: Vec::new(),
                entry: None,
            };
            self.unclaimed.insert(evaluation, unclaimed);
        }
        let slot = self.slots.entry(sequence).or_default();
        // A prompt that began for an unknown task goes on: its end has told which task it is.
        let begun = slot.launch.take().filter(|launch| launch.untied);
        let untied = task == UNTIED;
        let at = begun.as_ref().map_or(at, |launch| launch.at);
        let prompt = begun.filter(|_| !untied).and_then(|launch| launch.prompt);
        slot.launch = Some(Launch {
            arrival,
            id,
            at,
            at_unix_ms: now.unix_ms,
            busy: arrival.is_some(),
            untied,
            evaluation,
            prompt: Some(prompt.unwrap_or_default()),
        });
    }

    /// A task claims an evaluation, which may still go on.
    pub(super) fn claimed(&mut self, evaluation: EvaluationId, task: TaskId) {
        let Some(unclaimed) = self.unclaimed.get_mut(&evaluation) else {
            return;
        };
        unclaimed.claimed = true;
        let (sequence, entry) = (unclaimed.sequence, unclaimed.entry);
        let done = unclaimed.done.clone();
        let arrival = self.tasks.remove(&task);
        let work = arrival.and_then(|arrival| self.works.get(&arrival));
        let (id, wishes) =
            work.map_or_else(Default::default, |work| (work.id.clone(), work.wishes));
        let slot = self.slots.get_mut(&sequence);
        let launch = slot.and_then(|slot| slot.launch.as_mut());
        if let Some(launch) = launch.filter(|launch| launch.evaluation == Some(evaluation)) {
            launch.arrival = arrival;
            launch.id.clone_from(&id);
            let goes_on = launch.prompt.is_some();
            if let (true, Some(accounts)) = (goes_on, &mut self.accounts) {
                accounts.rename(sequence, asker(arrival, id.clone()), wishes);
            }
        }
        let asker = asker(arrival, id);
        if let Some(entry) = entry {
            self.evaluations.rename(entry, &asker);
        }
        for done in done {
            let entry = self.deliver(arrival, Some(&asker), done, entry);
            if let Some(unclaimed) = self.unclaimed.get_mut(&evaluation) {
                unclaimed.entry = unclaimed.entry.or(entry);
            }
        }
    }

    /// No task will claim an evaluation any more. If none did, it counts for the most likely task.
    pub(super) fn claims_closed(&mut self, evaluation: EvaluationId) {
        let Some(unclaimed) = self.unclaimed.remove(&evaluation) else {
            return;
        };
        if !unclaimed.claimed {
            let arrival = self.tasks.get(&unclaimed.likely).copied();
            for done in unclaimed.done {
                self.deliver(arrival, None, done, None);
            }
        }
    }

    /// Closes the account of a slot's prompt, which took this many tokens.
    fn close(&mut self, sequence: SequenceId, taken: TokenCounts) -> Option<Account> {
        let accounts = self.accounts.as_mut()?;
        accounts.close(sequence, taken.reused, taken.evaluated)
    }

    /// A further answer to a prompt (`n`) takes over the prompt of its parent. If the parent still works on its
    /// prompt, only the beginning of it is shared (questions to a decision model), and nothing is taken over.
    pub(super) fn copied(&mut self, source: SequenceId, target: SequenceId, now: Now) {
        let Some(parent) = self.slots.get(&source) else {
            return;
        };
        let prompt = parent.launch.as_ref().and_then(|one| one.prompt.as_ref());
        if prompt.is_some_and(|prompt| prompt.over().is_none()) {
            return;
        }
        let (last, surplus) = (parent.last, parent.surplus.clone());
        let of_parent = parent.launch.as_ref().map(|launch| Launch {
            prompt: None,
            id: launch.id.clone(),
            ..*launch
        });
        let slot = self.slots.entry(target).or_default();
        slot.surplus = surplus;
        let launch = slot.launch.as_ref();
        let arrival = launch.and_then(|launch| launch.arrival);
        let prompt = launch.and_then(|launch| launch.prompt.as_ref());
        let waits = prompt.is_some_and(Prompt::is_untouched);
        // If launches cannot be seen, the launch of this further answer was not seen either.
        let unseen =
            of_parent.filter(|parent| parent.arrival.is_some() && parent.arrival != arrival);
        let Some((taken, at)) = last.filter(|_| waits || unseen.is_some()) else {
            return;
        };
        if unseen.is_some() {
            self.end_prompt(target, now);
            self.slots.entry(target).or_default().launch = unseen;
        }
        let accounts = self.accounts.as_mut();
        let account = accounts.and_then(|accounts| accounts.take_over(source, target));
        self.completed(target, taken, account, at, now);
    }

    /// Ends a slot's prompt, if only now it is certain that no further batch of it comes (see
    /// [`Prompt::over`]).
    pub(super) fn end_prompt(&mut self, sequence: SequenceId, now: Now) {
        let slot = self.slots.get(&sequence);
        let prompt = slot.and_then(|slot| slot.launch.as_ref()?.prompt.as_ref());
        if let Some((taken, at)) = prompt.and_then(Prompt::over) {
            let account = self.close(sequence, taken);
            self.completed(sequence, taken, account, at, now);
        }
    }

    /// Call when a slot's prompt is evaluated to its end.
    pub(super) fn ended(&mut self, sequence: SequenceId, taken: TokenCounts, at: Stamp, now: Now) {
        let account = self.close(sequence, taken);
        let entry = self.completed(sequence, taken, account, at, now);
        if let Some(slot) = self.slots.get_mut(&sequence) {
            slot.untimed = slot.launch.as_ref().map(|launch| Untimed {
                since: launch.at,
                arrival: launch.arrival,
                entry,
            });
        }
    }

    /// The first token of a slot's answer is there: the engine evaluates the next batch, or the request is
    /// answered. Some engines return from an evaluation before their device has done it, so its end says
    /// little.
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
            self.evaluations.took(entry, seconds);
        }
        let work = prompt
            .arrival
            .and_then(|arrival| self.works.get_mut(&arrival));
        if let Some(work) = work {
            work.took(seconds);
        }
    }

    /// Returns the entry of its evaluation, if it has one.
    fn completed(
        &mut self,
        sequence: SequenceId,
        taken: TokenCounts,
        account: Option<Account>,
        at: Stamp,
        now: Now,
    ) -> Option<u64> {
        self.counts.prompts += 1;
        self.counts.taken.add(taken);
        self.count_for_context(sequence, taken);
        self.minute.add(taken, now.stamp);
        if let Some(account) = &account {
            self.evaluations.count(account);
        }
        let slot = self.slots.get_mut(&sequence)?;
        slot.last = Some((taken, at));
        let launch = slot.launch.as_mut()?;
        launch.prompt = None;
        let arrival = launch.arrival;
        let done = Done {
            sequence,
            taken,
            account,
            at,
            unix_ms: now.unix_ms,
        };
        let unclaimed = launch.evaluation.and_then(|id| self.unclaimed.get_mut(&id));
        if let Some(unclaimed) = unclaimed {
            unclaimed.done.push(done.clone());
            if !unclaimed.claimed {
                return None;
            }
        }
        let evaluation = launch.evaluation;
        let entry = self.deliver(arrival, None, done, None);
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
            taken,
            account,
            at,
            unix_ms,
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
            }
        }
        if let Some(seconds) = work.and_then(|work| work.completed(taken, at)) {
            self.counts.first_token[class_of(taken)].observe(seconds);
        }
        remembered
    }
}

fn asker(arrival: Option<Arrival>, id: Option<RequestId>) -> Asker {
    Asker {
        number: arrival.map_or(0, |arrival| arrival.0),
        id,
    }
}
