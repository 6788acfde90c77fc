//! Where the blocks and the contexts of a tree of clusters are put.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::joins::{Budget, Join};
use crate::batch::by;
use crate::tree::without;
use crate::{Block, Cached};

/// Puts contexts in order that have the same blocks at their beginnings, which stay there.
pub(super) struct Placer<'a, W> {
    /// The blocks at their beginnings.
    pub(super) kept: &'a [Block],
    /// What follows these blocks in each context.
    pub(super) contexts: &'a [Vec<Block>],
    pub(super) joins: &'a [Join],
    pub(super) cached: &'a Cached,
    pub(super) weight: W,
    /// How many contexts of the batch have a block.
    pub(super) popularity: &'a HashMap<Block, usize>,
    pub(super) budget: &'a Budget,
}

/// A cluster, or a context, on the way down.
struct Branch {
    number: usize,
    /// The blocks that are kept, then those that all of its contexts have, in order.
    blocks: Vec<Block>,
    /// How many blocks it adds to the beginning that goes on with what is cached.
    cached: usize,
}

impl<W: Fn(Block) -> u64> Placer<'_, W> {
    /// Contexts that are to be sent one after the other, each with its blocks in order: the contexts of
    /// a cluster stand together, and so do those of each cluster in it.
    pub(super) fn groups(&self) -> Vec<Vec<(usize, Vec<Block>)>> {
        let mut inner = vec![false; self.contexts.len() + self.joins.len()];
        for cluster in self.joins.iter().flat_map(|join| join.clusters) {
            inner[cluster] = true;
        }
        let tops = (0..inner.len()).filter(|number| !inner[*number]);
        tops.map(|number| self.below(self.branch(number, self.kept)))
            .collect()
    }

    fn below(&self, top: Branch) -> Vec<(usize, Vec<Block>)> {
        let mut contexts = Vec::new();
        let mut waiting = vec![top];
        while let Some(Branch { number, blocks, .. }) = waiting.pop() {
            match number.checked_sub(self.contexts.len()) {
                None => {
                    let context = &self.contexts[number];
                    let mut ordered = self.kept.to_vec();
                    ordered.extend(by(&blocks[self.kept.len()..], context));
                    contexts.push((number, ordered));
                }
                Some(join) => {
                    let clusters = self.joins[join].clusters;
                    let mut inner = clusters.map(|cluster| self.branch(cluster, &blocks));
                    // The one that is pushed last comes first: what is cached, before it is overwritten.
                    inner.sort_by_key(|branch| (branch.cached, Reverse(branch.number)));
                    waiting.extend(inner);
                }
            }
        }
        contexts
    }

    /// A cluster or a context whose first blocks are those of the cluster above it.
    fn branch(&self, number: usize, first: &[Block]) -> Branch {
        let all = match number.checked_sub(self.contexts.len()) {
            None => &self.contexts[number],
            Some(join) => &self.joins[join].common,
        };
        let mut blocks = first.to_vec();
        let rest = without(all.clone(), &first[self.kept.len()..]);
        let search = |steps: &mut u64| {
            self.cached
                .best_within(first, &rest, &self.weight, 0, steps)
        };
        let found = self.budget.search(search);
        let mut rest = without(rest, &found.blocks);
        rest.sort_by_key(|block| Reverse(self.popularity.get(block).copied()));
        let cached = found.blocks.len();
        blocks.extend(found.blocks);
        blocks.extend(rest);
        Branch {
            number,
            blocks,
            cached,
        }
    }
}
