//! Values under small numbers. The number of a value that was removed is used again.

/// The number of a value.
pub(crate) type Key = u32;

#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<Key>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        if let Some(key) = self.free.pop() {
            self.places[key as usize] = Some(value);
            return key;
        }
        self.places.push(Some(value));
        (self.places.len() - 1) as Key
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let value = self.places.get_mut(key as usize)?.take()?;
        self.free.push(key);
        Some(value)
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        self.places.get(key as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.places.get_mut(key as usize)?.as_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
