//! The tree of common blocks, built from the clustering of contexts.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::cached::search::STEPS_OF_A_BATCH;
use crate::linkage::Merge;
use crate::{Block, Cached};

/// A node: the blocks that all contexts below it have in common, in the order in which they are
/// put at the beginning of these.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) blocks: Vec<Block>,
    content: HashSet<Block>,
    pub(crate) children: Vec<usize>,
    pub(crate) parent: Option<usize>,
}

/// The tree. Nodes are named by the numbers of contexts and merges ([`Merge::clusters`]); not
/// every number has a node: contexts with the same blocks share one, and contexts and groups
/// that have nothing in common with others hang below a root without blocks.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    nodes: Vec<Option<Node>>,
    /// The node of each context.
    leaves: Vec<Option<usize>>,
    /// What hangs below the root without blocks, if there is one.
    tops: Vec<usize>,
    rooted: bool,
}

/// The position of a context in the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path(pub(crate) Vec<usize>);

impl Tree {
    pub(crate) fn new(contexts: &[Vec<Block>], merges: &[Merge], cached: &Cached) -> Self {
        let mut building = Building::new(contexts);
        for merge in merges {
            building.merge(merge.clusters);
        }
        let mut tree = building.done(contexts.len());
        tree.order(cached);
        tree
    }

    /// The node of a context, if it is a leaf. Contexts without blocks have none. If the blocks of one
    /// context are common to others, its node is not a leaf.
    pub(crate) fn leaf(&self, context: usize) -> Option<(&Node, Path)> {
        let number = self.leaves[context]?;
        let node = self.node(number);
        node.children.is_empty().then(|| (node, self.path(number)))
    }

    /// All nodes, and those without children.
    pub(crate) fn count(&self) -> (usize, usize) {
        let nodes = || self.nodes.iter().flatten();
        let leaves = nodes().filter(|node| node.children.is_empty()).count();
        (nodes().count() + usize::from(self.rooted), leaves)
    }

    fn node(&self, number: usize) -> &Node {
        // Every number that a leaf, a child list or a parent names has a node.
        self.nodes[number].as_ref().expect("a node")
    }

    /// The indices of children from the root down.
    fn path(&self, number: usize) -> Path {
        let mut path = Vec::new();
        let mut next = Some(number);
        // A path cannot be longer than the number of nodes.
        for _ in 0..self.nodes.len() {
            let Some(at) = next else { break };
            next = self.node(at).parent;
            let siblings = match next {
                Some(parent) => &self.node(parent).children,
                None if self.rooted => &self.tops,
                None => break,
            };
            path.extend(siblings.iter().position(|child| *child == at));
        }
        path.reverse();
        Path(path)
    }

    /// Orders the blocks of each node, from the top down: first those of its parent, then those
    /// that continue a cached prefix, then the others.
    fn order(&mut self, cached: &Cached) {
        let mut waiting: VecDeque<usize> = self.tops.iter().copied().collect();
        let mut seen = HashSet::new();
        let mut steps = STEPS_OF_A_BATCH;
        while let Some(number) = waiting.pop_front() {
            if !seen.insert(number) {
                continue;
            }
            let node = self.node(number);
            let common = node
                .parent
                .map_or(&[][..], |parent| &self.node(parent).blocks);
            let common = common.iter().copied();
            let mut blocks: Vec<Block> = common
                .filter(|block| node.content.contains(block))
                .collect();
            if !blocks.is_empty() || cached.nodes() > 0 {
                let mut rest = without(node.blocks.clone(), &blocks);
                let next = cached.best_within(&blocks, &rest, |_| 1, 0, &mut steps);
                rest = without(rest, &next.blocks);
                blocks.extend(next.blocks);
                blocks.extend(rest);
                if let Some(node) = &mut self.nodes[number] {
                    node.blocks = blocks;
                }
            }
            waiting.extend(&self.node(number).children);
        }
    }
}

/// The blocks that are not among `these`.
pub(crate) fn without(mut blocks: Vec<Block>, these: &[Block]) -> Vec<Block> {
    let these: HashSet<Block> = these.iter().copied().collect();
    blocks.retain(|block| !these.contains(block));
    blocks
}

struct Building {
    nodes: Vec<Option<Node>>,
    /// Which node stands for each context and each merge.
    stands: Vec<Option<usize>>,
    /// The node that was created last with these blocks (ascending).
    with: HashMap<Vec<Block>, usize>,
    /// Nodes that were merged with nodes that they share nothing with.
    tops: HashSet<usize>,
}

impl Building {
    fn new(contexts: &[Vec<Block>]) -> Self {
        let mut building = Self {
            nodes: vec![None; contexts.len()],
            stands: Vec::with_capacity(2 * contexts.len()),
            with: HashMap::with_capacity(contexts.len()),
            tops: HashSet::new(),
        };
        for (number, context) in contexts.iter().enumerate() {
            let stands = (!context.is_empty()).then(|| {
                let content: HashSet<Block> = context.iter().copied().collect();
                let node = Node {
                    blocks: context.clone(),
                    content,
                    children: Vec::new(),
                    parent: None,
                };
                let key = ascending(&node.content);
                let stands = *building.with.entry(key).or_insert(number);
                if stands == number {
                    building.nodes[number] = Some(node);
                }
                stands
            });
            building.stands.push(stands);
        }
        building
    }

    fn merge(&mut self, clusters: [usize; 2]) {
        let number = self.nodes.len();
        self.nodes.push(None);
        let stands = match clusters.map(|cluster| self.stands[cluster]) {
            [Some(a), Some(b)] if a == b => Some(a),
            [Some(a), Some(b)] => self.join(number, a, b),
            [a, b] => {
                self.tops.extend(a);
                self.tops.extend(b);
                None
            }
        };
        self.stands.push(stands);
    }

    fn join(&mut self, number: usize, a: usize, b: usize) -> Option<usize> {
        let content = |it: usize| self.nodes[it].as_ref().map(|node| &node.content);
        let content: HashSet<Block> = content(a)?.intersection(content(b)?).copied().collect();
        if content.is_empty() {
            self.tops.extend([a, b]);
            return None;
        }
        let blocks = ascending(&content);
        let known = self.with.get(&blocks).copied();
        let stands = match known.filter(|known| *known != a && *known != b) {
            // What they have in common is what some other context is, or others have in common.
            Some(known) => {
                if let Some(node) = &mut self.nodes[known] {
                    node.blocks = blocks;
                    for child in [a, b] {
                        if !node.children.contains(&child) {
                            node.children.push(child);
                        }
                    }
                }
                known
            }
            None => {
                self.with.insert(blocks.clone(), number);
                self.nodes[number] = Some(Node {
                    blocks,
                    content,
                    children: vec![a, b],
                    parent: None,
                });
                number
            }
        };
        for child in [a, b] {
            if let Some(node) = &mut self.nodes[child] {
                node.parent = Some(stands);
            }
        }
        Some(stands)
    }

    fn done(mut self, contexts: usize) -> Tree {
        for number in self.tops {
            if let Some(node) = &mut self.nodes[number] {
                node.parent = None;
            }
        }
        let is_top = |node: &Option<Node>| node.as_ref().is_some_and(|node| node.parent.is_none());
        let tops: Vec<usize> = (0..self.nodes.len())
            .filter(|number| is_top(&self.nodes[*number]))
            .collect();
        Tree {
            rooted: tops.len() > 1 || contexts <= 1,
            leaves: self.stands.drain(..contexts).collect(),
            nodes: self.nodes,
            tops,
        }
    }
}

fn ascending(blocks: &HashSet<Block>) -> Vec<Block> {
    let mut blocks: Vec<Block> = blocks.iter().copied().collect();
    blocks.sort_unstable();
    blocks
}
