//! The tree of cached prefixes.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;

use crate::Block;

pub(crate) mod search;

/// The cached prompts, as a tree of their prefixes.
///
/// Its size is bounded by its content: a node for each block of a prefix, shared between prompts.
/// Removing a prompt frees its nodes, except those that another prompt has as a prefix: these are
/// still cached.
#[derive(Clone, Debug, Default)]
pub struct Cached {
    nodes: Vec<Node>,
    /// Indices of freed nodes.
    free: Vec<u32>,
    children: HashMap<(u32, Block), u32, RandomState>,
    ends: HashMap<u64, End>,
}

/// Where a prompt ends.
#[derive(Clone, Copy, Debug)]
struct End {
    at: u32,
    /// Its blocks.
    length: usize,
    /// A prefix of fewer blocks cannot be used: see [`Cached::usable_from`].
    from: usize,
}

#[derive(Clone, Debug)]
struct Node {
    block: Block,
    parent: u32,
    /// How many prompts go through it or end there.
    prompts: u32,
    /// Of these, prompts whose prefixes up to here can be used.
    usable: u32,
    /// The prompts that end here.
    ending: BTreeSet<u64>,
    /// One child, and the neighbours among the children of the parent. `NONE`: no more.
    child: u32,
    next: u32,
    previous: u32,
}

/// As a parent: the root. Elsewhere: no node.
const NONE: u32 = u32::MAX;

/// After this many nodes a search returns the best result so far. A query of 20 blocks visits a few
/// hundred.
const SEARCH: usize = 4096;

impl Cached {
    /// Nothing is cached.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many prompts are cached.
    #[must_use]
    pub fn prompts(&self) -> usize {
        self.ends.len()
    }

    /// How many blocks the prefixes have, each counted once.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// Adds a cached prompt. Replaces one with the same number.
    pub fn insert(&mut self, prompt: u64, blocks: &[Block]) {
        self.remove(prompt);
        let mut at = NONE;
        for &block in blocks {
            at = match self.children.get(&(at, block)) {
                Some(child) => *child,
                None => self.grow(at, block),
            };
            let node = &mut self.nodes[at as usize];
            node.prompts += 1;
            node.usable += 1;
        }
        if at != NONE {
            self.nodes[at as usize].ending.insert(prompt);
        }
        let end = End {
            at,
            length: blocks.len(),
            from: 0,
        };
        self.ends.insert(prompt, end);
    }

    /// A prefix of this prompt can be used only if it has so many blocks; 0 or 1: always. An engine
    /// loads a prompt from host memory only for a large enough part of it.
    pub fn usable_from(&mut self, prompt: u64, from: usize) {
        let Some(end) = self.ends.get_mut(&prompt) else {
            return;
        };
        let before = std::mem::replace(&mut end.from, from);
        let (mut at, mut depth) = (end.at, end.length);
        while at != NONE {
            let node = &mut self.nodes[at as usize];
            node.usable -= u32::from(depth >= before);
            node.usable += u32::from(depth >= from);
            (at, depth) = (node.parent, depth - 1);
        }
    }

    /// Removes a prompt. Returns whether it was cached.
    pub fn remove(&mut self, prompt: u64) -> bool {
        let Some(end) = self.ends.remove(&prompt) else {
            return false;
        };
        if end.at != NONE {
            self.nodes[end.at as usize].ending.remove(&prompt);
        }
        let (mut at, mut depth) = (end.at, end.length);
        while at != NONE {
            let node = &mut self.nodes[at as usize];
            node.prompts -= 1;
            node.usable -= u32::from(depth >= end.from);
            let (parent, unused) = (node.parent, node.prompts == 0);
            if unused {
                self.cut(at);
            }
            (at, depth) = (parent, depth - 1);
        }
        true
    }

    /// Removes all prompts.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// A prompt of just these blocks.
    #[must_use]
    pub fn prompt_of(&self, blocks: &[Block]) -> Option<u64> {
        let (length, at) = self.deepest(blocks);
        let node = self.nodes.get(at as usize);
        node.filter(|_| length == blocks.len())?
            .ending
            .last()
            .copied()
    }

    /// The nodes of these blocks, in this order, as far as they are cached.
    fn path(&self, blocks: &[Block]) -> impl Iterator<Item = u32> {
        blocks.iter().scan(NONE, |at, block| {
            *at = *self.children.get(&(*at, *block))?;
            Some(*at)
        })
    }

    /// How many of these blocks, in this order, are cached, and the node of the last one.
    fn deepest(&self, blocks: &[Block]) -> (usize, u32) {
        (1..).zip(self.path(blocks)).last().unwrap_or((0, NONE))
    }

    /// How many of these blocks, in this order, are a cached prefix that can be used, and a prompt that
    /// has it. `least`: prefixes of less weight cannot be used either.
    #[must_use]
    pub fn beginning_of(
        &self,
        blocks: &[Block],
        weight: impl Fn(Block) -> u64,
        least: u64,
    ) -> (usize, Option<u64>) {
        let mut best = (0, NONE);
        let mut sum = 0;
        for (place, at) in self.path(blocks).enumerate() {
            sum += weight(blocks[place]).max(1);
            if self.nodes[at as usize].usable > 0 && sum >= least {
                best = (place + 1, at);
            }
        }
        (best.0, self.prompt_below(best.1, best.0))
    }

    /// How many of these blocks, in this order, are a cached prefix, whether it can be used or not, and
    /// a prompt that has it.
    #[must_use]
    pub fn longest(&self, blocks: &[Block]) -> (usize, Option<u64>) {
        let (length, at) = self.deepest(blocks);
        (length, self.prompt_below(at, usize::MAX))
    }

    /// The prefixes of several, in one: see [`Tiers::renumbered`](crate::Tiers::renumbered).
    pub(crate) fn renumbered<'a>(
        trees: impl Iterator<Item = &'a Self>,
        numbers: &HashMap<Block, Block>,
        limit: usize,
    ) -> Self {
        let mut copy = Self::new();
        // Nodes to visit, and the copy of the node above each.
        let mut waiting: Vec<(&Self, u32, u32)> = Vec::new();
        for tree in trees {
            let first = numbers
                .keys()
                .filter_map(|block| tree.children.get(&(NONE, *block)));
            waiting.extend(first.map(|at| (tree, *at, NONE)));
        }
        // The most popular is last, so it is visited first.
        waiting.sort_by_key(|(tree, at, _)| (tree.nodes[*at as usize].prompts, *at));
        while let Some((tree, at, parent)) = waiting.pop() {
            let node = &tree.nodes[at as usize];
            let Some(number) = numbers.get(&node.block) else {
                continue;
            };
            let made = match copy.children.get(&(parent, *number)) {
                Some(made) => *made,
                None => copy.grow_end(parent, *number),
            };
            if copy.nodes() >= limit {
                break;
            }
            let mut child = node.child;
            while child != NONE {
                waiting.push((tree, child, made));
                child = tree.nodes[child as usize].next;
            }
        }
        // Each stands behind its parent.
        for at in (0..copy.nodes.len()).rev() {
            let node = &mut copy.nodes[at];
            node.prompts += 1;
            node.usable = node.prompts;
            let (parent, prompts) = (node.parent, node.prompts);
            if parent != NONE {
                copy.nodes[parent as usize].prompts += prompts;
            }
        }
        copy
    }

    /// A prompt through this node, of which a prefix of so many blocks can be used.
    fn prompt_below(&self, at: u32, blocks: usize) -> Option<u64> {
        let mut waiting = vec![at];
        let mut any = None;
        for _ in 0..SEARCH {
            let Some(at) = waiting.pop().filter(|at| *at != NONE) else {
                break;
            };
            let node = &self.nodes[at as usize];
            let useful =
                |prompt: &&u64| self.ends.get(prompt).is_some_and(|end| end.from <= blocks);
            let mut ending = node.ending.iter().rev().take(SEARCH);
            if let Some(prompt) = ending.find(useful) {
                return Some(*prompt);
            }
            any = any.or_else(|| node.ending.last().copied());
            let mut child = node.child;
            while child != NONE && waiting.len() < SEARCH {
                waiting.push(child);
                child = self.nodes[child as usize].next;
            }
        }
        any
    }

    /// A new node, at which a prompt with the node's number ends.
    fn grow_end(&mut self, parent: u32, block: Block) -> u32 {
        let made = self.grow(parent, block);
        let length = match parent {
            NONE => 1,
            parent => self.ends[&u64::from(parent)].length + 1,
        };
        // The caller counts it in the nodes above.
        let end = End {
            at: made,
            length,
            from: 0,
        };
        self.ends.insert(u64::from(made), end);
        self.nodes[made as usize].ending.insert(u64::from(made));
        made
    }

    fn grow(&mut self, parent: u32, block: Block) -> u32 {
        let next = match parent {
            NONE => NONE,
            parent => self.nodes[parent as usize].child,
        };
        let node = Node {
            block,
            parent,
            prompts: 0,
            usable: 0,
            ending: BTreeSet::new(),
            child: NONE,
            next,
            previous: NONE,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        if next != NONE {
            self.nodes[next as usize].previous = at;
        }
        if parent != NONE {
            self.nodes[parent as usize].child = at;
        }
        self.children.insert((parent, block), at);
        at
    }

    fn cut(&mut self, at: u32) {
        let Node {
            block,
            parent,
            next,
            previous,
            ..
        } = self.nodes[at as usize];
        self.children.remove(&(parent, block));
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        if previous != NONE {
            self.nodes[previous as usize].next = next;
        } else if parent != NONE {
            self.nodes[parent as usize].child = next;
        }
        self.nodes[at as usize].ending = BTreeSet::new();
        self.free.push(at);
        if self.children.is_empty() {
            // Nothing is left: free the memory.
            self.nodes = Vec::new();
            self.free = Vec::new();
            self.children = HashMap::default();
        }
    }
}

/// What blocks weigh together. Each weighs 1 at least.
pub(crate) fn weight_of(blocks: &[Block], weight: impl Fn(Block) -> u64) -> u64 {
    let weights = blocks.iter().map(|block| weight(*block).max(1));
    weights.fold(0, u64::saturating_add)
}
