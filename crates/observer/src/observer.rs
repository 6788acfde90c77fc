//! The observer: who is told what, in the order in which it happened.

use std::collections::{BTreeMap, HashMap};

use contextpilot_control::{
    Change, Evaluated, Evicted, LogLine, Place as PlaceOut, Reason as ReasonOut, RequestState,
    ResidencyEvent, Timestamp,
};
use contextpilot_residency::{
    Accounts, Around, Arrival, BufferId, ContextId, Effect, Entry, EvaluationId, Event, Ledger,
    Place, Reason, RequestId, SequenceId, TaskId,
};

use crate::evaluations::Evaluations;
use crate::gone::{Gone, MOST_GONE, Memory};
use crate::histogram::{CLASSES, Histogram};
use crate::launches::Unclaimed;
use crate::minute::Minute;
use crate::note::{Note, Now, Stamp};
use crate::prompt::{Surplus, Taken};
use crate::work::{SlotWork, Work};

/// Request ids that are named at one place: in an event, for a slot, in a line of the log.
pub const MOST_NAMED: usize = 1000;

/// Watches the ledger. Call [`before`](Self::before) with each event, then let the ledger apply
/// it, then call [`effect`](Self::effect) with each effect and [`after`](Self::after).
#[derive(Debug)]
pub struct Observer {
    pub(crate) epoch: String,
    sequence: u64,
    pub(crate) works: HashMap<Arrival, Work>,
    pub(crate) tasks: HashMap<TaskId, Arrival>,
    /// Evaluations of prompts that several requests wait with.
    pub(crate) unclaimed: BTreeMap<EvaluationId, Unclaimed>,
    pub(crate) slots: BTreeMap<SequenceId, SlotWork>,
    /// Slots of the batch that is being evaluated.
    flying: Vec<SequenceId>,
    live: HashMap<RequestId, Live>,
    gone: Memory,
    pub(crate) buffers: HashMap<BufferId, Buffer>,
    pub(crate) contexts: HashMap<ContextId, Context>,
    pub(crate) counts: Counts,
    pub(crate) minute: Minute,
    /// `None`: nobody wants to know why prompts are evaluated.
    pub(crate) accounts: Option<Accounts>,
    pub(crate) evaluations: Evaluations,
    told: Told,
    /// The event under way changes a slot for no task that is known: its content comes from a
    /// file, or from the host cache for a task that is launched afterwards.
    restoring: bool,
}

/// What is to be passed on.
#[derive(Debug, Default)]
pub struct Told {
    /// To readers of the stream.
    pub events: Vec<ResidencyEvent>,
    /// To the log file.
    pub lines: Vec<LogLine>,
}

/// What remains to be looked at when the ledger has applied an event.
#[derive(Debug)]
#[must_use]
pub enum After {
    /// Nothing.
    Nothing,
    /// Whether the sequence was saved.
    Saved(SequenceId, BufferId),
    /// Whether the sequence was restored from a buffer that is known.
    Restored(SequenceId, BufferId),
}

#[derive(Debug)]
struct Live {
    since_unix_ms: u64,
    /// Of the longest prompt; `None`: not cached yet.
    tokens: Option<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    /// Of the sequence that was saved.
    surplus: Surplus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Its size is known, and nothing else yet.
    Sized,
    Sequence,
    Checkpoint,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Context {
    pub(crate) capacity: Option<u32>,
    pub(crate) slots: Option<u32>,
    pub(crate) model: Option<std::sync::Arc<str>>,
    /// Tokens and bytes of the longest sequence that was measured.
    pub(crate) measured: (u32, u64),
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) prompts: u64,
    pub(crate) taken: Taken,
    pub(crate) finished: u64,
    pub(crate) evictions: BTreeMap<ReasonOut, u64>,
    pub(crate) first_token: [Histogram; CLASSES.len()],
}

impl Observer {
    /// `epoch`: random, to tell this process from others. Without `accounts` it is not known why
    /// prompts are evaluated.
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
            counts: Counts::default(),
            minute: Minute::new(),
            accounts,
            evaluations: Evaluations::default(),
            told: Told::default(),
            restoring: false,
        }
    }

    /// What has gathered since this was last asked.
    pub fn told(&mut self) -> Told {
        std::mem::take(&mut self.told)
    }

    /// A note came, in order with the events.
    pub fn note(&mut self, note: Note, at: Stamp, now: Now) {
        match note {
            Note::Received { arrival } => self.works.entry(arrival).or_default().received = at,
            Note::Wishes { arrival, wishes } => {
                self.works.entry(arrival).or_default().wishes = wishes;
            }
            Note::Posted { arrival, task } => self.posted(arrival, task, None),
            // For the recorder.
            Note::Declined { .. } => {}
            Note::Answered { arrival } => self.answered(arrival, None, at, now),
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
                capacity,
                slots,
                model,
            } => {
                let known = self.contexts.entry(context).or_default();
                known.capacity = capacity;
                known.slots = slots;
                known.model = model;
            }
        }
    }

    /// The ledger is about to apply an event.
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
            } => self.posted(arrival, task, Some(id)),
            Event::Answered { arrival, ref id } => self.answered(arrival, Some(id), at, now),
            Event::Launched { sequence, task } => self.launched(sequence, task, None, now),
            Event::LaunchedUnclaimed {
                sequence,
                evaluation,
                likely,
            } => self.launched(sequence, likely, Some(evaluation), now),
            Event::Claimed { evaluation, task } => self.claimed(evaluation, task),
            Event::ClaimsClosed { evaluation } => self.claims_closed(evaluation),
            Event::Submitted {
                context,
                ref entries,
            } if is_primary(context) => self.submitted(entries),
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

    /// The ledger drew a conclusion from the event.
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

    /// The ledger has applied the event.
    pub fn after(&mut self, after: After, now: Now, ledger: &Ledger) {
        if let Some(accounts) = &mut self.accounts {
            accounts.after(ledger, now.unix_ms);
        }
        match after {
            After::Nothing => {}
            After::Saved(sequence, buffer) if ledger.knows(buffer) => {
                let tokens = ledger.held(sequence);
                let slot = self.slots.get(&sequence);
                let bytes = self.buffers.get_mut(&buffer).map(|buffer| {
                    buffer.kind = Kind::Sequence;
                    buffer.surplus = slot.map_or_else(Surplus::default, |s| s.surplus.clone());
                    buffer.bytes
                });
                if let (Some(bytes), Some(context)) = (bytes, ledger.primary()) {
                    self.measured(context, tokens, bytes);
                }
                let change = Change::MovedToHost {
                    ids: names(ledger, sequence),
                    slot: sequence,
                    tokens,
                    bytes,
                };
                self.change(change, now);
            }
            After::Saved(_, buffer) => {
                self.buffers.remove(&buffer);
            }
            After::Restored(sequence, buffer) => {
                let surplus = self.buffers.get(&buffer).map(|b| b.surplus.clone());
                let slot = self.slots.entry(sequence).or_default();
                slot.surplus = surplus.unwrap_or_default();
                let change = Change::Restored {
                    ids: names(ledger, sequence),
                    slot: sequence,
                    tokens: ledger.held(sequence),
                };
                self.change(change, now);
            }
        }
    }

    /// The ledger is gone: of no request can it be said any more that it is cached.
    pub fn lose_all(&mut self, now: Now) {
        let ids: Vec<RequestId> = self.live.keys().cloned().collect();
        for id in ids {
            self.evicted(&id, Reason::OutOfStep, Place::Nowhere, now);
        }
        self.lose_slots();
    }

    /// Where a request is, or what became of it.
    #[must_use]
    pub fn request(&self, id: &str, ledger: Option<&Ledger>) -> RequestState {
        let id = id.to_owned();
        let evaluated = self.evaluations.get(&id);
        let evaluation = evaluated.map(|(_, evaluation)| Box::new(evaluation.clone()));
        if let Some(live) = self.live.get(&*id) {
            let since = Timestamp::from_unix_ms(live.since_unix_ms);
            let Some(tokens) = live.tokens else {
                return RequestState::Awaited { id, since };
            };
            let found = ledger.and_then(|ledger| ledger.whereabouts(&id));
            let found = found.unwrap_or_default();
            let slots = found.sequences.into_iter();
            return RequestState::Cached {
                places: slots
                    .map(|slot| PlaceOut::Slot { slot })
                    .chain(found.host.then_some(PlaceOut::Host))
                    .collect(),
                id,
                tokens,
                since,
                evaluation,
            };
        }
        match self.gone.get(&id) {
            Some(gone) => RequestState::Evicted {
                id,
                at: Timestamp::from_unix_ms(gone.at_unix_ms),
                reason: gone.reason,
                from: gone.from,
                by: gone.by.as_deref().map(str::to_owned),
                tokens: gone.tokens,
                cached_tokens: evaluated.zip(ledger).and_then(|((nth, _), ledger)| {
                    self.accounts.as_ref()?.cached_tokens(nth, ledger)
                }),
                evaluation,
            },
            None => RequestState::Unknown {
                id,
                hint: format!(
                    "never seen by this process, or evicted more than {MOST_GONE} evictions ago"
                ),
            },
        }
    }

    /// The last requests whose prompts were evaluated, the latest first, each with the tokens around
    /// its difference, if accounts have those.
    #[must_use]
    pub fn latest(&self, most: usize) -> Vec<(Evaluated, Option<Box<Around>>)> {
        self.evaluations.latest(most)
    }

    /// The tokens around the difference of a request, if accounts have those.
    #[must_use]
    pub fn around(&self, id: &str) -> Option<Box<Around>> {
        self.evaluations.around(id)
    }

    // ---- requests and slots --------------------------------------------

    fn posted(&mut self, arrival: Arrival, task: TaskId, id: Option<&RequestId>) {
        let work = self.works.entry(arrival).or_default();
        work.id = id.cloned();
        work.tasks.push(task);
        self.tasks.insert(task, arrival);
    }

    fn submitted(&mut self, entries: &[Entry]) {
        self.flying.clear();
        for run in entries.chunk_by(|a, b| a.sequence == b.sequence) {
            let Some(sequence) = run.first().map(|entry| entry.sequence) else {
                continue;
            };
            let slot = self.slots.get_mut(&sequence);
            if let Some((prompt, surplus)) = slot.and_then(SlotWork::prompt) {
                prompt.submitted(run, surplus);
                if !self.flying.contains(&sequence) {
                    self.flying.push(sequence);
                }
            }
        }
    }

    fn evaluated(&mut self, failed: bool, at: Stamp, now: Now) {
        for sequence in std::mem::take(&mut self.flying) {
            let slot = self.slots.get_mut(&sequence);
            let ended = slot
                .and_then(SlotWork::prompt)
                .and_then(|(prompt, surplus)| prompt.evaluated(failed, at, surplus));
            if let Some((taken, at)) = ended {
                self.ended(sequence, taken, at, now);
            }
        }
    }

    fn answered(&mut self, arrival: Arrival, id: Option<&RequestId>, at: Stamp, now: Now) {
        self.counts.finished += 1;
        let of_it: Vec<SequenceId> = self
            .slots
            .iter()
            .filter(|(_, slot)| {
                let launch = slot.launch.as_ref();
                launch.is_some_and(|launch| launch.arrival == Some(arrival) && launch.busy)
            })
            .map(|(&sequence, _)| sequence)
            .collect();
        for sequence in of_it {
            self.end_prompt(sequence, now);
            let slot = self.slots.get_mut(&sequence);
            if let Some(launch) = slot.and_then(|slot| slot.launch.as_mut()) {
                launch.busy = false;
            }
        }
        let Some(mut work) = self.works.remove(&arrival) else {
            return;
        };
        work.id = work.id.or(id.cloned());
        for task in &work.tasks {
            self.tasks.remove(task);
        }
        self.told.lines.push(work.line(at, now));
    }

    /// Slots and buffers are gone, or nothing is known of them any more.
    fn lose_slots(&mut self) {
        self.flying.clear();
        self.slots.clear();
        self.buffers.clear();
    }

    fn measured(&mut self, context: ContextId, tokens: u32, bytes: u64) {
        let context = self.contexts.entry(context).or_default();
        if tokens > context.measured.0 {
            context.measured = (tokens, bytes);
        }
    }

    // ---- what became of requests ---------------------------------------

    fn evicted(&mut self, id: &RequestId, reason: Reason, place: Place, now: Now) {
        let live = self.live.remove(id);
        let launch = match place {
            Place::Slot(sequence) => self.slots.get(&sequence).and_then(|s| s.launch.as_ref()),
            _ => None,
        };
        // What overwrites or moves a slot's content is the task in it. One that is emptied is so
        // for its own task, if it has one at work.
        let by = launch.filter(|launch| match reason {
            _ if self.restoring => false,
            Reason::Overwritten
            | Reason::Shifted
            | Reason::OutOfReach
            | Reason::AdaptersChanged => true,
            Reason::Cleared => launch.busy,
            _ => false,
        });
        let reason = reason_out(reason);
        *self.counts.evictions.entry(reason).or_default() += 1;
        let by_id = by.and_then(|launch| launch.id.clone());
        if let Some(work) = by.and_then(|by| self.works.get_mut(&by.arrival?)) {
            work.pushed_out(Evicted {
                id: id.to_string(),
                reason,
            });
        }
        let from = place_out(place);
        let change = Change::Evicted {
            id: id.to_string(),
            reason,
            from,
            by: by_id.as_deref().map(str::to_owned),
        };
        let gone = Gone {
            at_unix_ms: now.unix_ms,
            reason,
            from,
            by: by_id,
            tokens: live.and_then(|live| live.tokens),
        };
        self.gone.remember(id, gone);
        self.change(change, now);
    }

    fn change(&mut self, change: Change, now: Now) {
        self.sequence += 1;
        self.told.events.push(ResidencyEvent {
            epoch: self.epoch.clone(),
            sequence: self.sequence,
            at: Timestamp::from_unix_ms(now.unix_ms),
            change,
        });
    }
}

/// The requests whose prompts a slot holds, each once.
fn names(ledger: &Ledger, sequence: SequenceId) -> Vec<String> {
    each_once(ledger.requests_in(sequence)).0
}

/// The first [`MOST_NAMED`] of some ids, and how many different ones there are.
pub(crate) fn each_once(ids: Vec<&RequestId>) -> (Vec<String>, u64) {
    let mut seen = std::collections::HashSet::with_capacity(ids.len());
    let mut names = Vec::new();
    for id in ids {
        if seen.insert(id) && names.len() < MOST_NAMED {
            names.push(id.to_string());
        }
    }
    (names, seen.len() as u64)
}

pub(crate) fn reason_out(reason: Reason) -> ReasonOut {
    match reason {
        Reason::Overwritten => ReasonOut::Overwritten,
        Reason::Cleared => ReasonOut::Cleared,
        Reason::Shifted => ReasonOut::Shifted,
        Reason::DroppedFromHost => ReasonOut::DroppedFromHost,
        Reason::OutOfReach => ReasonOut::OutOfReach,
        Reason::AdaptersChanged => ReasonOut::AdaptersChanged,
        Reason::ContextFreed => ReasonOut::ContextFreed,
        Reason::NeverCached => ReasonOut::NeverCached,
        Reason::OutOfStep => ReasonOut::OutOfStep,
        Reason::Reset => ReasonOut::Reset,
        Reason::TooMany => ReasonOut::TooMany,
    }
}

fn place_out(place: Place) -> PlaceOut {
    match place {
        Place::Slot(slot) => PlaceOut::Slot { slot },
        Place::Host => PlaceOut::Host,
        Place::Nowhere => PlaceOut::Nowhere,
    }
}
