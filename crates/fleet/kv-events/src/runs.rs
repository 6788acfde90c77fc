//! Makes blocks from what a prefix store has.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::{KvEvent, Medium, block_hash, event};

/// The most blocks of a store that are announced; a run counts as one more. That is a million tokens with the usual block.
pub const MOST_BLOCKS: usize = 1 << 16;

/// A run of tokens that a store has: a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its name, which is of all tokens up to its end.
    pub name: [u8; 16],
    /// The run that stands before it, and how many of its tokens do. `None`: it begins at position 0.
    pub behind: Option<([u8; 16], u32)>,
    /// The position of its first token.
    pub start: u32,
    /// Its tokens. None is below 0.
    pub tokens: Arc<[i32]>,
    /// A client has asked to keep it: it leaves the store last.
    pub kept: bool,
}

/// The runs of a store, a radix tree, and the blocks of all its ways from the root.
///
/// A block is on the run that has its last token, also if it begins on an earlier one. As there is one way through the
/// tree for a prompt, each block is on one run, and comes and leaves with it.
///
/// What would be too many is not announced: of the runs that nothing continues, those that came first leave, and last those that
/// are kept.
#[derive(Debug)]
pub struct Runs {
    /// Tokens of a block.
    block: u32,
    most: usize,
    runs: HashMap<[u8; 16], Announced>,
    /// All runs in the order in which they came, so that each comes after what it continues.
    order: BTreeMap<u64, [u8; 16]>,
    /// The same of those that nothing continues, the kept ones at the end.
    leaves: BTreeMap<(bool, u64), [u8; 16]>,
    /// The number of the next run.
    serial: u64,
    /// Blocks and runs.
    size: usize,
}

#[derive(Debug)]
struct Announced {
    run: Run,
    /// The hashes of the blocks whose last token is here.
    hashes: Vec<u64>,
    children: usize,
    serial: u64,
}

impl Announced {
    /// Its place among the leaves, if it is one.
    fn place(&self) -> (bool, u64) {
        (self.run.kept, self.serial)
    }
}

impl Runs {
    /// For blocks of so many tokens, at least one.
    #[must_use]
    pub fn new(block: u32) -> Self {
        Self::with_most(block, MOST_BLOCKS)
    }

    /// With another bound than [`MOST_BLOCKS`].
    #[must_use]
    pub fn with_most(block: u32, most: usize) -> Self {
        Self {
            block: block.max(1),
            most,
            runs: HashMap::new(),
            order: BTreeMap::new(),
            leaves: BTreeMap::new(),
            serial: 0,
            size: 0,
        }
    }

    /// How many runs are announced.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether none is announced.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The store has a run. Nothing happens if it is known, or if what it continues is not.
    pub fn add(&mut self, run: Run, events: &mut Vec<KvEvent>) {
        let is_valid = !run.tokens.is_empty() && run.tokens.iter().all(|token| *token >= 0);
        if !is_valid || self.runs.contains_key(&run.name) {
            return;
        }
        let is_placed = match run.behind {
            None => run.start == 0,
            Some((name, tokens)) => self.runs.get(&name).is_some_and(|parent| {
                let there = parent.run.tokens.len() as u64;
                u64::from(tokens) <= there && parent.run.start + tokens == run.start
            }),
        };
        if !is_placed {
            return;
        }
        let hashes = self.tell(&run, events);
        if let Some(parent) = run.behind.and_then(|(name, _)| self.runs.get_mut(&name)) {
            parent.children += 1;
            self.leaves.remove(&parent.place());
        }
        self.serial += 1;
        let serial = self.serial;
        let name = run.name;
        self.size += 1 + hashes.len();
        self.order.insert(serial, name);
        let known = Announced {
            run,
            hashes,
            children: 0,
            serial,
        };
        self.leaves.insert(known.place(), name);
        self.runs.insert(name, known);
        while self.size > self.most {
            let oldest = self.leaves.values().find(|other| **other != name);
            let Some(oldest) = oldest.copied() else {
                break;
            };
            self.take_out(&oldest, events);
        }
    }

    /// The store has a run no longer, nor what continues it. Nothing happens if it is not known.
    pub fn remove(&mut self, name: &[u8; 16], events: &mut Vec<KvEvent>) {
        let mut family = vec![*name];
        let mut next = 0;
        while let Some(name) = family.get(next).copied() {
            // A store lets what continues a run leave before it, so this is not looked for as a rule.
            if self.runs.get(&name).is_some_and(|known| known.children > 0) {
                let behind =
                    |known: &&Announced| known.run.behind.is_some_and(|(of, _)| of == name);
                family.extend(
                    self.runs
                        .values()
                        .filter(behind)
                        .map(|known| known.run.name),
                );
            }
            next += 1;
        }
        for name in family.iter().rev() {
            self.take_out(name, events);
        }
    }

    /// All of it is announced from the beginning.
    pub fn tell_all(&self, events: &mut Vec<KvEvent>) {
        for name in self.order.values() {
            self.tell(&self.runs[name].run, events);
        }
    }

    /// The store has nothing any more.
    pub fn clear(&mut self, events: &mut Vec<KvEvent>) {
        let names: Vec<_> = self.order.values().rev().copied().collect();
        for name in names {
            self.take_out(&name, events);
        }
    }

    /// Takes out a run that nothing continues.
    fn take_out(&mut self, name: &[u8; 16], events: &mut Vec<KvEvent>) {
        let Some(known) = self.runs.remove(name) else {
            return;
        };
        debug_assert_eq!(known.children, 0, "what continues a run leaves first");
        self.size -= 1 + known.hashes.len();
        self.order.remove(&known.serial);
        self.leaves.remove(&known.place());
        for hash in known.hashes.into_iter().rev() {
            event::remove(hash, Medium::Disk, events);
        }
        if let Some((above, _)) = known.run.behind {
            if let Some(parent) = self.runs.get_mut(&above) {
                parent.children -= 1;
                if parent.children == 0 {
                    self.leaves.insert(parent.place(), above);
                }
            }
        }
    }

    /// The blocks that end on this run, whose parent is known.
    fn tell(&self, run: &Run, events: &mut Vec<KvEvent>) -> Vec<u64> {
        let block = self.block as usize;
        let (mut tokens, mut above) = self.before(run);
        tokens.extend(run.tokens.iter().map(|token| token.unsigned_abs()));
        let mut hashes = Vec::with_capacity(tokens.len() / block);
        for tokens in tokens.chunks_exact(block) {
            let hash = block_hash(above, tokens, None);
            event::store(hash, above, tokens, Medium::Disk, None, events);
            above = Some(hash);
            hashes.push(hash);
        }
        hashes
    }

    /// The tokens of a run's first block that stand on earlier ones, and the name of the block before it.
    fn before(&self, run: &Run) -> (Vec<u32>, Option<u64>) {
        let first = run.start / self.block * self.block;
        let mut pieces: Vec<&[i32]> = Vec::new();
        let mut above = None;
        let mut next = run.behind;
        while let Some((known, take)) = next.and_then(|(name, n)| Some((self.runs.get(&name)?, n)))
        {
            let (start, end) = (known.run.start, known.run.start + take);
            let from = first.clamp(start, end) - start;
            pieces.push(&known.run.tokens[from as usize..take as usize]);
            if start < first {
                let nth = first / self.block - 1 - start / self.block;
                above = known.hashes.get(nth as usize).copied();
                break;
            }
            next = known.run.behind;
        }
        let tokens = pieces.into_iter().rev().flatten();
        (tokens.map(|token| token.unsigned_abs()).collect(), above)
    }
}
