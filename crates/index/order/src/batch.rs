//! Orders a batch: the blocks of each context, and the contexts.

use std::collections::HashMap;

use crate::tree::{Path, Tree};
use crate::{Block, Cached, Linkage, distances, linkage};

/// The parameters of ordering a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchOptions {
    /// The weight of a difference of positions, relative to blocks that are not shared.
    pub alpha: f64,
    /// The distance of two groups.
    pub linkage: Linkage,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self {
            alpha: 0.001,
            linkage: Linkage::Average,
        }
    }
}

/// A batch in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The blocks of each context, each a permutation of the input, with the contexts in the input's order.
    pub contexts: Vec<Vec<Block>>,
    /// Contexts to be sent one after the other, group by group. Each occurs once.
    pub groups: Vec<Vec<usize>>,
    /// Nodes of the tree, its root included.
    pub nodes: usize,
    /// Those without children.
    pub leaves: usize,
}

impl Batch {
    /// All contexts, one after the other.
    pub fn schedule(&self) -> impl Iterator<Item = usize> {
        self.groups.iter().flatten().copied()
    }
}

/// Orders a batch, so that contexts share prefixes, and those that do are neighbours.
///
/// Contexts are clustered by [`distances`]. The common blocks of a cluster are put
/// at the beginning of its contexts, those of larger clusters first. Groups are the branches below the
/// root, the largest first. Within a group the deepest contexts are first.
///
/// Common blocks are put in ascending order: number them in a meaningful order, for instance by
/// first appearance.
#[must_use]
pub fn batch(contexts: &[Vec<Block>], options: &BatchOptions) -> Batch {
    batch_after(contexts, &Cached::new(), options)
}

/// The same, with regard to the cache. Common blocks that continue a cached prefix come first, and so
/// does the group with the longest, because groups that are sent before it may overwrite the
/// cache.
#[must_use]
pub fn batch_after(contexts: &[Vec<Block>], cached: &Cached, options: &BatchOptions) -> Batch {
    let merges = linkage(distances(contexts, options.alpha), options.linkage);
    let tree = Tree::new(contexts, &merges, cached);
    let mut ordered = Vec::with_capacity(contexts.len());
    let mut paths = Vec::with_capacity(contexts.len());
    for (number, context) in contexts.iter().enumerate() {
        let (order, path) = match tree.leaf(number) {
            Some((node, path)) => (by(&node.blocks, context), path),
            None => (context.clone(), Path::default()),
        };
        ordered.push(order);
        paths.push(path);
    }
    let (nodes, leaves) = match contexts {
        [] => (1, 1),
        [_] => (2, 1),
        _ => tree.count(),
    };
    let mut groups = groups(&paths);
    if cached.nodes() > 0 {
        let reuse = |context: &usize| cached.beginning_of(&ordered[*context], |_| 1, 0).0;
        // Stable: groups without a cached prefix keep their order.
        groups.sort_by_key(|group| std::cmp::Reverse(group.iter().map(reuse).max()));
    }
    Batch {
        contexts: ordered,
        groups,
        nodes,
        leaves,
    }
}

/// The blocks of a context in the order of another one, as far as that has them; then the others.
/// Repeated blocks are kept: the repetitions come last.
pub(crate) fn by(order: &[Block], context: &[Block]) -> Vec<Block> {
    let mut left: HashMap<Block, usize> = HashMap::with_capacity(context.len());
    for block in context {
        *left.entry(*block).or_default() += 1;
    }
    let mut result = Vec::with_capacity(context.len());
    let mut taken: HashMap<Block, usize> = HashMap::new();
    for block in order {
        if let Some(count) = left.get_mut(block).filter(|count| **count > 0) {
            *count -= 1;
            *taken.entry(*block).or_default() += 1;
            result.push(*block);
        }
    }
    for block in context {
        match taken.get_mut(block).filter(|count| **count > 0) {
            Some(count) => *count -= 1,
            None => result.push(*block),
        }
    }
    result
}

fn groups(paths: &[Path]) -> Vec<Vec<usize>> {
    let mut by_branch: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
    for (context, Path(path)) in paths.iter().enumerate() {
        by_branch
            .entry(path.first().copied())
            .or_default()
            .push(context);
    }
    let mut groups: Vec<Vec<usize>> = by_branch.into_values().collect();
    for group in &mut groups {
        group.sort_by_key(|context| {
            let Path(path) = &paths[*context];
            (std::cmp::Reverse(path.len()), path, *context)
        });
    }
    groups.sort_by_key(|group| (std::cmp::Reverse(group.len()), group.first().copied()));
    groups
}

/// Whether the second has all blocks of the first, each as often.
#[must_use]
pub fn is_permutation(a: &[Block], b: &[Block]) -> bool {
    let sorted = |blocks: &[Block]| {
        let mut blocks = blocks.to_vec();
        blocks.sort_unstable();
        blocks
    };
    sorted(a) == sorted(b)
}
