//! Jobs: which request each slot works for, and how many tokens its prompt takes.
//!
//! This part of the ledger is there only if there is an observer. It decides nothing about evictions; it
//! tells for which requests they happen.

use crate::entries::Entry;
use crate::fact::{Asker, Fact, Place, Reason, TokenCounts};
use crate::ids::{Arrival, BufferId, EvaluationId, RequestId, SequenceId, TaskId, UNTIED};
use prompt::{Progress, Prompt, Surplus};
use std::collections::{BTreeMap, HashMap};

mod prompt;

/// What the slots work on.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    /// The requests that are not answered yet.
    requests: HashMap<Arrival, Request>,
    /// Their tasks that are not launched yet.
    tasks: HashMap<TaskId, Arrival>,
    /// The slot and the most likely task of each evaluation for which several requests wait.
    unclaimed: BTreeMap<EvaluationId, (SequenceId, TaskId)>,
    slots: BTreeMap<SequenceId, SlotJob>,
    /// The slots with entries of a prompt in the batch that is being evaluated.
    in_batch: Vec<SequenceId>,
    /// The slots whose prompts have been evaluated, until there is the first token of their answers.
    awaiting: Vec<SequenceId>,
    /// The surplus of the sequences that were saved, where there is one.
    saved: HashMap<BufferId, Surplus>,
    /// The event that is being applied replaces a slot's content by that of a state file, or of an
    /// entry of the host prompt cache for a task that is launched later. Its evictions are not by the
    /// task that was launched there last.
    restoring: bool,
    /// Requests whose clients left within a prompt. The server finds that out between two batches.
    left: Vec<Left>,
}

/// A request whose client left within a prompt.
#[derive(Debug)]
struct Left {
    arrival: Arrival,
    /// The slots that may still evaluate its prompts.
    slots: Vec<SequenceId>,
}

#[derive(Debug, Default)]
struct Request {
    id: Option<RequestId>,
    tasks: Vec<TaskId>,
}

/// A slot, and its last task.
#[derive(Debug, Default)]
struct SlotJob {
    job: Option<Job>,
    /// The counts of the last prompt, for further answers (`n`) that take it over.
    last: Option<TokenCounts>,
    surplus: Surplus,
}

/// The task that was launched in a slot last.
#[derive(Clone, Debug)]
struct Job {
    arrival: Option<Arrival>,
    id: Option<RequestId>,
    /// Its request is not answered yet.
    busy: bool,
    /// The slot was seen to work, but the task is not known: see [`UNTIED`].
    untied: bool,
    /// Several requests wait for this evaluation. Which of them it belongs to is known later.
    evaluation: Option<EvaluationId>,
    /// The prompt, until it is evaluated to its end.
    prompt: Option<Prompt>,
}

impl Job {
    fn asker(&self) -> Asker {
        asker(self.arrival, self.id.clone())
    }
}

impl SlotJob {
    /// The prompt that is being evaluated, and the slot's surplus.
    fn prompt(&mut self) -> Option<(&mut Prompt, &mut Surplus)> {
        let prompt = self.job.as_mut()?.prompt.as_mut()?;
        Some((prompt, &mut self.surplus))
    }
}

impl Jobs {
    pub(crate) fn posted(
        &mut self,
        arrival: Arrival,
        task: TaskId,
        id: Option<&RequestId>,
        facts: &mut Vec<Fact>,
    ) {
        let request = self.requests.entry(arrival).or_default();
        request.id = id.cloned();
        request.tasks.push(task);
        self.tasks.insert(task, arrival);
        let id = id.cloned();
        facts.push(Fact::Posted { arrival, task, id });
    }

    pub(crate) fn answered(
        &mut self,
        arrival: Arrival,
        id: Option<&RequestId>,
        facts: &mut Vec<Fact>,
    ) {
        let works_for_it = |slot: &SlotJob| {
            let job = slot.job.as_ref();
            job.is_some_and(|job| job.arrival == Some(arrival) && job.busy)
        };
        let slots = self.slots.iter().filter(|(_, slot)| works_for_it(slot));
        let mut unfinished = Vec::new();
        for sequence in slots.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.end_prompt(sequence, facts);
            if self.prompt(sequence).is_some_and(|it| !it.is_untouched()) {
                unfinished.push(sequence);
            }
            if let Some(nth) = self.awaiting.iter().position(|&id| id == sequence) {
                self.awaiting.remove(nth);
                facts.push(Fact::FirstToken { sequence });
            }
            let slot = self.slots.get_mut(&sequence);
            if let Some(job) = slot.and_then(|slot| slot.job.as_mut()) {
                job.busy = false;
            }
        }
        let request = self.requests.remove(&arrival).unwrap_or_default();
        for task in &request.tasks {
            self.tasks.remove(task);
        }
        let id = request.id.or_else(|| id.cloned());
        let leaves = !unfinished.is_empty();
        if leaves {
            let slots = unfinished;
            self.left.push(Left { arrival, slots });
        }
        facts.push(Fact::Answered {
            arrival,
            id,
            leaves,
        });
    }

    /// The prompts that were given up are not evaluated any further, but for those in `going_on`.
    fn give_up(&mut self, going_on: impl Fn(SequenceId) -> bool, facts: &mut Vec<Fact>) {
        for mut left in std::mem::take(&mut self.left) {
            left.slots.retain(|&sequence| {
                let works = self.prompt(sequence).is_some() && going_on(sequence);
                if !works {
                    self.give_up_prompt(sequence, left.arrival, facts);
                }
                works
            });
            if left.slots.is_empty() {
                facts.push(Fact::Left {
                    arrival: left.arrival,
                })
            } else {
                self.left.push(left)
            }
        }
    }

    fn give_up_prompt(&mut self, sequence: SequenceId, arrival: Arrival, facts: &mut Vec<Fact>) {
        let slot = self.slots.get_mut(&sequence);
        let job = slot.and_then(|slot| slot.job.as_mut());
        let Some(job) = job.filter(|job| job.arrival == Some(arrival)) else {
            return;
        };
        // It may have been evaluated to its end.
        let Some(prompt) = &job.prompt else {
            return;
        };
        facts.push(Fact::PromptGivenUp {
            sequence,
            asker: job.asker(),
            evaluation: job.evaluation,
            counts: prompt.so_far(),
        });
    }

    /// The engine has done nothing for a while.
    pub(crate) fn quiet(&mut self, facts: &mut Vec<Fact>) {
        if !self.left.is_empty() {
            let computing = std::mem::take(&mut self.in_batch);
            self.give_up(|sequence| computing.contains(&sequence), facts);
            self.in_batch = computing;
        }
    }

    pub(crate) fn launched(
        &mut self,
        sequence: SequenceId,
        task: TaskId,
        evaluation: Option<EvaluationId>,
        facts: &mut Vec<Fact>,
    ) {
        let arrival = match evaluation {
            None => self.tasks.remove(&task),
            // The evaluation may turn out to belong to another task.
            Some(_) => self.tasks.get(&task).copied(),
        };
        let id = self.id_of(arrival);
        if !self.left.is_empty() {
            self.give_up(|left| left != sequence, facts);
        }
        self.end_prompt(sequence, facts);
        if let Some(evaluation) = evaluation {
            self.unclaimed.insert(evaluation, (sequence, task));
        }
        let slot = self.slots.entry(sequence).or_default();
        // A prompt that began for an unknown task goes on: its end has told which task it is.
        let begun = slot.job.take().filter(|job| job.untied);
        let untied = task == UNTIED;
        facts.push(Fact::Launched {
            sequence,
            task,
            asker: asker(arrival, id.clone()),
            evaluation,
            goes_on: begun.is_some(),
        });
        let prompt = begun.filter(|_| !untied).and_then(|job| job.prompt);
        slot.job = Some(Job {
            arrival,
            id,
            busy: arrival.is_some(),
            untied,
            evaluation,
            prompt: Some(prompt.unwrap_or_default()),
        });
    }

    /// A task claims an evaluation, which may still go on.
    pub(crate) fn claimed(
        &mut self,
        evaluation: EvaluationId,
        task: TaskId,
        facts: &mut Vec<Fact>,
    ) {
        let Some(&(sequence, _)) = self.unclaimed.get(&evaluation) else {
            return;
        };
        let arrival = self.tasks.remove(&task);
        let id = self.id_of(arrival);
        let slot = self.slots.get_mut(&sequence);
        let job = slot
            .and_then(|slot| slot.job.as_mut())
            .filter(|job| job.evaluation == Some(evaluation));
        let mut running = None;
        if let Some(job) = job {
            job.arrival = arrival;
            job.id.clone_from(&id);
            running = job.prompt.is_some().then_some(sequence);
        }
        facts.push(Fact::Claimed {
            evaluation,
            asker: asker(arrival, id),
            running,
        });
    }

    pub(crate) fn claims_closed(&mut self, evaluation: EvaluationId, facts: &mut Vec<Fact>) {
        if let Some((_, likely)) = self.unclaimed.remove(&evaluation) {
            let likely = self.tasks.get(&likely).copied();
            facts.push(Fact::ClaimsClosed { evaluation, likely });
        }
    }

    pub(crate) fn submitted(&mut self, entries: &[Entry], facts: &mut Vec<Fact>) {
        self.in_batch.clear();
        if !self.left.is_empty() {
            let goes_on = |left| entries.iter().any(|entry| entry.sequence == left);
            self.give_up(goes_on, facts);
        }
        for sequence in self.awaiting.drain(..) {
            facts.push(Fact::FirstToken { sequence });
        }
        for run in entries.chunk_by(|a, b| a.sequence == b.sequence) {
            let sequence = run[0].sequence;
            let slot = self.slots.get_mut(&sequence);
            if let Some((prompt, surplus)) = slot.and_then(SlotJob::prompt) {
                prompt.submitted(run, surplus);
                if !self.in_batch.contains(&sequence) {
                    self.in_batch.push(sequence);
                }
            }
        }
    }

    /// This many entries of the batch came from the prefix store.
    pub(crate) fn loaded(&mut self, sequence: SequenceId, entries: u32) {
        let slot = self.slots.get_mut(&sequence);
        if let Some((prompt, _)) = slot.and_then(SlotJob::prompt) {
            prompt.loaded(u64::from(entries));
        }
    }

    pub(crate) fn evaluated(&mut self, failed: bool, facts: &mut Vec<Fact>) {
        for sequence in std::mem::take(&mut self.in_batch) {
            let slot = self.slots.get_mut(&sequence);
            let prompt = slot.and_then(SlotJob::prompt);
            let progress = prompt.map(|(prompt, surplus)| prompt.evaluated(failed, surplus));
            let counts = match progress {
                None | Some(Progress::None) => continue,
                Some(Progress::GoesOn) => None,
                Some(Progress::Ended(counts)) => Some(counts),
            };
            facts.push(Fact::BatchEvaluated { sequence });
            if let Some(counts) = counts {
                self.prompt_ended(sequence, counts, true, facts);
                self.awaiting.push(sequence);
            }
        }
    }

    /// A further answer to a prompt (`n`) takes over the prompt of its parent. If the parent still works
    /// on its prompt, only the beginning of it is shared (questions to a decision model), and nothing is
    /// taken over.
    pub(crate) fn copied(&mut self, source: SequenceId, target: SequenceId, facts: &mut Vec<Fact>) {
        let Some(parent) = self.slots.get(&source) else {
            return;
        };
        let prompt = parent.job.as_ref().and_then(|job| job.prompt.as_ref());
        if prompt.is_some_and(|prompt| prompt.over().is_none()) {
            return;
        }
        let (last, surplus) = (parent.last, parent.surplus.clone());
        let of_parent = parent.job.as_ref().map(|job| Job {
            prompt: None,
            ..job.clone()
        });
        let slot = self.slots.entry(target).or_default();
        slot.surplus = surplus;
        let arrival = slot.job.as_ref().and_then(|job| job.arrival);
        let prompt = slot.job.as_ref().and_then(|job| job.prompt.as_ref());
        let waits = prompt.is_some_and(Prompt::is_untouched);
        // If launches cannot be seen, the launch of this further answer was not seen either.
        let unseen =
            of_parent.filter(|parent| parent.arrival.is_some() && parent.arrival != arrival);
        let Some(counts) = last.filter(|_| waits || unseen.is_some()) else {
            return;
        };
        let is_unseen = unseen.is_some();
        if is_unseen {
            self.end_prompt(target, facts);
        }
        let slot = self.slots.entry(target).or_default();
        slot.job = unseen.or(slot.job.take());
        slot.last = Some(counts);
        let job = slot.job.as_mut();
        let (asker, evaluation) = job.map_or_else(Default::default, |job| {
            job.prompt = None;
            (job.asker(), job.evaluation)
        });
        facts.push(Fact::TookOver {
            source,
            target,
            asker,
            evaluation,
            counts,
            unseen: is_unseen,
        });
    }

    pub(crate) fn saved(&mut self, sequence: SequenceId, buffer: BufferId) {
        let surplus = self.slots.get(&sequence).map(|slot| &slot.surplus);
        match surplus.filter(|surplus| !surplus.is_none()) {
            Some(surplus) => self.saved.insert(buffer, surplus.clone()),
            None => self.saved.remove(&buffer),
        };
    }

    pub(crate) fn freed(&mut self, buffer: BufferId) {
        self.saved.remove(&buffer);
    }

    pub(crate) fn restored(&mut self, sequence: SequenceId, buffer: BufferId) {
        let surplus = self.saved.get(&buffer).cloned();
        self.slots.entry(sequence).or_default().surplus = surplus.unwrap_or_default();
    }

    /// Whether the event that is being applied replaces a slot's content: see [`Self::restoring`].
    pub(crate) fn replacing(&mut self, restoring: bool) {
        self.restoring = restoring;
    }

    /// Forgets slots and buffers: they are gone, or their content is unknown.
    pub(crate) fn lose_slots(&mut self, facts: &mut Vec<Fact>) {
        self.give_up(|_| false, facts);
        self.slots.clear();
        self.in_batch.clear();
        self.awaiting.clear();
        self.saved.clear();
    }

    /// The request for which the engine took a prompt out of the cache. The task in a slot overwrites or moves its
    /// content. A slot is emptied for the task in it only while that is at work.
    pub(crate) fn evicts(&self, reason: Reason, place: Place) -> Option<Asker> {
        let Place::Slot(sequence) = place else {
            return None;
        };
        let job = self.slots.get(&sequence)?.job.as_ref()?;
        let is_by = match reason {
            _ if self.restoring => false,
            Reason::Overwritten
            | Reason::Shifted
            | Reason::OutOfReach
            | Reason::AdaptersChanged => true,
            Reason::Cleared => job.busy,
            _ => false,
        };
        is_by.then(|| job.asker())
    }

    /// Who asked for the last task of a slot, and whether that request is not answered yet.
    pub(crate) fn in_slot(&self, sequence: SequenceId) -> Option<(Asker, bool)> {
        let job = self.slots.get(&sequence)?.job.as_ref()?;
        Some((job.asker(), job.busy))
    }

    /// The prompt that a slot works on, as far as it has been evaluated.
    pub(crate) fn prompt(&self, sequence: SequenceId) -> Option<&Prompt> {
        self.slots.get(&sequence)?.job.as_ref()?.prompt.as_ref()
    }

    fn id_of(&self, arrival: Option<Arrival>) -> Option<RequestId> {
        self.requests.get(&arrival?)?.id.clone()
    }

    /// Ends a slot's prompt, if only now it is certain that no further batch of it comes (see
    /// [`Prompt::over`]).
    fn end_prompt(&mut self, sequence: SequenceId, facts: &mut Vec<Fact>) {
        if let Some(counts) = self.prompt(sequence).and_then(Prompt::over) {
            self.prompt_ended(sequence, counts, false, facts);
        }
    }

    fn prompt_ended(
        &mut self,
        sequence: SequenceId,
        counts: TokenCounts,
        answers: bool,
        facts: &mut Vec<Fact>,
    ) {
        let Some(slot) = self.slots.get_mut(&sequence) else {
            return;
        };
        slot.last = Some(counts);
        let Some(job) = &mut slot.job else { return };
        job.prompt = None;
        facts.push(Fact::PromptEvaluated {
            sequence,
            asker: job.asker(),
            evaluation: job.evaluation,
            counts,
            answers,
        });
    }
}

fn asker(arrival: Option<Arrival>, id: Option<RequestId>) -> Asker {
    Asker {
        number: arrival.map_or(0, |arrival| arrival.0),
        id,
    }
}
