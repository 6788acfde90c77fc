//! Finds what a new row of tokens has in common with earlier ones.

use std::collections::HashMap;

use crate::gram::GramHash;
use crate::key::{BLOCK, Key};
use crate::row::Row;
use crate::tokens::Run;

/// The most tokens that are remembered. Before a row would exceed it, all of them are forgotten. It is
/// what a hash table of 2²⁰ places takes before it doubles.
pub const MOST_TOKENS: usize = 7 << 17;

/// Part of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// This many tokens with new identities. Their numbers continue those of the last new segment.
    New(u32),
    /// The identities of tokens that were recorded before.
    Known(Run),
}

/// Remembers what identities stand for.
#[derive(Debug)]
pub struct History {
    /// The identities, counted from `base`, by the hashes of what they stand for.
    grams: HashMap<u64, u32>,
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
            grams: HashMap::new(),
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
            join(&mut segments, self.base, identity, identity == next);
        }
        segments
    }
}

/// Appends a token to the last segment, or begins another one.
fn join(segments: &mut Vec<Segment>, base: u64, identity: u32, new: bool) {
    let first = base + u64::from(identity);
    match segments.last_mut() {
        Some(Segment::New(length)) if new => *length += 1,
        Some(Segment::Known(run)) if !new && run.first + u64::from(run.length) == first => {
            run.length += 1;
        }
        _ => segments.push(match new {
            true => Segment::New(1),
            false => Segment::Known(Run { first, length: 1 }),
        }),
    }
}
