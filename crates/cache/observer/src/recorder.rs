//! The recorder: makes a recording of traffic with `contextpilot-traffic`.
//!
//! It follows the same ledger as the [`Observer`](crate::Observer), and notes how the engine
//! evaluated each prompt. A request is written when its slot is used or changed again, or when it was answered
//! and the engine has been silent for a while. Not before: the slot's content may still grow.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use contextpilot_residency::{
    Adapter, Arrival, BufferId, Compared, Fact, Ledger, Reason, Scale, SequenceId, Successor,
    TaskId, Token, Upcoming, Wishes,
};
use contextpilot_traffic::{
    Applied, ChangeKind, Key, Memory, Progress, Recorded, Setup, SizeKind, Writer,
};

use crate::note::{Note, Stamp};
use kept::KeptPrompts;
pub use kept::MOST_OTHER_TOKENS;
use slot::{Open, SlotRecord};
use stage::Stage;

mod changes;
mod infill;
mod kept;
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
/// Call [`note`](Self::note) with each note; for each event [`upcoming`](Self::upcoming) with what it is about to
/// change, then let the ledger apply it, then [`fact`](Self::fact) with each fact. Append [`take`](Self::take) to the file.
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
    kept: KeptPrompts,
    tasks: HashMap<TaskId, Posted>,
    slots: BTreeMap<SequenceId, SlotRecord>,
    /// The buffer that the next event saves to, and its size in bytes.
    buffer: Option<(BufferId, u64)>,
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
    /// The special tokens of prompts for `/infill`, if these begin with the prefix.
    markers: Option<[Token; 3]>,
    /// How all that the server held was lost, and no task was launched since: it sleeps or ends, or is another process. When
    /// that was, microseconds; `None`: that is not known before the next launch.
    lost: Option<(ChangeKind, Option<u64>)>,
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
        let (writer, out) = Writer::new(key, keep_key, limit);
        Self::with(writer, out, setup)
    }

    /// As [`new`](Self::new), for a file with which the next process of the model may go on.
    #[must_use]
    pub fn handed_on(key: Key, keep_key: bool, limit: u64, setup: Setup) -> Self {
        let (writer, out) = Writer::handed_on(key, keep_key, limit);
        Self::with(writer, out, setup)
    }

    /// For [`Recent`](contextpilot_traffic::Recent) traffic. `tokens`: how many are remembered at most.
    #[must_use]
    pub fn recent(key: Key, tokens: usize, setup: Setup) -> Self {
        Self::with(Writer::recent(key, tokens), Vec::new(), setup)
    }

    /// Goes on with what another process [recorded](Writer::resume), before a router swapped models. `models`: see
    /// [`ChangeKind::Swapped`]. Times are since that recording began.
    #[must_use]
    pub fn resumed(writer: Writer, progress: &Progress, models: u32, setup: Setup) -> Self {
        let mut recorder = Self::with(writer, Vec::new(), setup);
        recorder.launches = progress.launches;
        recorder.lost = Some((ChangeKind::Swapped { models }, Some(progress.ended)));
        recorder
    }

    fn with(mut writer: Writer, mut out: Vec<u8>, setup: Setup) -> Self {
        let mut full = false;
        append(writer.setup(&setup), &mut out, &mut full);
        Self {
            writer,
            setup,
            is_set_up: false,
            out,
            full,
            wishes: HashMap::new(),
            kept: KeptPrompts::default(),
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
            markers: None,
            lost: None,
        }
    }

    /// What gives tokens their identities.
    #[must_use]
    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    /// The number of the next launch.
    #[must_use]
    pub fn launches(&self) -> u64 {
        self.launches
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
            Note::Kept { arrival, ref kept } => self.kept.add(arrival, kept),
            Note::Size { buffer, bytes } => self.buffer = Some((buffer, bytes)),
            Note::Measured { tokens, bytes, .. } => self.size(SizeKind::State, tokens, bytes),
            Note::Context {
                capacity,
                limit,
                slots,
                ..
            } => self.context(capacity, limit, slots),
            Note::Declined { sequence } => self.declined(sequence),
            Note::Infill { markers } => _ = self.markers.get_or_insert(markers),
            Note::Received { .. }
            | Note::Wishes { .. }
            | Note::Sections { .. }
            | Note::Counted { .. }
            | Note::Titled { .. }
            | Note::Erasing { .. }
            | Note::Sent { .. }
            | Note::ContextFreed { .. } => {}
        }
    }

    /// Call with all that the ledger [says](Ledger::upcoming) before it applies an event.
    pub fn upcoming(&mut self, upcoming: Upcoming<'_>, at: Stamp, ledger: &Ledger) {
        match upcoming {
            Upcoming::Launch { sequence, task } => self.launched(sequence, task, at, ledger),
            Upcoming::Batch { entries } => {
                self.stage.submitted();
                self.submitted(entries);
            }
            Upcoming::Loaded {
                sequence, entries, ..
            } => self.loaded(sequence, entries),
            Upcoming::BatchEnd { failed, .. } => {
                self.stage.evaluated(failed);
                self.evaluated(at);
            }
            Upcoming::Save { sequence, buffer } => {
                self.close(sequence, ledger);
                self.stage.saved(sequence);
                self.sized(buffer, SizeKind::State, ledger.held(sequence));
            }
            Upcoming::Removal { sequence, from, to } => {
                self.removed(sequence, (from, to), at, ledger);
            }
            Upcoming::Shift {
                sequence, delta, ..
            } => {
                if let Some(open) = self.open(sequence).filter(|open| !open.prompting) {
                    open.discarded -= i64::from(delta);
                }
            }
            Upcoming::Emptied { sequence, reason } => match reason {
                Reason::OutOfStep => self.obscured(sequence, at, ledger),
                _ => self.close(sequence, ledger),
            },
            Upcoming::Replaced { sequence, by } => match by {
                Successor::Host => {
                    self.close(sequence, ledger);
                    self.stage.loaded(sequence);
                }
                Successor::File(tokens) => self.replaced(sequence, tokens, at, ledger),
                // A further answer to a prompt: a fact will say so.
                Successor::Slot => {}
            },
            Upcoming::Dropped { .. } => {}
        }
    }

    /// Call with each fact that the ledger told of an event, which happened at `at`. The ledger has
    /// applied the event.
    pub fn fact(&mut self, fact: &Fact, at: Stamp, ledger: &Ledger) {
        match *fact {
            Fact::Posted { arrival, task, .. } => self.posted(arrival, task, at),
            Fact::Uncached { task } => self.task(task).forgotten = true,
            Fact::NamedAdapters { task, ref scales } => {
                self.task(task).named = Some(scales.clone());
            }
            Fact::Adapters {
                ref adapters,
                primary: true,
                compared,
            } => {
                self.compares_always = compared == Compared::Always;
                self.adapters.clone_from(adapters);
                self.applied = self.applied(adapters);
            }
            Fact::Answered { arrival, .. } => self.answered(arrival),
            Fact::BatchEvaluated { sequence } => {
                if let Some(open) = self.open(sequence) {
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
            Fact::Checkpointed { buffer, last } => {
                let tokens = u32::try_from(last).map_or(0, |last| last + 1);
                self.sized(buffer, SizeKind::Checkpoint, tokens);
            }
            Fact::Bounded { context, window } if ledger.primary() == Some(context) => {
                self.setup.memory = match window {
                    0 => Memory::Recurrent,
                    window => Memory::Window(window),
                };
                let recorded = self.writer.setup(&self.setup);
                append(recorded, &mut self.out, &mut self.full);
            }
            Fact::WholeWindows { context, window } if ledger.primary() == Some(context) => {
                self.setup.whole_window = window;
                let recorded = self.writer.setup(&self.setup);
                append(recorded, &mut self.out, &mut self.full);
            }
            Fact::ContextFreed { primary: true, .. } => {
                self.lost.get_or_insert((ChangeKind::Slept, None));
            }
            Fact::Quiet { elapsed } if elapsed >= OVER => self.close_answered(ledger),
            Fact::OutOfStep => {
                self.slots.clear();
                self.wishes.clear();
                self.kept = KeptPrompts::default();
                self.tasks.clear();
            }
            _ => {}
        }
    }

    /// The request that a slot works on, or has worked on last.
    fn open(&mut self, sequence: SequenceId) -> Option<&mut Open> {
        self.slots.get_mut(&sequence)?.open.as_mut()
    }

    /// Writes the requests that were answered. Not further answers to a prompt (`n`): it is known by them that
    /// the server itself empties their slots.
    fn close_answered(&mut self, ledger: &Ledger) {
        let is_over = |slot: &SlotRecord| {
            let open = slot.open.as_ref();
            open.is_some_and(|open| open.over && !open.record.child)
        };
        let slots = self.slots.iter().filter(|(_, slot)| is_over(slot));
        let over: Vec<SequenceId> = slots.map(|(&id, _)| id).collect();
        for sequence in over {
            self.close(sequence, ledger);
        }
    }

    /// The requests whose prompts are evaluated or given up, and which may still go on in their slots: as they are now. They
    /// are written once more when they are over.
    pub fn open_requests(&mut self, ledger: &Ledger) -> Vec<u8> {
        let (mut out, mut full) = (Vec::new(), false);
        for (&sequence, slot) in &self.slots {
            let Some(open) = slot.open.as_ref() else {
                continue;
            };
            if let Some((record, tokens)) = open.left(sequence, ledger, &self.rows) {
                append(
                    self.writer.request(record, &tokens, None),
                    &mut out,
                    &mut full,
                );
                continue;
            }
            let counts = u64::from(open.record.reused) + u64::from(open.record.evaluated);
            if open.prompting || counts != u64::from(open.record.prompt) {
                continue;
            }
            let record = open.record.clone();
            if let Some(tokens) = infill::suffix_first(open, self.markers) {
                let recorded = self.writer.suffix_first(record.order, &tokens);
                append(recorded, &mut out, &mut full);
            }
            if let Some((kept, tokens)) = kept::canonical(open) {
                let recorded = self.writer.kept(record.order, kept, &tokens);
                append(recorded, &mut out, &mut full);
            }
            let shift = open.shift().map(|gone| (record.keep, gone));
            append(
                self.writer.request(record, &open.tokens, shift),
                &mut out,
                &mut full,
            );
        }
        out
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
