//! What begins a prompt that is in the cache.

use std::collections::HashMap;

use crate::Block;

/// The prompts that are cached, as a tree of their beginnings.
///
/// Bounded by what is put in: a node for each block of a beginning that no other prompt shares.
/// Removing a prompt frees its nodes, except those that another prompt begins with: these are
/// still cached.
#[derive(Clone, Debug, Default)]
pub struct Cached {
    nodes: Vec<Node>,
    /// Places of nodes that were freed.
    free: Vec<u32>,
    children: HashMap<(u32, Block), u32>,
    /// The last node of each prompt.
    ends: HashMap<u64, u32>,
}

#[derive(Clone, Debug)]
struct Node {
    block: Block,
    parent: u32,
    /// How many prompts go through it or end there.
    prompts: u32,
    /// The prompts that end here.
    ending: Vec<u64>,
    /// One child, and the neighbours among the children of the parent. `NONE`: no more.
    child: u32,
    next: u32,
    previous: u32,
}

/// Stands for the root as a parent, and for no node elsewhere.
const NONE: u32 = u32::MAX;

/// Beyond this many nodes a search takes the best that it found. A query of 20 blocks sees a few
/// hundred.
const SEARCH: usize = 4096;

/// A beginning that is cached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beginning {
    /// Its blocks.
    pub blocks: Vec<Block>,
    /// A prompt that begins so, if there are blocks.
    pub prompt: Option<u64>,
}

impl Cached {
    /// Nothing is cached.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many prompts are.
    #[must_use]
    pub fn prompts(&self) -> usize {
        self.ends.len()
    }

    /// How many blocks of beginnings, each counted once.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// A prompt is cached. One of the same number is replaced.
    pub fn insert(&mut self, prompt: u64, blocks: &[Block]) {
        self.remove(prompt);
        let mut at = NONE;
        for &block in blocks {
            at = match self.children.get(&(at, block)) {
                Some(child) => *child,
                None => self.grow(at, block),
            };
            self.nodes[at as usize].prompts += 1;
        }
        if at != NONE {
            self.nodes[at as usize].ending.push(prompt);
        }
        self.ends.insert(prompt, at);
    }

    /// A prompt is not cached any more; whether it was.
    pub fn remove(&mut self, prompt: u64) -> bool {
        let Some(end) = self.ends.remove(&prompt) else {
            return false;
        };
        if end != NONE {
            self.nodes[end as usize].ending.retain(|one| *one != prompt);
        }
        let mut at = end;
        while at != NONE {
            let node = &mut self.nodes[at as usize];
            node.prompts -= 1;
            let (parent, unused) = (node.parent, node.prompts == 0);
            if unused {
                self.cut(at);
            }
            at = parent;
        }
        true
    }

    /// Nothing is cached any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// How many of these blocks, in this order, are a cached beginning; and a prompt that has it.
    #[must_use]
    pub fn beginning_of(&self, blocks: &[Block]) -> (usize, Option<u64>) {
        let mut at = NONE;
        let mut length = 0;
        for &block in blocks {
            match self.children.get(&(at, block)) {
                Some(child) => at = *child,
                None => break,
            }
            length += 1;
        }
        (length, self.prompt_below(at))
    }

    /// The heaviest cached beginning that some of these blocks make, each used as often as it is
    /// there, after `first`, which stays as it is. Empty if `first` itself is not cached. Among
    /// equals the one that more prompts begin with, then the one whose blocks come first.
    pub fn best_beginning(
        &self,
        first: &[Block],
        blocks: &[Block],
        weight: impl Fn(Block) -> u64,
    ) -> Beginning {
        let mut at = NONE;
        for &block in first {
            match self.children.get(&(at, block)) {
                Some(child) => at = *child,
                None => return Beginning::default(),
            }
        }
        let mut search = Search {
            cached: self,
            left: Vec::new(),
            weight,
            seen: 0,
            path: Vec::new(),
            best: Vec::new(),
            best_at: at,
            best_worth: (0, 0),
        };
        for &block in blocks {
            match search.left.iter_mut().find(|(known, _)| *known == block) {
                Some((_, count)) => *count += 1,
                None => search.left.push((block, 1)),
            }
        }
        search.below(at, 0);
        Beginning {
            prompt: self.prompt_below(search.best_at),
            blocks: search.best,
        }
    }

    fn prompt_below(&self, mut at: u32) -> Option<u64> {
        while at != NONE {
            let node = &self.nodes[at as usize];
            if let Some(prompt) = node.ending.last() {
                return Some(*prompt);
            }
            at = node.child;
        }
        None
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
            ending: Vec::new(),
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
        self.nodes[at as usize].ending = Vec::new();
        self.free.push(at);
        if self.children.is_empty() {
            // Nothing is left: the memory goes back.
            self.nodes = Vec::new();
            self.free = Vec::new();
            self.children = HashMap::new();
        }
    }
}

struct Search<'a, W> {
    cached: &'a Cached,
    /// Blocks, and how often each may still be used.
    left: Vec<(Block, u32)>,
    weight: W,
    seen: usize,
    path: Vec<Block>,
    best: Vec<Block>,
    best_at: u32,
    /// Weight, and the prompts that begin so.
    best_worth: (u64, u32),
}

impl<W: Fn(Block) -> u64> Search<'_, W> {
    fn below(&mut self, at: u32, weight: u64) {
        let mut next: Vec<(u32, usize)> = Vec::new();
        for (place, (block, count)) in self.left.iter().enumerate() {
            if *count > 0 {
                let child = self.cached.children.get(&(at, *block));
                next.extend(child.map(|child| (*child, place)));
            }
        }
        // The most promising first, in case that not all can be seen.
        let prompts = |at: u32| self.cached.nodes[at as usize].prompts;
        next.sort_by_key(|(at, _)| std::cmp::Reverse(prompts(*at)));
        for (child, place) in next {
            self.seen += 1;
            if self.seen > SEARCH {
                return;
            }
            let block = self.left[place].0;
            let weight = weight + (self.weight)(block).max(1);
            let worth = (weight, self.cached.nodes[child as usize].prompts);
            self.left[place].1 -= 1;
            self.path.push(block);
            if worth > self.best_worth {
                self.best_worth = worth;
                self.best.clone_from(&self.path);
                self.best_at = child;
            }
            self.below(child, weight);
            self.path.pop();
            self.left[place].1 += 1;
        }
    }
}
