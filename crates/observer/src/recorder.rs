//! The recorder: makes a recording of traffic with `contextpilot-traffic`.
//!
//! It follows the same ledger as the [`Observer`](crate::Observer), and notes how the engine
//! evaluated each prompt. A request is written when its slot is used or changed again, or when it was answered
//! and the engine has been silent for a while. Not before: the slot's content may still grow.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use contextpilot_residency::{
    Adapter, Arrival, Compared, Event, Fact, Ledger, Scale, SequenceId, TaskId, Token, Wishes,
};
use contextpilot_traffic::{Applied, Key, Memory, Recorded, Setup, SizeKind, Writer};

use crate::note::{Note, Stamp};
use slot::SlotRecord;
use stage::Stage;

mod changes;
mod requests;
mod server;
mod slot;
mod stage;

/// The most tasks that are not launched yet, and the most requests that are not answered yet, of which the
/// recorder knows something.
pub const MOST_WAITING: usize = 65_536;

/// After this silence, what a slot holds of a request that was answered will not grow any more.
const OVER: Duration = Duration::from_secs(1);

/// Watches an [observed](Ledger::observed) ledger, and makes a recording of what it sees.
///
/// Call [`note`](Self::note) with each note; for each event [`before`](Self::before), then let the
/// ledger apply it, then [`fact`](Self::fact) with each fact. Append [`take`](Self::take) to the file.
#[derive(Debug)]
pub struct Recorder {
    writer: Writer,
    setup: Setup,
    /// The first context, which is the server's own, was created.
    is_set_up: bool,
    out: Vec<u8>,
    full: bool,
    /// What requests ask for that are not answered yet.
    wishes: HashMap<Arrival, Wishes>,
    tasks: HashMap<TaskId, Posted>,
    slots: BTreeMap<SequenceId, SlotRecord>,
    /// The buffer that the next event saves to, and its size in bytes.
    buffer: Option<(contextpilot_residency::BufferId, u64)>,
    /// The kinds and classes of length of which a size was recorded.
    sampled: HashSet<(bool, u32)>,
    /// The number of rows of media whose rows share a position, by the media's token.
    rows: HashMap<Token, u32>,
    /// The adapters that are applied now.
    adapters: Vec<Adapter>,
    applied: Applied,
    /// The server compares the adapters of every request with those of the slot.
    compares_always: bool,
    launches: u64,
    skipped: u64,
    /// The slots that were idle and not empty at the last launch of a task, and how many tokens each held.
    idle: Vec<(SequenceId, u32)>,
    stage: Stage,
}

#[derive(Clone, Debug, Default)]
struct Posted {
    arrival: Option<Arrival>,
    at: Stamp,
    /// The adapters that its request names.
    named: Option<Vec<(i32, Scale)>>,
    /// The server will forget its prompt (`"cache_prompt": false`).
    forgotten: bool,
}

impl Recorder {
    /// `limit`: the most bytes that the file may have. The beginning of the file comes with the first
    /// [`take`](Self::take).
    #[must_use]
    pub fn new(key: Key, keep_key: bool, limit: u64, setup: Setup) -> Self {
        let (mut writer, mut out) = Writer::new(key, keep_key, limit);
        let mut full = false;
        append(writer.setup(&setup), &mut out, &mut full);
        Self {
            writer,
            setup,
            is_set_up: false,
            out,
            full,
            wishes: HashMap::new(),
            tasks: HashMap::new(),
            slots: BTreeMap::new(),
            buffer: None,
            sampled: HashSet::new(),
            rows: HashMap::new(),
            adapters: Vec::new(),
            applied: Applied::default(),
            compares_always: false,
            launches: 0,
            skipped: 0,
            idle: Vec::new(),
            stage: Stage::default(),
        }
    }

    /// Returns the bytes to append to the file.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Whether the recording has ended, because the file would exceed its limit.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// The number of requests that could not be recorded, because the ledger did not know all tokens of
    /// their prompts.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Applies a note. Notes and events come in the order in which they happened.
    pub fn note(&mut self, note: &Note) {
        match *note {
            Note::Wishes { arrival, wishes } if self.wishes.len() < MOST_WAITING => {
                self.wishes.insert(arrival, wishes);
            }
            Note::Size { buffer, bytes } => self.buffer = Some((buffer, bytes)),
            Note::Measured { tokens, bytes, .. } => self.size(SizeKind::State, tokens, bytes),
            Note::Context {
                capacity, slots, ..
            } => self.context(capacity, slots),
            Note::Declined { sequence } => self.declined(sequence),
            Note::Received { .. }
            | Note::Wishes { .. }
            | Note::Sections { .. }
            | Note::ContextFreed { .. } => {}
        }
    }

    /// Call before the ledger applies an event.
    pub fn before(&mut self, event: &Event, at: Stamp, ledger: &Ledger) {
        let is_primary = |context| ledger.primary().is_none_or(|primary| primary == context);
        match *event {
            Event::Posted { arrival, task, .. } => self.posted(arrival, task, at),
            Event::Uncached { task } => self.task(task).forgotten = true,
            Event::NamedAdapters { task, ref scales } => {
                self.task(task).named = Some(scales.clone());
            }
            Event::Adapters {
                context,
                ref adapters,
                compared,
            } if is_primary(context) => {
                self.compares_always = compared == Compared::Always;
                self.adapters.clone_from(adapters);
                self.applied = self.applied(adapters);
            }
            Event::Launched { sequence, task }
            | Event::LaunchedUnclaimed {
                sequence,
                likely: task,
                ..
            } => self.launched(sequence, task, at, ledger),
            Event::Submitted {
                context,
                ref entries,
            } if is_primary(context) => {
                self.stage.submitted();
                self.submitted(entries);
            }
            Event::Loaded {
                context,
                sequence,
                from,
                to,
            } if is_primary(context) => self.loaded(sequence, from, to),
            Event::Evaluated {
                context,
                ref failed,
            } if is_primary(context) => {
                self.stage.evaluated(!failed.is_empty());
                self.evaluated(at);
            }
            Event::Saved {
                context,
                sequence,
                buffer,
            } if is_primary(context) => {
                self.close(sequence, ledger);
                self.stage.saved(sequence);
                let sized = self.buffer.take().filter(|&(sized, _)| sized == buffer);
                if let Some((_, bytes)) = sized {
                    self.size(SizeKind::State, ledger.held(sequence), bytes);
                }
            }
            Event::Checkpointed { buffer, last, .. } => {
                let sized = self.buffer.take().filter(|&(sized, _)| sized == buffer);
                if let (Some((_, bytes)), Ok(last)) = (sized, u32::try_from(last)) {
                    self.size(SizeKind::Checkpoint, last + 1, bytes);
                }
            }
            Event::Restored {
                context, sequence, ..
            } if is_primary(context) => {
                self.close(sequence, ledger);
                self.stage.loaded(sequence);
            }
            Event::Replaced {
                context,
                sequence,
                ref tokens,
            } if is_primary(context) => self.replaced(sequence, tokens, at, ledger),
            Event::Obscured { context, sequence } if is_primary(context) => {
                self.obscured(sequence, at, ledger);
            }
            Event::Removed {
                context,
                sequence,
                from,
                to,
            } if is_primary(context) => self.removed(sequence, (from, to), at, ledger),
            Event::Shifted {
                context,
                sequence,
                delta,
                ..
            } if is_primary(context) => {
                let slot = self.slots.get_mut(&sequence);
                if let Some(open) = slot.and_then(|slot| slot.open.as_mut()) {
                    if !open.prompting {
                        open.discarded -= i64::from(delta);
                    }
                }
            }
            Event::Cleared { context } | Event::ContextFreed { context } if is_primary(context) => {
                self.finish(ledger);
            }
            Event::Bounded { context, window } if is_primary(context) => {
                self.setup.memory = match window {
                    0 => Memory::Recurrent,
                    window => Memory::Window(window),
                };
                let recorded = self.writer.setup(&self.setup);
                append(recorded, &mut self.out, &mut self.full);
            }
            Event::Quiet { elapsed } if elapsed >= OVER => self.close_answered(ledger),
            Event::OutOfStep => {
                self.slots.clear();
                self.wishes.clear();
                self.tasks.clear();
            }
            _ => {}
        }
    }

    /// Call with each fact that the ledger told of an event, which happened at `at`. The ledger has
    /// applied the event.
    pub fn fact(&mut self, fact: &Fact, at: Stamp, ledger: &Ledger) {
        match *fact {
            Fact::Answered { arrival, .. } => self.answered(arrival),
            Fact::BatchEvaluated { sequence } => {
                let slot = self.slots.get_mut(&sequence);
                if let Some(open) = slot.and_then(|slot| slot.open.as_mut()) {
                    open.record.prompted = micros(at);
                }
            }
            Fact::PromptEvaluated {
                sequence,
                counts,
                answers,
                ..
            } => self.prompt_evaluated(sequence, counts, answers, ledger),
            Fact::TookOver { source, target, .. } => self.took_over(source, target),
            _ => {}
        }
    }

    /// Writes the requests that were answered. Not further answers to a prompt (`n`): it is known by them that
    /// the server itself empties their slots.
    fn close_answered(&mut self, ledger: &Ledger) {
        let is_over = |slot: &SlotRecord| {
            let open = slot.open.as_ref();
            open.is_some_and(|open| open.over && !open.record.child)
        };
        let over = self.slots.iter().filter(|(_, slot)| is_over(slot));
        let over: Vec<SequenceId> = over.map(|(&id, _)| id).collect();
        for sequence in over {
            self.close(sequence, ledger);
        }
    }

    /// Writes the requests of all slots. Call it when nothing more will happen to their content.
    pub fn finish(&mut self, ledger: &Ledger) {
        let slots: Vec<SequenceId> = self.slots.keys().copied().collect();
        for sequence in slots {
            self.close(sequence, ledger);
        }
    }
}

fn append(recorded: Recorded, out: &mut Vec<u8>, full: &mut bool) {
    match recorded {
        Recorded::Bytes(bytes) => out.extend(bytes),
        Recorded::Full => *full = true,
    }
}

fn micros(at: Stamp) -> u64 {
    at.0 / 1000
}

fn small(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
