//! Rows of tokens, and which of them other rows begin with.

use std::collections::HashMap;
use std::sync::Arc;

use contextpilot_traffic::Tokens;

/// A radix tree of rows.
#[derive(Debug)]
pub(crate) struct Prefixes {
    /// The first is the root.
    nodes: Vec<Node>,
    /// Children, by their parent and the identity of their first token.
    children: HashMap<(usize, u64), usize>,
}

/// The tokens `[from, to)` of a row.
#[derive(Clone, Debug, Default)]
struct Node {
    row: Arc<Tokens>,
    from: u32,
    to: u32,
    /// The value of the row that ends here.
    value: Option<usize>,
    /// The value of all rows that begin like this. `None`: they have several.
    only: Option<usize>,
}

impl Prefixes {
    pub(crate) fn new() -> Self {
        Self {
            nodes: vec![Node::default()],
            children: HashMap::new(),
        }
    }

    /// Adds the first `length` tokens of a row. Replaces the value of an equal row. Returns the node at which they end.
    pub(crate) fn insert(&mut self, row: &Arc<Tokens>, length: u32, value: usize) -> usize {
        let length = length.min(row.len());
        let (mut node, mut at) = (0, 0);
        while let Some((child, common)) = self.step(node, row, at, length) {
            node = if common < self.nodes[child].to - self.nodes[child].from {
                self.split(node, child, common)
            } else {
                child
            };
            at += common;
            let only = &mut self.nodes[node].only;
            *only = only.filter(|&only| only == value);
        }
        if let Some(identity) = row.at(at).filter(|_| at < length) {
            self.children.insert((node, identity), self.nodes.len());
            node = self.nodes.len();
            self.nodes.push(Node {
                row: Arc::clone(row),
                from: at,
                to: length,
                value: None,
                only: Some(value),
            });
        }
        self.nodes[node].value = Some(value);
        node
    }

    /// A walk through all nodes, each before those below it: the place of each node in it, and at each place how many tokens
    /// that node has in common with the one before.
    pub(crate) fn walk(&self) -> (Vec<u32>, Vec<u32>) {
        let mut below: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        for (&(parent, _), &child) in &self.children {
            below[parent].push(child);
        }
        let mut places = vec![0; self.nodes.len()];
        let mut shared = Vec::with_capacity(self.nodes.len());
        let mut open = vec![0];
        while let Some(node) = open.pop() {
            places[node] = shared.len() as u32;
            shared.push(self.nodes[node].from);
            open.extend(&below[node]);
        }
        (places, shared)
    }

    /// How many of the first `length` tokens of a row some row begins with, and the value of the longest
    /// row that they begin with.
    pub(crate) fn find(&self, row: &Tokens, length: u32) -> (u32, Option<usize>) {
        let (mut node, mut at, mut value) = (0, 0, None);
        while let Some((child, common)) = self.step(node, row, at, length.min(row.len())) {
            at += common;
            if common < self.nodes[child].to - self.nodes[child].from {
                break;
            }
            node = child;
            value = self.nodes[node].value.or(value);
        }
        (at, value)
    }

    /// The value of all rows that share the most tokens with the first `length` of a row. `None`: there are several, or
    /// none shares so many as `least`.
    pub(crate) fn only(&self, row: &Tokens, length: u32, least: u32) -> Option<usize> {
        let (mut node, mut at) = (0, 0);
        while let Some((child, common)) = self.step(node, row, at, length.min(row.len())) {
            at += common;
            node = child;
            if common < self.nodes[child].to - self.nodes[child].from {
                break;
            }
        }
        self.nodes[node].only.filter(|_| at >= least)
    }

    /// The child whose tokens begin as those of the row at `at`, and how many it has in common with them.
    fn step(&self, node: usize, row: &Tokens, at: u32, length: u32) -> Option<(usize, u32)> {
        let identity = row.at(at).filter(|_| at < length)?;
        let &child = self.children.get(&(node, identity))?;
        let held = &self.nodes[child];
        let alike = held.row.matching(held.from, row, at);
        Some((child, alike.min(held.to - held.from).min(length - at)))
    }

    /// Puts a node for the first `length` tokens of `child` between it and its parent.
    fn split(&mut self, parent: usize, child: usize, length: u32) -> usize {
        let middle = self.nodes.len();
        let lower = &mut self.nodes[child];
        let upper = Node {
            to: lower.from + length,
            value: None,
            ..lower.clone()
        };
        lower.from = upper.to;
        let firsts = [upper.from, upper.to].map(|at| upper.row.at(at).unwrap_or(0));
        self.children.insert((parent, firsts[0]), middle);
        self.children.insert((middle, firsts[1]), child);
        self.nodes.push(upper);
        middle
    }
}

#[cfg(test)]
mod tests {
    use contextpilot_traffic::Run;
    use proptest::prelude::*;

    use super::*;

    fn row(identities: &[u64]) -> Arc<Tokens> {
        let mut row = Tokens::new();
        for &first in identities {
            row.push(Run { first, length: 1 });
        }
        Arc::new(row)
    }

    proptest! {
        /// Compares with a list of all rows.
        #[test]
        fn of_any_rows_the_longest_prefixes_are_found(
            rows in prop::collection::vec((prop::collection::vec(0_u64..3, 0..9), 0_u32..10), 0..20),
            wanted in prop::collection::vec(0_u64..3, 0..12), length in 0_u32..14,
        ) {
            let mut prefixes = Prefixes::new();
            for (nth, (identities, length)) in rows.iter().enumerate() {
                prefixes.insert(&row(identities), *length, nth);
            }
            let cut = |row: &[u64], length: u32| row[..row.len().min(length as usize)].to_vec();
            let rows: Vec<Vec<u64>> = rows.iter().map(|(row, length)| cut(row, *length)).collect();
            let asked = cut(&wanted, length);
            let common = |row: &Vec<u64>| row.iter().zip(&asked).take_while(|(a, b)| a == b).count();
            let longest = rows.iter().map(common).max().unwrap_or(0);
            let whole = rows.iter().enumerate().filter(|(_, row)| asked.starts_with(row) && !row.is_empty());
            let value = whole.max_by_key(|(nth, row)| (row.len(), *nth)).map(|(nth, _)| nth);
            let found = prefixes.find(&row(&wanted), length);
            prop_assert_eq!(found, (longest as u32, value));
        }

        #[test]
        fn of_any_rows_those_that_share_the_most_have_one_value_or_several(
            rows in prop::collection::vec((prop::collection::vec(0_u64..3, 1..9), 0_usize..3), 0..20),
            wanted in prop::collection::vec(0_u64..3, 1..12),
        ) {
            let mut prefixes = Prefixes::new();
            for (identities, value) in &rows {
                prefixes.insert(&row(identities), u32::MAX, *value);
            }
            let common = |row: &[u64]| row.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
            let most = rows.iter().map(|(row, _)| common(row)).max().unwrap_or(0);
            let sharing = rows.iter().filter(|(row, _)| most > 0 && common(row) == most);
            let mut values: Vec<usize> = sharing.map(|(_, value)| *value).collect();
            values.dedup();
            let only = (values.len() == 1).then(|| values[0]);
            prop_assert_eq!(prefixes.only(&row(&wanted), u32::MAX, 0), only);
        }
    }
}
