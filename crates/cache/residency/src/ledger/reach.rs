//! Ways back: which prompts a bounded context (sliding window or recurrent) can still reuse.
//!
//! The memory of such a context does not hold what it would need to go on from every position that
//! it has been at. So llama-server decides for each prompt (`update_slots`, 0.7.0): does the memory
//! reach back far enough (its first position, and the model's window)? If not, is there a
//! *checkpoint* to go on from? If not, it evaluates the whole prompt. [`Reach::reuse`] is that rule.
//!
//! With `--swa-full`, a slot holds every position of what it evaluated, and the server goes back to any. But a saved state has
//! of the windows only the one at its end, and there are no checkpoints. So a slot that was restored from host memory or from
//! a file cannot go back before that.
//!
//! A prompt counts as resident while the engine would reuse [enough] of it. So a mark stands where
//! that much of the prompt ends, and it needs more than a holder at it or below it. It needs a
//! *witness*: a slot or host entry from which the engine would reuse enough. How much that is depends
//! on where the witness parts from the prompt, so the tokens behind the mark are [kept](super::tails).
//! A mark is checked again only when its witness has changed, and not while a prompt is being
//! evaluated in that slot.

use super::Ledger;
use super::checkpoints::{Bounds, Checkpoint, Reach, Window, enough};
use crate::fact::{Fact, Place, Reason};
use crate::ids::{BufferId, CacheEntry, SequenceId};
use crate::requests::{Request, RequestKey, Watched};
use crate::sequence::Sequence;
use crate::token::{Position, Token};
use crate::tree::Holder;
use std::sync::Arc;

impl Ledger {
    /// The window of the primary context, if it is bounded or has whole windows.
    pub(super) fn window(&self) -> Option<Window> {
        self.reaches.windows.get(&self.contexts.primary()?).copied()
    }

    /// Whether the primary context keeps every position of its sliding windows.
    pub(super) fn has_whole_windows(&self) -> bool {
        self.window().is_some_and(|window| window.is_whole)
    }

    /// Its window and the rules by which the server goes back in it.
    pub(super) fn bounds(&self) -> Option<Bounds> {
        let rules = self.reaches.rules.get(&self.contexts.primary()?);
        let window = self.window()?;
        Some(Bounds {
            window,
            rules: rules.copied().unwrap_or_default(),
        })
    }

    /// A sequence was saved to a host entry.
    pub(super) fn reach_saved(&mut self, id: SequenceId, buffer: BufferId) {
        let Some(bounds) = self.bounds() else { return };
        let mut copy = match self.reaches.slots.get(&id) {
            Some(reach) => reach.copy(),
            None if bounds.window.is_whole => Reach::default(),
            None => return,
        };
        copy.first = bounds.first_saved(copy.first, self.held(id));
        self.reaches.hosts.insert(buffer, copy);
    }

    /// A sequence got its content from a state file.
    pub(super) fn reach_loaded(&mut self, id: SequenceId) {
        if let Some(bounds) = self.bounds().filter(|bounds| bounds.window.is_whole) {
            let first = bounds.first_saved(0, self.held(id));
            self.reaches.put(id, Reach::from(first));
        }
    }

    /// Positions `[from, to)` of a sequence are about to be removed.
    pub(super) fn reach_removed(&mut self, id: SequenceId, range: (i64, i64)) {
        let held = i64::from(self.held(id));
        if self.has_whole_windows()
            && range.0 < held
            && let Some(reach) = self.reaches.slots.get_mut(&id)
        {
            reach.remove(range, held);
        }
    }

    /// Positions `[from, to)` of a sequence are about to be moved.
    pub(super) fn reach_shifted(&mut self, id: SequenceId, range: (i64, i64), delta: i64) {
        if self.has_whole_windows()
            && let Some(reach) = self.reaches.slots.get_mut(&id)
        {
            reach.shift(range, delta);
        }
    }

    /// Whether the server could not go back in a slot with whole windows whose content came from a saved state, and has removed it
    /// for another prompt.
    pub(crate) fn gave_up(&self, id: SequenceId) -> bool {
        let reach = self.reaches.slots.get(&id);
        reach.is_some_and(|reach| reach.given_up)
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
        let Some(bounds) = self.bounds().filter(|_| sequence.launch.is_some()) else {
            return;
        };
        let tokens = self.tree.depth(sequence.holder);
        let reach = self.reaches.slots.entry(id).or_default();
        reach.make_room(tokens, bounds.rules);
        reach.checkpoints.push(Checkpoint {
            buffer: Some(buffer),
            freed: false,
            current: true,
            tokens,
            first: i64::from(first),
            last: i64::from(last),
        });
        self.reaches.owners.insert(buffer, id);
    }

    /// A checkpoint came with the state file that was loaded into a sequence.
    pub(super) fn checkpoint_loaded(
        &mut self,
        id: SequenceId,
        tokens: u32,
        (first, last): (Position, Position),
    ) {
        if tokens <= self.held(id) && self.window().is_some() {
            let reach = self.reaches.slots.entry(id).or_default();
            reach.checkpoints.push(Checkpoint {
                buffer: None,
                freed: false,
                current: false,
                tokens,
                first: i64::from(first),
                last: i64::from(last),
            });
            self.reaches.changed.insert(id);
        }
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
        let mut checkpoints = reach.checkpoints.iter_mut();
        let checkpoint = checkpoints.find(|checkpoint| checkpoint.buffer == Some(buffer))?;
        checkpoint.buffer = None;
        checkpoint.freed = true;
        Some(id)
    }

    /// How many tokens of a prompt that a slot holds are enough in a bounded context, and those behind. `None`: a mark
    /// stands before the prompt's last token, since all tokens before that one are needed, or there is no room to
    /// keep more.
    pub(super) fn remainder_of(
        &mut self,
        holder: Holder,
        prompt: u32,
    ) -> Option<(u32, Arc<[Token]>)> {
        // Whole windows go back to any position, if they go back at all.
        self.window().filter(|window| !window.is_whole)?;
        let enough = enough(prompt);
        if enough + 1 >= prompt {
            return None;
        }
        let mut tokens = self.tree.read(holder, enough);
        tokens.truncate((prompt - enough) as usize);
        Some((enough, self.reaches.tails.keep(&tokens)?))
    }

    /// A slot holds a prompt of a request.
    pub(super) fn watch(&mut self, id: SequenceId, request: RequestKey, nth: usize, prompt: u32) {
        let Some(window) = self.window() else { return };
        if window.is_whole {
            // Its changes count from now on.
            self.reaches.slots.entry(id).or_default();
        }
        let entry = CacheEntry::Slot(id);
        let watched = self.reaches.watched.entry(entry).or_default();
        // The prompt of an embedding task was shorter before.
        if watched
            .last()
            .is_some_and(|last| (last.request, last.nth()) == (request, nth))
        {
            watched.pop();
        }
        watched.push(Watched {
            request,
            nth: nth as u32,
            prompt,
            common: None,
        });
    }

    /// Whether the context could go on in a slot behind this many tokens without a checkpoint.
    /// Always, if it is not bounded.
    pub(crate) fn reaches(&self, id: SequenceId, tokens: u32) -> bool {
        let (Some(bounds), Some(reach)) = (self.bounds(), self.reaches.slots.get(&id)) else {
            return true;
        };
        reach.first < bounds.needed(tokens + 1)
    }

    /// How many of the first `tokens` tokens of a slot or host entry the engine would reuse for a
    /// prompt, by the ways back of a bounded context. All of them, if the context is not bounded.
    /// `on`: the prompt goes on behind these tokens. Then the memory need not reach back as far, by
    /// one position (since mid-2026; before that, there was no difference).
    pub(crate) fn way_back_in(&self, entry: CacheEntry, tokens: u32, on: bool) -> u32 {
        match (self.bounds(), self.reaches.reach_of(entry)) {
            (Some(bounds), Some(reach)) => {
                reach.reuse_of(tokens, bounds.needed(tokens + u32::from(on)))
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

    /// A prompt of a request was marked where that of another request is: it gets the same witness.
    pub(super) fn watch_beside(&mut self, other: RequestKey, (request, nth): (RequestKey, usize)) {
        for marks in self.reaches.watched.values_mut() {
            let found = marks.iter().find(|watched| watched.request == other);
            if let Some(&found) = found {
                marks.push(Watched {
                    request,
                    nth: nth as u32,
                    ..found
                });
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
        let Some(bounds) = self.bounds() else { return };
        let Some(marks) = self.reaches.watched.remove(&witness) else {
            return;
        };
        // What is held up to here is as it was when the witness was looked at last.
        let unchanged = self
            .reaches
            .reach_of(witness)
            .map_or(0, |reach| reach.unchanged);
        for watched in marks {
            // If there is no request or mark any more, it was lost or superseded already.
            let Some(request) = self.requests.get(watched.request) else {
                continue;
            };
            if request.mark(watched.nth()).is_none() {
                continue;
            }
            let common = watched.common.filter(|&common| {
                common < unchanged || (common == watched.prompt && common <= unchanged)
            });
            let watched = Watched { common, ..watched };
            match self.witness(&watched, request, bounds, witness) {
                Some((found, common)) => {
                    let watched = Watched { common, ..watched };
                    self.reaches.watched.entry(found).or_default().push(watched);
                }
                None => {
                    let place = match witness {
                        CacheEntry::Slot(id) => Place::Slot(id),
                        CacheEntry::Host(_) => Place::Host,
                    };
                    self.end(watched.request, Reason::OutOfReach, place, facts);
                }
            }
        }
        if let CacheEntry::Slot(id) = witness {
            let held = self.held(id);
            if let Some(reach) = self.reaches.slots.get_mut(&id) {
                reach.unchanged = held;
            }
        }
    }

    /// A witness for a prompt: the former one, if it still serves the prompt, else any other. Also returns how much
    /// of the prompt it holds, if that was looked at.
    fn witness(
        &self,
        watched: &Watched,
        request: &Request,
        bounds: Bounds,
        before: CacheEntry,
    ) -> Option<(CacheEntry, Option<u32>)> {
        let serves = |holder, reach: Option<&Reach>, known: Option<u32>| {
            let common = known.or_else(|| self.common(holder, watched, request))?;
            let enough = reach.is_none_or(|reach| reach.serves(common, watched.prompt, bounds));
            enough.then_some(common)
        };
        let slot = |id: SequenceId, sequence: &Sequence, known| {
            if !sequence.suits(request.adapters) {
                return None;
            }
            let reach = self.reaches.slots.get(&id);
            if let Some(common) = serves(sequence.holder, reach, known) {
                return Some((CacheEntry::Slot(id), Some(common)));
            }
            let ghost = sequence.ghost.as_ref()?;
            let undecided = self.common(ghost.holder, watched, request).is_some();
            undecided.then_some((CacheEntry::Slot(id), None))
        };
        if let CacheEntry::Slot(id) = before {
            let sequence = self.sequences.get(&id);
            let same = sequence.and_then(|sequence| slot(id, sequence, watched.common));
            if same.is_some() {
                return same;
            }
        }
        // In the order of their ids, so that equal events give equal facts.
        let mut slots = self.sequences.iter();
        let found = slots.find_map(|(&id, sequence)| slot(id, sequence, None));
        let hosts = || {
            let hosts = self.buffers.iter().filter_map(|(&buffer, &holder)| {
                let common = serves(holder, self.reaches.hosts.get(&buffer), None)?;
                Some((CacheEntry::Host(buffer), Some(common)))
            });
            hosts.min_by_key(|&(entry, _)| entry)
        };
        found.or_else(hosts)
    }

    /// How many tokens of a prompt a slot or host entry holds. `None`: not enough of them.
    fn common(&self, holder: Holder, watched: &Watched, request: &Request) -> Option<u32> {
        let mark = request.mark(watched.nth())?;
        if !self.tree.covers(holder, mark) {
            return None;
        }
        Some(match request.remainder(watched.nth()) {
            Some(remainder) => {
                let from = self.tree.depth_of(mark);
                from + self.tree.agreeing(holder, from, &remainder.tokens)
            }
            // All tokens but the last one.
            None => watched.prompt,
        })
    }
}
