//! A slab: values under small integer keys. Keys of removed values are used again.

use std::ops::{Index, IndexMut};

/// The key of a value in a [`Slab`], valid until the value is removed.
pub(crate) type Key = u32;

#[derive(Debug)]
enum SlabEntry<T> {
    Occupied(T),
    /// The next free entry, if any.
    Vacant(Option<Key>),
}

/// A vector with holes. Keys take 4 bytes. Those of the crate `slab` take 8, which would double the
/// links of the trees.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<SlabEntry<T>>,
    free: Option<Key>,
    len: usize,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: None,
            len: 0,
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.len += 1;
        if let Some(key) = self.free {
            let entry = &mut self.entries[key as usize];
            if let SlabEntry::Vacant(next) = *entry {
                self.free = next;
            }
            *entry = SlabEntry::Occupied(value);
            return key;
        }
        self.entries.push(SlabEntry::Occupied(value));
        // A tree of 2³² nodes does not fit in any machine's memory.
        (self.entries.len() - 1) as Key
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        match self.entries.get(key as usize)? {
            SlabEntry::Occupied(value) => Some(value),
            SlabEntry::Vacant(_) => None,
        }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.entries.get_mut(key as usize)? {
            SlabEntry::Occupied(value) => Some(value),
            SlabEntry::Vacant(_) => None,
        }
    }

    /// Removes a value and returns it.
    ///
    /// # Panics
    /// If there is no value under this key. That would be a defect of this crate: keys come from
    /// its own code only.
    pub(crate) fn remove(&mut self, key: Key) -> T {
        let entry = &mut self.entries[key as usize];
        match std::mem::replace(entry, SlabEntry::Vacant(self.free)) {
            SlabEntry::Occupied(value) => {
                self.free = Some(key);
                self.len -= 1;
                value
            }
            SlabEntry::Vacant(next) => {
                *entry = SlabEntry::Vacant(next);
                panic!("slab: nothing at {key}")
            }
        }
    }
}

impl<T> Index<Key> for Slab<T> {
    type Output = T;

    fn index(&self, key: Key) -> &T {
        self.get(key).expect("slab keys are ours alone")
    }
}

impl<T> IndexMut<Key> for Slab<T> {
    fn index_mut(&mut self, key: Key) -> &mut T {
        self.get_mut(key).expect("slab keys are ours alone")
    }
}
