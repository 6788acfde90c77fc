//! Ways back: what a sliding-window or recurrent memory can still be made to serve.
//!
//! Such a memory does not hold what it would need to go on from any position it
//! has been at. For a prompt that is sent again llama-server therefore asks
//! (`update_slots`, 0.7.0): does the memory reach back far enough (its first
//! position, and the model's window)? If not, is there a *checkpoint* from which
//! to go on? If not, it evaluates all of it. [`Reach::reuse`] is that rule.
//!
//! A prompt counts as resident while the engine would reuse nine tenths of it.
//! So a mark needs more than a holder below it: it needs a *witness*, a slot or
//! a host entry that serves it. A mark is looked at again only when its witness
//! has changed, and not while a prompt is on its way through that slot.

use super::*;
use crate::tree::Mark;
use std::collections::BTreeSet;

/// A state that the server has put by for a slot.
#[derive(Clone, Debug)]
struct Checkpoint {
    /// Where; unknown for a copy that came with a host entry, which the ledger
    /// lets go of by the server's rule rather than by seeing it freed.
    buffer: Option<BufferId>,
    /// Tokens of the sequence when it was made.
    tokens: u32,
    /// Positions it reaches from and to.
    first: i64,
    last: i64,
}

impl Checkpoint {
    /// The tokens that need not be evaluated once the server has gone back to it.
    fn goes_on_behind(&self) -> u32 {
        let position = (self.first + 1).max(self.last);
        u32::try_from(position).unwrap_or(0).min(self.tokens)
    }
}

/// From where a sequence can go on.
#[derive(Clone, Debug, Default)]
struct Reach {
    /// The first position in memory.
    first: i64,
    /// In the order in which they were made.
    checkpoints: Vec<Checkpoint>,
}

impl Reach {
    /// How many tokens of a prompt the engine would reuse, of a sequence that
    /// begins with all of it.
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

    fn serves(&self, prompt: u32, window: u32) -> bool {
        u64::from(self.reuse(prompt, window)) * 10 >= u64::from(prompt) * 9
    }

    /// The last point, in tokens, from which the server could go on with another prompt, of a
    /// sequence that holds so many. What was generated since the last checkpoint does not count,
    /// although a prompt that begins with all of it goes on from there.
    fn furthest(&self, held: u32, window: u32) -> u32 {
        if self.first == 0 && held > window.saturating_add(1) {
            return held;
        }
        let back = self.checkpoints.iter().map(Checkpoint::goes_on_behind);
        back.filter(|&position| position <= held).max().unwrap_or(0)
    }

    /// As it is copied along with a sequence.
    fn copy(&self) -> Self {
        let mut copy = self.clone();
        for checkpoint in &mut copy.checkpoints {
            checkpoint.buffer = None;
        }
        copy
    }
}

/// What memory must reach back to for a sequence to go on behind so many tokens.
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
    /// Tokens that a bounded context's layers look back; 0 for recurrent ones.
    windows: HashMap<ContextId, u32>,
    slots: BTreeMap<SequenceId, Reach>,
    hosts: BTreeMap<BufferId, Reach>,
    /// Whose checkpoint a buffer holds.
    owners: HashMap<BufferId, SequenceId>,
    /// By the witness that serves them.
    watched: BTreeMap<Keeper, Vec<Watched>>,
    /// Slots that changed while no prompt was on its way.
    changed: BTreeSet<SequenceId>,
}

impl Reaches {
    pub(super) fn bound(&mut self, context: ContextId, window: u32) {
        self.windows.insert(context, window);
    }

    pub(super) fn forget_context(&mut self, context: ContextId) {
        self.windows.remove(&context);
    }

    /// Forgets everything but which contexts are bounded.
    pub(super) fn clear(&mut self) {
        let windows = std::mem::take(&mut self.windows);
        *self = Self {
            windows,
            ..Self::default()
        };
    }

    fn of(&self, keeper: Keeper) -> Option<&Reach> {
        match keeper {
            Keeper::Slot(id) => self.slots.get(&id),
            Keeper::Host(buffer) => self.hosts.get(&buffer),
        }
    }

    /// The last point that a server could go back to of what this holds: see [`Reach::furthest`].
    pub(super) fn furthest(&self, keeper: Keeper, held: u32, window: u32) -> u32 {
        let reach = self.of(keeper);
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

    /// A sequence was replaced by one that has this reach.
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

    /// A sequence works under other adapters, and may serve others than before.
    pub(super) fn blend_changed(&mut self, id: SequenceId) {
        if self.slots.contains_key(&id) {
            self.changed.insert(id);
        }
    }

    /// A sequence was cut at a position. The server drops the checkpoints beyond;
    /// it cuts one token earlier than it reuses when a whole prompt is cached.
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
        self.reaches.windows.get(self.contexts.first()?).copied()
    }

    pub(super) fn reached(&mut self, id: SequenceId, first: Position) {
        if self.window().is_some() {
            self.reaches.slots.entry(id).or_default().first = i64::from(first);
        }
    }

    /// The server makes checkpoints of prompts that are on their way; those of
    /// speculative decoding, made while it generates, lead back to no prompt.
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
    pub(super) fn freed(&mut self, buffer: BufferId, effects: &mut Vec<Effect>) {
        if let Some(id) = self.drop_checkpoint(buffer) {
            self.reaches.changed.insert(id);
        }
        if self.reaches.hosts.remove(&buffer).is_some() {
            self.review(Keeper::Host(buffer), effects);
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
            let watched = self.reaches.watched.entry(Keeper::Slot(id)).or_default();
            watched.push(Watched { label, prompt });
        }
    }

    /// Whether a bounded context could go on in a slot behind so many tokens without a checkpoint.
    pub(crate) fn reaches(&self, id: SequenceId, tokens: u32) -> bool {
        let (Some(window), Some(reach)) = (self.window(), self.reaches.slots.get(&id)) else {
            return true;
        };
        reach.first < needed(tokens + 1, window)
    }

    /// How many of the first `tokens` tokens that a slot or host entry holds the engine would reuse
    /// for a prompt, by the ways back of a bounded context. Where the prompt goes `on` behind them,
    /// one token more need not be gone back to (0.7.0; before, it was the same for both).
    pub(crate) fn way_back_in(&self, keeper: Keeper, tokens: u32, on: bool) -> u32 {
        match (self.window(), self.reaches.of(keeper)) {
            (Some(window), Some(reach)) => {
                reach.reuse_of(tokens, needed(tokens + u32::from(on), window))
            }
            _ => tokens,
        }
    }

    /// Whether a prompt is on its way through a slot, or may yet be.
    fn is_busy(&self, id: SequenceId) -> bool {
        let sequence = self.sequences.get(&id);
        sequence.is_some_and(|sequence| sequence.launch.is_some() || sequence.ghost.is_some())
    }

    /// Whether [`Self::review_changed`] would look at a slot.
    pub(super) fn has_changed_reach(&self) -> bool {
        let mut changed = self.reaches.changed.iter();
        self.window().is_some() && changed.any(|&id| !self.is_busy(id))
    }

    /// A mark was set where another one stands: whoever serves that serves it, too.
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

    /// The prompt of a slot has been evaluated, or a token of its answer.
    pub(super) fn review_slot(&mut self, id: SequenceId, effects: &mut Vec<Effect>) {
        if self.window().is_some() && !self.is_busy(id) {
            self.reaches.changed.remove(&id);
            self.review(Keeper::Slot(id), effects);
        }
    }

    /// Looks at the slots that changed by other ways than evaluation.
    pub(super) fn review_changed(&mut self, effects: &mut Vec<Effect>) {
        for id in self.reaches.changed.clone() {
            self.review_slot(id, effects);
        }
    }

    /// Finds a witness for each mark that this one served.
    fn review(&mut self, witness: Keeper, effects: &mut Vec<Effect>) {
        let Some(window) = self.window() else { return };
        let Some(marks) = self.reaches.watched.remove(&witness) else {
            return;
        };
        for watched in marks {
            // Else lost already, or superseded.
            let Some(request) = self.requests.get(watched.label.request) else {
                continue;
            };
            let Some(mark) = request.marks.get(watched.label.nth).copied().flatten() else {
                continue;
            };
            let wanted = request.adapters;
            match self.witness(mark, watched.prompt, wanted, window, witness) {
                Some(found) => self.reaches.watched.entry(found).or_default().push(watched),
                None => {
                    let place = match witness {
                        Keeper::Slot(id) => Place::Slot(id),
                        Keeper::Host(_) => Place::Host,
                    };
                    self.end(watched.label.request, Reason::OutOfReach, place, effects);
                }
            }
        }
    }

    /// Who serves a mark: the one that did so far, if it still does.
    fn witness(
        &self,
        mark: Mark,
        prompt: u32,
        wanted: Wanted,
        window: u32,
        before: Keeper,
    ) -> Option<Keeper> {
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
        if let Keeper::Slot(id) = before {
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
        // The least of them, so that equal events give equal effects.
        let found = slots.map(|(&id, _)| Keeper::Slot(id)).min();
        found.or_else(|| hosts.map(|(&buffer, _)| Keeper::Host(buffer)).min())
    }
}
