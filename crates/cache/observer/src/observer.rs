//! The observer: turns facts and notes into counts, a stream of changes, and log lines.

use std::collections::{BTreeMap, HashMap};

use contextpilot_control::{
    Change, LogLine, Memory as KeptPositions, Reason as ReasonOut, ResidencyEvent, Sections,
    Timestamp,
};
use contextpilot_residency::{
    Accounts, Arrival, BufferId, ContextId, EvaluationId, Fact, Ledger, Place, Reason, RequestId,
    SequenceId, TokenCounts, Upcoming,
};

use crate::evaluations::Evaluations;
use crate::gone::Memory;
use crate::histogram::{CLASSES, Histogram};
use crate::minute::Minute;
use crate::note::{Note, Now, Stamp};
use crate::work::Work;

mod buffers;
mod contexts;
mod known;
mod prompts;
mod whereabouts;

use known::{Buffer, Launch, Live, Unclaimed};
pub(crate) use known::{Context, Kind, ReuseCounts, SlotTimes};

/// Watches an [observed](Ledger::observed) ledger. For each event call
/// [`upcoming`](Self::upcoming) with what it is about to change, let the ledger apply it, then call
/// [`fact`](Self::fact) with each fact, and [`after`](Self::after).
#[derive(Debug)]
pub struct Observer {
    pub(crate) epoch: String,
    sequence: u64,
    works: HashMap<Arrival, Work>,
    /// Evaluations of prompts for which several requests wait, until it is known whose they are.
    unclaimed: BTreeMap<EvaluationId, Unclaimed>,
    pub(crate) slots: BTreeMap<SequenceId, SlotTimes>,
    live: HashMap<RequestId, Live>,
    gone: Memory,
    pub(crate) buffers: HashMap<BufferId, Buffer>,
    pub(crate) contexts: HashMap<ContextId, Context>,
    /// Prompts of each context of a program, by its place.
    pub(crate) of_contexts: BTreeMap<usize, ReuseCounts>,
    pub(crate) counts: Counts,
    pub(crate) minute: Minute,
    /// Tokens a second of the last prompt that took long enough.
    pub(crate) usual_rate: Option<f64>,
    /// Keeps account of why prompts are evaluated. `None`: no setting asks for that.
    pub(crate) accounts: Option<Accounts>,
    pub(crate) evaluations: Evaluations,
    output: Output,
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
            unclaimed: BTreeMap::new(),
            slots: BTreeMap::new(),
            live: HashMap::new(),
            gone: Memory::default(),
            buffers: HashMap::new(),
            contexts: HashMap::new(),
            of_contexts: BTreeMap::new(),
            counts: Counts::default(),
            minute: Minute::new(),
            usual_rate: None,
            accounts,
            evaluations: Evaluations::default(),
            output: Output::default(),
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
            Note::Sections {
                arrival,
                bytes: [system, tools, messages],
            } => {
                let sections = Sections {
                    system,
                    tools,
                    messages,
                };
                self.works.entry(arrival).or_default().sections = Some(sections);
            }
            Note::Counted { arrival, tokens } => {
                self.works.entry(arrival).or_default().prompt_tokens = Some(tokens);
            }
            Note::Titled { arrival, title } => {
                self.works.entry(arrival).or_default().title = Some(title);
            }
            Note::Sent { arrival, sent } => {
                self.works.entry(arrival).or_default().sent = Some(sent);
            }
            Note::Kept { arrival, kept } => {
                self.works.entry(arrival).or_default().kept += u64::from(kept.kept);
            }
            Note::Declined { sequence } => {
                if let Some(accounts) = &mut self.accounts {
                    accounts.declined(sequence);
                }
            }
            Note::Erasing { sequence } => {
                if let Some(accounts) = &mut self.accounts {
                    accounts.erasing(sequence);
                }
            }
            Note::Size { buffer, bytes } => {
                let sized = Buffer {
                    bytes,
                    kind: Kind::Sized,
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
                limit,
                slots,
                can_shift,
                model,
            } => {
                let known = self.contexts.entry(context).or_default();
                if let Some(window) = window {
                    known.memory = kept_positions(window);
                }
                known.capacity = capacity.map(|tokens| tokens.min(limit.unwrap_or(tokens)));
                known.slots = slots;
                known.can_shift = can_shift;
                known.model = model;
            }
            Note::ContextFreed { context } => self.program_context_freed(context),
            // For the recorder.
            Note::Infill { .. } => {}
        }
    }

    /// Call with all that the ledger [says](Ledger::upcoming) before it applies an event.
    pub fn upcoming(&mut self, upcoming: Upcoming<'_>, ledger: &Ledger) {
        if let Some(accounts) = &mut self.accounts {
            accounts.upcoming(upcoming, ledger);
        }
    }

    /// Call with each fact that the ledger told of an event, which happened at `at`. The ledger has
    /// applied the event.
    pub fn fact(&mut self, fact: &Fact, at: Stamp, now: Now, ledger: &Ledger) {
        if let Some(accounts) = &mut self.accounts {
            accounts.fact(fact);
        }
        match *fact {
            Fact::Awaited { ref id } => {
                let live = Live {
                    since_unix_ms: now.unix_ms,
                    tokens: None,
                };
                self.live.insert(id.clone(), live);
            }
            Fact::Cached {
                ref id,
                sequence,
                tokens,
            } => self.cached(id, sequence, tokens, now),
            Fact::Evicted {
                ref id,
                reason,
                place,
                ref by,
            } => self.evicted(id, reason, place, by.as_ref(), now),
            Fact::Posted {
                arrival, ref id, ..
            } => {
                let work = self.works.entry(arrival).or_default();
                work.id.clone_from(id);
                work.tasks += 1;
            }
            Fact::Answered {
                arrival,
                ref id,
                leaves,
            } => {
                self.counts.finished += 1;
                if let Some(accounts) = &mut self.accounts {
                    accounts.answered(arrival);
                }
                if let Some(work) = self.works.get_mut(&arrival) {
                    work.id = work.id.take().or_else(|| id.clone());
                    work.ended = at;
                }
                if !leaves {
                    self.ended(arrival, now);
                }
            }
            Fact::Left { arrival } => self.ended(arrival, now),
            Fact::Launched {
                sequence,
                task,
                ref asker,
                evaluation,
                goes_on,
            } => {
                let launch = Launch {
                    sequence,
                    task,
                    asker,
                    evaluation,
                    goes_on,
                };
                self.launched(&launch, at, now);
            }
            Fact::Claimed {
                evaluation,
                ref asker,
                running,
            } => self.claimed(evaluation, asker, running),
            Fact::ClaimsClosed { evaluation, likely } => self.claims_closed(evaluation, likely),
            Fact::BatchEvaluated { sequence } => self.batch_evaluated(sequence, at),
            Fact::PromptEvaluated {
                sequence,
                ref asker,
                evaluation,
                counts,
                answers,
            } => self.prompt_evaluated(sequence, asker, evaluation, (counts, answers), now, ledger),
            Fact::FirstToken { sequence } => self.has_first_token(sequence, at),
            Fact::PromptGivenUp {
                sequence,
                ref asker,
                evaluation,
                counts,
            } => self.prompt_given_up(sequence, asker, evaluation, counts, now, ledger),
            Fact::TookOver {
                source,
                target,
                ref asker,
                unseen,
                ..
            } => self.took_over((source, target), asker, unseen),
            Fact::Saved {
                sequence,
                buffer,
                tokens,
            } => self.saved(sequence, buffer, tokens, now, ledger),
            Fact::Restored {
                sequence, tokens, ..
            } => self.restored(sequence, tokens, now, ledger),
            Fact::Checkpointed { buffer, .. } => {
                if let Some(buffer) = self.buffers.get_mut(&buffer) {
                    buffer.kind = Kind::Checkpoint;
                }
            }
            Fact::Freed { buffer } => drop(self.buffers.remove(&buffer)),
            Fact::Bounded { context, window } => {
                self.contexts.entry(context).or_default().memory = kept_positions(window);
            }
            // For the recorder: to `/stats` it is a context that keeps all.
            Fact::WholeWindows { .. } => {}
            Fact::ContextFreed { context, primary } => {
                self.contexts.remove(&context);
                if primary {
                    self.lose_slots();
                }
            }
            Fact::OutOfStep => {
                self.lose_slots();
                self.works.clear();
                self.unclaimed.clear();
            }
            Fact::Adapters { .. }
            | Fact::Uncached { .. }
            | Fact::NamedAdapters { .. }
            | Fact::Quiet { .. } => {}
        }
    }

    /// A request was answered, and nothing more is evaluated for it.
    fn ended(&mut self, arrival: Arrival, now: Now) {
        let Some(work) = self.works.remove(&arrival) else {
            return;
        };
        if let Some(entry) = work.entry {
            let first_token = work.first_token();
            self.evaluations.ended(entry, first_token, now.unix_ms);
        }
        self.output.lines.push(work.line(now));
    }

    /// Call when the ledger has applied the event, after its facts.
    pub fn after(&mut self, now: Now, ledger: &Ledger) {
        if let Some(accounts) = &mut self.accounts {
            accounts.after(ledger, now.unix_ms);
        }
    }

    /// Call when the ledger has panicked. All live ids count as evicted.
    pub fn lose_all(&mut self, now: Now) {
        let ids: Vec<RequestId> = self.live.keys().cloned().collect();
        for id in ids {
            self.evicted(&id, Reason::OutOfStep, Place::Nowhere, None, now);
        }
        self.lose_slots();
    }

    /// Forgets slots and buffers: they are gone, or their content is unknown.
    fn lose_slots(&mut self) {
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
