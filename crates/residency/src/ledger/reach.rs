//! Ways back: which prompts a bounded context (sliding window or recurrent) can still reuse.
//!
//! The memory of such a context does not hold what it would need to go on from every position that
//! it has been at. So llama-server decides for each prompt (`update_slots`, 0.7.0): does the memory
//! reach back far enough (its first position, and the model's window)? If not, is there a
//! *checkpoint* to go on from? If not, it evaluates the whole prompt. [`Reach::reuse`] is that rule.
//!
//! A prompt counts as resident while the engine would reuse nine tenths of it. So a mark needs more
//! than a holder at it or below it. It needs a *witness*: a slot or host entry from which the engine
//! would reuse that much. A mark is checked again only when its witness has changed, and not while a
//! prompt is being evaluated in that slot.

use super::{CacheEntry, Ledger};
use crate::adapters::Wanted;
use crate::fact::{Fact, Place, Reason};
use crate::ids::{BufferId, ContextId, SequenceId};
use crate::requests::Label;
use crate::sequence::Sequence;
use crate::token::Position;
use crate::tree::Mark;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A checkpoint: state of a slot that the server has saved.
#[derive(Clone, Debug)]
struct Checkpoint {
    /// The buffer that holds it; `None` for a copy that came with another sequence or a host entry.
    /// The freeing of such a copy cannot be seen, so the ledger drops it by the server's rule
    /// ([`Reaches::cut`]).
    buffer: Option<BufferId>,
    /// How many tokens the sequence held when the checkpoint was made.
    tokens: u32,
    /// The first and last position of the sequence at that time.
    first: i64,
    last: i64,
}

impl Checkpoint {
    /// How many tokens need not be evaluated after the server has gone back to this checkpoint.
    fn goes_on_behind(&self) -> u32 {
        let position = (self.first + 1).max(self.last);
        u32::try_from(position).unwrap_or(0).min(self.tokens)
    }
}

/// The positions from which a sequence can go on.
#[derive(Clone, Debug, Default)]
struct Reach {
    /// The first position in memory.
    first: i64,
    /// The checkpoints, in the order in which they were made.
    checkpoints: Vec<Checkpoint>,
}

impl Reach {
    /// How many tokens of a prompt of `prompt` tokens the engine would reuse, from a sequence that
    /// begins with the whole prompt.
    fn reuse(&self, prompt: u32, window: u32) -> u32 {
        self.reuse_of(prompt, needed(prompt, window))
    }

    fn reuse_of(&self, prompt: u32, needed: i64) -> u32 {
        if self.first < needed {
            return prompt;
        }
        let tokens = i64::from(prompt);
        let back = self.checkpoints.iter().rev().find(|checkpoint| {
            checkpoint.last <= tokens && (checkpoint.first < needed || checkpoint.first == 0)
        });
        back.map_or(0, |checkpoint| checkpoint.goes_on_behind().min(prompt))
    }

    /// Whether the engine would reuse at least nine tenths of a prompt.
    fn serves(&self, prompt: u32, window: u32) -> bool {
        u64::from(self.reuse(prompt, window)) * 10 >= u64::from(prompt) * 9
    }

    /// The last point, in tokens, from which the server could go on with another prompt, in a
    /// sequence that holds `held` tokens. Tokens that were generated since the last checkpoint do
    /// not count, although a prompt that begins with all of them could go on behind them.
    fn furthest(&self, held: u32, window: u32) -> u32 {
        if self.first == 0 && held > window.saturating_add(1) {
            return held;
        }
        let back = self.checkpoints.iter().map(Checkpoint::goes_on_behind);
        back.filter(|&position| position <= held).max().unwrap_or(0)
    }

    /// The reach of a copy of the sequence.
    fn copy(&self) -> Self {
        let mut copy = self.clone();
        for checkpoint in &mut copy.checkpoints {
            checkpoint.buffer = None;
        }
        copy
    }
}

/// For a sequence to go on behind `tokens` tokens, the first position in memory must be below this
/// one.
fn needed(tokens: u32, window: u32) -> i64 {
    (i64::from(tokens) - i64::from(window) - 1).max(0)
}

/// A mark that needs a witness.
#[derive(Clone, Copy, Debug)]
struct Watched {
    label: Label,
    prompt: u32,
}

/// The ways back of all sequences. Empty unless the primary context is bounded.
#[derive(Debug, Default)]
pub(super) struct Reaches {
    /// For each bounded context, the tokens that its layers look back; 0 for a recurrent model.
    windows: HashMap<ContextId, u32>,
    slots: BTreeMap<SequenceId, Reach>,
    hosts: BTreeMap<BufferId, Reach>,
    /// The slot whose checkpoint a buffer holds.
    owners: HashMap<BufferId, SequenceId>,
    /// Marks, by their witness.
    watched: BTreeMap<CacheEntry, Vec<Watched>>,
    /// Slots whose reach has changed and whose marks were not checked since.
    changed: BTreeSet<SequenceId>,
}

impl Reaches {
    pub(super) fn bound(&mut self, context: ContextId, window: u32) {
        self.windows.insert(context, window);
    }

    pub(super) fn forget_context(&mut self, context: ContextId) {
        self.windows.remove(&context);
    }

    /// Forgets everything except which contexts are bounded.
    pub(super) fn clear(&mut self) {
        let windows = std::mem::take(&mut self.windows);
        *self = Self {
            windows,
            ..Self::default()
        };
    }

    fn of(&self, entry: CacheEntry) -> Option<&Reach> {
        match entry {
            CacheEntry::Slot(id) => self.slots.get(&id),
            CacheEntry::Host(buffer) => self.hosts.get(&buffer),
        }
    }

    /// The last point, in tokens, that the server can go back to in a slot or host entry: see
    /// [`Reach::furthest`].
    pub(super) fn furthest(&self, entry: CacheEntry, held: u32, window: u32) -> u32 {
        let reach = self.of(entry);
        reach.map_or(0, |reach| reach.furthest(held, window))
    }

    pub(super) fn saved(&mut self, id: SequenceId, buffer: BufferId) {
        if let Some(reach) = self.slots.get(&id) {
            self.hosts.insert(buffer, reach.copy());
        }
    }

    pub(super) fn restored(&mut self, id: SequenceId, buffer: BufferId) {
        let reach = self.hosts.get(&buffer).map(Reach::copy);
        self.take_over(id, reach);
    }

    pub(super) fn copied(&mut self, source: SequenceId, target: SequenceId) {
        let reach = self.slots.get(&source).map(Reach::copy);
        self.take_over(target, reach);
    }

    /// A sequence was replaced by one with this reach; `None`: that one has none.
    fn take_over(&mut self, id: SequenceId, reach: Option<Reach>) {
        match reach {
            Some(reach) => self.put(id, reach),
            None => self.emptied(id),
        }
    }

    pub(super) fn emptied(&mut self, id: SequenceId) {
        if self.slots.contains_key(&id) {
            self.put(id, Reach::default());
        }
    }

    fn put(&mut self, id: SequenceId, reach: Reach) {
        self.owners.retain(|_, owner| *owner != id);
        self.slots.insert(id, reach);
        self.changed.insert(id);
    }

    /// A sequence works under other adapters, so it may be the witness of other marks than before.
    pub(super) fn blend_changed(&mut self, id: SequenceId) {
        if self.slots.contains_key(&id) {
            self.changed.insert(id);
        }
    }

    /// A sequence was cut at a position. The server drops the checkpoints beyond what it reuses. If a
    /// whole prompt is cached, that is one token more than it keeps, so a checkpoint may end one
    /// position behind the cut.
    pub(super) fn cut(&mut self, id: SequenceId, from: i64) {
        if let Some(reach) = self.slots.get_mut(&id) {
            reach
                .checkpoints
                .retain(|one| one.buffer.is_some() || one.last <= from + 1);
            self.changed.insert(id);
        }
    }
}

impl Ledger {
    /// The window of the primary context, if it is bounded.
    pub(super) fn window(&self) -> Option<u32> {
        self.reaches.windows.get(&self.contexts.primary()?).copied()
    }

    pub(super) fn reached(&mut self, id: SequenceId, first: Position) {
        if self.window().is_some() {
            self.reaches.slots.entry(id).or_default().first = i64::from(first);
        }
    }

    /// Notes a checkpoint, if it was made while a prompt was evaluated. Those of speculative decoding
    /// are made during generation, and no prompt goes on from them.
    pub(super) fn checkpointed(
        &mut self,
        id: SequenceId,
        buffer: BufferId,
        (first, last): (Position, Position),
    ) {
        self.drop_checkpoint(buffer);
        let Some(sequence) = self.sequences.get(&id) else {
            return;
        };
        if self.window().is_none() || sequence.launch.is_none() {
            return;
        }
        let tokens = self.tree.depth(sequence.holder);
        let reach = self.reaches.slots.entry(id).or_default();
        reach.checkpoints.push(Checkpoint {
            buffer: Some(buffer),
            tokens,
            first: i64::from(first),
            last: i64::from(last),
        });
        self.reaches.owners.insert(buffer, id);
    }

    /// A buffer was freed: that of a checkpoint, or of a host entry.
    pub(super) fn freed(&mut self, buffer: BufferId, facts: &mut Vec<Fact>) {
        if let Some(id) = self.drop_checkpoint(buffer) {
            self.reaches.changed.insert(id);
        }
        if self.reaches.hosts.remove(&buffer).is_some() {
            self.review(CacheEntry::Host(buffer), facts);
        }
    }

    fn drop_checkpoint(&mut self, buffer: BufferId) -> Option<SequenceId> {
        let id = self.reaches.owners.remove(&buffer)?;
        let reach = self.reaches.slots.get_mut(&id)?;
        reach.checkpoints.retain(|one| one.buffer != Some(buffer));
        Some(id)
    }

    /// A mark was set where a slot's prompt ends.
    pub(super) fn watch(&mut self, id: SequenceId, label: Label, prompt: u32) {
        if self.window().is_some() {
            let watched = self
                .reaches
                .watched
                .entry(CacheEntry::Slot(id))
                .or_default();
            watched.push(Watched { label, prompt });
        }
    }

    /// Whether the context could go on in a slot behind this many tokens without a checkpoint.
    /// Always, if it is not bounded.
    pub(crate) fn reaches(&self, id: SequenceId, tokens: u32) -> bool {
        let (Some(window), Some(reach)) = (self.window(), self.reaches.slots.get(&id)) else {
            return true;
        };
        reach.first < needed(tokens + 1, window)
    }

    /// How many of the first `tokens` tokens of a slot or host entry the engine would reuse for a
    /// prompt, by the ways back of a bounded context. All of them, if the context is not bounded.
    /// `on`: the prompt goes on behind these tokens. Then the memory need not reach back as far, by
    /// one position (0.7.0; before that, there was no difference).
    pub(crate) fn way_back_in(&self, entry: CacheEntry, tokens: u32, on: bool) -> u32 {
        match (self.window(), self.reaches.of(entry)) {
            (Some(window), Some(reach)) => {
                reach.reuse_of(tokens, needed(tokens + u32::from(on), window))
            }
            _ => tokens,
        }
    }

    /// Whether a prompt is being evaluated in a slot, or the slot has an undecided branch.
    fn is_busy(&self, id: SequenceId) -> bool {
        let sequence = self.sequences.get(&id);
        sequence.is_some_and(|sequence| sequence.launch.is_some() || sequence.ghost.is_some())
    }

    /// Whether [`Self::review_changed`] would check any slot.
    pub(super) fn has_changed_reach(&self) -> bool {
        let mut changed = self.reaches.changed.iter();
        self.window().is_some() && changed.any(|&id| !self.is_busy(id))
    }

    /// The mark of `label` was set where the mark of `other` stands: it gets the same witness.
    pub(super) fn watch_beside(&mut self, other: Label, label: Label) {
        let same = |one: Label| (one.request, one.nth) == (other.request, other.nth);
        for marks in self.reaches.watched.values_mut() {
            let found = marks.iter().find(|watched| same(watched.label)).copied();
            if let Some(Watched { prompt, .. }) = found {
                marks.push(Watched { label, prompt });
                return;
            }
        }
    }

    /// Checks the marks whose witness is this slot, unless the slot is busy. Called after each
    /// evaluated batch with entries of the slot.
    pub(super) fn review_slot(&mut self, id: SequenceId, facts: &mut Vec<Fact>) {
        if self.window().is_some() && !self.is_busy(id) {
            self.reaches.changed.remove(&id);
            self.review(CacheEntry::Slot(id), facts);
        }
    }

    /// Checks the slots whose reach has changed since they were checked last.
    pub(super) fn review_changed(&mut self, facts: &mut Vec<Fact>) {
        for id in self.reaches.changed.clone() {
            self.review_slot(id, facts);
        }
    }

    /// Finds a witness for each mark that had this one, and evicts the requests of those without.
    fn review(&mut self, witness: CacheEntry, facts: &mut Vec<Fact>) {
        let Some(window) = self.window() else { return };
        let Some(marks) = self.reaches.watched.remove(&witness) else {
            return;
        };
        for watched in marks {
            // If there is no request or mark any more, it was lost or superseded already.
            let Some(request) = self.requests.get(watched.label.request) else {
                continue;
            };
            let Some(mark) = request.marks().get(watched.label.nth).copied().flatten() else {
                continue;
            };
            let wanted = request.adapters;
            match self.witness(mark, watched.prompt, wanted, window, witness) {
                Some(found) => self.reaches.watched.entry(found).or_default().push(watched),
                None => {
                    let place = match witness {
                        CacheEntry::Slot(id) => Place::Slot(id),
                        CacheEntry::Host(_) => Place::Host,
                    };
                    self.end(watched.label.request, Reason::OutOfReach, place, facts);
                }
            }
        }
    }

    /// A witness for a mark: the former one, if it still serves the prompt, else any other.
    fn witness(
        &self,
        mark: Mark,
        prompt: u32,
        wanted: Wanted,
        window: u32,
        before: CacheEntry,
    ) -> Option<CacheEntry> {
        let slot = |id: SequenceId, sequence: &Sequence| {
            let reach = self.reaches.slots.get(&id);
            let serves = reach.is_none_or(|reach| reach.serves(prompt, window));
            let undecided = sequence
                .ghost
                .as_ref()
                .is_some_and(|ghost| self.tree.covers(ghost.holder, mark));
            sequence.suits(wanted)
                && ((serves && self.tree.covers(sequence.holder, mark)) || undecided)
        };
        if let CacheEntry::Slot(id) = before {
            if self.sequences.get(&id).is_some_and(|one| slot(id, one)) {
                return Some(before);
            }
        }
        let slots = self.sequences.iter();
        let slots = slots.filter(|&(&id, sequence)| slot(id, sequence));
        let hosts = self.buffers.iter().filter(|&(buffer, &holder)| {
            let reach = self.reaches.hosts.get(buffer);
            reach.is_none_or(|reach| reach.serves(prompt, window)) && self.tree.covers(holder, mark)
        });
        // The smallest id, so that equal events give equal facts.
        let found = slots.map(|(&id, _)| CacheEntry::Slot(id)).min();
        found.or_else(|| hosts.map(|(&buffer, _)| CacheEntry::Host(buffer)).min())
    }
}
