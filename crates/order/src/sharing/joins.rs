//! Which clusters are joined.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::Block;

/// Two clusters that were joined. Below the number of contexts: a context; otherwise that many joins
/// before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// The clusters, the smaller number first.
    pub clusters: [usize; 2],
    /// The blocks that both have, ascending.
    pub common: Vec<Block>,
    /// What those weigh.
    pub shared: u64,
}

/// How good it is to join two clusters: the weight that they have in common; then how little they have
/// besides; then their numbers, the later cluster's first.
type Worth = (u64, Reverse<u64>, Reverse<usize>, Reverse<usize>);

/// Joins sets of blocks, those that have most in common first, until none has anything in common with
/// another. `weight` is what a block is worth, and counts as 1 if it is 0. Repeated blocks count once.
///
/// The time grows with the square of the number of sets. After `steps` comparisons of a set with another
/// no more are begun, and what is not joined by then stays apart.
#[must_use]
pub fn joins(sets: &[Vec<Block>], weight: impl Fn(Block) -> u64, steps: u64) -> Vec<Join> {
    let mut joining = Joining::new(weight, steps);
    let mut waiting = BinaryHeap::new();
    for set in sets {
        let mut set = set.clone();
        set.sort_unstable();
        set.dedup();
        let number = joining.add(set);
        waiting.extend(joining.best(number));
    }
    let mut joins = Vec::new();
    // Each cluster waits with the best of those before it, so that each pair is looked at once, by its
    // later one. If its partner was joined with another, the next best is no better: what comes first
    // here with both still there is the best of all pairs.
    while let Some((shared, _, Reverse(later), Reverse(earlier))) = waiting.pop() {
        if joining.clusters[later].is_none() {
            continue;
        }
        let Some(common) = joining.common(later, earlier) else {
            waiting.extend(joining.best(later));
            continue;
        };
        joining.clusters[later] = None;
        joining.clusters[earlier] = None;
        let number = joining.add(common.clone());
        joins.push(Join {
            clusters: [earlier, later],
            common,
            shared,
        });
        waiting.extend(joining.best(number));
    }
    joins
}

struct Joining<W> {
    weight: W,
    /// Ascending blocks and their weight; `None`: it was joined with another.
    clusters: Vec<Option<(Vec<Block>, u64)>>,
    /// The clusters that have a block. Those that were joined are dropped when the list is read.
    having: HashMap<Block, Vec<usize>>,
    /// What each cluster has in common with one that is looked at; all zero between.
    shared: Vec<u64>,
    steps: u64,
}

impl<W: Fn(Block) -> u64> Joining<W> {
    fn new(weight: W, steps: u64) -> Self {
        Self {
            weight,
            clusters: Vec::new(),
            having: HashMap::new(),
            shared: Vec::new(),
            steps,
        }
    }

    fn add(&mut self, blocks: Vec<Block>) -> usize {
        let number = self.clusters.len();
        let weight = blocks
            .iter()
            .map(|block| (self.weight)(*block).max(1))
            .sum();
        for block in &blocks {
            self.having.entry(*block).or_default().push(number);
        }
        self.clusters.push(Some((blocks, weight)));
        self.shared.push(0);
        number
    }

    /// The best of those before it, if any has something in common with it.
    fn best(&mut self, number: usize) -> Option<Worth> {
        let (blocks, own) = self.clusters[number].as_ref()?;
        let mut seen = Vec::new();
        for block in blocks {
            let weight = (self.weight)(*block).max(1);
            let Some(having) = self.having.get_mut(block) else {
                continue;
            };
            having.retain(|other| self.clusters[*other].is_some());
            self.steps = self.steps.saturating_sub(having.len() as u64);
            for &other in having.iter().take_while(|other| **other < number) {
                if self.shared[other] == 0 {
                    seen.push(other);
                }
                self.shared[other] += weight;
            }
        }
        let mut best = None;
        for other in seen {
            let shared = std::mem::take(&mut self.shared[other]);
            let theirs = self.clusters[other]
                .as_ref()
                .map_or(0, |(_, weight)| *weight);
            let lost = Reverse(own + theirs);
            best = best.max(Some((shared, lost, Reverse(number), Reverse(other))));
        }
        best.filter(|_| self.steps > 0)
    }

    /// What two clusters have in common; `None` if one of them was joined.
    fn common(&self, a: usize, b: usize) -> Option<Vec<Block>> {
        let (a, _) = self.clusters[a].as_ref()?;
        let (b, _) = self.clusters[b].as_ref()?;
        let in_b = |block: &&Block| b.binary_search(block).is_ok();
        Some(a.iter().filter(in_b).copied().collect())
    }
}
