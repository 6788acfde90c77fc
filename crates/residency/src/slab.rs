//! A slab: values under small integer keys. Keys of removed values are used again.

use std::ops::{Index, IndexMut};

/// The key of a value in a [`Slab`], valid until the value is removed.
pub(crate) type Key = u32;

#[derive(Debug)]
enum Place<T> {
    Taken(T),
    /// The next free place, if any.
    Free(Option<Key>),
}

/// A vector with holes. Keys take 4 bytes. Those of the crate `slab` take 8, which would double the
/// links of the trees.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Option<Key>,
    len: usize,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self {
            places: Vec::new(),
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
            let place = &mut self.places[key as usize];
            if let Place::Free(next) = *place {
                self.free = next;
            }
            *place = Place::Taken(value);
            return key;
        }
        self.places.push(Place::Taken(value));
        // A tree of 2³² nodes does not fit in any machine's memory.
        (self.places.len() - 1) as Key
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        match self.places.get(key as usize)? {
            Place::Taken(value) => Some(value),
            Place::Free(_) => None,
        }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.places.get_mut(key as usize)? {
            Place::Taken(value) => Some(value),
            Place::Free(_) => None,
        }
    }

    /// Removes a value and returns it.
    ///
    /// # Panics
    /// If there is no value under this key. That would be a defect of this crate: keys come from
    /// its own code only.
    pub(crate) fn remove(&mut self, key: Key) -> T {
        let place = &mut self.places[key as usize];
        match std::mem::replace(place, Place::Free(self.free)) {
            Place::Taken(value) => {
                self.free = Some(key);
                self.len -= 1;
                value
            }
            Place::Free(next) => {
                *place = Place::Free(next);
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
