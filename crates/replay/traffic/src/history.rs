//! Finds what a new row of tokens has in common with earlier ones.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::key::{BLOCK, GramHash, Key};
use crate::row::{Row, Segment};
use crate::tokens::Run;

/// The most tokens that are remembered. Before a row would exceed it, all of them are forgotten. It is
/// what a hash table of 2²⁰ places takes before it doubles.
pub const MOST_TOKENS: usize = 7 << 17;

/// A table by the hashes of grams. These depend on a secret already, so they are not hashed by another one: each token of each
/// prompt is looked up.
type ByHash<T> = HashMap<u64, T, FixedState>;

/// Remembers what identities stand for.
#[derive(Debug)]
pub struct History {
    /// The identities, counted from `base`, by the hashes of what they stand for.
    grams: ByHash<u32>,
    base: u64,
    /// The number of the row in which each block was recorded first, by the block's hash.
    blocks: HashMap<u64, u32>,
    /// The number of the next row.
    row: u32,
    limit: usize,
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

impl History {
    /// An empty one that remembers up to [`MOST_TOKENS`] tokens.
    #[must_use]
    pub fn new() -> Self {
        Self::with_limit(MOST_TOKENS)
    }

    /// An empty one that remembers up to `limit` tokens, and forgets all of them then. A single row
    /// that is longer is remembered nevertheless, until the next one comes.
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        Self {
            grams: ByHash::default(),
            base: 0,
            blocks: HashMap::new(),
            row: 0,
            limit,
        }
    }

    /// Describes a row by the identities of its tokens, and remembers it.
    pub(crate) fn relate(&mut self, key: &Key, tokens: &[i32]) -> Row {
        if self.grams.len() + tokens.len() > self.limit {
            *self = Self {
                base: self.base + self.grams.len() as u64,
                row: self.row,
                ..Self::with_limit(self.limit)
            };
        }
        let mut blocks = key.blocks(tokens);
        let known = blocks.iter().map_while(|hash| self.blocks.get(hash));
        // The row that has the last of these blocks has the ones before it, too.
        let (known, like) = known.fold((0, self.row), |(count, _), &row| (count + 1, row));
        blocks.drain(..known);
        // Known tokens in a new order make new blocks.
        if self.blocks.len() + blocks.len() > self.limit / BLOCK {
            self.blocks.clear();
        }
        let rows = blocks.iter().map(|&hash| (hash, self.row));
        self.blocks.extend(rows);
        let row = Row {
            like: self.row - like,
            first_block: known as u32,
            segments: self.part(key, tokens, known * BLOCK),
            blocks,
        };
        self.row += 1;
        row
    }

    /// The segments of a row from the position `from` on.
    pub(crate) fn part(&mut self, key: &Key, tokens: &[i32], from: usize) -> Vec<Segment> {
        let mut segments = Vec::new();
        for gram in GramHash::new(key).hashes(tokens, from) {
            let next = self.grams.len() as u32;
            let identity = *self.grams.entry(gram).or_insert(next);
            let new = identity == next;
            join(&mut segments, self.base, u64::from(identity), new);
        }
        segments
    }
}

/// The identities of the tokens that were recorded last, in two halves: once the newer one is full, the older one is
/// forgotten. What is found in the older one moves to the newer one, and keeps its identity.
#[derive(Debug)]
pub(crate) struct RecentGrams {
    newer: ByHash<u64>,
    older: ByHash<u64>,
    next: u64,
    /// The most tokens in each half.
    half: usize,
}

impl RecentGrams {
    pub(crate) fn new(half: usize) -> Self {
        Self {
            newer: ByHash::default(),
            older: ByHash::default(),
            next: 0,
            half: half.max(1),
        }
    }

    /// All grams and their identities: those that are forgotten first come first.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let both = self.older.iter().chain(&self.newer);
        both.map(|(&gram, &identity)| (gram, identity))
    }

    /// Remembers what [`Self::all`] said.
    pub(crate) fn remember(&mut self, gram: u64, identity: u64) {
        self.next = self.next.max(identity.saturating_add(1));
        self.keep(gram, identity);
    }

    /// The identities of a row, all of them as known ones: the row refers to no earlier one.
    pub(crate) fn row(&mut self, key: &Key, tokens: &[i32], from: usize) -> Row {
        let mut segments = Vec::new();
        for gram in GramHash::new(key).hashes(tokens, from) {
            join(&mut segments, 0, self.identity(gram), false);
        }
        Row {
            segments,
            ..Row::default()
        }
    }

    fn identity(&mut self, gram: u64) -> u64 {
        if let Some(&identity) = self.newer.get(&gram) {
            return identity;
        }
        let identity = self.older.remove(&gram).unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        self.keep(gram, identity);
        identity
    }

    fn keep(&mut self, gram: u64, identity: u64) {
        if self.newer.len() >= self.half {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(gram, identity);
    }
}

/// Appends a token to the last segment, or begins another one. It is done for each token: a call would be 22 instructions more.
#[inline(always)]
fn join(segments: &mut Vec<Segment>, base: u64, identity: u64, new: bool) {
    let first = base + identity;
    match segments.last_mut() {
        Some(Segment::New(length)) if new => *length += 1,
        Some(Segment::Known(run)) if !new && run.first + u64::from(run.length) == first => {
            run.length += 1;
        }
        _ => segments.push(if new {
            Segment::New(1)
        } else {
            Segment::Known(Run { first, length: 1 })
        }),
    }
}
