//! How a state of a sequence is laid out.
//!
//! What llama.cpp writes for a context with dense attention (read in the sources of three versions of
//! 2025 and 2026; integers are little-endian):
//!
//! ```text
//! [u32 magic, i32 sequence]                     since 2026
//! u32 streams
//! for each stream: u32 cells, and for the one that has some:
//!     per cell  i32 position, u32 1, [extra: 2 or 3 of i32], i32 sequence
//!     u32 transposed, u32 layers, [two words, since late 2026]
//!     per layer i32 type, u64 row size, the K rows of all cells
//!     per layer i32 type, u64 row size, the V rows of all cells            or, transposed:
//!     per layer i32 type, u32 element size, u32 elements, each element of all cells
//! ```
//!
//! The engines until August 2025 have no streams: their states begin with `u32 cells`. In early 2025 a cell is `i32 position, u32 0`, then
//! as above.
//!
//! The two words are kept as they are, and belong to the layout: a context with other words has other rows.
//! (They are 0 for KV that is not quantised.) *Extra* is a position of two parts, of models that have images (M-RoPE), and since 2026 the
//! token. With latent attention there is no V: the last part is not there. A cache with a stream
//! for each sequence has the cells in the stream of the sequence's number.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::bytes::Bytes;

/// The magic number in front of states since 2026.
pub(crate) const MAGIC: u32 = 0xaf14_3cd8;
/// The most streams that a state may have, and layers. llama.cpp has 256 and 512.
pub(crate) const MOST: usize = 4096;
/// The most extra words of a cell.
pub(crate) const MOST_EXTRA: usize = 4;
/// Words behind the number of layers: two, or none. The newest engine first.
pub(crate) const WORDS: [usize; 2] = [2, 0];
/// Type and sizes in front of a layer's rows, transposed or not: bytes.
pub(crate) const LAYER_HEAD: usize = 12;

/// Everything of a state but its cells and its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(crate) magic: bool,
    /// 0 in states until August 2025, which say nothing about streams.
    pub(crate) streams: usize,
    /// Each cell says whose it is. Not in states of early 2025.
    pub(crate) owners: bool,
    /// Extra words of each cell. They are kept with the rows.
    pub(crate) extra: usize,
    pub(crate) transposed: bool,
    /// The words behind the number of layers.
    pub(crate) words: Vec<u32>,
    pub(crate) k: Vec<Rows>,
    pub(crate) v: Vec<Rows>,
}

/// The rows of a layer, K or V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) kind: i32,
    /// The size of a row, or of an element if transposed; bytes.
    pub(crate) unit: usize,
    /// 1, or the elements of a row if transposed.
    pub(crate) repeats: usize,
}

impl Rows {
    /// Bytes a token. It was seen not to overflow when the layout was read.
    pub(crate) fn bytes(&self) -> usize {
        self.unit * self.repeats
    }
}

/// Where a layer's rows are, in a state or in a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowsAt {
    /// Where the first row is.
    pub(crate) at: usize,
    pub(crate) unit: usize,
    pub(crate) repeats: usize,
}

impl Layout {
    /// A hash of all that says how a chunk's rows are laid out. Neither the number of streams nor
    /// the magic number is part of it: servers with other numbers of slots have the same rows.
    pub fn digest(&self) -> [u8; 16] {
        let mut hash = Sha256::new();
        hash.update(b"layout");
        for count in [
            self.extra,
            usize::from(self.transposed),
            self.k.len(),
            self.v.len(),
        ] {
            hash.update((count as u64).to_le_bytes());
        }
        hash.update((self.words.len() as u64).to_le_bytes());
        for word in &self.words {
            hash.update(word.to_le_bytes());
        }
        for rows in self.layers() {
            hash.update(rows.kind.to_le_bytes());
            hash.update((rows.unit as u64).to_le_bytes());
            hash.update((rows.repeats as u64).to_le_bytes());
        }
        let whole = hash.finalize();
        std::array::from_fn(|i| whole[i])
    }

    /// As bytes: what [`digest`](Self::digest) is made of.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut into = Vec::new();
        let mut put = |number: u64| into.extend(number.to_le_bytes());
        put(self.extra as u64);
        put(u64::from(self.transposed));
        put(self.words.len() as u64);
        self.words.iter().for_each(|word| put(u64::from(*word)));
        for part in [&self.k, &self.v] {
            put(part.len() as u64);
            for rows in part {
                put(u64::from(rows.kind as u32));
                put(rows.unit as u64);
                put(rows.repeats as u64);
            }
        }
        into
    }

    /// From bytes. The layout then is one for chunks: it has one stream, and no magic number.
    pub(crate) fn decode(bytes: &mut Bytes<'_>) -> Option<Self> {
        let mut number = |most: u64| bytes.u64().filter(|number| *number <= most);
        let extra = number(MOST_EXTRA as u64)? as usize;
        let transposed = number(1)? == 1;
        let words = (0..number(2)?)
            .map(|_| number(u64::from(u32::MAX)).map(|word| word as u32))
            .collect::<Option<_>>()?;
        let mut part = || -> Option<Vec<Rows>> {
            let layers = number(MOST as u64)?;
            let rows = (0..layers).map(|_| {
                Some(Rows {
                    kind: number(u64::from(u32::MAX))? as u32 as i32,
                    unit: number(u64::from(u32::MAX))? as usize,
                    repeats: number(u64::from(u32::MAX))? as usize,
                })
            });
            rows.collect()
        };
        let layout = Self {
            magic: false,
            streams: 1,
            owners: true,
            extra,
            transposed,
            words,
            k: part()?,
            v: part()?,
        };
        // Whatever is computed of it must not overflow.
        let bytes = layout.layers().try_fold(0_usize, |sum, rows| {
            sum.checked_add(rows.unit.checked_mul(rows.repeats)?)
        });
        let few = bytes.is_some_and(|bytes| bytes < 1 << 40);
        (few && layout.bytes_per_token() > 0).then_some(layout)
    }

    /// Appends the rows of `take` tokens of a chunk, from its token `skip` on, as a chunk has them. False, and nothing is
    /// appended, if `rows` are not those of so many tokens.
    #[must_use]
    pub fn slice(
        &self,
        rows: &[u8],
        chunk_tokens: usize,
        (skip, take): (usize, usize),
        out: &mut Vec<u8>,
    ) -> bool {
        let fits = chunk_tokens.checked_mul(self.bytes_per_token()) == Some(rows.len());
        let inside = skip
            .checked_add(take)
            .is_some_and(|end| end <= chunk_tokens);
        if !fits || !inside {
            return false;
        }
        let extra = 4 * self.extra;
        out.extend_from_slice(&rows[skip * extra..(skip + take) * extra]);
        for place in self.in_chunk(chunk_tokens) {
            for repeat in 0..place.repeats {
                let from = place.at + (repeat * chunk_tokens + skip) * place.unit;
                out.extend_from_slice(&rows[from..from + take * place.unit]);
            }
        }
        true
    }

    /// The bytes of a token in a chunk.
    pub fn bytes_per_token(&self) -> usize {
        4 * self.extra + self.layers().map(Rows::bytes).sum::<usize>()
    }

    /// The size of the extra words of so many tokens, with which the rows of a chunk begin, bytes.
    pub fn words_size(&self, tokens: usize) -> usize {
        4 * self.extra * tokens
    }

    /// Whether all that a layer has of a token stands together. (Not if the engine transposes V.)
    pub fn keeps_rows_together(&self) -> bool {
        self.layers().all(|rows| rows.repeats == 1)
    }

    /// The size of a state with this many tokens, bytes. `usize::MAX` if there can be none.
    pub fn state_size(&self, tokens: usize) -> usize {
        let each = self.bytes_per_token() + self.cell_size() - 4 * self.extra;
        let rest = self.cells_at(self.streams.saturating_sub(1)) + self.head_size();
        let layers = LAYER_HEAD * (self.k.len() + self.v.len());
        each.saturating_mul(tokens).saturating_add(rest + layers)
    }

    pub(crate) fn layers(&self) -> impl Iterator<Item = &Rows> {
        self.k.iter().chain(&self.v)
    }

    pub(crate) fn prefix_size(&self) -> usize {
        if self.magic { 8 } else { 0 }
    }

    /// The size of what stands between the cells and the layers, bytes.
    pub(crate) fn head_size(&self) -> usize {
        8 + 4 * self.words.len()
    }

    /// The size of what a state says about a cell, bytes.
    pub(crate) fn cell_size(&self) -> usize {
        cell_size(self.owners, self.extra)
    }

    /// Where the first cell's description is, if that stream has the cells and those before it have none.
    pub(crate) fn cells_at(&self, stream: usize) -> usize {
        let counts = match self.streams {
            0 => 1,
            _ => 1 + stream + 1,
        };
        self.prefix_size() + 4 * counts
    }

    /// The stream that has the cells of a sequence.
    pub(crate) fn stream(&self, sequence: i32) -> Option<usize> {
        let sequence = usize::try_from(sequence).ok()?;
        match self.streams {
            0 | 1 => Some(0),
            streams => (sequence < streams).then_some(sequence),
        }
    }

    /// Where the layers' rows are in a state of `cells` cells, if the first cell's description
    /// is at `cells_at`.
    pub(crate) fn in_state(&self, cells_at: usize, cells: usize) -> impl Iterator<Item = RowsAt> {
        let mut at = cells_at + cells * self.cell_size() + self.head_size();
        self.layers().map(move |rows| {
            let place = rows.place(at + LAYER_HEAD);
            at += LAYER_HEAD + cells * rows.bytes();
            place
        })
    }

    /// Where the layers' rows are in a chunk.
    pub(crate) fn in_chunk(&self, tokens: usize) -> impl Iterator<Item = RowsAt> {
        let mut at = tokens * 4 * self.extra;
        self.layers().map(move |rows| {
            let place = rows.place(at);
            at += tokens * rows.bytes();
            place
        })
    }
}

impl Rows {
    fn place(&self, at: usize) -> RowsAt {
        RowsAt {
            at,
            unit: self.unit,
            repeats: self.repeats,
        }
    }
}

pub(crate) fn cell_size(owners: bool, extra: usize) -> usize {
    if owners { 12 + 4 * extra } else { 8 }
}

/// Why a state is not understood. Such a state is not for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutError {
    /// The sequence has no tokens, so the state says nothing about layers.
    Empty,
    /// It ends too early.
    Short,
    /// There is more after the last layer: a cache of several parts, as for sliding windows.
    Trailing,
    /// A number that no known version writes: streams, cells, sequences or layers.
    Unknown,
    /// Some position is missing or is there twice.
    Positions,
    /// Taken apart and put together, it is not the same.
    Differs,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the sequence is empty",
            Self::Short => "the state ends too early",
            Self::Trailing => "the state has a second part, as with a sliding window",
            Self::Unknown => "the state has an unknown layout",
            Self::Positions => "positions are missing or are there twice",
            Self::Differs => "the state differs after it was taken apart and put together",
        })
    }
}

impl std::error::Error for LayoutError {}
