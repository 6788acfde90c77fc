//! Which clusters are joined.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::cached::search::STEPS_OF_A_BATCH;
use crate::{Block, Cached};

/// What ordering a batch may still take.
pub(super) struct Budget {
    comparisons: Cell<u64>,
    /// Steps of searches for cached beginnings.
    steps: Cell<u64>,
}

impl Budget {
    pub(super) fn new(comparisons: u64) -> Self {
        Self {
            comparisons: Cell::new(comparisons),
            steps: Cell::new(STEPS_OF_A_BATCH),
        }
    }

    fn may_compare(&self) -> bool {
        self.comparisons.get() > 0
    }

    fn compared(&self, many: usize) {
        let left = self.comparisons.get().saturating_sub(many as u64);
        self.comparisons.set(left);
    }

    pub(super) fn search<T>(&self, search: impl FnOnce(&mut u64) -> T) -> T {
        let mut steps = self.steps.get();
        let found = search(&mut steps);
        self.steps.set(steps);
        found
    }
}

/// Two clusters that were joined. Below the number of contexts: a context; otherwise that many joins
/// before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// The clusters, the smaller number first.
    pub clusters: [usize; 2],
    /// The blocks that both have, ascending.
    pub common: Vec<Block>,
    /// What the join saves: the weight of those, less what of the cache can no longer be gone on with.
    pub saved: u64,
}

/// How good it is to join two clusters: what it saves; then how little they have besides; then their
/// numbers, the later cluster's first.
type Worth = (u64, Reverse<u64>, Reverse<usize>, Reverse<usize>);

/// Joins sets of blocks, the two first whose join saves most, until none saves anything. The blocks of
/// each set are put after `first`. `weight` is what a block is worth, and counts as 1 if it is 0.
/// Repeated blocks count once.
///
/// The time grows with the square of the number of sets. After `steps` comparisons of a set with another
/// no more are begun, and what is not joined by then stays apart.
#[must_use]
pub fn joins(
    sets: &[Vec<Block>],
    first: &[Block],
    cached: &Cached,
    weight: impl Fn(Block) -> u64,
    steps: u64,
) -> Vec<Join> {
    let budget = Budget::new(steps);
    joins_within(sets, first, cached, weight, &budget)
}

/// The same, with what is left for a batch.
pub(super) fn joins_within(
    sets: &[Vec<Block>],
    first: &[Block],
    cached: &Cached,
    weight: impl Fn(Block) -> u64,
    budget: &Budget,
) -> Vec<Join> {
    let mut joining = Joining::new(first, cached, weight, budget);
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
    // here with both still there is the best of all pairs. (After SEARCHES it can seem better, as what
    // is cached is no longer weighed: then it is joined later than it could be.)
    while let Some((saved, _, Reverse(later), Reverse(earlier))) = waiting.pop() {
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
            saved,
        });
        waiting.extend(joining.best(number));
    }
    joins
}

/// A set of blocks that some contexts have in common.
struct Cluster {
    /// Ascending.
    blocks: Vec<Block>,
    weight: u64,
    /// What the heaviest beginning weighs that is cached and that these blocks make.
    cached: u64,
}

struct Joining<'a, W> {
    first: &'a [Block],
    cached: &'a Cached,
    weight: W,
    /// `None`: it was joined with another.
    clusters: Vec<Option<Cluster>>,
    /// The clusters that have a block. Those that were joined are dropped when the list is read.
    having: HashMap<Block, Vec<usize>>,
    /// What each cluster has in common with one that is looked at; all zero between.
    shared: Vec<u64>,
    budget: &'a Budget,
    searches: u32,
}

/// So many joins are weighed against what is cached: those of a batch of some hundred contexts. All others
/// are judged by what is shared alone. Each takes some 20 µs where a thousand prompts are cached.
const SEARCHES: u32 = 10_000;

impl<'a, W: Fn(Block) -> u64> Joining<'a, W> {
    fn new(first: &'a [Block], cached: &'a Cached, weight: W, budget: &'a Budget) -> Self {
        Self {
            first,
            cached,
            weight,
            clusters: Vec::new(),
            having: HashMap::new(),
            shared: Vec::new(),
            budget,
            searches: SEARCHES,
        }
    }

    fn weigh(&self, blocks: &[Block]) -> u64 {
        let weights = blocks.iter().map(|block| (self.weight)(*block).max(1));
        weights.fold(0, u64::saturating_add)
    }

    /// The heaviest cached beginning that the blocks make after `first`.
    fn beginning(&self, first: &[Block], blocks: &[Block]) -> Vec<Block> {
        let search = |steps: &mut u64| {
            self.cached
                .best_within(first, blocks, &self.weight, 0, steps)
        };
        self.budget.search(search).blocks
    }

    fn add(&mut self, blocks: Vec<Block>) -> usize {
        let number = self.clusters.len();
        for block in &blocks {
            self.having.entry(*block).or_default().push(number);
        }
        self.clusters.push(Some(Cluster {
            weight: self.weigh(&blocks),
            cached: self.weigh(&self.beginning(self.first, &blocks)),
            blocks,
        }));
        self.shared.push(0);
        number
    }

    /// The best of those before it, if a join with any of them saves something.
    fn best(&mut self, number: usize) -> Option<Worth> {
        if !self.budget.may_compare() {
            return None;
        }
        let cluster = self.clusters[number].as_ref()?;
        let mut seen = Vec::new();
        for block in &cluster.blocks {
            let weight = (self.weight)(*block).max(1);
            let Some(having) = self.having.get_mut(block) else {
                continue;
            };
            having.retain(|other| self.clusters[*other].is_some());
            self.budget.compared(having.len());
            for &other in having.iter().take_while(|other| **other < number) {
                if self.shared[other] == 0 {
                    seen.push(other);
                }
                self.shared[other] += weight;
            }
        }
        let mut likely: Vec<Worth> = Vec::with_capacity(seen.len());
        for other in seen {
            let shared = std::mem::take(&mut self.shared[other]);
            if let Some(theirs) = &self.clusters[other] {
                let both = Reverse(cluster.weight + theirs.weight);
                likely.push((shared, both, Reverse(number), Reverse(other)));
            }
        }
        if self.cached.nodes() == 0 || self.searches == 0 {
            return likely
                .into_iter()
                .max()
                .filter(|_| self.budget.may_compare());
        }
        // A join saves no more than what is shared: those that share less than the best need not be
        // looked at.
        likely.sort_unstable_by_key(|worth| Reverse(*worth));
        let mut best: Option<Worth> = None;
        for (shared, both, _, Reverse(other)) in likely {
            if !self.budget.may_compare() || best.is_some_and(|(saved, ..)| saved > shared) {
                break;
            }
            let saved = self.saved(number, other, shared);
            let worth = (saved, both, Reverse(number), Reverse(other));
            best = best.max(Some(worth).filter(|_| saved > 0));
        }
        best.filter(|_| self.budget.may_compare())
    }

    /// What a join saves. What both share is evaluated once less. But both then begin with that, and
    /// what is cached can be gone on with only from there.
    fn saved(&mut self, a: usize, b: usize, shared: u64) -> u64 {
        let (Some(one), Some(other)) = (&self.clusters[a], &self.clusters[b]) else {
            return 0;
        };
        let apart = one.cached + other.cached;
        if apart == 0 || self.searches == 0 {
            return shared;
        }
        self.searches -= 1;
        let common = in_common(one, other);
        let mut first = self.first.to_vec();
        let begun = self.beginning(self.first, &common);
        first.extend(&begun);
        let mut together = self.weigh(&begun);
        if begun.len() == common.len() {
            for cluster in [one, other] {
                let mut rest = cluster.blocks.clone();
                rest.retain(|block| common.binary_search(block).is_err());
                together += self.weigh(&self.beginning(&first, &rest));
            }
        }
        (shared + together).saturating_sub(apart)
    }

    /// What two clusters have in common; `None` if one of them was joined.
    fn common(&self, a: usize, b: usize) -> Option<Vec<Block>> {
        let (a, b) = (self.clusters[a].as_ref()?, self.clusters[b].as_ref()?);
        Some(in_common(a, b))
    }
}

fn in_common(a: &Cluster, b: &Cluster) -> Vec<Block> {
    let in_b = |block: &&Block| b.blocks.binary_search(block).is_ok();
    a.blocks.iter().filter(in_b).copied().collect()
}
