//! Values named by small integers that are used again.

use std::ops::{Index, IndexMut};

/// Names a value of a [`Slab`] until it is removed.
pub(crate) type Key = u32;

#[derive(Debug)]
enum Place<T> {
    Taken(T),
    /// The next free place, if any.
    Free(Option<Key>),
}

/// A vector with holes. Keys fit in 32 bits, half of what a pointer would take;
/// that is why this is not a crate.
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

    /// Takes a value out.
    ///
    /// # Panics
    /// If there is none: keys are ours alone, so that is a defect of this crate.
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
