//! The ways back of all sequences, with their checkpoints.

use super::checkpoints::{Bounds, Checkpoint, Reach, Window};
use super::tails::Tails;
use crate::ids::{BufferId, CacheEntry, ContextId, SequenceId};
use crate::requests::Watched;
use crate::rewinding::Rewinding;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The ways back of all sequences. Empty unless the primary context is bounded, or has whole windows.
#[derive(Debug, Default)]
pub(super) struct Reaches {
    /// How far the layers of each context look back that is bounded or has whole windows.
    pub(super) windows: HashMap<ContextId, Window>,
    /// The rules by which the server goes back in each, if an event gave them.
    pub(super) rules: HashMap<ContextId, Rewinding>,
    pub(super) slots: BTreeMap<SequenceId, Reach>,
    pub(super) hosts: BTreeMap<BufferId, Reach>,
    /// The slot whose checkpoint a buffer holds.
    pub(super) owners: HashMap<BufferId, SequenceId>,
    /// Marks, by their witness.
    pub(super) watched: BTreeMap<CacheEntry, Vec<Watched>>,
    /// Slots whose reach has changed and whose marks were not checked since.
    pub(super) changed: BTreeSet<SequenceId>,
    pub(super) tails: Tails,
}

impl Reaches {
    pub(super) fn bound(&mut self, context: ContextId, window: Window) {
        self.windows.insert(context, window);
    }

    pub(super) fn rewind_by(&mut self, context: ContextId, rules: Rewinding) {
        self.rules.insert(context, rules);
    }

    pub(super) fn forget_context(&mut self, context: ContextId) {
        self.windows.remove(&context);
        self.rules.remove(&context);
    }

    /// Forgets everything except how far contexts look back.
    pub(super) fn clear(&mut self) {
        let windows = std::mem::take(&mut self.windows);
        let rules = std::mem::take(&mut self.rules);
        *self = Self {
            windows,
            rules,
            ..Self::default()
        };
    }

    pub(super) fn reach_of(&self, entry: CacheEntry) -> Option<&Reach> {
        match entry {
            CacheEntry::Slot(id) => self.slots.get(&id),
            CacheEntry::Host(buffer) => self.hosts.get(&buffer),
        }
    }

    /// The last point, in tokens, that the server can go back to in a slot or host entry: see
    /// [`Reach::furthest`].
    pub(super) fn furthest(&self, entry: CacheEntry, held: u32, bounds: Bounds) -> u32 {
        match self.reach_of(entry) {
            Some(reach) => reach.furthest(held, bounds),
            None if bounds.window.is_whole => held,
            None => 0,
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
    pub(super) fn take_over(&mut self, id: SequenceId, reach: Option<Reach>) {
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

    /// The checkpoints of a slot whose buffers the server has not freed.
    pub(super) fn own_checkpoints(&self, id: SequenceId) -> Vec<Checkpoint> {
        let reach = self.slots.get(&id);
        let all = reach.into_iter().flat_map(|reach| &reach.checkpoints);
        let own = all.filter(|checkpoint| checkpoint.buffer.is_some() && !checkpoint.freed);
        own.cloned().collect()
    }

    /// A slot's content was replaced by that of a state file. Some servers (seen in build 9246) leave the slot's
    /// checkpoints where they are, and go back to them; others free their buffers, which is seen.
    pub(super) fn keep(&mut self, id: SequenceId, checkpoints: Vec<Checkpoint>) {
        if let Some(reach) = self.slots.get_mut(&id) {
            let buffers = checkpoints
                .iter()
                .filter_map(|checkpoint| checkpoint.buffer);
            self.owners.extend(buffers.map(|buffer| (buffer, id)));
            reach.checkpoints = checkpoints;
        }
    }

    pub(super) fn put(&mut self, id: SequenceId, reach: Reach) {
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

    /// A slot works on another task.
    pub(super) fn launched(&mut self, id: SequenceId) {
        if let Some(reach) = self.slots.get_mut(&id) {
            for checkpoint in &mut reach.checkpoints {
                checkpoint.current = false;
            }
        }
    }

    /// A sequence was cut at a position.
    pub(super) fn cut(&mut self, id: SequenceId, from: i64) {
        if let Some(reach) = self.slots.get_mut(&id) {
            reach.cut(from);
            self.changed.insert(id);
        }
    }
}
