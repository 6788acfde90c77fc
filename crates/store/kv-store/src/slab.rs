//! Values under small numbers. The number of a value that was removed is used again.
//!
//! It grows by pages: a vector would copy everything now and then, while the server waits.

/// The number of a value.
pub(crate) type Key = u32;

/// Values in a page.
const PAGE: usize = 256;

#[derive(Debug)]
pub(crate) struct Slab<T> {
    pages: Vec<Vec<Option<T>>>,
    free: Vec<Key>,
    count: usize,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self {
            pages: Vec::new(),
            free: Vec::new(),
            count: 0,
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.count += 1;
        if let Some(key) = self.free.pop() {
            if let Some(place) = self.place(key) {
                *place = Some(value);
            }
            return key;
        }
        if self.pages.last().is_none_or(|page| page.len() == PAGE) {
            self.pages.push(Vec::with_capacity(PAGE));
        }
        let before = (self.pages.len() - 1) * PAGE;
        let page = &mut self.pages[before / PAGE];
        page.push(Some(value));
        (before + page.len() - 1) as Key
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let value = self.place(key)?.take()?;
        self.free.push(key);
        self.count -= 1;
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let page = self.pages.get(key as usize / PAGE)?;
        page.get(key as usize % PAGE)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.place(key)?.as_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    fn place(&mut self, key: Key) -> Option<&mut Option<T>> {
        let page = self.pages.get_mut(key as usize / PAGE)?;
        page.get_mut(key as usize % PAGE)
    }
}
