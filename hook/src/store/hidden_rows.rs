//! The hidden states of tokens, in memory: those of the host's last batch, and those that are to be stored.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use contextpilot_kv_store::{Conditions, HIDDEN_STATES, common};

/// What the host asks for, a row for each entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// What is behind the last layer.
    Last,
    /// What goes into a layer.
    Layer(u32),
}

/// Sources with the numbers of a row of each.
pub(super) type Sources = Vec<(Source, usize)>;

/// The rows of the host's last batch, in the order of its entries, if some of these were left out. Beside the record, because
/// the host reads them even if the library stops.
#[derive(Debug)]
pub(super) struct Batch {
    sources: Sources,
    /// How many rows there are of each source.
    entries: usize,
    /// Those of one source after the other.
    rows: Vec<f32>,
}

impl Batch {
    pub(super) const NONE: Self = Self {
        sources: Vec::new(),
        entries: 0,
        rows: Vec::new(),
    };

    pub(super) fn of(sources: Sources) -> Self {
        Self {
            sources,
            ..Self::NONE
        }
    }

    /// Makes room for so many entries.
    pub(super) fn begin(&mut self, entries: usize) {
        let width: usize = self.sources.iter().map(|(_, width)| width).sum();
        self.entries = entries;
        self.rows.clear();
        self.rows.resize(entries.saturating_mul(width), 0.0);
    }

    pub(super) fn row_mut(&mut self, source: Source, index: usize) -> Option<&mut [f32]> {
        let at = self
            .sources
            .iter()
            .position(|(known, _)| *known == source)?;
        let before: usize = self.sources[..at].iter().map(|(_, width)| width).sum();
        let width = self.sources[at].1;
        let from = before * self.entries + index.checked_mul(width)?;
        let row = self.rows.get_mut(from..from.checked_add(width)?);
        row.filter(|_| index < self.entries)
    }

    /// The row of an entry, of all sources.
    pub(super) fn give(&mut self, index: usize, row: &[u8]) {
        let mut numbers = numbers_of(row);
        let mut before = 0;
        for &(_, width) in &self.sources {
            let from = before * self.entries + index * width;
            let target = self.rows.get_mut(from..from + width);
            for (target, number) in target.into_iter().flatten().zip(&mut numbers) {
                *target = number;
            }
            before += width;
        }
    }
}

/// What is kept of a context.
#[derive(Default)]
pub(super) struct Hidden {
    pub(super) sources: Sources,
    /// Bytes of a row, of all sources.
    pub(super) size: usize,
    pub(super) of: BTreeMap<i32, Rows>,
    /// Rows of what the store itself has evaluated for the host's batch that is being prepared, by sequence.
    pub(super) ours: BTreeMap<i32, Ours>,
}

impl Hidden {
    /// What its rows are, for the name of what is stored.
    pub(super) fn fact(&self) -> Vec<u8> {
        let mut fact = HIDDEN_STATES.to_vec();
        let layers = self.sources.iter().filter_map(|(source, _)| match source {
            Source::Last => None,
            Source::Layer(layer) => Some(layer.to_le_bytes()),
        });
        fact.extend(layers.flatten());
        if self.sources.len() > 1 && self.sources.iter().any(|(known, _)| *known == Source::Last) {
            fact.extend(u32::MAX.to_le_bytes());
        }
        fact
    }
}

/// Entries of the host's batch that the store has evaluated by itself, side by side.
#[derive(Default)]
pub(super) struct Ours {
    /// The position of the first one.
    pub(super) first: usize,
    pub(super) tokens: Vec<i32>,
    pub(super) rows: Vec<Box<[u8]>>,
}

impl Ours {
    /// How many of these tokens, which stand at positions from `first` on, come before those that are ours, if all others are.
    pub(super) fn behind(&self, tokens: &[i32], first: usize) -> Option<usize> {
        let before = self.first.saturating_sub(first);
        let from = (first + before).checked_sub(self.first)?;
        let ours = self.tokens.get(from..).filter(|ours| !ours.is_empty())?;
        (tokens.get(before..)? == ours).then_some(before)
    }
}

/// Rows of one sequence, of tokens side by side.
#[derive(Default)]
pub(super) struct Rows {
    /// The sequence's tokens, up to the last one that has a row.
    pub(super) tokens: Vec<i32>,
    pub(super) conditions: Conditions,
    /// The position of the first row.
    first: usize,
    pub(super) rows: VecDeque<Box<[u8]>>,
}

impl Rows {
    pub(super) fn end(&self) -> usize {
        self.first + self.rows.len()
    }

    /// The rows of these tokens from position `at` on follow. What is of other tokens is forgotten, and all if a row is missing
    /// in between.
    pub(super) fn follow(&mut self, tokens: &[i32], conditions: Conditions, at: usize) {
        let same = if self.conditions == conditions {
            common(&self.tokens, &tokens[..at])
        } else {
            0
        };
        self.rows.truncate(same.saturating_sub(self.first));
        if self.end() != at {
            self.rows.clear();
            self.first = at;
        }
        self.conditions = conditions;
        self.tokens.truncate(same);
        self.tokens.extend_from_slice(&tokens[same..]);
    }

    /// The rows at these positions, side by side. `None`: not all are there.
    pub(super) fn of(&self, range: Range<usize>) -> Option<Vec<u8>> {
        let range = range.start.checked_sub(self.first)?..range.end.checked_sub(self.first)?;
        if range.end > self.rows.len() {
            return None;
        }
        let rows: Vec<&[u8]> = self.rows.range(range).map(|row| &**row).collect();
        Some(rows.concat())
    }

    /// The rows of the first tokens are stored.
    pub(super) fn forget_before(&mut self, position: usize) {
        let stored = position.saturating_sub(self.first).min(self.rows.len());
        self.rows.drain(..stored);
        self.first += stored;
    }
}

/// The numbers of a row that is not KV.
pub(super) fn numbers_of(row: &[u8]) -> impl Iterator<Item = f32> {
    let numbers = row.chunks_exact(size_of::<f32>());
    numbers.map(|bytes| f32::from_ne_bytes([0, 1, 2, 3].map(|at| bytes[at])))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNDER: Conditions = Conditions(0);

    /// Tokens that a sequence is given, one after the other, with a row for each: its number.
    fn add(rows: &mut Rows, tokens: &[i32], at: usize) {
        rows.follow(tokens, UNDER, at);
        for &token in &tokens[at..] {
            rows.rows.push_back([token as u8].into());
        }
    }

    #[test]
    fn rows_stand_side_by_side_and_are_of_the_tokens_that_they_say() {
        let mut rows = Rows::default();
        add(&mut rows, &[1, 2, 3], 0);
        add(&mut rows, &[1, 2, 3, 4], 3);
        assert_eq!(rows.of(0..4), Some(vec![1, 2, 3, 4]));
        // Two were guesses, and one of these is right.
        add(&mut rows, &[1, 2, 3, 9], 3);
        assert_eq!(rows.of(1..4), Some(vec![2, 3, 9]));
        assert_eq!(rows.of(1..5), None);
        // The sequence was replaced.
        add(&mut rows, &[1, 7, 3, 9, 5], 4);
        assert_eq!((rows.of(0..4), rows.of(4..5)), (None, Some(vec![5])));
        // Some were evaluated that have no rows.
        add(&mut rows, &[1, 7, 3, 9, 5, 6, 8], 6);
        assert_eq!((rows.of(4..6), rows.of(6..7)), (None, Some(vec![8])));
    }

    #[test]
    fn a_batch_has_the_rows_of_each_source_side_by_side() {
        let sources = vec![(Source::Layer(2), 1), (Source::Last, 2)];
        let mut batch = Batch::of(sources);
        assert_eq!(batch.row_mut(Source::Last, 0), None);
        batch.begin(2);
        let row: Vec<u8> = [7.0, 8.0, 9.0_f32]
            .into_iter()
            .flat_map(f32::to_ne_bytes)
            .collect();
        batch.give(1, &row);
        assert_eq!(batch.rows, [0.0, 7.0, 0.0, 0.0, 8.0, 9.0]);
        assert_eq!(batch.row_mut(Source::Last, 1), Some(&mut [8.0, 9.0][..]));
        assert_eq!(batch.row_mut(Source::Layer(2), 2), None);
        assert_eq!(batch.row_mut(Source::Layer(1), 0), None);
        batch.begin(0);
        assert_eq!(batch.row_mut(Source::Layer(2), 0), None);
    }

    #[test]
    fn what_the_store_has_evaluated_by_itself_is_the_end_of_what_was_left_out() {
        let ours = Ours {
            first: 10,
            tokens: vec![1, 2, 3],
            rows: Vec::new(),
        };
        assert_eq!(ours.behind(&[8, 9, 1, 2, 3], 8), Some(2));
        assert_eq!(ours.behind(&[1, 2, 3], 10), Some(0));
        // Some of it was needed before the batch.
        assert_eq!(ours.behind(&[3], 12), Some(0));
        assert_eq!(ours.behind(&[8, 9, 1, 2], 8), None);
        assert_eq!(ours.behind(&[8, 9, 1, 7, 3], 8), None);
        assert_eq!(ours.behind(&[3], 20), None);
        assert_eq!(Ours::default().behind(&[1, 2], 5), None);
        assert_eq!(Ours::default().behind(&[], 0), None);
    }

    #[test]
    fn what_is_stored_is_forgotten() {
        let mut rows = Rows::default();
        add(&mut rows, &[1, 2, 3, 4], 0);
        rows.forget_before(3);
        rows.forget_before(2);
        assert_eq!((rows.of(2..4), rows.of(3..4)), (None, Some(vec![4])));
        rows.forget_before(9);
        assert_eq!((rows.first, rows.end()), (4, 4));
        add(&mut rows, &[1, 2, 3, 4, 5], 4);
        assert_eq!(rows.of(4..5), Some(vec![5]));
    }

    #[test]
    fn rows_under_other_adapters_are_others() {
        let mut rows = Rows::default();
        add(&mut rows, &[1, 2], 0);
        rows.follow(&[1, 2, 3], Conditions(1), 2);
        assert_eq!((rows.of(0..2), rows.first), (None, 2));
    }
}
