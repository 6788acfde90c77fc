//! Makes blocks from what a prefix store has.

use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    /// Its tokens. None is below 0. Without any it is a state: see [`Runs::clear`].
    pub tokens: Arc<[i32]>,
    /// A client has asked to keep it: it leaves the store last.
    pub kept: bool,
}

/// The runs of a store, a radix tree, and the blocks of all its ways from the root.
///
/// A block is on the run that has its last token, also if it begins on an earlier one. As there is one way through the
/// tree for a prompt, each block is on one run, and comes and leaves with it.
///
/// Of a store whose prompts are loaded up to a state that lies on their way, each way is announced up to the last state on it.
///
/// What would be too many is not announced: of the runs that nothing continues, those that came first leave, and last those that
/// are kept.
#[derive(Debug)]
pub struct Runs {
    /// Tokens of a block.
    block: u32,
    most: usize,
    /// A run is announced up to the last state behind it.
    has_states: bool,
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
    /// So many of its tokens are announced.
    reach: u32,
    /// What continues it, by how many of its tokens stand before that.
    below: BTreeSet<(u32, [u8; 16])>,
    serial: u64,
}

impl Announced {
    /// Its place among the leaves, if it is one.
    fn place(&self) -> (bool, u64) {
        (self.run.kept, self.serial)
    }

    fn is_state(&self) -> bool {
        self.run.tokens.is_empty()
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
            has_states: false,
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
        let is_state = run.tokens.is_empty();
        let may_be = !is_state || self.has_states && run.behind.is_some();
        let is_valid = may_be && run.tokens.iter().all(|token| *token >= 0);
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
        let (name, behind, tokens) = (run.name, run.behind, run.tokens.len() as u32);
        if let Some((parent, take)) =
            behind.and_then(|(name, take)| Some((self.runs.get_mut(&name)?, take)))
        {
            parent.below.insert((take, name));
            self.leaves.remove(&parent.place());
        }
        self.serial += 1;
        let serial = self.serial;
        self.size += 1;
        self.order.insert(serial, name);
        let known = Announced {
            run,
            hashes: Vec::new(),
            reach: 0,
            below: BTreeSet::new(),
            serial,
        };
        self.leaves.insert(known.place(), name);
        self.runs.insert(name, known);
        match behind {
            Some((parent, take)) if is_state => self.raise(parent, take, events),
            _ if self.has_states => {}
            _ => self.raise(name, tokens, events),
        }
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
            // A store lets what continues a run leave before it, so there is nothing as a rule.
            let below = self.runs.get(&name).map(|known| &known.below);
            family.extend(below.into_iter().flatten().map(|(_, name)| *name));
            next += 1;
        }
        for name in family.iter().rev() {
            self.take_out(name, events);
        }
    }

    /// All of it is announced from the beginning.
    pub fn tell_all(&self, events: &mut Vec<KvEvent>) {
        for name in self.order.values() {
            let known = &self.runs[name];
            self.tell(&known.run, 0, known.reach, events);
        }
    }

    /// The store has nothing any more. `has_states`: from now on a prompt is loaded up to the last state that lies on its way,
    /// which is a run without tokens.
    pub fn clear(&mut self, has_states: bool, events: &mut Vec<KvEvent>) {
        self.has_states = has_states;
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
        debug_assert!(known.below.is_empty(), "what continues a run leaves first");
        self.size -= 1 + known.hashes.len();
        self.order.remove(&known.serial);
        self.leaves.remove(&known.place());
        for hash in known.hashes.into_iter().rev() {
            event::remove(hash, Medium::Disk, events);
        }
        if let Some((above, take)) = known.run.behind {
            if let Some(parent) = self.runs.get_mut(&above) {
                parent.below.remove(&(take, *name));
                if parent.below.is_empty() {
                    self.leaves.insert(parent.place(), above);
                }
            }
            if self.has_states {
                self.lower(above, events);
            }
        }
    }

    /// A run and those before it are announced up to so many of its tokens, or farther.
    fn raise(&mut self, name: [u8; 16], to: u32, events: &mut Vec<KvEvent>) {
        let mut way = Vec::new();
        let mut next = Some((name, to));
        while let Some((name, to)) = next {
            let Some(known) = self.runs.get(&name).filter(|known| known.reach < to) else {
                break;
            };
            way.push((name, to));
            // What is before one of which something is announced is announced.
            next = known.run.behind.filter(|_| known.reach == 0);
        }
        for (name, to) in way.into_iter().rev() {
            let Some(known) = self.runs.get(&name) else {
                continue;
            };
            let new = self.tell(&known.run, known.hashes.len(), to, events);
            self.size += new.len();
            if let Some(known) = self.runs.get_mut(&name) {
                known.reach = to;
                known.hashes.extend(new);
            }
        }
    }

    /// What is behind the last state of a run is announced no longer, nor what is before the run if it has none.
    fn lower(&mut self, name: [u8; 16], events: &mut Vec<KvEvent>) {
        let mut next = Some(name);
        while let Some(name) = next {
            let Some(known) = self.runs.get(&name) else {
                break;
            };
            let leads_to_state = |(_, below): &&(u32, [u8; 16])| {
                let below = self.runs.get(below);
                below.is_some_and(|below| below.is_state() || below.reach > 0)
            };
            let last = known.below.iter().rev().find(leads_to_state);
            let reach = last.map_or(0, |(take, _)| *take);
            if reach == known.reach {
                break;
            }
            let ends = |position: u32| (position / self.block) as usize;
            let kept = ends(known.run.start + reach) - ends(known.run.start);
            next = known.run.behind.map(|(above, _)| above);
            next = next.filter(|_| reach == 0);
            if let Some(known) = self.runs.get_mut(&name) {
                known.reach = reach;
                let left = known.hashes.split_off(kept.min(known.hashes.len()));
                self.size -= left.len();
                for hash in left.into_iter().rev() {
                    event::remove(hash, Medium::Disk, events);
                }
            }
        }
    }

    /// The blocks that end within the first `to` tokens of this run, behind the first `skip` of them.
    fn tell(&self, run: &Run, skip: usize, to: u32, events: &mut Vec<KvEvent>) -> Vec<u64> {
        let block = self.block as usize;
        let (mut tokens, mut above) = self.before(run);
        let of_run = run.tokens.iter().take(to as usize);
        tokens.extend(of_run.map(|token| token.unsigned_abs()));
        if let Some(last) = skip.checked_sub(1) {
            let hashes = self.runs.get(&run.name).map(|known| &known.hashes);
            above = hashes.and_then(|hashes| hashes.get(last).copied());
        }
        let mut new = Vec::with_capacity((tokens.len() / block).saturating_sub(skip));
        for tokens in tokens.chunks_exact(block).skip(skip) {
            let hash = block_hash(above, tokens, None);
            event::store(hash, above, tokens, Medium::Disk, None, events);
            above = Some(hash);
            new.push(hash);
        }
        new
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
