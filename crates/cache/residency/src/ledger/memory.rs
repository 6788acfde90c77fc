//! Events that remove, copy, move, save and restore sequences.

use super::Ledger;
use crate::event::Event;
use crate::fact::{Fact, Place, Reason};
use crate::ids::{BufferId, SequenceId};
use crate::sequence::{Fragment, Ghost};
use crate::token::Position;
use crate::tree::Holder;

/// An open upper bound.
const END: i64 = i64::MAX;

/// The engine's half-open range: negative bounds are open.
fn range(from: Position, to: Position) -> (i64, i64) {
    let to = if to < 0 { END } else { i64::from(to) };
    (i64::from(from.max(0)), to)
}

impl Ledger {
    pub(super) fn memory(&mut self, event: Event, facts: &mut Vec<Fact>) {
        match event {
            Event::Removed {
                sequence, from, to, ..
            } => {
                let (from, to) = range(from, to);
                if (from, to) == (0, END) {
                    self.heard(sequence);
                }
                for id in self.named(sequence) {
                    self.reach_removed(id, (from, to));
                    self.remove(id, from, to, facts);
                }
            }
            Event::Kept { sequence, .. } => {
                self.heard(sequence);
                self.heard(-1);
                for id in self.named(-1) {
                    if id != sequence {
                        self.empty(id, Reason::Cleared, facts);
                    }
                }
            }
            Event::Cleared { .. } => {
                self.heard(-1);
                self.empty_all(Reason::Cleared, facts);
            }
            Event::Obscured { sequence, .. } => {
                for id in self.named(sequence) {
                    self.obscure(id, facts);
                }
            }
            Event::Copied {
                source,
                target,
                from,
                to,
                ..
            } => {
                if let Some(jobs) = &mut self.jobs {
                    jobs.copied(source, target, facts);
                }
                self.copy(source, target, range(from, to), facts);
            }
            Event::Shifted {
                sequence,
                from,
                to,
                delta,
                ..
            } if self.sequences.contains_key(&sequence) => {
                self.shift(sequence, range(from, to), i64::from(delta), facts);
            }
            Event::Saved {
                sequence, buffer, ..
            } => {
                let holder = self.sequences.get(&sequence).map(|held| held.holder);
                let copy = holder
                    .filter(|&holder| self.tree.depth(holder) > 0)
                    .map(|holder| self.tree.hold_beside(holder));
                let before = match copy {
                    Some(copy) => self.buffers.insert(buffer, copy),
                    None => self.buffers.remove(&buffer),
                };
                self.freed(buffer, facts);
                self.reach_saved(sequence, buffer);
                if let Some(before) = before {
                    self.release(before, Reason::DroppedFromHost, Place::Host, facts);
                }
                self.tell_saved(sequence, buffer, facts);
            }
            Event::Restored {
                sequence, buffer, ..
            } => match self.buffers.get(&buffer).copied() {
                Some(saved) => {
                    self.replacing(true);
                    let holder = self.tree.hold_beside(saved);
                    // The server restores a sequence for its next task, which may want other
                    // adapters. The task before it is over.
                    self.settle_blend(sequence, facts);
                    self.sequence(sequence).unsettled = true;
                    self.replace(sequence, holder, facts);
                    self.reaches.restored(sequence, buffer);
                    self.replacing(false);
                    self.tell_restored(sequence, buffer, facts);
                }
                None => {
                    self.sequence(sequence);
                    self.obscure(sequence, facts);
                    self.sequence(sequence).unknown = self.gap.stepped_out;
                }
            },
            Event::Reaches {
                sequence, first, ..
            } => self.reached(sequence, first),
            Event::Checkpointed {
                sequence,
                buffer,
                first,
                last,
                ..
            } => {
                self.checkpointed(sequence, buffer, (first, last));
                self.tell(facts, || Fact::Checkpointed { buffer, last });
            }
            Event::CheckpointLoaded {
                sequence,
                tokens,
                first,
                last,
                ..
            } => self.checkpoint_loaded(sequence, tokens, (first, last)),
            Event::Replaced {
                sequence, tokens, ..
            } => {
                let holder = self.tree.hold_root();
                self.tree.extend(holder, &tokens);
                let checkpoints = self.reaches.own_checkpoints(sequence);
                self.replacing(true);
                self.replace(sequence, holder, facts);
                self.replacing(false);
                self.reach_loaded(sequence);
                self.reaches.keep(sequence, checkpoints);
            }
            _ => {}
        }
    }

    /// Buffers of a context that is not the primary one take memory, too.
    pub(super) fn memory_of_others(&self, event: &Event, facts: &mut Vec<Fact>) {
        match *event {
            Event::Saved { buffer, .. } => self.tell(facts, || Fact::Freed { buffer }),
            Event::Checkpointed { buffer, last, .. } => {
                self.tell(facts, || Fact::Checkpointed { buffer, last });
            }
            _ => {}
        }
    }

    fn tell_saved(&mut self, sequence: SequenceId, buffer: BufferId, facts: &mut Vec<Fact>) {
        if !self.knows(buffer) {
            return self.tell_freed(buffer, facts);
        }
        if let Some(jobs) = &mut self.jobs {
            jobs.saved(sequence, buffer);
        }
        self.tell(facts, || Fact::Saved {
            sequence,
            buffer,
            tokens: self.held(sequence),
        });
    }

    fn tell_restored(&mut self, sequence: SequenceId, buffer: BufferId, facts: &mut Vec<Fact>) {
        if let Some(jobs) = &mut self.jobs {
            jobs.restored(sequence, buffer);
        }
        self.tell(facts, || Fact::Restored {
            sequence,
            buffer,
            tokens: self.held(sequence),
        });
    }

    pub(super) fn tell_freed(&mut self, buffer: BufferId, facts: &mut Vec<Fact>) {
        if let Some(jobs) = &mut self.jobs {
            jobs.freed(buffer);
        }
        self.tell(facts, || Fact::Freed { buffer });
    }

    /// See [`Jobs::replacing`].
    fn replacing(&mut self, replacing: bool) {
        if let Some(jobs) = &mut self.jobs {
            jobs.replacing(replacing);
        }
    }

    /// An event emptied this sequence (negative: all of them), so its content is known again.
    fn heard(&mut self, id: SequenceId) {
        if id < 0 {
            self.gap.unheard = false;
        } else if self.gap.unheard {
            self.sequence(id);
        }
    }

    /// The known sequences that an event names: one, or all if it is negative.
    pub(super) fn named(&self, id: SequenceId) -> Vec<SequenceId> {
        if id < 0 {
            self.sequences.keys().copied().collect()
        } else if self.sequences.contains_key(&id) {
            vec![id]
        } else {
            Vec::new()
        }
    }

    /// Removes positions `[from, to)`. The branch that the sequence leaves is undecided.
    pub(super) fn remove(&mut self, id: SequenceId, from: i64, to: i64, facts: &mut Vec<Fact>) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        if to <= from {
            return;
        }
        sequence.unknown &= (from, to) != (0, END);
        let holder = sequence.holder;
        let held = i64::from(self.tree.depth(holder));
        sequence.tail = std::mem::take(&mut sequence.tail)
            .into_iter()
            .flat_map(|fragment| fragment.without(from, to))
            .collect();
        if from >= held {
            return;
        }
        if to < held {
            let tokens = self.tree.read(holder, to as u32);
            sequence.tail.insert(0, Fragment { start: to, tokens });
        }
        let shifted = !sequence.tail.is_empty();
        match &mut sequence.ghost {
            // An earlier branch is still undecided. It holds these tokens, too.
            Some(ghost) => ghost.shifted |= shifted,
            None => {
                let holder = self.tree.hold_beside(holder);
                sequence.ghost = Some(Ghost { holder, shifted });
            }
        }
        self.reaches.cut(id, from);
        self.tree.retreat(holder, from as u32, &mut self.lost);
        debug_assert!(self.lost.is_empty(), "the ghost holds what was left");
        self.evict_lost(Reason::Overwritten, Place::Slot(id), facts);
    }

    /// Moves positions `[from, to)` by `delta`.
    fn shift(&mut self, id: SequenceId, (from, to): (i64, i64), delta: i64, facts: &mut Vec<Fact>) {
        if to <= from || delta == 0 {
            return;
        }
        self.reach_shifted(id, (from, to), delta);
        let sequence = self.sequence(id);
        let holder = sequence.holder;
        let mut fragments = std::mem::take(&mut sequence.tail);
        let held = i64::from(self.tree.depth(holder));
        if from < held {
            let tokens = self.tree.read(holder, from as u32);
            self.remove(id, from, END, facts);
            if let Some(ghost) = self.sequence(id).ghost.as_mut() {
                ghost.shifted = true;
            }
            fragments.insert(
                0,
                Fragment {
                    start: from,
                    tokens,
                },
            );
        }
        let mut moved: Vec<Fragment> = Vec::new();
        for fragment in fragments {
            let inside = fragment
                .clone()
                .without(0, from)
                .flat_map(|part| part.without(to, END))
                .map(|mut part| {
                    part.start += delta;
                    part
                })
                // The engine drops what would come before position 0.
                .flat_map(|part| part.without(i64::MIN, 0));
            moved.extend(inside);
            moved.extend(fragment.without(from, to));
        }
        moved.sort_unstable_by_key(|fragment| (fragment.start, fragment.end()));
        let overlap = moved.windows(2).any(|pair| pair[0].end() > pair[1].start);
        let held = i64::from(self.tree.depth(holder));
        if overlap || moved.first().is_some_and(|f| f.start < held) {
            // Two tokens stand at one position: what the engine would reuse is not known.
            self.obscure(id, facts);
            return;
        }
        let mut rest = moved.into_iter().peekable();
        while let Some(fragment) = rest.next_if(|f| f.start == i64::from(self.tree.depth(holder))) {
            self.walk(id, &fragment.tokens, facts);
        }
        self.sequence(id).tail = rest.collect();
    }

    fn copy(
        &mut self,
        source: SequenceId,
        target: SequenceId,
        (from, to): (i64, i64),
        facts: &mut Vec<Fact>,
    ) {
        if source == target || to <= from {
            return;
        }
        self.sequence(target);
        let Some(source_slot) = self.sequences.get(&source) else {
            self.obscure(target, facts);
            return;
        };
        let (held, evaluated) = (source_slot.holder, source_slot.launch.is_none());
        if from > 0 {
            self.obscure(target, facts);
            return;
        }
        let blend = self.sequence(source).blend;
        let sequence = self.sequence(target);
        sequence.blend = blend;
        sequence.unsettled = false;
        let copy = self.tree.hold_beside(held);
        let end = u32::try_from(to).unwrap_or(u32::MAX);
        self.tree.retreat(copy, end, &mut self.lost);
        debug_assert!(self.lost.is_empty(), "the source holds it all");
        self.replace(target, copy, facts);
        self.reaches.copied(source, target);
        // With `n` answers to one prompt, each child task takes over the prompt that its parent has
        // evaluated. The questions to a decision model share the beginning of their prompts only: it is
        // copied before the parent's prompt ends, and each child goes on by itself.
        if evaluated {
            self.mark_cached(target, facts);
        }
    }

    /// Replaces the content of a sequence by that of `holder`.
    fn replace(&mut self, id: SequenceId, holder: Holder, facts: &mut Vec<Fact>) {
        // The new content counts before the old one is released: a request that both hold is not
        // evicted.
        self.sequence(id).arriving = Some(holder);
        self.release_ghost(id, Reason::Overwritten, facts);
        let sequence = self.sequence(id);
        sequence.arriving = None;
        sequence.tail.clear();
        sequence.unknown = false;
        let before = std::mem::replace(&mut sequence.holder, holder);
        self.reaches.emptied(id);
        self.release(before, Reason::Overwritten, Place::Slot(id), facts);
    }

    /// Empties a sequence. Nothing of it stays undecided.
    fn empty(&mut self, id: SequenceId, reason: Reason, facts: &mut Vec<Fact>) {
        self.release_ghost(id, reason, facts);
        let sequence = self.sequence(id);
        sequence.tail.clear();
        sequence.unknown = false;
        let holder = sequence.holder;
        self.reaches.emptied(id);
        let above = self.wanting_above(holder);
        self.tree.retreat(holder, 0, &mut self.lost);
        self.evict_lost(reason, Place::Slot(id), facts);
        self.review_wanting(&above, reason, Place::Slot(id), facts);
    }

    pub(super) fn empty_all(&mut self, reason: Reason, facts: &mut Vec<Fact>) {
        for id in self.named(-1) {
            self.empty(id, reason, facts);
        }
    }

    /// Claims nothing more of a sequence.
    pub(super) fn obscure(&mut self, id: SequenceId, facts: &mut Vec<Fact>) {
        self.empty(id, Reason::OutOfStep, facts);
    }
}
