//! Why prompts were evaluated: an account for each, whose numbers add up to the engine's.
//!
//! ```text
//!  events ──► Accounts::before ──► ledger ──► Accounts::after
//!                 │  what is cached just now, when a prompt's first batch is submitted
//!                 │  what slots and buffers are about to lose
//!                 ▼
//!              [`past`]: all contents of slots, in bounded memory ──► Accounts::close ──► [`Account`]
//! ```
//!
//! It looks at the ledger and changes nothing in it: what is reported of evictions is the same with
//! it and without.

use crate::event::{
    BufferId, ContextId, Entry, Event, Position, Reason, SequenceId, TaskId, Token,
};
use crate::ledger::{Keeper, Ledger};
use crate::prompts::UNTIED;
use open::{Begun, Open};
use past::{Nth, Past};
use std::collections::{BTreeMap, HashMap};

mod close;
mod difference;
mod losses;
mod matching;
mod open;
mod past;
#[cfg(test)]
mod tests;
mod types;

use losses::Losses;
pub use losses::{EACH as REMEMBERED_EACH, MOST as MOST_REMEMBERED};
pub use matching::{Choice, Match, Matched, Occupied};
pub use types::{Account, Asker, Causes, Diverged, Elsewhere, Loss, Sources, Wishes};

/// What the server was told that decides what it reuses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// `--slot-prompt-similarity`: the share of a prompt that a slot must hold to be chosen for it.
    pub similarity: f32,
    /// The share that counts is that of what the slot holds, not of the prompt: so in servers of
    /// before the host prompt cache.
    pub of_slot: bool,
    /// `--cache-reuse`: tokens of the shortest chunk that is moved; 0: none is.
    pub cache_reuse: u32,
    /// Prompts are tied to requests by their tokens ([`Prompts`](crate::Prompts)): a slot is known to
    /// take on a task only when it has made room for it.
    pub tied: bool,
}

impl Default for Rules {
    /// What llama-server takes unless it is told otherwise.
    fn default() -> Self {
        Self {
            similarity: 0.1,
            of_slot: false,
            cache_reuse: 0,
            tied: false,
        }
    }
}

impl Rules {
    /// What servers of before the host prompt cache take (autumn 2025).
    #[must_use]
    pub fn of_2025() -> Self {
        Self {
            similarity: 0.5,
            of_slot: true,
            ..Self::default()
        }
    }

    /// How similar a slot is to a prompt, if it is similar enough to be chosen for that. In the
    /// engine's arithmetic.
    fn similarity(&self, common: u32, prompt: u32, held: u32) -> Option<f32> {
        let whole = if self.of_slot { held } else { prompt };
        let share = common as f32 / whole as f32;
        (self.similarity != 0.0 && share > self.similarity).then_some(share)
    }
}

/// Accounts for prompts. Call [`Self::before`] with each event, let the ledger apply it, and call
/// [`Self::after`].
#[derive(Debug)]
pub struct Accounts {
    rules: Rules,
    past: Past,
    losses: Losses,
    slots: BTreeMap<SequenceId, Slot>,
    /// When each host entry was saved, and which slot it was saved from.
    saved: HashMap<BufferId, (u64, SequenceId)>,
    /// Contents that the event under way takes from a slot or buffer.
    going: Vec<(Vec<Token>, Reason, Option<Nth>)>,
    /// Slots with entries in the batch that is being evaluated, and whether these were the last.
    batch: Vec<(SequenceId, bool)>,
    /// The slot that takes on a task with this event, unless it has left something before.
    launching: Option<SequenceId>,
    /// Counts events.
    clock: u64,
    /// When the last batch was submitted.
    batched: u64,
    /// The prompt that was launched since.
    launched: Option<Nth>,
    /// The last prompt that was launched.
    last: Nth,
    /// The last prompt before events were lost.
    gap: Nth,
    /// LoRA adapters were applied.
    adapted: bool,
    /// Of slots that were never used, the server takes the last one first. `None`: not seen yet.
    from_the_end: Option<bool>,
}

/// A slot.
#[derive(Debug, Default)]
struct Slot {
    open: Option<Open>,
    /// The last prompt that was begun in it.
    owner: Nth,
    /// It holds more than was recorded.
    dirty: bool,
    /// What it has left and may come back to.
    left: Option<Vec<Token>>,
    /// What it held before room was made in it for its next prompt.
    own: Option<Vec<Token>>,
    prepared: Prepared,
    /// When it was last at work.
    used: u64,
    /// The last prompt in it, for children that take it over.
    last: Option<Account>,
}

/// What was done to a slot since it was last at work.
#[derive(Clone, Copy, Debug, Default)]
struct Prepared {
    /// When, last.
    at: u64,
    /// It was loaded from the host prompt cache.
    restored: bool,
    /// So many tokens were moved up.
    moved: u32,
    /// It was emptied, as its next prompt is for other adapters.
    readapted: bool,
    /// LoRA adapters were applied to any.
    adapted: bool,
}

/// Bytes of contents that are remembered, unless it is said otherwise.
pub const REMEMBERED_BYTES: usize = 32 << 20;

impl Accounts {
    /// Remembers at most `bytes` of contents.
    #[must_use]
    pub fn new(rules: Rules, bytes: usize) -> Self {
        Self {
            rules,
            past: Past::new(bytes),
            losses: Losses::new(),
            slots: BTreeMap::new(),
            saved: HashMap::new(),
            going: Vec::new(),
            batch: Vec::new(),
            launching: None,
            clock: 0,
            batched: 0,
            launched: None,
            last: 0,
            gap: 0,
            adapted: false,
            from_the_end: None,
        }
    }

    /// Bytes that contents take now.
    #[must_use]
    pub fn remembered_bytes(&self) -> usize {
        self.past.bytes()
    }

    /// A slot takes on a task. Before the event of that is applied.
    pub fn launch(&mut self, slot: SequenceId, task: TaskId, asker: Asker, wishes: Wishes) {
        if self.last == 0 && wishes.slot.is_none() {
            self.from_the_end = Some(slot > 0);
        }
        let untied = task == UNTIED;
        let decided = match untied {
            true => self.batched,
            false => self.clock,
        };
        let place = self.slots.entry(slot).or_default();
        // The end of a prompt tells whose it is: its beginning was seen already.
        if let Some(open) = place.open.as_mut().filter(|open| open.untied && !untied) {
            open.asker = asker.clone();
            open.wishes = wishes;
            open.untied = false;
            self.losses.name(open.nth, asker);
            return;
        }
        let nth = self.losses.ask(asker.clone());
        place.open = Some(Open::new(nth, asker, wishes, untied, decided));
        self.losses.claim(nth);
        self.launched = Some(nth);
        self.last = nth;
    }

    /// How many of the first tokens of a prompt that was evaluated could be reused by now. `None`:
    /// it is not remembered.
    #[must_use]
    pub fn cached_tokens(&self, nth: u64, ledger: &Ledger) -> Option<u32> {
        let prompt = self.past.read(self.losses.end(nth)?)?;
        let most = (prompt.len() as u32).saturating_sub(1);
        let all = ledger.holdings(&prompt).into_iter();
        let best = all.map(|one| {
            let goes_on = (one.common as usize) < prompt.len();
            let reusable = ledger.way_back_in(one.holds, one.common, goes_on);
            reusable.min(most)
        });
        Some(best.max().unwrap_or(0))
    }

    /// The prompt that a slot is at work on has been evaluated: so many tokens, by the engine's
    /// count. `None` if its beginning was not seen.
    pub fn close(&mut self, slot: SequenceId, reused: u64, evaluated: u64) -> Option<Account> {
        let open = self.slots.get_mut(&slot)?.open.take()?;
        let account = self.account(&open, reused, evaluated);
        if let Some(place) = self.slots.get_mut(&slot) {
            place.last = Some(account.clone());
        }
        Some(account)
    }

    /// A slot takes over the prompt of another (`n`), which was evaluated there.
    pub fn take_over(&mut self, source: SequenceId, target: SequenceId) -> Option<Account> {
        let account = self.slots.get(&source)?.last.clone()?;
        let place = self.slots.get_mut(&target)?;
        let open = place.open.take()?;
        place.owner = open.nth;
        let account = Account {
            nth: open.nth,
            asker: open.asker,
            ..account
        };
        place.last = Some(account.clone());
        Some(account)
    }

    /// The ledger is about to apply an event.
    pub fn before(&mut self, event: &Event, ledger: &Ledger) {
        self.clock += 1;
        let is_primary = |context: ContextId| ledger.primary().is_none_or(|p| p == context);
        match *event {
            Event::Launched { sequence, .. } | Event::LaunchedUnclaimed { sequence, .. } => {
                self.keep(sequence, ledger);
                if let (false, Some(place)) = (self.rules.tied, self.slots.get_mut(&sequence)) {
                    place.own = None;
                    let unused = |open: &Open| open.begun.is_none();
                    let given_up = place.open.as_ref().filter(|open| unused(open));
                    if given_up.is_some_and(|open| place.prepared.at <= open.decided) {
                        place.prepared = Prepared::default();
                    }
                    // Room was made for a prompt that is over before it was written there.
                    if let Some(left) = place.left.take() {
                        let by = place.open.as_ref().map(|open| open.nth);
                        self.going.push((left, Reason::Overwritten, by));
                    }
                }
                self.launching = Some(sequence).filter(|&slot| !ledger.has_left(slot));
            }
            Event::Adapters { ref adapters, .. } => self.adapted |= !adapters.is_empty(),
            Event::Submitted {
                context,
                ref entries,
            } if is_primary(context) => self.submitting(entries, ledger),
            Event::Evaluated {
                context,
                ref failed,
            } if is_primary(context) => self.evaluated(!failed.is_empty()),
            Event::Removed {
                context,
                sequence,
                from,
                to,
            } if is_primary(context) => {
                for slot in named(sequence, ledger) {
                    self.leaving(slot, from, to, ledger);
                }
            }
            Event::Shifted {
                context,
                sequence,
                from,
                to,
                delta,
            } if is_primary(context) => {
                self.leaving(sequence, from, to, ledger);
                let place = self.slots.entry(sequence).or_default();
                if delta < 0 {
                    let tokens = i64::from(to) - i64::from(from.max(0));
                    place.prepared.moved += u32::try_from(tokens).unwrap_or(0);
                }
                place.dirty = true;
            }
            Event::Cleared { context } if is_primary(context) => {
                self.going_all(Reason::Cleared, ledger);
            }
            Event::Kept { context, sequence } if is_primary(context) => {
                for slot in ledger.slots().filter(|&slot| slot != sequence) {
                    self.going(slot, Reason::Cleared, ledger);
                }
            }
            Event::Obscured { context, sequence } if is_primary(context) => {
                for slot in named(sequence, ledger) {
                    self.going(slot, Reason::OutOfStep, ledger);
                }
            }
            Event::Restored {
                context, sequence, ..
            } if is_primary(context) => {
                self.going(sequence, Reason::Overwritten, ledger);
                let prepared = &mut self.slots.entry(sequence).or_default().prepared;
                prepared.restored = true;
                prepared.at = self.clock;
            }
            Event::Replaced {
                context, sequence, ..
            } if is_primary(context) => {
                self.going(sequence, Reason::Overwritten, ledger);
                self.slots.entry(sequence).or_default().dirty = true;
            }
            Event::Copied {
                context, target, ..
            } if is_primary(context) => self.going(target, Reason::Overwritten, ledger),
            Event::Saved {
                context,
                sequence,
                buffer,
            } if is_primary(context) => {
                self.keep(sequence, ledger);
                self.going_host(buffer, Reason::DroppedFromHost, ledger);
                self.saved.insert(buffer, (self.clock, sequence));
            }
            Event::Freed { buffer } => {
                self.going_host(buffer, Reason::DroppedFromHost, ledger);
                self.saved.remove(&buffer);
            }
            Event::ContextFreed { context } if is_primary(context) => {
                self.going_all(Reason::ContextFreed, ledger);
                let buffers: Vec<BufferId> = self.saved.drain().map(|(buffer, _)| buffer).collect();
                for buffer in buffers {
                    self.going_host(buffer, Reason::ContextFreed, ledger);
                }
            }
            Event::OutOfStep => {
                self.slots.clear();
                self.saved.clear();
                self.batch.clear();
                self.gap = self.last;
            }
            _ => {}
        }
    }

    /// The ledger has applied the event, at this time in milliseconds since 1970.
    pub fn after(&mut self, ledger: &Ledger, at_unix_ms: u64) {
        if let Some(slot) = self.launching.take() {
            // The server empties a slot without a call where a task names other adapters.
            if let Some(left) = ledger.left_by(slot) {
                let place = self.slots.entry(slot).or_default();
                place.left = Some(left.clone());
                place.own = Some(left);
                place.prepared.readapted = true;
            }
        }
        for (slot, ends) in std::mem::take(&mut self.batch) {
            let place = self.slots.get_mut(&slot);
            let Some(open) = place.and_then(|place| place.open.as_mut()) else {
                continue;
            };
            if let Some(begun) = &mut open.begun {
                begun.look_again(slot, ledger);
            }
            if ends {
                open.prompt = Some(ledger.tokens_from(Keeper::Slot(slot), 0));
            }
        }
        for (&slot, place) in &mut self.slots {
            if place.left.is_some() && !ledger.has_left(slot) {
                let reason = match ledger.is_slot_empty(slot) {
                    true => Reason::Cleared,
                    false => Reason::Overwritten,
                };
                let by = (reason == Reason::Overwritten).then_some(place.owner);
                let left = place.left.take().unwrap_or_default();
                self.going.push((left, reason, by));
            }
        }
        for (tokens, reason, by) in std::mem::take(&mut self.going) {
            let holdings = ledger.holdings(&tokens).into_iter();
            let held = holdings.map(|one| one.common).max().unwrap_or(0);
            if held as usize >= tokens.len() {
                continue;
            }
            let loss = match by.or(self.launched) {
                None => self.losses.note_unclaimed(at_unix_ms, reason),
                by => self.losses.note(at_unix_ms, reason, by),
            };
            self.past.lose(&tokens, held, loss);
        }
    }

    // ---- batches -------------------------------------------------------

    fn submitting(&mut self, entries: &[Entry], ledger: &Ledger) {
        self.batched = self.clock;
        self.launched = None;
        self.losses.unclaim();
        self.batch.clear();
        let begins = entries
            .chunk_by(|a, b| a.sequence == b.sequence)
            .filter_map(|run| self.slots.get(&run[0].sequence))
            .any(|place| place.open.as_ref().is_some_and(|open| open.begun.is_none()));
        if begins {
            // What the others hold by now may be what the prompt is compared with.
            for slot in ledger.slots() {
                self.keep(slot, ledger);
            }
        }
        for run in entries.chunk_by(|a, b| a.sequence == b.sequence) {
            let slot = run[0].sequence;
            let place = self.slots.entry(slot).or_default();
            // What is written for no prompt is a trial, before the server serves.
            let serves = place.open.is_some() || place.owner > 0;
            place.dirty |= serves;
            if serves {
                place.used = self.clock;
            }
            let Some(open) = &mut place.open else {
                continue;
            };
            if open.begun.is_none() {
                place.owner = open.nth;
                let mut prepared = std::mem::take(&mut place.prepared);
                prepared.adapted = self.adapted;
                let own = place.own.take();
                let decided = open.decided;
                let was = |holds| was_in(holds, decided, &self.saved);
                open.begun = Some(Begun::look(slot, own, run, ledger, was, prepared));
            }
            open.submitting(run);
            let ends = run.last().is_some_and(|entry| entry.output);
            self.batch.push((slot, ends));
        }
    }

    fn evaluated(&mut self, failed: bool) {
        for place in self.slots.values_mut() {
            if let Some(open) = &mut place.open {
                open.evaluated(failed);
            }
        }
    }

    // ---- what goes -----------------------------------------------------

    /// Records what a slot holds, if that is more than was recorded.
    fn keep(&mut self, slot: SequenceId, ledger: &Ledger) {
        let Some(place) = self.slots.get(&slot) else {
            return;
        };
        // Its own prompt is not to be found there before it is accounted for.
        let unfinished = place.open.as_ref().is_some_and(|open| open.begun.is_some());
        if !unfinished {
            self.keep_anyway(slot, ledger);
        }
    }

    fn keep_anyway(&mut self, slot: SequenceId, ledger: &Ledger) {
        let place = self.slots.entry(slot).or_default();
        if !std::mem::take(&mut place.dirty) {
            return;
        }
        let tokens = ledger.tokens_from(Keeper::Slot(slot), 0);
        if !tokens.iter().any(|&token| crate::event::is_unseen(token)) {
            self.past.record(&tokens, place.owner);
        }
    }

    /// Positions of a slot are removed or moved; the same tokens may be written again.
    fn leaving(&mut self, slot: SequenceId, from: Position, to: Position, ledger: &Ledger) {
        // Drafted tokens that were rejected: nobody asked for them.
        let rejected = from > 0 && to < 0 && ledger.is_without_task(slot);
        if rejected || from >= 0 && from as u32 >= ledger.held(slot) || ledger.held(slot) == 0 {
            return;
        }
        if from < 0 && to < 0 {
            // It is emptied for its own sake. What is written next is not compared with this.
            return self.going(slot, Reason::Cleared, ledger);
        }
        self.keep(slot, ledger);
        let tied = self.rules.tied;
        let place = self.slots.entry(slot).or_default();
        let held = ledger.tokens_from(Keeper::Slot(slot), 0);
        if place.own.is_none() || tied && place.prepared.moved == 0 {
            place.own = Some(held.clone());
        }
        if place.left.is_none() {
            place.left = Some(ledger.left_by(slot).unwrap_or(held));
        }
    }

    /// All that a slot holds goes now.
    fn going(&mut self, slot: SequenceId, reason: Reason, ledger: &Ledger) {
        // If its prompt was not evaluated to the end, it has been given up.
        self.keep_anyway(slot, ledger);
        let place = self.slots.get_mut(&slot);
        let left = place.and_then(|place| place.left.take());
        for tokens in [left, Some(ledger.tokens_from(Keeper::Slot(slot), 0))] {
            self.note_going(tokens.unwrap_or_default(), reason);
        }
    }

    fn going_all(&mut self, reason: Reason, ledger: &Ledger) {
        for slot in ledger.slots() {
            self.going(slot, reason, ledger);
        }
    }

    fn going_host(&mut self, buffer: BufferId, reason: Reason, ledger: &Ledger) {
        let tokens = ledger.tokens_from(Keeper::Host(buffer), 0);
        self.note_going(tokens, reason);
    }

    fn note_going(&mut self, tokens: Vec<Token>, reason: Reason) {
        if !tokens.is_empty() {
            self.going.push((tokens, reason, None));
        }
    }
}

/// Where something was when the engine chose a slot: what was saved since was in one.
fn was_in(holds: Keeper, decided: u64, saved: &HashMap<BufferId, (u64, SequenceId)>) -> Keeper {
    let Keeper::Host(buffer) = holds else {
        return holds;
    };
    match saved.get(&buffer) {
        Some(&(at, slot)) if at > decided => Keeper::Slot(slot),
        _ => holds,
    }
}

/// The slots that an event names.
fn named(sequence: SequenceId, ledger: &Ledger) -> Vec<SequenceId> {
    match sequence {
        0.. => vec![sequence],
        _ => ledger.slots().collect(),
    }
}
