//! Ties requests to slots by their prompts, for servers whose own launches cannot be seen.
//!
//! Where a server can be seen to launch a task on a slot, [`Event::Launched`] says which request
//! a prompt belongs to. Elsewhere it has to be told by the prompt itself: a request *waits* with
//! the tokens of its prompts, and is launched at the moment when a slot is about to hold exactly
//! one of them and the output of its last token is asked for. From there on the ledger knows no
//! difference.
//!
//! What makes that exact:
//!
//! * A prompt is evaluated after the server has removed what the slot holds beyond it
//!   (`seq_rm(slot, n, -1)`, even if there is nothing); generation is not. So a slot that only
//!   generates its way to the prompt of a waiting request ties nobody. To tie it there would not be
//!   false: the prompt *is* cached. But that request has its own evaluation ahead of it, and if the
//!   slot lost the prompt before that, the id would be told as gone and then be cached.
//! * Of several requests that wait with the same prompt, the one that came first is tied, as the
//!   server's queue is first in, first out. Each evaluation ties one.
//! * All prompts have to wait, those of requests without an id too, or an evaluation for one of
//!   these would be taken for another's.
//!
//! What never matches (infill, a prompt that the server has cut) is never tied: then the request
//! counts as never cached when it is answered.
//!
//! A prompt whose first batches have been evaluated is known to be one, but not whose: its slot is
//! launched for [`UNTIED`], and again when its end is seen.

use crate::event::{
    Arrival, BufferId, ContextId, Entry, Event, Position, SequenceId, TaskId, Token,
};
use crate::ledger::{Ledger, Likeness};
use std::collections::{BTreeMap, VecDeque};

/// Stands for a task that is known by nothing but its work on a slot. No request has it.
pub const UNTIED: TaskId = TaskId::MIN;

/// Prompts that may wait. One beyond that is not tied.
pub const MOST_WAITING: usize = 4096;
/// Their tokens, all together: 16 MB.
pub const MOST_TOKENS: usize = 4 << 20;
/// More than any server puts by between two batches.
const MOST_HELD: usize = 1024;

/// The prompts that wait, and the slots at which one may be at work.
#[derive(Debug, Default)]
pub struct Prompts {
    /// The oldest first.
    waiting: VecDeque<Waiting>,
    tokens: usize,
    /// Slots made ready for a prompt whose end was not seen yet.
    begun: BTreeMap<SequenceId, Begun>,
    /// Checkpoints of slots of which the next batch tells whether they are at a prompt.
    held: Vec<Event>,
}

#[derive(Debug)]
struct Waiting {
    arrival: Arrival,
    task: TaskId,
    tokens: Vec<Token>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    /// Nothing of it was submitted, or it may be generation.
    Ready,
    /// Launched for [`UNTIED`].
    Launched,
}

impl Prompts {
    /// Nothing waits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many prompts wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A request waits with a prompt. False: there are too many, so it will not be tied.
    pub fn expect(&mut self, arrival: Arrival, task: TaskId, tokens: Vec<Token>) -> bool {
        let room = self.waiting.len() < MOST_WAITING && self.tokens + tokens.len() <= MOST_TOKENS;
        if room && !tokens.is_empty() {
            self.tokens += tokens.len();
            self.waiting.push_back(Waiting {
                arrival,
                task,
                tokens,
            });
        }
        room
    }

    /// A request waits no more, whatever came of it. Appends to `events` what the ledger is to
    /// apply.
    pub fn forget(&mut self, arrival: Arrival, events: &mut Vec<Event>) {
        let tokens = &mut self.tokens;
        self.waiting.retain(|waiting| {
            let stays = waiting.arrival != arrival;
            if !stays {
                *tokens -= waiting.tokens.len();
                events.push(Event::Untied { task: waiting.task });
            }
            stays
        });
    }

    /// Appends to `events` what the ledger is to apply: the launches that this event tells of,
    /// and the event itself.
    pub fn pass(&mut self, event: Event, ledger: &Ledger, events: &mut Vec<Event>) {
        let is_primary = |context: ContextId| ledger.primary().is_none_or(|p| p == context);
        match event {
            Event::Removed {
                context,
                sequence,
                from,
                to,
            } if to < 0 && is_primary(context) => self.begin(sequence, from, ledger),
            Event::Copied {
                context, target, ..
            } if is_primary(context) => {
                // It takes over a prompt that was evaluated elsewhere.
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
                self.submitted(entries, ledger, events);
                events.append(&mut self.held);
            }
            Event::ContextFreed { context } if is_primary(context) => {
                self.begun.clear();
                self.held.clear();
            }
            Event::OutOfStep => *self = Self::new(),
            _ => {}
        }
        events.push(event);
    }

    /// What was put by there is gone before anybody was told of it.
    fn freed(&mut self, buffer: BufferId) {
        self.held.retain(
            |held| !matches!(held, Event::Checkpointed { buffer: other, .. } if *other == buffer),
        );
    }

    fn begin(&mut self, id: SequenceId, from: Position, ledger: &Ledger) {
        let mut begin = |id| {
            // Between the batches of a prompt nothing is removed.
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

    fn submitted(&mut self, entries: &[Entry], ledger: &Ledger, launches: &mut Vec<Event>) {
        if self.begun.is_empty() {
            return;
        }
        // A slot's entries stand side by side. If ever they do not, its prompt matches nothing.
        for run in entries.chunk_by(|a, b| a.sequence == b.sequence) {
            let sequence = run[0].sequence;
            let Some(&begun) = self.begun.get(&sequence) else {
                continue;
            };
            let ends = run.last().is_some_and(|entry| entry.output);
            let tied = if ends { self.take(run, ledger) } else { None };
            // Of one token, or with the outputs of all, it may as well be generation.
            let is_prompt = run.iter().any(|entry| !entry.output);
            let untied = (is_prompt && begun == Begun::Ready).then_some(UNTIED);
            if let Some(task) = tied.or(untied) {
                launches.push(Event::Launched { sequence, task });
            }
            if ends {
                self.begun.remove(&sequence);
            } else {
                self.begun.insert(sequence, Begun::Launched);
            }
        }
    }

    /// Takes the oldest prompt that the slot holds when it has these tokens, too.
    fn take(&mut self, run: &[Entry], ledger: &Ledger) -> Option<TaskId> {
        let sequence = run[0].sequence;
        let from = usize::try_from(run[0].position).ok()?;
        // An image's rows can share a position, a text's tokens do not.
        let in_order = |(nth, entry): (usize, &Entry)| entry.position as usize == from + nth;
        if !run.iter().enumerate().all(in_order) {
            return None;
        }
        let mut unsure = None;
        for (index, waiting) in self.waiting.iter().enumerate() {
            let Some((head, tail)) = waiting.tokens.split_at_checked(from) else {
                continue;
            };
            if tail.len() != run.len() || !tail.iter().eq(run.iter().map(|entry| &entry.token)) {
                continue;
            }
            match ledger.likeness(sequence, head) {
                Likeness::Same => return self.remove(index),
                Likeness::Unseen if unsure.is_none() => unsure = Some(index),
                // Which of the two it is cannot be told.
                Likeness::Unseen => return None,
                Likeness::Different => {}
            }
        }
        self.remove(unsure?)
    }

    fn remove(&mut self, index: usize) -> Option<TaskId> {
        let waiting = self.waiting.remove(index)?;
        self.tokens -= waiting.tokens.len();
        Some(waiting.task)
    }
}
