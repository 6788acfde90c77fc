//! The observer: turns events, notes and effects into counts, a stream of changes, and log lines.

use std::collections::{BTreeMap, HashMap};

use contextpilot_control::{
    Change, LogLine, Memory as KeptPositions, Reason as ReasonOut, ResidencyEvent, Timestamp,
};
use contextpilot_residency::{
    Accounts, Arrival, BufferId, ContextId, Effect, EvaluationId, Event, Ledger, Place, Reason,
    RequestId, SequenceId, TaskId,
};

use crate::evaluations::Evaluations;
use crate::gone::Memory;
use crate::histogram::{CLASSES, Histogram};
use crate::minute::Minute;
use crate::note::{Note, Now, Stamp};
use crate::prompt::{Surplus, TokenCounts};
use crate::work::{SlotWork, Work};

mod batches;
mod buffers;
mod contexts;
mod launches;
mod whereabouts;

pub use buffers::After;
use buffers::Buffer;
pub(crate) use buffers::{Context, Kind};
pub(crate) use contexts::ReuseCounts;
use launches::Unclaimed;
use whereabouts::Live;

/// Watches the ledger. Call [`before`](Self::before) with each event, then let the ledger apply
/// it, then call [`effect`](Self::effect) with each effect and [`after`](Self::after).
#[derive(Debug)]
pub struct Observer {
    pub(crate) epoch: String,
    sequence: u64,
    works: HashMap<Arrival, Work>,
    tasks: HashMap<TaskId, Arrival>,
    /// Evaluations of prompts for which several requests wait, until it is known whose they are.
    unclaimed: BTreeMap<EvaluationId, Unclaimed>,
    pub(crate) slots: BTreeMap<SequenceId, SlotWork>,
    /// The slots in the batch that is being evaluated.
    flying: Vec<SequenceId>,
    live: HashMap<RequestId, Live>,
    gone: Memory,
    pub(crate) buffers: HashMap<BufferId, Buffer>,
    pub(crate) contexts: HashMap<ContextId, Context>,
    /// Prompts of each context of a program, by its place.
    pub(crate) of_contexts: BTreeMap<usize, ReuseCounts>,
    pub(crate) counts: Counts,
    pub(crate) minute: Minute,
    /// Keeps account of why prompts are evaluated. `None`: no setting asks for that.
    pub(crate) accounts: Option<Accounts>,
    pub(crate) evaluations: Evaluations,
    output: Output,
    /// The event that is being applied replaces a slot's content by that of a state file, or of an entry
    /// of the host prompt cache for a task that is launched later. Its evictions are not by the task that
    /// was launched there last.
    restoring: bool,
}

/// The output since the last call of [`Observer::take_output`].
#[derive(Debug, Default)]
pub struct Output {
    /// For readers of the stream of changes.
    pub events: Vec<ResidencyEvent>,
    /// For the log file.
    pub lines: Vec<LogLine>,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) prompts: u64,
    pub(crate) taken: TokenCounts,
    /// The time that evaluating prompts took.
    pub(crate) seconds: f64,
    pub(crate) finished: u64,
    pub(crate) evictions: BTreeMap<ReasonOut, u64>,
    pub(crate) first_token: [Histogram; CLASSES.len()],
}

impl Observer {
    /// `epoch`: a random text that tells this process from others. Without `accounts` the observer cannot
    /// say why prompts are evaluated.
    #[must_use]
    pub fn new(epoch: String, accounts: Option<Accounts>) -> Self {
        Self {
            epoch,
            sequence: 0,
            works: HashMap::new(),
            tasks: HashMap::new(),
            unclaimed: BTreeMap::new(),
            slots: BTreeMap::new(),
            flying: Vec::new(),
            live: HashMap::new(),
            gone: Memory::default(),
            buffers: HashMap::new(),
            contexts: HashMap::new(),
            of_contexts: BTreeMap::new(),
            counts: Counts::default(),
            minute: Minute::new(),
            accounts,
            evaluations: Evaluations::default(),
            output: Output::default(),
            restoring: false,
        }
    }

    /// Returns the output since the last call.
    pub fn take_output(&mut self) -> Output {
        std::mem::take(&mut self.output)
    }

    /// Applies a note. Notes and events come in the order in which they happened.
    pub fn note(&mut self, note: Note, at: Stamp) {
        match note {
            Note::Received { arrival } => self.works.entry(arrival).or_default().received = at,
            Note::Wishes { arrival, wishes } => {
                self.works.entry(arrival).or_default().wishes = wishes;
            }
            // Only the recorder uses it.
            Note::Declined { .. } => {}
            Note::Size { buffer, bytes } => {
                let sized = Buffer {
                    bytes,
                    kind: Kind::Sized,
                    surplus: Surplus::default(),
                };
                self.buffers.insert(buffer, sized);
            }
            Note::Measured {
                context,
                tokens,
                bytes,
            } => self.measured(context, tokens, bytes),
            Note::Context {
                context,
                window,
                capacity,
                slots,
                can_shift,
                model,
            } => {
                let known = self.contexts.entry(context).or_default();
                if let Some(window) = window {
                    known.memory = kept_positions(window);
                }
                known.capacity = capacity;
                known.slots = slots;
                known.can_shift = can_shift;
                known.model = model;
            }
            Note::ContextFreed { context } => self.program_context_freed(context),
        }
    }

    /// Call before the ledger applies an event. Pass the result to [`after`](Self::after).
    pub fn before(&mut self, event: &Event, at: Stamp, now: Now, ledger: &Ledger) -> After {
        let is_primary = |context| ledger.primary().is_none_or(|primary| primary == context);
        self.restoring = matches!(event, Event::Restored { .. } | Event::Replaced { .. });
        if let Some(accounts) = &mut self.accounts {
            accounts.before(event, ledger);
        }
        match *event {
            Event::Posted {
                arrival,
                task,
                ref id,
            } => self.posted(arrival, task, id.as_ref()),
            Event::Answered { arrival, ref id } => self.answered(arrival, id.as_ref(), at, now),
            Event::Launched { sequence, task } => self.launched(sequence, task, None, at, now),
            Event::LaunchedUnclaimed {
                sequence,
                evaluation,
                likely,
            } => self.launched(sequence, likely, Some(evaluation), at, now),
            Event::Claimed { evaluation, task } => self.claimed(evaluation, task),
            Event::ClaimsClosed { evaluation } => self.claims_closed(evaluation),
            Event::Submitted {
                context,
                ref entries,
            } if is_primary(context) => self.submitted(entries, at),
            Event::Loaded {
                context,
                sequence,
                from,
                to,
            } if is_primary(context) => self.loaded(sequence, to - from),
            Event::Evaluated {
                context,
                ref failed,
            } if is_primary(context) => self.evaluated(!failed.is_empty(), at, now),
            Event::Copied {
                context,
                source,
                target,
                ..
            } if is_primary(context) => self.copied(source, target, now),
            Event::Saved {
                sequence, buffer, ..
            } => return After::Saved(sequence, buffer),
            Event::Checkpointed { buffer, .. } => {
                if let Some(buffer) = self.buffers.get_mut(&buffer) {
                    buffer.kind = Kind::Checkpoint;
                }
            }
            Event::Restored {
                sequence, buffer, ..
            } if ledger.knows(buffer) => return After::Restored(sequence, buffer),
            Event::Freed { buffer } => {
                self.buffers.remove(&buffer);
            }
            Event::Bounded { context, window } => {
                self.contexts.entry(context).or_default().memory = kept_positions(window);
            }
            Event::ContextFreed { context } => {
                let primary = is_primary(context);
                self.contexts.remove(&context);
                if primary {
                    self.lose_slots();
                }
            }
            Event::OutOfStep => {
                self.lose_slots();
                self.works.clear();
                self.tasks.clear();
                self.unclaimed.clear();
            }
            _ => {}
        }
        After::Nothing
    }

    /// Call with each effect that the ledger returned for the event.
    pub fn effect(&mut self, effect: &Effect, now: Now) {
        match effect {
            Effect::Awaited { id } => {
                let live = Live {
                    since_unix_ms: now.unix_ms,
                    tokens: None,
                };
                self.live.insert(id.clone(), live);
            }
            Effect::Cached {
                id,
                sequence,
                tokens,
            } => {
                if let Some(live) = self.live.get_mut(id) {
                    live.since_unix_ms = now.unix_ms;
                    live.tokens = live.tokens.max(Some(*tokens));
                }
                let change = Change::Cached {
                    id: id.to_string(),
                    slot: *sequence,
                    tokens: *tokens,
                };
                self.change(change, now);
            }
            Effect::Evicted { id, reason, place } => self.evicted(id, *reason, *place, now),
        }
    }

    /// Call when the ledger has applied the event.
    pub fn after(&mut self, after: After, now: Now, ledger: &Ledger) {
        if let Some(accounts) = &mut self.accounts {
            accounts.after(ledger, now.unix_ms);
        }
        match after {
            After::Nothing => {}
            After::Saved(sequence, buffer) => self.saved(sequence, buffer, now, ledger),
            After::Restored(sequence, buffer) => self.restored(sequence, buffer, now, ledger),
        }
    }

    /// Call when the ledger has panicked. All live ids count as evicted.
    pub fn lose_all(&mut self, now: Now) {
        let ids: Vec<RequestId> = self.live.keys().cloned().collect();
        for id in ids {
            self.evicted(&id, Reason::OutOfStep, Place::Nowhere, now);
        }
        self.lose_slots();
    }

    /// Forgets slots and buffers: they are gone, or their content is unknown.
    fn lose_slots(&mut self) {
        self.flying.clear();
        self.slots.clear();
        self.buffers.clear();
    }

    fn change(&mut self, change: Change, now: Now) {
        self.sequence += 1;
        self.output.events.push(ResidencyEvent {
            epoch: self.epoch.clone(),
            sequence: self.sequence,
            at: Timestamp::from_unix_ms(now.unix_ms),
            change,
        });
    }
}

fn kept_positions(window: u32) -> KeptPositions {
    match window {
        0 => KeptPositions::Recurrent,
        _ => KeptPositions::Window,
    }
}
