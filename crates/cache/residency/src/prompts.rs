//! Ties requests to slots by their prompts, for servers whose launches cannot be seen.
//!
//! Where the hook sees a server launch a task on a slot, [`Event::Launched`] says which request a
//! prompt belongs to. Elsewhere the prompt itself must tell. A request *waits* with the tokens of
//! its prompts. It is launched when a slot is about to hold exactly one of these prompts and the
//! output of the last token is asked for. The ledger treats such a launch like any other.
//!
//! What makes that exact:
//!
//! * Before the server evaluates a prompt, it removes what the slot holds beyond it
//!   (`seq_rm(slot, n, -1)`, even if there is nothing). Before generation it does not. So a slot
//!   that only generates its way to the prompt of a waiting request is not tied to that request.
//!   The request could count as cached there, but its own evaluation is still ahead. If the slot
//!   lost the prompt before that, the id would be reported as evicted and then be cached.
//! * All prompts must wait, also those of requests without an id. Otherwise an evaluation for one
//!   of these would be taken for another request's.
//! * Where several requests wait with equal prompts, an evaluation belongs to none of them at first
//!   ([`Event::LaunchedUnclaimed`]). They claim it later: when they are answered, or when there have
//!   been as many evaluations as requests.
//!
//! The server may put a prompt together in a way that is not known here. Such a prompt is never
//! tied, and its request counts as never cached when it is answered.
//!
//! When the first batches of a prompt have been evaluated, it is known that the slot works on a
//! prompt, but not for which request. Then the slot is launched for [`UNTIED`], and launched again for the
//! request when the end of the prompt is seen.

use crate::entries::Entry;
use crate::event::Event;
use crate::ids::{Arrival, BufferId, ContextId, EvaluationId, SequenceId, TaskId, UNTIED};
use crate::ledger::Ledger;
use crate::ledger::query::{Contents, Likeness};
use crate::token::{Position, Token};
use claims::Claims;
pub use prompt::Prompt;
use prompt::{Extra, Reading};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

mod claims;
mod prompt;

/// Prompts that may wait at a time. A prompt beyond that is not tied.
pub const MOST_WAITING: usize = 4096;
/// Tokens in all waiting prompts: 16 MiB. A prompt beyond that is not tied.
pub const MOST_TOKENS: usize = 4 << 20;
/// Checkpoints held back between two batches. No server makes so many.
const MOST_HELD: usize = 1024;

/// The prompts that wait, and the slots that may be at work on one of them.
#[derive(Debug, Default)]
pub struct Prompts {
    /// The oldest first.
    waiting: VecDeque<Waiting>,
    /// Tokens in all waiting prompts.
    tokens: usize,
    /// Tasks whose prompts the server will forget: see [`Event::Uncached`].
    uncached: BTreeSet<TaskId>,
    claims: Claims,
    extra: Extra,
    /// Slots that were made ready for a prompt whose end was not seen yet.
    begun: BTreeMap<SequenceId, Begun>,
    /// Checkpoints that are held back: the next batch tells whether their slot works on a prompt.
    held: Vec<Event>,
}

#[derive(Debug)]
struct Waiting {
    arrival: Arrival,
    task: TaskId,
    prompt: Prompt,
    /// An unclaimed evaluation was displayed as this task's.
    likely: bool,
    /// The server may evaluate an equal prompt for a request that is not, or no longer, waiting.
    doubtful: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    /// Nothing of a prompt was submitted, or what was submitted may be generation.
    Ready,
    /// The slot was launched for [`UNTIED`].
    Launched,
}

/// The task that a slot's prompt belongs to.
enum Owner {
    /// No task that waits.
    NoTask,
    /// This task.
    Task(TaskId),
    /// One of several tasks.
    OneOf {
        evaluation: EvaluationId,
        likely: TaskId,
    },
}

impl Prompts {
    /// No prompt waits yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many prompts wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no prompt waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A request waits with a prompt. Returns false if too many prompts or tokens wait already: then
    /// this prompt will not be tied. An empty prompt is never tied either, but returns true.
    pub fn expect(&mut self, arrival: Arrival, task: TaskId, prompt: Prompt) -> bool {
        let tokens = prompt.tokens.len();
        let room = self.waiting.len() < MOST_WAITING && self.tokens + tokens <= MOST_TOKENS;
        if room && tokens > 0 {
            self.tokens += tokens;
            self.waiting.push_back(Waiting {
                arrival,
                task,
                prompt,
                likely: false,
                doubtful: false,
            });
        } else {
            self.uncached.remove(&task);
            self.doubt(&prompt);
        }
        room
    }

    /// A request no longer waits. `served`: it was answered, so its prompts were evaluated. Otherwise
    /// its client went away, or the server refused it. Appends to `events` what the ledger must apply
    /// before [`Event::Answered`].
    pub fn over(
        &mut self,
        arrival: Arrival,
        served: bool,
        ledger: &Ledger,
        events: &mut Vec<Event>,
    ) {
        let mut all = self.waiting.iter();
        if !all.any(|waiting| waiting.arrival == arrival) {
            return;
        }
        let (over, stay): (VecDeque<Waiting>, _) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| waiting.arrival == arrival);
        self.waiting = stay;
        for Waiting { task, prompt, .. } in over {
            self.tokens -= prompt.tokens.len();
            self.uncached.remove(&task);
            let has_claimed = if served {
                self.claims.served(task, ledger, events)
            } else {
                self.claims.left(task, ledger, events)
            };
            if !has_claimed {
                events.push(Event::Untied { task });
            }
            if !served {
                self.doubt(&prompt);
            }
        }
        self.settle(ledger, events);
    }

    /// Appends to `events` what the ledger must apply: the launches that follow from this event, and
    /// the event itself. (A checkpoint may be held back until the next batch.)
    pub fn pass(&mut self, event: Event, ledger: &Ledger, events: &mut Vec<Event>) {
        let is_primary = |context: ContextId| ledger.primary().is_none_or(|p| p == context);
        match event {
            Event::Uncached { task } => {
                self.uncached.insert(task);
                if self.uncached.len() > MOST_WAITING {
                    self.uncached.pop_first();
                }
            }
            Event::Removed {
                context,
                sequence,
                from,
                to,
            } if to < 0 && is_primary(context) => self.begin(sequence, from, ledger),
            Event::Copied {
                context, target, ..
            } if is_primary(context) => {
                // The target takes over a prompt that was evaluated in another slot.
                self.begun.remove(&target);
            }
            Event::Checkpointed {
                context,
                sequence,
                buffer,
                ..
            } if is_primary(context) => {
                self.freed(buffer);
                let unclear = self.begun.get(&sequence) == Some(&Begun::Ready);
                if unclear && self.held.len() < MOST_HELD {
                    self.held.push(event);
                    return;
                }
            }
            Event::Freed { buffer } => self.freed(buffer),
            Event::Submitted {
                context,
                ref entries,
            } if is_primary(context) => {
                self.submitted(context, entries, ledger, events);
                events.append(&mut self.held);
            }
            Event::ContextFreed { context } if is_primary(context) => {
                self.begun.clear();
                self.held.clear();
            }
            Event::OutOfStep => {
                *self = Self {
                    claims: self.claims.renewed(),
                    extra: self.extra,
                    ..Self::new()
                }
            }
            _ => {}
        }
        events.push(event);
    }

    /// A buffer was freed or overwritten: a checkpoint in it that is still held back is dropped.
    fn freed(&mut self, buffer: BufferId) {
        self.held.retain(
            |held| !matches!(held, Event::Checkpointed { buffer: other, .. } if *other == buffer),
        );
    }

    fn begin(&mut self, id: SequenceId, from: Position, ledger: &Ledger) {
        let mut begin = |id| {
            // Between the batches of one prompt the server removes no tokens.
            let goes_on = u32::try_from(from).is_ok_and(|from| from >= ledger.held(id));
            let begun = self.begun.entry(id).or_insert(Begun::Ready);
            if !goes_on {
                *begun = Begun::Ready;
            }
        };
        match id {
            0.. => begin(id),
            _ => ledger.slots().for_each(begin),
        }
    }

    fn submitted(
        &mut self,
        context: ContextId,
        entries: &[Entry],
        ledger: &Ledger,
        events: &mut Vec<Event>,
    ) {
        if self.begun.is_empty() {
            return;
        }
        // The entries of a slot are adjacent in a batch. If they are not, its prompt is not tied.
        for run in entries.chunk_by(|a, b| a.sequence == b.sequence) {
            let sequence = run[0].sequence;
            let Some(&begun) = self.begun.get(&sequence) else {
                continue;
            };
            let ends = run.last().is_some_and(|entry| entry.output);
            let owner = if ends {
                self.owner(run, ledger)
            } else {
                Owner::NoTask
            };
            match owner {
                Owner::Task(task) => {
                    if self.uncached.remove(&task) && run[0].position > 0 {
                        // The server will forget what was written for this task so far, too.
                        events.push(Event::Obscured { context, sequence });
                    }
                    events.push(Event::Launched { sequence, task });
                }
                Owner::OneOf { evaluation, likely } => {
                    events.push(Event::LaunchedUnclaimed {
                        sequence,
                        evaluation,
                        likely,
                    });
                    self.settle(ledger, events);
                }
                Owner::NoTask => {
                    // A run that asks for the output of each token may be generation.
                    let is_prompt = run.iter().any(|entry| !entry.output);
                    if is_prompt && begun == Begun::Ready {
                        let task = UNTIED;
                        events.push(Event::Launched { sequence, task });
                    }
                }
            }
            if ends {
                self.begun.remove(&sequence);
            } else {
                self.begun.insert(sequence, Begun::Launched);
            }
        }
    }

    /// The task whose prompt the slot holds once these tokens are written. If that is certain, the
    /// task no longer waits.
    fn owner(&mut self, run: &[Entry], ledger: &Ledger) -> Owner {
        let mut candidates = self.candidates(run, ledger);
        let candidate = |&index: &usize| &self.waiting[index];
        let tasks_of = |candidates: &[usize]| -> Vec<TaskId> {
            candidates.iter().map(|i| candidate(i).task).collect()
        };
        let mut tasks = tasks_of(&candidates);
        if !ledger.are_alike(&tasks) {
            candidates.retain(|i| ledger.can_be_evaluated(candidate(i).task));
            tasks = tasks_of(&candidates);
        }
        let Some(&first) = tasks.first() else {
            return Owner::NoTask;
        };
        if let Some(&uncached) = tasks.iter().find(|task| self.uncached.contains(task)) {
            // Another request that wants the same prompt cached may wait, too. Whose evaluation this
            // is cannot be known, so neither counts as cached, now or later.
            self.remove(&tasks);
            self.uncached
                .retain(|task| *task == uncached || !tasks.contains(task));
            return Owner::Task(uncached);
        }
        if !ledger.are_alike(&tasks) {
            // The tasks name different adapters, so for some of them the prompt may not be cached.
            return Owner::NoTask;
        }
        let doubtful = candidates.iter().any(|i| candidate(i).doubtful);
        if tasks.len() == 1 && !doubtful && !self.claims.may_have(first) {
            self.remove(&tasks);
            return Owner::Task(first);
        }
        let unlikely = candidates.iter().find(|&i| !candidate(i).likely).copied();
        let likely = &mut self.waiting[unlikely.unwrap_or(candidates[0])];
        likely.likely = true;
        let likely = likely.task;
        match self.claims.open(tasks, doubtful) {
            Some(evaluation) => Owner::OneOf { evaluation, likely },
            None => Owner::NoTask,
        }
    }

    /// The waiting prompts that the slot holds once these tokens are written: indices, the oldest
    /// first.
    fn candidates(&mut self, run: &[Entry], ledger: &Ledger) -> Vec<usize> {
        let Ok(from) = usize::try_from(run[0].position) else {
            return Vec::new();
        };
        // Rows of an image can share a position. Such a run ends no prompt of text.
        let in_order = |(nth, entry): (usize, &Entry)| entry.position as usize == from + nth;
        if !run.iter().enumerate().all(in_order) {
            return Vec::new();
        }
        let sequence = run[0].sequence;
        let run: Vec<Token> = run.iter().map(|entry| entry.token).collect();
        let mut contents: Option<Contents> = None;
        let mut found: Vec<(usize, Reading)> = Vec::new();
        let mut unsure = Vec::new();
        for (index, Waiting { prompt, .. }) in self.waiting.iter().enumerate() {
            for reading in prompt.readings(from + run.len(), self.extra) {
                let tokens = prompt.tokens_of(reading);
                let (head, tail) = tokens.split_at(from);
                if tail != run {
                    continue;
                }
                let contents = contents.get_or_insert_with(|| ledger.contents(sequence));
                match contents.likeness(head) {
                    Likeness::Same => {
                        found.push((index, reading));
                        break;
                    }
                    Likeness::Unseen if reading.is_all() => unsure.push(index),
                    Likeness::Unseen | Likeness::Different => {}
                }
            }
        }
        let Some(best) = found.iter().map(|(_, reading)| reading.rank).min() else {
            // With several, it cannot be told which one this is.
            return if unsure.len() == 1 {
                unsure
            } else {
                Vec::new()
            };
        };
        found.retain(|(_, reading)| reading.rank == best);
        let readings = found.iter();
        self.extra
            .learn(readings.map(|&(index, reading)| (&self.waiting[index].prompt, reading)));
        found.into_iter().map(|(index, _)| index).collect()
    }

    /// This prompt may be evaluated for a request that does not wait. So counting its evaluations
    /// proves nothing for the requests that wait with an equal prompt.
    fn doubt(&mut self, prompt: &Prompt) {
        for waiting in &mut self.waiting {
            waiting.doubtful |= waiting.prompt == *prompt;
        }
    }

    /// Makes the claims that follow from the number of evaluations.
    fn settle(&mut self, ledger: &Ledger, events: &mut Vec<Event>) {
        let bound = self.claims.settle(ledger, events);
        if !bound.is_empty() {
            self.remove(&bound);
        }
    }

    /// These tasks no longer wait.
    fn remove(&mut self, tasks: &[TaskId]) {
        let tokens = &mut self.tokens;
        self.waiting.retain(|waiting| {
            let stays = !tasks.contains(&waiting.task);
            *tokens -= if stays {
                0
            } else {
                waiting.prompt.tokens.len()
            };
            stays
        });
    }
}
