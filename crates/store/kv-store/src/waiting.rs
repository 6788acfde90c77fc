//! Chunks of other processes whose parents are not there.
//!
//! A parent may be read a moment later, or be about to be written. It may also have left, and the process that wrote the chunk
//! has not seen that yet. Until it is decided, their files take room: they count in the budget, and leave in turn.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Chunk, Name};

#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// With the time of the last use.
    chunks: BTreeMap<Name, (Chunk, u64)>,
    /// By their last use.
    used: BTreeSet<(u64, Name)>,
    /// By what they wait for: parent, child.
    parents: BTreeSet<(Name, Name)>,
}

impl Waiting {
    /// A chunk waits for its parent. False if it does already, or has none.
    pub(crate) fn add(&mut self, chunk: Chunk, last_used: u64) -> bool {
        let name = chunk.name;
        let Some((parent, _)) = chunk.parent else {
            return false;
        };
        if self.has(&name) {
            return false;
        }
        self.used.insert((last_used, name));
        self.parents.insert((parent, name));
        self.chunks.insert(name, (chunk, last_used));
        true
    }

    /// Whether this chunk waits.
    pub(crate) fn has(&self, name: &Name) -> bool {
        self.chunks.contains_key(name)
    }

    /// It does not wait any more.
    pub(crate) fn take(&mut self, name: &Name) -> Option<(Chunk, u64)> {
        let (chunk, last_used) = self.chunks.remove(name)?;
        self.used.remove(&(last_used, *name));
        if let Some((parent, _)) = chunk.parent {
            self.parents.remove(&(parent, *name));
        }
        Some((chunk, last_used))
    }

    /// One of those that wait for this parent.
    pub(crate) fn child(&self, parent: &Name) -> Option<Name> {
        let all = self.parents.range((*parent, Name::LEAST)..);
        let mut of_it = all.take_while(|(of, _)| of == parent);
        of_it.next().map(|(_, child)| *child)
    }

    /// The one that was used least recently, and when.
    pub(crate) fn oldest(&self) -> Option<(u64, Name)> {
        self.used.first().copied()
    }

    /// Those whose names begin with this byte.
    pub(crate) fn names(&self, first: u8) -> impl Iterator<Item = &Name> {
        Name::all_with(&self.chunks, first)
    }
}
