//! Chunks, and pieces of them.

use std::sync::Arc;

use crate::{Fingerprint, GRID, Name};

/// In place of a token: the chunk is a *tail* ([`Shape`](crate::Shape)), and its rows are one whole. No prompt has it.
pub const TAIL: i32 = i32::MIN;

/// The header of a chunk's file, bytes.
pub const HEADER_BYTES: u64 = 128;
/// Files take whole blocks of this many bytes.
const BLOCK: u64 = 4096;
/// What a chunk takes in memory besides its tokens, bytes: a node, and entries of three maps.
const CHUNK_MEMORY: usize = 300;

/// A run of tokens of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// A hash of all that the rows depend on.
    pub name: Name,
    /// The chunk that stands before this one, and how many of its tokens do.
    pub parent: Option<(Name, u32)>,
    /// What the rows depend on besides their tokens.
    pub fingerprint: Fingerprint,
    /// The link of the chain of names at the last multiple of [`GRID`] that is not behind `start`.
    pub link: Name,
    /// The position of the first token.
    pub start: u32,
    /// At least one.
    pub tokens: Arc<[i32]>,
    /// The size of the rows, bytes.
    pub bytes: u64,
}

impl Chunk {
    /// Bytes on disk: header, tokens and rows, in whole blocks.
    pub fn cost(&self) -> u64 {
        let tokens = 4 * self.tokens.len() as u64;
        let file = self.bytes.saturating_add(HEADER_BYTES + tokens);
        file.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX)
    }

    /// Whether the chunk is a tail, and no tokens.
    pub fn is_tail(&self) -> bool {
        *self.tokens == [TAIL]
    }

    /// Whether the chunk can stand in a tree at all. A tail stands behind some tokens, and is in no run of them.
    pub(crate) fn is_well_formed(&self) -> bool {
        let start = self.start as usize;
        let room = GRID - start % GRID;
        let parent = match self.parent {
            Some((name, tokens)) => name != self.name && tokens > 0 && tokens <= self.start,
            None => start == 0,
        };
        let tail = if self.is_tail() {
            self.parent.is_some()
        } else {
            !self.tokens.contains(&TAIL)
        };
        parent && tail && !self.tokens.is_empty() && self.tokens.len() <= room
    }
}

/// What chunks take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    /// On disk.
    pub(crate) bytes: u64,
    /// In memory, bytes.
    pub(crate) memory: usize,
}

impl Size {
    pub(crate) fn from_chunk(chunk: &Chunk) -> Self {
        Self {
            bytes: chunk.cost(),
            memory: CHUNK_MEMORY + 4 * chunk.tokens.len(),
        }
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            memory: self.memory.saturating_add(other.memory),
        }
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            memory: self.memory.saturating_sub(other.memory),
        }
    }
}

/// The first tokens of a chunk, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The chunk.
    pub name: Name,
    /// The position of the chunk's first token.
    pub start: usize,
    /// Tokens in the chunk.
    pub chunk_tokens: usize,
    /// How many of them belong to the piece; at least one.
    pub take: usize,
}

/// A tail that the store has: what a state holds behind its dense part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The chunk. It starts at the position at which the state was taken: how many tokens had been evaluated.
    pub piece: Piece,
    /// The size of the tail, bytes.
    pub bytes: u64,
}

/// The beginning of a prompt that the store has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub(crate) pieces: Vec<Piece>,
}

impl Found {
    /// How many tokens.
    pub fn tokens(&self) -> usize {
        self.pieces.last().map_or(0, |last| last.start + last.take)
    }

    /// Only so many tokens of it are of use.
    pub fn cut(&mut self, tokens: usize) {
        self.pieces.retain(|piece| piece.start < tokens);
        if let Some(last) = self.pieces.last_mut() {
            last.take = last.take.min(tokens - last.start);
        }
    }

    /// In order; each begins where the one before ends.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
}

/// How many tokens at the beginning are the same.
#[must_use]
pub fn common(a: &[i32], b: &[i32]) -> usize {
    /// So many are compared at once.
    const PART: usize = 16;
    let least = a.len().min(b.len());
    let (a, b) = (&a[..least], &b[..least]);
    // What is compared is the same, as a rule.
    if a == b {
        return least;
    }
    let parts = a.chunks_exact(PART).zip(b.chunks_exact(PART));
    let same = PART * parts.take_while(|(a, b)| a == b).count();
    let rest = a[same..].iter().zip(&b[same..]);
    same + rest.take_while(|(a, b)| a == b).count()
}
