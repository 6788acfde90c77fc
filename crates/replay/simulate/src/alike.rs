//! How many tokens any two recorded rows begin with in common, without a look at their tokens.
//!
//! All rows stand in a radix tree. In the order of a walk through it, two rows share as many tokens as the least that any
//! two neighbours between them do. So each replay compares numbers, and rows are compared once.

use std::sync::Arc;

use contextpilot_traffic::{Tokens, Traffic};

use crate::prefixes::Prefixes;

/// The recorded rows: those of requests, and what slots held when they were changed.
#[derive(Debug, Default)]
pub(crate) struct Alike {
    /// The place of each row in the walk: those of requests, then those of changes.
    places: Vec<u32>,
    /// How many are of requests.
    requests: usize,
    /// How many tokens are shared all along 2ⁿ steps of the walk: for each n, by the place of the last step.
    shared: Vec<Vec<u32>>,
}

impl Alike {
    pub(crate) fn new(traffic: &Traffic) -> Self {
        let requests = traffic.requests.iter().map(|request| &request.tokens);
        let changes = traffic.changes.iter().map(|change| &change.tokens);
        Self {
            requests: traffic.requests.len(),
            ..Self::of_rows(requests.chain(changes))
        }
    }

    pub(crate) fn of_rows<'a>(rows: impl Iterator<Item = &'a Arc<Tokens>>) -> Self {
        let mut prefixes = Prefixes::new();
        let nodes: Vec<usize> = rows.map(|row| prefixes.insert(row, row.len(), 0)).collect();
        let (places, steps) = prefixes.walk();
        let mut shared = vec![steps];
        let mut reach = 1;
        while let Some(last) = shared.last().filter(|last| 2 * reach < last.len()) {
            let both = |at: usize| last[at].min(last[at.saturating_sub(reach)]);
            shared.push((0..last.len()).map(both).collect());
            reach *= 2;
        }
        Self {
            places: nodes.into_iter().map(|node| places[node]).collect(),
            requests: 0,
            shared,
        }
    }

    /// The place of the row of the request with this number in the recording.
    pub(crate) fn place_of_request(&self, nth: usize) -> Option<u32> {
        self.places.get(nth).copied()
    }

    /// The same of the change with this number.
    pub(crate) fn place_of_change(&self, nth: usize) -> Option<u32> {
        self.place_of_request(self.requests + nth)
    }

    /// How many tokens the rows at two places begin with in common. `None`: it is the same place, so one of them is the
    /// beginning of the other.
    pub(crate) fn between(&self, one: u32, other: u32) -> Option<u32> {
        let (first, last) = (one.min(other) as usize, one.max(other) as usize);
        let nth = (last - first).checked_ilog2()? as usize;
        let steps = self.shared.get(nth)?;
        Some(steps[last].min(steps[first + (1 << nth)]))
    }
}
