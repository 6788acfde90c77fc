//! The recorder: traffic, as `contextpilot-traffic` writes it.
//!
//! It watches the same events as the [`Observer`](crate::Observer), and notes of each prompt what
//! the engine made of it. A request is written when its slot is touched again, or when it is known
//! to be over: until then its answer may go on.

use std::collections::{BTreeMap, HashMap, HashSet};

use contextpilot_residency::{
    Adapter, Arrival, Compared, Event, Ledger, Scale, SequenceId, TaskId, Token, Wishes, activation,
};
use contextpilot_traffic::{Applied, Key, Memory, Recorded, Setup, SizeKind, Writer};

use crate::note::{Note, Stamp};
use changes::Stage;
use slot::SlotRecord;

mod changes;
mod requests;
mod server;
mod slot;

/// Tasks that are not launched yet, and requests that are not answered, of which something is known.
pub const MOST_WAITING: usize = 65_536;

/// Watches the ledger, and makes a recording of what it sees.
///
/// Call [`note`](Self::note) with each note; for each event [`before`](Self::before), then let the
/// ledger apply it, then [`after`](Self::after). Append [`take`](Self::take) to the file.
#[derive(Debug)]
pub struct Recorder {
    writer: Writer,
    setup: Setup,
    /// The server's own context was seen to be made.
    is_set_up: bool,
    out: Vec<u8>,
    full: bool,
    /// Of requests that are not answered yet.
    wishes: HashMap<Arrival, Wishes>,
    tasks: HashMap<TaskId, Posted>,
    slots: BTreeMap<SequenceId, SlotRecord>,
    /// Slots whose prompts have ended with the event under way.
    ended: Vec<SequenceId>,
    /// The buffer that the next event saves to, and its bytes.
    buffer: Option<(contextpilot_residency::BufferId, u64)>,
    sampled: HashSet<(bool, u32)>,
    /// Rows of media whose rows share a position.
    rows: HashMap<Token, u32>,
    /// The adapters that are applied now.
    adapters: Vec<Adapter>,
    applied: Applied,
    /// The server compares the adapters of all requests with those of the slot.
    compares_always: bool,
    launches: u64,
    skipped: u64,
    /// Slots that were idle and not empty when a task was launched last, and what they held.
    idle: Vec<(SequenceId, u32)>,
    stage: Stage,
}

#[derive(Clone, Debug, Default)]
struct Posted {
    arrival: Option<Arrival>,
    at: Stamp,
    /// The adapters that it names.
    named: Option<Vec<(i32, Scale)>>,
    /// The server will forget its prompt.
    forgotten: bool,
}

impl Recorder {
    /// Returns the file's beginning too, in [`take`](Self::take). `limit`: bytes.
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
            ended: Vec::new(),
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

    /// Bytes to append to the file.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// The file has reached its limit, and nothing more is recorded.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Requests that could not be recorded, since the ledger did not know their tokens.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// A note came, in order with the events.
    pub fn note(&mut self, note: &Note, at: Stamp) {
        match *note {
            Note::Wishes { arrival, wishes } if self.wishes.len() < MOST_WAITING => {
                self.wishes.insert(arrival, wishes);
            }
            Note::Posted { arrival, task } => self.posted(arrival, task, at),
            Note::Answered { arrival } => self.answered(arrival),
            Note::Size { buffer, bytes } => self.buffer = Some((buffer, bytes)),
            Note::Measured { tokens, bytes, .. } => self.size(SizeKind::State, tokens, bytes),
            Note::Context {
                capacity, slots, ..
            } => self.context(capacity, slots),
            Note::Declined { sequence } => self.declined(sequence),
            Note::Received { .. } | Note::Wishes { .. } => {}
        }
    }

    /// The ledger is about to apply an event.
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
            Event::Answered { arrival, .. } => self.answered(arrival),
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
            Event::Evaluated {
                context,
                ref failed,
            } if is_primary(context) => {
                self.stage.evaluated(!failed.is_empty());
                self.evaluated(!failed.is_empty(), at);
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
                    if open.prompt.is_none() {
                        open.discarded -= i64::from(delta);
                    }
                }
            }
            Event::Copied {
                context,
                source,
                target,
                ..
            } if is_primary(context) => self.copied(source, target),
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
            Event::OutOfStep => {
                self.slots.clear();
                self.wishes.clear();
                self.tasks.clear();
            }
            _ => {}
        }
    }

    /// The ledger has applied the event.
    pub fn after(&mut self, ledger: &Ledger) {
        if !self.ended.is_empty() {
            self.check_idle(ledger);
        }
        for sequence in std::mem::take(&mut self.ended) {
            let Some(slot) = self.slots.get_mut(&sequence) else {
                continue;
            };
            if let Some(open) = &mut slot.open {
                open.set_prompt(ledger.tokens_in(sequence), &self.rows);
                if open.record.adapters.invoked {
                    let prompt = open.tokens.get(..open.record.prompt as usize);
                    let at = prompt.and_then(|prompt| activation(&self.adapters, prompt));
                    open.record.activated_at = at.and_then(|at| u32::try_from(at).ok());
                }
            }
        }
    }

    /// Nothing more will happen to what the slots have worked on.
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
