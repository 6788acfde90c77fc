//! The recorder: traffic, as `contextpilot-traffic` writes it.
//!
//! It watches the same events as the [`Observer`](crate::Observer), and notes of each prompt what
//! the engine made of it. A request is written when its slot is touched again, or when it is known
//! to be over: until then its answer may go on.

use std::collections::{BTreeMap, HashMap, HashSet};

use contextpilot_residency::{
    Adapter, Arrival, Blend, Compared, Entry, Event, FILLER, Ledger, Scale, SequenceId, TaskId,
    Token, Wishes, activation,
};
use contextpilot_traffic::{
    Applied, Key, Memory, Recorded, RequestRecord, Setup, SizeKind, SizeSample, Writer,
};

use crate::note::{Note, Stamp};
use crate::prompt::{Prompt, Surplus};

/// Ends of batches that are noted for a prompt.
const MOST_BREAKS: usize = 64;
/// Media of which it is known how many rows they have.
const MOST_MEDIA: usize = 4096;
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
}

#[derive(Clone, Copy, Debug, Default)]
struct Posted {
    arrival: Option<Arrival>,
    at: Stamp,
    names_adapters: bool,
    /// The server will forget its prompt.
    forgotten: bool,
}

#[derive(Debug, Default)]
struct SlotRecord {
    surplus: Surplus,
    open: Option<Open>,
}

/// A request that a slot works on, or has worked on last.
#[derive(Debug)]
struct Open {
    record: RequestRecord,
    arrival: Option<Arrival>,
    /// Not evaluated to its end yet.
    prompt: Option<Prompt>,
    /// The prompt's, and those that followed. Empty until the prompt has ended.
    tokens: Vec<Token>,
    /// Tokens of the prompt that have no position of their own.
    surplus: i64,
    /// Tokens that context shifts took away in front of what is generated.
    discarded: i64,
    /// It has been answered.
    over: bool,
    /// It is in the batch that is being evaluated.
    flying: bool,
    /// Token and position of the media that were submitted last, and how many rows of them.
    media: Option<(Token, i32, u32)>,
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
            Note::Received { .. } | Note::Wishes { .. } => {}
        }
    }

    /// The ledger is about to apply an event.
    pub fn before(&mut self, event: &Event, at: Stamp, ledger: &Ledger) {
        let is_primary = |context| ledger.primary().is_none_or(|primary| primary == context);
        match *event {
            Event::Posted { arrival, task, .. } => self.posted(arrival, task, at),
            Event::Uncached { task } => self.task(task).forgotten = true,
            Event::NamedAdapters { task, .. } => self.task(task).names_adapters = true,
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
            } if is_primary(context) => self.submitted(entries),
            Event::Evaluated {
                context,
                ref failed,
            } if is_primary(context) => self.evaluated(!failed.is_empty(), at),
            Event::Saved {
                context,
                sequence,
                buffer,
            } if is_primary(context) => {
                self.close(sequence, ledger);
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
            }
            | Event::Replaced {
                context, sequence, ..
            } if is_primary(context) => self.close(sequence, ledger),
            Event::Removed {
                context,
                sequence,
                from,
                to,
            } if is_primary(context) => self.removed(sequence, (from, to), ledger),
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

    // ---- requests ------------------------------------------------------

    fn posted(&mut self, arrival: Arrival, task: TaskId, at: Stamp) {
        let posted = self.task(task);
        posted.arrival = Some(arrival);
        posted.at = at;
    }

    /// A task is about to be launched in a slot: which others wait for one, and hold something.
    fn note_idle(&mut self, launched: SequenceId, ledger: &Ledger) {
        let clears = self.setup.cache_idle_slots && self.setup.kv_unified;
        if !clears || self.setup.cache_ram.is_none_or(|mib| mib == 0) {
            return;
        }
        let over = |slot: &SlotRecord| slot.open.as_ref().is_none_or(|open| open.over);
        let others = self.slots.iter().filter(|&(&id, _)| id != launched);
        let idle = others.filter(|(_, slot)| over(slot)).map(|(&id, _)| id);
        let held = idle.map(|id| (id, ledger.held(id)));
        self.idle = held.filter(|&(_, held)| held > 0).collect();
    }

    /// A prompt is evaluated: had the server `--cache-idle-slots`, those that were idle would be empty.
    fn check_idle(&mut self, ledger: &Ledger) {
        let mut idle = std::mem::take(&mut self.idle).into_iter();
        if idle.any(|(id, held)| ledger.held(id) == held) {
            self.setup.cache_idle_slots = false;
            let recorded = self.writer.setup(&self.setup);
            append(recorded, &mut self.out, &mut self.full);
        }
    }

    fn task(&mut self, task: TaskId) -> &mut Posted {
        if self.tasks.len() >= MOST_WAITING {
            self.tasks.clear();
        }
        self.tasks.entry(task).or_default()
    }

    fn launched(&mut self, sequence: SequenceId, task: TaskId, at: Stamp, ledger: &Ledger) {
        self.note_idle(sequence, ledger);
        self.close(sequence, ledger);
        let posted = self.tasks.remove(&task).unwrap_or_default();
        let wishes = posted.arrival.and_then(|arrival| self.wishes.get(&arrival));
        let wishes = wishes.copied().unwrap_or_default();
        let slot = self.slots.entry(sequence).or_default();
        let record = RequestRecord {
            order: self.launches,
            arrived: micros(if posted.at.0 > 0 { posted.at } else { at }),
            launched: micros(at),
            slot: u32::try_from(sequence).unwrap_or(0),
            id_slot: wishes.slot.and_then(|slot| u32::try_from(slot).ok()),
            uncached: posted.forgotten || wishes.uncached,
            names_adapters: posted.names_adapters || self.compares_always,
            ..RequestRecord::default()
        };
        self.launches += 1;
        slot.open = Some(Open {
            record,
            arrival: posted.arrival,
            prompt: Some(Prompt::default()),
            tokens: Vec::new(),
            surplus: 0,
            discarded: 0,
            over: false,
            flying: false,
            media: None,
        });
    }

    fn submitted(&mut self, entries: &[Entry]) {
        for run in entries.chunk_by(|a, b| a.sequence == b.sequence) {
            let Some(slot) = run
                .first()
                .and_then(|entry| self.slots.get_mut(&entry.sequence))
            else {
                continue;
            };
            let Some(open) = &mut slot.open else { continue };
            open.flying = true;
            match &mut open.prompt {
                Some(prompt) => {
                    open.record.adapters = self.applied;
                    prompt.submitted(run, &mut slot.surplus);
                    open.note_break(run);
                    open.media = count_rows(run, open.media, &mut self.rows);
                }
                None => open.grow(run),
            }
        }
    }

    fn evaluated(&mut self, failed: bool, at: Stamp) {
        for (&sequence, slot) in &mut self.slots {
            let Some(open) = slot.open.as_mut().filter(|open| open.flying) else {
                continue;
            };
            open.flying = false;
            open.record.ended = micros(at);
            let Some(prompt) = &mut open.prompt else {
                continue;
            };
            if let Some((taken, at)) = prompt.evaluated(failed, at, &mut slot.surplus) {
                open.prompt = None;
                open.record.prompted = micros(at);
                open.record.reused = small(taken.reused);
                open.record.evaluated = small(taken.evaluated);
                self.ended.push(sequence);
            }
        }
    }

    /// A child takes over the prompt of its parent.
    fn copied(&mut self, source: SequenceId, target: SequenceId) {
        let parent = self.slots.get(&source).and_then(|slot| {
            let open = slot.open.as_ref().filter(|open| open.prompt.is_none())?;
            let prompt = open.record.prompt as usize;
            let tokens = open.tokens.get(..prompt)?.to_vec();
            Some((open.record.clone(), tokens, slot.surplus.clone()))
        });
        let slot = self.slots.get_mut(&target);
        let (Some((parent, tokens, surplus)), Some(slot)) = (parent, slot) else {
            return;
        };
        slot.surplus = surplus;
        let waits = |open: &&mut Open| open.prompt.as_ref().is_some_and(Prompt::is_untouched);
        if let Some(open) = slot.open.as_mut().filter(waits) {
            open.prompt = None;
            open.tokens = tokens;
            open.record = RequestRecord {
                order: open.record.order,
                slot: open.record.slot,
                launched: open.record.launched,
                child: true,
                ended: parent.prompted,
                ..parent
            };
        }
    }

    /// The end of what a slot holds is removed before something else is put there; its middle is,
    /// where the context is shifted.
    fn removed(&mut self, sequence: SequenceId, (from, to): (i32, i32), ledger: &Ledger) {
        let Some(slot) = self.slots.get_mut(&sequence) else {
            if sequence < 0 {
                self.finish(ledger);
            }
            return;
        };
        let Some(open) = &mut slot.open else { return };
        let held = ledger.held(sequence);
        let upto_end = u32::try_from(to).map_or(true, |to| to >= held);
        if open.prompt.is_some() {
            // Its own: what the slot had before makes room.
            return;
        }
        match upto_end {
            // A rejected draft is removed within the answer; all else ends it.
            true if from <= 0 || open.over => self.close(sequence, ledger),
            true => {}
            false => open.record.keep = u32::try_from(from).unwrap_or(0),
        }
    }

    fn answered(&mut self, arrival: Arrival) {
        self.wishes.remove(&arrival);
        for slot in self.slots.values_mut() {
            if let Some(open) = &mut slot.open {
                open.over |= open.arrival == Some(arrival);
            }
        }
    }

    /// Writes what a slot has worked on.
    fn close(&mut self, sequence: SequenceId, ledger: &Ledger) {
        let Some(slot) = self.slots.get_mut(&sequence) else {
            return;
        };
        let Some(mut open) = slot.open.take() else {
            return;
        };
        let expected = u64::from(open.record.reused) + u64::from(open.record.evaluated);
        if let Some(prompt) = &open.prompt {
            if prompt.is_untouched() {
                return;
            }
            let (taken, at) = match prompt.over() {
                Some(whole) => {
                    open.record.embedding = true;
                    whole
                }
                None => {
                    open.record.abandoned = true;
                    prompt.so_far()
                }
            };
            open.record.reused = small(taken.reused);
            open.record.evaluated = small(taken.evaluated);
            open.record.prompted = micros(at);
            open.set_prompt(ledger.tokens_in(sequence), &self.rows);
        } else if u64::from(open.record.prompt) != expected {
            self.skipped += 1;
            return;
        }
        let shift = u32::try_from(open.discarded).ok().filter(|&gone| gone > 0);
        let Open { record, tokens, .. } = open;
        let shift = shift.map(|gone| (record.keep, gone));
        let recorded = self.writer.request(record, &tokens, shift);
        append(recorded, &mut self.out, &mut self.full);
    }

    // ---- the server ----------------------------------------------------

    fn applied(&self, adapters: &[Adapter]) -> Applied {
        let some = adapters.iter().filter(|one| one.scale != Scale::new(0.0));
        let text: Vec<u8> = some
            .flat_map(|one| format!("{}:{:?};", one.address, one.scale).into_bytes())
            .collect();
        let blend = Blend::of(adapters.iter().map(|one| (one, one.scale)));
        Applied {
            hash: match text.is_empty() {
                true => 0,
                false => self.writer.hash(&text).max(1),
            },
            enabled: blend.is_enabled(),
            invoked: blend.is_invoked(),
        }
    }

    /// The first context is the server's own. `capacity`: tokens that a slot can hold.
    fn context(&mut self, capacity: Option<u32>, slots: Option<u32>) {
        let Some(capacity) = capacity.filter(|_| !self.is_set_up) else {
            return;
        };
        self.is_set_up = true;
        self.setup.slot_context = capacity;
        self.setup.parallel = slots.unwrap_or(self.setup.parallel);
        self.setup.context = match self.setup.kv_unified {
            true => capacity,
            false => capacity.saturating_mul(self.setup.parallel),
        };
        let recorded = self.writer.setup(&self.setup);
        append(recorded, &mut self.out, &mut self.full);
    }

    /// Once for lengths that are about the same.
    fn size(&mut self, kind: SizeKind, tokens: u32, bytes: u64) {
        let class = (f64::from(tokens.max(1)).log2() * 4.0) as u32;
        if tokens > 0 && self.sampled.insert((kind == SizeKind::State, class)) {
            let recorded = self.writer.size(SizeSample {
                kind,
                tokens,
                bytes,
            });
            append(recorded, &mut self.out, &mut self.full);
        }
    }
}

impl Open {
    /// `held`: what the slot has, a token for each position.
    fn set_prompt(&mut self, held: Vec<Token>, rows: &HashMap<Token, u32>) {
        let positions = held.len();
        self.tokens = with_rows(held, rows);
        self.surplus = (self.tokens.len() - positions) as i64;
        self.record.prompt = self.tokens.len() as u32;
        self.record.media = media_in(&self.tokens);
    }

    fn note_break(&mut self, run: &[Entry]) {
        let end = run.last().map_or(0, |entry| entry.position + 1);
        let breaks = &mut self.record.breaks;
        if let (Ok(end), true) = (u32::try_from(end), breaks.len() < MOST_BREAKS) {
            breaks.push(end);
        }
    }

    /// What follows the prompt. What was written there before was a draft that was rejected, or a
    /// batch that failed.
    fn grow(&mut self, run: &[Entry]) {
        for entry in run {
            let at = i64::from(entry.position) + self.discarded + self.surplus;
            let at = usize::try_from(at).unwrap_or(0);
            if at >= self.record.prompt as usize && at <= self.tokens.len() {
                self.tokens.truncate(at);
                self.tokens.push(entry.token);
            }
        }
    }
}

/// Counts rows of media that share a position, also over the ends of batches.
fn count_rows(
    run: &[Entry],
    mut last: Option<(Token, i32, u32)>,
    rows: &mut HashMap<Token, u32>,
) -> Option<(Token, i32, u32)> {
    for entry in run {
        last = match last {
            _ if entry.token >= 0 => None,
            Some((token, position, count))
                if (token, position) == (entry.token, entry.position) =>
            {
                if rows.len() >= MOST_MEDIA {
                    rows.clear();
                }
                rows.insert(token, count + 1);
                Some((token, position, count + 1))
            }
            _ => Some((entry.token, entry.position, 1)),
        };
    }
    last
}

/// A token for each row, where the ledger has one for each position.
fn with_rows(held: Vec<Token>, rows: &HashMap<Token, u32>) -> Vec<Token> {
    if rows.is_empty() {
        return held;
    }
    let mut tokens = Vec::with_capacity(held.len());
    for token in held {
        match rows.get(&token) {
            Some(&count) => tokens.extend(std::iter::repeat_n(token, count as usize)),
            None if token == FILLER => {}
            None => tokens.push(token),
        }
    }
    tokens
}

/// Where media begin and end. Two in a row that are equal are taken for one.
fn media_in(tokens: &[Token]) -> Vec<(u32, u32)> {
    let mut begin = 0;
    let runs = tokens.chunk_by(|a, b| a == b).filter_map(|run| {
        let place = (begin, begin + run.len() as u32);
        begin = place.1;
        (run[0] < 0).then_some(place)
    });
    runs.take(MOST_BREAKS).collect()
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
