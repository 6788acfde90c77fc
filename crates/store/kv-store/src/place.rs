//! Places in the chain of names: which chunks may stand behind some tokens, whichever process has them.

use crate::name::Naming;
use crate::{Fingerprint, GRID, Name, TAIL};

/// Behind some tokens of a prompt.
///
/// How the tokens behind it were divided into chunks depends on how the prompt grew: where an answer ended, or another
/// prompt parted, a chunk may end. But each way to divide them has names of its own, and all of them follow from the
/// tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// What the rows depend on besides their tokens.
    pub fingerprint: Fingerprint,
    /// The link of the chain at the last multiple of [`GRID`] that is not behind this place.
    pub link: Name,
    /// How many tokens stand between that and this place; less than [`GRID`].
    pub skip: usize,
}

impl Place {
    /// Before the first token.
    pub fn first(fingerprint: Fingerprint) -> Self {
        Self {
            fingerprint,
            link: fingerprint.link(),
            skip: 0,
        }
    }

    /// The names of all chunks that may stand here and hold the beginning of what follows, and where each ends: the longest
    /// first. `tokens`, here and below: those from the last multiple of [`GRID`] on.
    pub fn chunks(self, tokens: &[i32]) -> impl Iterator<Item = (usize, Name)> + '_ {
        self.chunks_by(Name::next, tokens)
    }

    pub(crate) fn chunks_by(
        self,
        naming: Naming,
        tokens: &[i32],
    ) -> impl Iterator<Item = (usize, Name)> + '_ {
        let ends = self.skip + 1..=tokens.len().min(GRID);
        ends.rev()
            .map(move |end| (end, naming(&self.link, self.skip, &tokens[..end])))
    }

    /// The name of a tail that stands here.
    ///
    /// # Panics
    /// There are no tokens up to here.
    #[must_use]
    pub fn tail(self, tokens: &[i32]) -> Name {
        let tokens: Vec<i32> = tokens[..self.skip].iter().copied().chain([TAIL]).collect();
        self.link.next(self.skip, &tokens)
    }

    /// The place behind a chunk that stands here and ends there. Behind a multiple of [`GRID`], tokens are counted from
    /// that.
    ///
    /// # Panics
    /// There are no such tokens.
    #[must_use]
    pub fn behind(self, tokens: &[i32], end: usize) -> Self {
        self.behind_by(Name::next, tokens, end)
    }

    pub(crate) fn behind_by(self, naming: Naming, tokens: &[i32], end: usize) -> Self {
        let (link, skip) = if end < GRID {
            (self.link, end)
        } else {
            (naming(&self.link, 0, &tokens[..GRID]), 0)
        };
        Self { link, skip, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;

    const OF: Fingerprint = Fingerprint([7; 16]);

    /// The chunks that a store would have of a prompt that grew to these lengths.
    fn grown(tokens: &[i32], lengths: &[usize]) -> Vec<(usize, Name)> {
        let mut store = Store::new(u64::MAX);
        let mut all = Vec::new();
        for &length in lengths {
            for chunk in store.missing(&OF, &tokens[..length], 1) {
                all.push((chunk.start as usize + chunk.tokens.len(), chunk.name));
                store.insert(chunk).unwrap();
            }
        }
        all
    }

    #[test]
    fn the_chunks_of_a_prompt_are_found_however_it_grew() {
        let tokens: Vec<i32> = (0..3 * GRID as i32 + 9).collect();
        let all = tokens.len();
        for lengths in [
            vec![all],
            vec![1, 2, GRID - 1, GRID, GRID + 1, all],
            vec![5, 2 * GRID + 77, 2 * GRID + 78, all - 1, all],
        ] {
            let wanted = grown(&tokens, &lengths);
            let (mut place, mut at, mut found) = (Place::first(OF), 0, Vec::new());
            while at < all {
                let grid = at - place.skip;
                let cell = &tokens[grid..];
                let is_there = |(end, name): &(usize, Name)| wanted.contains(&(grid + end, *name));
                let (end, name) = place.chunks(cell).find(is_there).unwrap();
                at = grid + end;
                found.push((at, name));
                place = place.behind(cell, end);
            }
            assert_eq!(found, wanted, "{lengths:?}");
        }
    }

    #[test]
    fn a_store_knows_the_place_behind_what_it_has() {
        let tokens: Vec<i32> = (0..2 * GRID as i32).collect();
        for held in [0, 1, GRID - 1, GRID, GRID + 3] {
            let mut store = Store::new(u64::MAX);
            for chunk in store.missing(&OF, &tokens[..held], 1) {
                store.insert(chunk).unwrap();
            }
            let (found, place, parent) = store.place(&OF, &tokens);
            assert_eq!(found, held);
            let missing = store.missing(&OF, &tokens, 1);
            let cell = &tokens[held - place.skip..];
            let first = place.chunks(cell).next();
            let end = place.skip + missing[0].tokens.len();
            assert_eq!(first, Some((end, missing[0].name)), "{held}");
            assert_eq!(parent, missing[0].parent);
        }
    }

    #[test]
    fn the_tail_of_a_prompt_is_found_however_it_grew() {
        let tokens: Vec<i32> = (0..2 * GRID as i32).collect();
        for (lengths, at) in [
            (&[300][..], 300),
            (&[100, 290, 300], 300),
            (&[500], 300),
            (&[GRID], GRID),
            (&[GRID - 1], GRID - 1),
            (&[2 * GRID], GRID + 1),
        ] {
            let mut store = Store::new(u64::MAX);
            for &length in lengths {
                for chunk in store.missing(&OF, &tokens[..length], 1) {
                    store.insert(chunk).unwrap();
                }
            }
            let tail = store.missing_tail(&OF, &tokens[..at], 9).unwrap();
            let mut place = Place::first(OF);
            for cell in tokens[..at].chunks(GRID) {
                place = place.behind(cell, cell.len());
            }
            let cell = &tokens[at - place.skip..];
            assert_eq!(place.tail(cell), tail.name, "{lengths:?} {at}");
            assert_eq!((place.link, place.skip), (tail.link, at % GRID));
        }
    }

    #[test]
    fn behind_a_part_of_a_chunk_is_a_place_too() {
        let tokens: Vec<i32> = (0..2 * GRID as i32).collect();
        let mut store = Store::new(u64::MAX);
        for chunk in store.missing(&OF, &tokens, 1) {
            store.insert(chunk).unwrap();
        }
        for parted in [1, 100, GRID - 1, GRID, GRID + 100] {
            let mut other = tokens.clone();
            other[parted..].fill(-5);
            let (found, place, parent) = store.place(&OF, &other);
            let missing = store.missing(&OF, &other, 1);
            assert_eq!((found, parent), (parted, missing[0].parent));
            let cell = &other[parted - place.skip..];
            let names: Vec<_> = place.chunks(cell).collect();
            assert_eq!(names[0].1, missing[0].name);
            assert_eq!(names.len(), GRID - parted % GRID);
        }
    }
}
