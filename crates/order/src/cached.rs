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
    ends: HashMap<u64, End>,
}

/// Where a prompt ends.
#[derive(Clone, Copy, Debug)]
struct End {
    at: u32,
    /// Its blocks.
    length: usize,
    /// A beginning of fewer blocks is of no use: see [`Cached::usable_from`].
    from: usize,
}

#[derive(Clone, Debug)]
struct Node {
    block: Block,
    parent: u32,
    /// How many prompts go through it or end there.
    prompts: u32,
    /// Of these, those whose beginnings up to here are of use.
    usable: u32,
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
    /// So many of them are of use now.
    pub usable: usize,
    /// A prompt that has those.
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
            let node = &mut self.nodes[at as usize];
            node.prompts += 1;
            node.usable += 1;
        }
        if at != NONE {
            self.nodes[at as usize].ending.push(prompt);
        }
        let end = End {
            at,
            length: blocks.len(),
            from: 0,
        };
        self.ends.insert(prompt, end);
    }

    /// A beginning of a prompt is of use only if it has so many blocks; 0 or 1: any is. An engine
    /// that keeps prompts in host memory takes one back only for a large enough part of it.
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

    /// A prompt is not cached any more; whether it was.
    pub fn remove(&mut self, prompt: u64) -> bool {
        let Some(end) = self.ends.remove(&prompt) else {
            return false;
        };
        if end.at != NONE {
            self.nodes[end.at as usize]
                .ending
                .retain(|one| *one != prompt);
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

    /// Nothing is cached any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// How many of these blocks, in this order, are a cached beginning of use; and a prompt that
    /// has it. `least`: beginnings of less weight are of no use either.
    #[must_use]
    pub fn beginning_of(
        &self,
        blocks: &[Block],
        weight: impl Fn(Block) -> u64,
        least: u64,
    ) -> (usize, Option<u64>) {
        let mut at = NONE;
        let mut best = (0, NONE);
        let mut sum = 0;
        for (place, &block) in blocks.iter().enumerate() {
            match self.children.get(&(at, block)) {
                Some(child) => at = *child,
                None => break,
            }
            sum += weight(block).max(1);
            if self.nodes[at as usize].usable > 0 && sum >= least {
                best = (place + 1, at);
            }
        }
        (best.0, self.prompt_below(best.1, best.0))
    }

    /// How many of these blocks, in this order, some cached prompt begins with, of use or not; and
    /// such a prompt.
    #[must_use]
    pub fn longest(&self, blocks: &[Block]) -> (usize, Option<u64>) {
        let mut at = NONE;
        let mut length = 0;
        for &block in blocks {
            let Some(child) = self.children.get(&(at, block)) else {
                break;
            };
            (at, length) = (*child, length + 1);
        }
        (length, self.prompt_below(at, usize::MAX))
    }

    /// The heaviest cached beginning that some of these blocks make, each used as often as it is
    /// there, after `first`, which stays as it is. Empty if `first` itself is not cached. What is
    /// of use now comes first; then what is cached at all; among equals the one that more prompts
    /// begin with. `least`: beginnings of less weight are of no use.
    pub fn best_beginning(
        &self,
        first: &[Block],
        blocks: &[Block],
        weight: impl Fn(Block) -> u64,
        least: u64,
    ) -> Beginning {
        let mut at = NONE;
        let mut sum = 0;
        for &block in first {
            match self.children.get(&(at, block)) {
                Some(child) => at = *child,
                None => return Beginning::default(),
            }
            sum += weight(block).max(1);
        }
        let mut search = Search {
            cached: self,
            left: Vec::new(),
            weight,
            least,
            seen: 0,
            path: Vec::new(),
            best: Beginning::default(),
            best_at: NONE,
            best_worth: (0, 0, 0),
        };
        for &block in blocks {
            match search.left.iter_mut().find(|(known, _)| *known == block) {
                Some((_, count)) => *count += 1,
                None => search.left.push((block, 1)),
            }
        }
        let nothing = Usable {
            weight: 0,
            blocks: 0,
            at: NONE,
        };
        search.below(at, sum, nothing);
        let mut best = search.best;
        best.prompt = match best.usable {
            0 => None,
            usable => self.prompt_below(search.best_at, first.len() + usable),
        };
        best
    }

    /// What begins with these blocks alone, under other numbers; of `limit` blocks at most. For
    /// who orders a batch elsewhere: prompts have other numbers there, too.
    #[must_use]
    pub fn renumbered(&self, numbers: &HashMap<Block, Block>, limit: usize) -> Self {
        let mut copy = Self::new();
        let mut path = Vec::new();
        // Nodes to visit, and the length of the path above each. The first are in no list.
        let mut first: Vec<u32> = numbers
            .keys()
            .filter_map(|block| self.children.get(&(NONE, *block)).copied())
            .collect();
        // The most popular last, which is visited first.
        first.sort_unstable_by_key(|at| (self.nodes[*at as usize].prompts, *at));
        let mut waiting: Vec<(u32, usize)> = first.into_iter().map(|at| (at, 0)).collect();
        while let Some((at, depth)) = waiting.pop() {
            let node = &self.nodes[at as usize];
            let Some(number) = numbers.get(&node.block) else {
                continue;
            };
            path.truncate(depth);
            path.push(*number);
            copy.insert(u64::from(at), &path);
            if copy.nodes() >= limit {
                break;
            }
            let mut child = node.child;
            while child != NONE {
                waiting.push((child, depth + 1));
                child = self.nodes[child as usize].next;
            }
        }
        copy
    }

    /// A prompt that goes through a node and of which a beginning of so many blocks is of use.
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
            if let Some(prompt) = node.ending.iter().rev().find(useful) {
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
    least: u64,
    seen: usize,
    path: Vec<Block>,
    best: Beginning,
    best_at: u32,
    /// Weight of what is of use, weight of all, and the prompts that begin so.
    best_worth: (u64, u64, u32),
}

/// The last node on a path up to which it is of use.
#[derive(Clone, Copy)]
struct Usable {
    weight: u64,
    blocks: usize,
    at: u32,
}

impl<W: Fn(Block) -> u64> Search<'_, W> {
    fn below(&mut self, at: u32, weight: u64, usable: Usable) {
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
            self.left[place].1 -= 1;
            self.path.push(block);
            let node = &self.cached.nodes[child as usize];
            let usable = match node.usable > 0 && weight >= self.least {
                true => Usable {
                    weight,
                    blocks: self.path.len(),
                    at: child,
                },
                false => usable,
            };
            let worth = (usable.weight, weight, node.prompts);
            if worth > self.best_worth {
                self.best_worth = worth;
                self.best.blocks.clone_from(&self.path);
                self.best.usable = usable.blocks;
                self.best_at = usable.at;
            }
            self.below(child, weight, usable);
            self.path.pop();
            self.left[place].1 += 1;
        }
    }
}
