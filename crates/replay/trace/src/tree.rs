//! The chains of all requests as one tree.
//!
//! A node is a run of blocks that no request has parted: each request has all of a node's blocks, or none. So whatever is
//! true of one block of a node (when it was used, when it will be) is true of all, and a request is a handful of nodes
//! where it has hundreds of blocks.

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::hash::{BuildHasher, Hasher};

/// A node. [`ROOT`] is the empty chain.
pub type Node = u32;

/// The empty chain: it has no blocks, and is above all.
pub const ROOT: Node = 0;

/// The most nodes of a tree.
const MOST_NODES: usize = u32::MAX as usize - 1;

/// A tree of chains.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: Vec<Run>,
    /// By the node above and the first block.
    children: HashTable<Node>,
    /// Blocks of runs whose ids do not follow each other.
    pool: Vec<u64>,
    /// Blocks of all nodes.
    blocks: u64,
}

/// The blocks of a node.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The id of the first, where the others follow it one by one; else where they stand in the pool.
    first: u64,
    parent: Node,
    /// How many, and whether they are in the pool.
    length: u32,
    /// Blocks from the root to the last one of this node.
    depth: u32,
}

const POOLED: u32 = 1 << 31;
/// The most blocks of a chain.
pub const MOST_BLOCKS: usize = (1 << 31) - 1;

/// The chain of a request has too many blocks, or the trees of all too many nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

impl Tree {
    /// Without chains.
    #[must_use]
    pub fn new() -> Self {
        let root = Run {
            first: 0,
            parent: ROOT,
            length: 0,
            depth: 0,
        };
        Self {
            nodes: vec![root],
            children: HashTable::new(),
            pool: Vec::new(),
            blocks: 0,
        }
    }

    /// The node at which a chain of blocks ends.
    ///
    /// # Errors
    /// There are too many.
    pub fn insert(&mut self, ids: &[u64]) -> Result<Node, TooLarge> {
        if ids.len() > MOST_BLOCKS || self.nodes.len() + 2 > MOST_NODES {
            return Err(TooLarge);
        }
        let (mut node, mut at) = (ROOT, 0);
        while at < ids.len() {
            let Some(child) = self.child(node, ids[at]) else {
                return Ok(self.add(node, &ids[at..]));
            };
            let same = self.common(child, &ids[at..]);
            at += same;
            node = if same < self.length(child) as usize {
                self.split(child, same as u32)
            } else {
                child
            };
        }
        Ok(node)
    }

    /// The nodes of a chain, the root's child first. The root itself is left out.
    pub fn path(&self, end: Node, into: &mut Vec<Node>) {
        into.clear();
        let mut node = end;
        while node != ROOT {
            into.push(node);
            node = self.parent(node);
        }
        into.reverse();
    }

    /// The node above.
    #[must_use]
    pub fn parent(&self, node: Node) -> Node {
        self.nodes[node as usize].parent
    }

    /// How many blocks a node has.
    #[must_use]
    pub fn length(&self, node: Node) -> u32 {
        self.nodes[node as usize].length & !POOLED
    }

    /// How many blocks a chain has that ends with this node.
    #[must_use]
    pub fn depth(&self, node: Node) -> u32 {
        self.nodes[node as usize].depth
    }

    /// The number of nodes, with the root. Nodes are the numbers below it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// How many different blocks there are. The same id behind other blocks is another block.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The blocks of a node.
    pub fn ids(&self, node: Node) -> impl Iterator<Item = u64> + '_ {
        let run = self.nodes[node as usize];
        let length = u64::from(self.length(node));
        let is_pooled = run.length & POOLED != 0;
        (0..length).map(move |nth| {
            if is_pooled {
                self.pool[(run.first + nth) as usize]
            } else {
                run.first + nth
            }
        })
    }

    fn first_id(&self, node: Node) -> u64 {
        first_id(&self.nodes[node as usize], &self.pool)
    }

    fn child(&self, parent: Node, id: u64) -> Option<Node> {
        let is_it = |child: &Node| self.parent(*child) == parent && self.first_id(*child) == id;
        self.children.find(hash(parent, id), is_it).copied()
    }

    /// How many of a node's blocks are the first of `ids`.
    fn common(&self, node: Node, ids: &[u64]) -> usize {
        let run = &self.nodes[node as usize];
        let length = (self.length(node) as usize).min(ids.len());
        let ids = &ids[..length];
        let same = match run.length & POOLED {
            0 => {
                let expected = |nth: usize| run.first.wrapping_add(nth as u64);
                (0..length).position(|nth| ids[nth] != expected(nth))
            }
            _ => {
                let pooled = &self.pool[run.first as usize..][..length];
                pooled.iter().zip(ids).position(|(pooled, id)| pooled != id)
            }
        };
        same.unwrap_or(length)
    }

    /// A node below `parent` with these blocks.
    fn add(&mut self, parent: Node, ids: &[u64]) -> Node {
        let follows = |pair: &[u64]| pair[0].checked_add(1) == Some(pair[1]);
        let is_pooled = !ids.windows(2).all(follows);
        let first = if is_pooled {
            self.pool.len() as u64
        } else {
            ids[0]
        };
        if is_pooled {
            self.pool.extend_from_slice(ids);
        }
        let length = ids.len() as u32;
        self.blocks += u64::from(length);
        let node = self.nodes.len() as Node;
        self.nodes.push(Run {
            first,
            parent,
            length: length | if is_pooled { POOLED } else { 0 },
            depth: self.depth(parent).saturating_add(length),
        });
        self.enter(node);
        node
    }

    /// Parts a node behind its first `length` blocks. Returns the upper part, which is new: so code that has the node still
    /// has the end of its chain.
    fn split(&mut self, node: Node, length: u32) -> Node {
        let upper = self.nodes.len() as Node;
        let run = self.nodes[node as usize];
        let pooled = run.length & POOLED;
        let whole = run.length & !POOLED;
        self.nodes.push(Run {
            length: length | pooled,
            depth: run.depth - (whole - length),
            ..run
        });
        let id = self.first_id(node);
        let (nodes, pool) = (&self.nodes, &self.pool);
        let rehash = |node: &Node| {
            let run = &nodes[*node as usize];
            hash(run.parent, first_id(run, pool))
        };
        let entry = self
            .children
            .entry(hash(run.parent, id), |child| *child == node, rehash);
        match entry {
            Entry::Occupied(mut entry) => *entry.get_mut() = upper,
            Entry::Vacant(entry) => drop(entry.insert(upper)),
        }
        let lower = &mut self.nodes[node as usize];
        lower.parent = upper;
        lower.first += u64::from(length);
        lower.length = (whole - length) | pooled;
        self.enter(node);
        upper
    }

    /// Makes a node the child of its parent.
    fn enter(&mut self, node: Node) {
        let (nodes, pool) = (&self.nodes, &self.pool);
        let rehash = |node: &Node| {
            let run = &nodes[*node as usize];
            hash(run.parent, first_id(run, pool))
        };
        self.children.insert_unique(rehash(&node), node, rehash);
    }
}

fn first_id(run: &Run, pool: &[u64]) -> u64 {
    match run.length & POOLED {
        0 => run.first,
        _ => pool[run.first as usize],
    }
}

fn hash(parent: Node, id: u64) -> u64 {
    let mut hasher = FixedState::with_seed(0).build_hasher();
    hasher.write_u64(id);
    hasher.write_u32(parent);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn chain(tree: &Tree, end: Node) -> Vec<u64> {
        let mut path = Vec::new();
        tree.path(end, &mut path);
        path.iter().flat_map(|node| tree.ids(*node)).collect()
    }

    #[test]
    fn a_request_that_ends_within_a_node_parts_it() {
        let mut tree = Tree::new();
        let long = tree.insert(&[1, 2, 3, 9, 7]).expect("there is room");
        let short = tree.insert(&[1, 2]).expect("there is room");
        let branch = tree.insert(&[1, 2, 3, 4]).expect("there is room");
        assert_eq!(tree.parent(tree.parent(long)), short);
        assert_eq!(tree.parent(tree.parent(branch)), short);
        assert_eq!(tree.blocks(), 6);
        assert_eq!((tree.depth(long), tree.depth(branch)), (5, 4));
        assert_eq!(tree.insert(&[]), Ok(ROOT));
    }

    proptest! {
        /// Few ids, so that chains share much.
        #[test]
        fn chains_are_found_again(chains in prop::collection::vec(prop::collection::vec(0..4_u64, 0..8), 0..60)) {
            let mut tree = Tree::new();
            let ends: Vec<Node> =
                chains.iter().map(|chain| tree.insert(chain).expect("there is room")).collect();
            let mut prefixes = HashSet::new();
            for (ids, end) in chains.iter().zip(&ends) {
                prop_assert_eq!(&chain(&tree, *end), ids);
                prop_assert_eq!(tree.depth(*end) as usize, ids.len());
                prefixes.extend((1..=ids.len()).map(|length| &ids[..length]));
            }
            prop_assert_eq!(tree.blocks(), prefixes.len() as u64);
            let ends_again: Vec<Node> =
                chains.iter().map(|chain| tree.insert(chain).expect("there is room")).collect();
            prop_assert_eq!(ends, ends_again);
        }
    }
}
