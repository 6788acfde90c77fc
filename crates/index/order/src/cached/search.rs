//! Searches the tree of cached prefixes for the heaviest one that can be made of some blocks.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::{Cached, NONE, SEARCH, weight_of};
use crate::Block;

/// After this many steps, as after [`SEARCH`] nodes, a search returns the best result so far: looks at a block, or at a child of a node. A query of 20 blocks that visits all
/// of its nodes takes half of them.
const STEPS: u64 = 1 << 17;

/// The same for all searches that order a batch: a few seconds.
pub(crate) const STEPS_OF_A_BATCH: u64 = 100_000_000;

/// A cached prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beginning {
    /// Its blocks.
    pub blocks: Vec<Block>,
    /// How many of its blocks can be used now.
    pub usable: usize,
    /// A prompt that has these.
    pub prompt: Option<u64>,
}

impl Cached {
    /// The cached prefix with the greatest weight that can be made of these blocks, each used as often as it
    /// occurs, after `first`, which stays in place. Empty if `first` itself is not cached. Compared is the weight
    /// that can be used now, then the cached weight, then the number of prompts with
    /// that prefix. `least`: prefixes of less weight cannot be used.
    pub fn best_beginning(
        &self,
        first: &[Block],
        blocks: &[Block],
        weight: impl Fn(Block) -> u64,
        least: u64,
    ) -> Beginning {
        let mut steps = u64::MAX;
        self.best_within(first, blocks, weight, least, &mut steps)
    }

    /// The same for one of many searches, which share a number of `steps`: if there are none left, nothing is
    /// found.
    pub(crate) fn best_within(
        &self,
        first: &[Block],
        blocks: &[Block],
        weight: impl Fn(Block) -> u64,
        least: u64,
        steps: &mut u64,
    ) -> Beginning {
        let (length, at) = self.deepest(first);
        if length < first.len() {
            return Beginning::default();
        }
        let sum = weight_of(first, &weight);
        let allowed = STEPS.min(*steps);
        let mut search = Search::new(self, blocks, weight, least, allowed);
        search.below(at, sum);
        *steps -= allowed - search.steps;
        let (mut best, best_at) = search.best();
        best.prompt = match best.usable {
            0 => None,
            usable => self.prompt_below(best_at, first.len() + usable),
        };
        best
    }
}

/// A search from one node down. It looks at no more than [`SEARCH`] nodes, and takes no more than the given
/// number of steps.
struct Search<'a, W> {
    cached: &'a Cached,
    /// The blocks, in the order in which they were given, and how often each may still be used.
    left: Vec<(Block, u32)>,
    /// Where each of them is in `left`.
    places: HashMap<Block, usize>,
    weight: W,
    least: u64,
    seen: usize,
    /// Steps that it may still take.
    steps: u64,
    path: Vec<Block>,
    best: Beginning,
    best_at: u32,
    /// The weight that can be used, the whole weight, and the number of prompts with this prefix.
    best_worth: (u64, u64, u32),
}

/// The last node on a path up to which it can be used.
#[derive(Clone, Copy)]
struct Usable {
    weight: u64,
    blocks: usize,
    at: u32,
}

/// A node on the path.
struct Visit {
    /// Its children that are still to be visited, and the places of their blocks. The next one is the last.
    next: Vec<(u32, usize)>,
    /// Where its own block is; `None`: the search begins here.
    place: Option<usize>,
    weight: u64,
    usable: Usable,
}

impl<'a, W: Fn(Block) -> u64> Search<'a, W> {
    fn new(cached: &'a Cached, blocks: &[Block], weight: W, least: u64, steps: u64) -> Self {
        let mut left: Vec<(Block, u32)> = Vec::new();
        let mut places = HashMap::with_capacity(blocks.len());
        for &block in blocks {
            let place = *places.entry(block).or_insert(left.len());
            match left.get_mut(place) {
                Some((_, count)) => *count += 1,
                None => left.push((block, 1)),
            }
        }
        Self {
            cached,
            left,
            places,
            weight,
            least,
            seen: 0,
            steps,
            path: Vec::new(),
            best: Beginning::default(),
            best_at: NONE,
            best_worth: (0, 0, 0),
        }
    }

    /// The best prefix, and the node up to which it can be used.
    fn best(self) -> (Beginning, u32) {
        (self.best, self.best_at)
    }

    /// Visits what is below a node, whose prefix has this weight.
    fn below(&mut self, at: u32, weight: u64) {
        // A list rather than recursion: a prefix may have as many blocks as the search may see nodes.
        let mut visits = vec![Visit {
            next: self.next(at),
            place: None,
            weight,
            usable: Usable {
                weight: 0,
                blocks: 0,
                at: NONE,
            },
        }];
        while let Some(visit) = visits.last_mut() {
            let Some((child, place)) = visit.next.pop() else {
                if let Some(place) = visit.place {
                    self.path.pop();
                    self.left[place].1 += 1;
                }
                visits.pop();
                continue;
            };
            self.seen += 1;
            if self.seen > SEARCH || self.steps == 0 {
                return;
            }
            let block = self.left[place].0;
            let weight = visit.weight.saturating_add((self.weight)(block).max(1));
            self.left[place].1 -= 1;
            self.path.push(block);
            let node = &self.cached.nodes[child as usize];
            let usable = if node.usable > 0 && weight >= self.least {
                Usable {
                    weight,
                    blocks: self.path.len(),
                    at: child,
                }
            } else {
                visit.usable
            };
            let worth = (usable.weight, weight, node.prompts);
            if worth > self.best_worth {
                self.best_worth = worth;
                self.best.blocks.clone_from(&self.path);
                self.best.usable = usable.blocks;
                self.best_at = usable.at;
            }
            visits.push(Visit {
                next: self.next(child),
                place: Some(place),
                weight,
                usable,
            });
        }
    }

    /// The children of a node that can follow. The last one is the most promising, in case the search is cut
    /// off: the most prompts have it, or else its block came first.
    fn next(&mut self, at: u32) -> Vec<(u32, usize)> {
        let mut next = match self.children(at) {
            Some(children) => children,
            None => self.by_blocks(at),
        };
        let prompts = |at: u32| self.cached.nodes[at as usize].prompts;
        next.sort_unstable_by_key(|(at, place)| (prompts(*at), Reverse(*place)));
        next
    }

    /// Goes through the node's children; `None` if there are more of them than blocks.
    fn children(&mut self, at: u32) -> Option<Vec<(u32, usize)>> {
        // The children of the root are in no list.
        let mut child = self.cached.nodes.get(at as usize)?.child;
        let mut next = Vec::new();
        let mut looked = 0;
        while child != NONE {
            looked += 1;
            if looked > self.left.len() {
                return None;
            }
            let node = &self.cached.nodes[child as usize];
            let place = self.places.get(&node.block).copied();
            next.extend(
                place
                    .filter(|place| self.left[*place].1 > 0)
                    .map(|place| (child, place)),
            );
            child = node.next;
        }
        self.steps = self.steps.saturating_sub(looked as u64);
        Some(next)
    }

    /// Goes through the blocks.
    fn by_blocks(&mut self, at: u32) -> Vec<(u32, usize)> {
        let children = &self.cached.children;
        let places = self.left.iter().enumerate();
        let next = places.filter_map(|(place, (block, count))| {
            let child = children.get(&(at, *block)).filter(|_| *count > 0)?;
            Some((*child, place))
        });
        let next = next.collect();
        self.steps = self.steps.saturating_sub(self.left.len() as u64);
        next
    }
}
