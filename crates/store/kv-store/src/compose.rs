//! Puts the state of a sequence together, and proves with a real one that states are understood.

use std::fmt;
use std::ops::Range;

use crate::layout::MAGIC;
use crate::numbers::{Kind, Numbers};
use crate::{GRID, Layout, LayoutError, SequenceState, media};

/// A state that is being put together, from its first position to its last.
///
/// The state is given out only when it is complete ([`finish`](Self::finish)).
#[derive(Debug)]
pub struct Composer<'b> {
    layout: &'b Layout,
    bytes: &'b mut [u8],
    /// Where the first cell's description is.
    cells_at: usize,
    positions: Range<usize>,
    /// The next position that is missing.
    next: usize,
}

impl<'b> Composer<'b> {
    /// A state of `sequence` with these positions; a whole prefix begins at 0. `buffer` gets the
    /// state's size. If it was as large before, its memory is used again, which saves the time
    /// that fresh pages take: about as long as copying the rows.
    ///
    /// # Errors
    /// There are no positions, or there can be no such state.
    pub fn new(
        layout: &'b Layout,
        sequence: i32,
        positions: Range<usize>,
        buffer: &'b mut Vec<u8>,
    ) -> Result<Self, ComposeError> {
        let size = layout.state_size(positions.len());
        if size > isize::MAX as usize {
            return Err(ComposeError::Positions);
        }
        make_room(buffer, size);
        buffer.resize(size, 0);
        Self::within(layout, sequence, positions, buffer)
    }

    /// As [`new`](Self::new), in memory that has exactly the state's size.
    ///
    /// # Errors
    /// As there, or it has another size.
    pub fn within(
        layout: &'b Layout,
        sequence: i32,
        positions: Range<usize>,
        bytes: &'b mut [u8],
    ) -> Result<Self, ComposeError> {
        let cells = positions.len();
        let stream = layout.stream(sequence).ok_or(ComposeError::Sequence)?;
        let fits = layout.state_size(cells) == bytes.len();
        if cells == 0 || positions.end > i32::MAX as usize || !fits {
            return Err(ComposeError::Positions);
        }
        let cells_at = layout.cells_at(stream);
        let mut composer = Self {
            layout,
            bytes,
            cells_at,
            next: positions.start,
            positions,
        };
        composer.describe(sequence, stream);
        Ok(composer)
    }

    /// Writes everything but the rows and the extra words.
    fn describe(&mut self, sequence: i32, stream: usize) {
        let layout = self.layout;
        let cells = self.positions.len();
        let mut writer = Writer {
            bytes: self.bytes,
            at: 0,
        };
        if layout.magic {
            writer.u32(MAGIC);
            writer.i32(sequence);
        }
        if layout.streams > 0 {
            writer.u32(layout.streams as u32);
        }
        for _ in 0..stream {
            writer.u32(0);
        }
        writer.u32(cells as u32);
        for position in self.positions.clone() {
            writer.u32(position as u32);
            writer.u32(u32::from(layout.owners));
            if layout.owners {
                writer.at += 4 * layout.extra;
                writer.i32(sequence);
            }
        }
        writer.u32(u32::from(layout.transposed));
        writer.u32(layout.k.len() as u32);
        for word in &layout.words {
            writer.u32(*word);
        }
        for (index, rows) in layout.layers().enumerate() {
            writer.i32(rows.kind);
            if layout.transposed && index >= layout.k.len() {
                writer.u32(rows.unit as u32);
                writer.u32(rows.repeats as u32);
            } else {
                writer.put(&(rows.unit as u64).to_le_bytes());
            }
            writer.at += cells * rows.bytes();
        }
        for _ in stream + 1..layout.streams {
            writer.u32(0);
        }
        debug_assert_eq!(writer.at, writer.bytes.len());
    }

    /// The tokens stand at these positions, in place of successive ones.
    pub fn place(&mut self, positions: impl Iterator<Item = u32>) {
        let cells = self.positions.len() * self.layout.cell_size();
        let list = &mut self.bytes[self.cells_at..self.cells_at + cells];
        for (cell, position) in list
            .chunks_exact_mut(self.layout.cell_size())
            .zip(positions)
        {
            cell[..4].copy_from_slice(&position.to_le_bytes());
        }
    }

    /// As [`place`](Self::place): where these tokens stand, the first of a sequence.
    pub fn place_tokens(&mut self, tokens: &[i32]) {
        if media::is_any_shared(tokens) {
            self.place(media::positions(tokens).map(|position| position as u32));
        }
    }

    /// Of a chunk that has `chunk_tokens` tokens and these rows, the tokens from `skip` on go to
    /// the next `take` positions. These begin at `at`, which must be where the last call ended.
    ///
    /// # Errors
    /// The rows do not fit the layout or the positions.
    pub fn put(
        &mut self,
        at: usize,
        rows: &[u8],
        chunk_tokens: usize,
        skip: usize,
        take: usize,
    ) -> Result<(), ComposeError> {
        if chunk_tokens.checked_mul(self.layout.bytes_per_token()) != Some(rows.len()) {
            return Err(ComposeError::Rows);
        }
        let inside = skip
            .checked_add(take)
            .is_some_and(|end| end <= chunk_tokens);
        if at != self.next || take > self.positions.end - self.next || !inside {
            return Err(ComposeError::Positions);
        }
        let cells = self.positions.len();
        let cell = at - self.positions.start;
        let extra = 4 * self.layout.extra;
        self.put_words(cell, &rows[skip * extra..(skip + take) * extra]);
        let sources = self.layout.in_chunk(chunk_tokens);
        let targets = self.layout.in_state(self.cells_at, cells);
        for (source, target) in sources.zip(targets) {
            let unit = source.unit;
            let length = take * unit;
            for repeat in 0..source.repeats {
                let from = source.at + (repeat * chunk_tokens + skip) * unit;
                let to = target.at + (repeat * cells + cell) * unit;
                self.bytes[to..to + length].copy_from_slice(&rows[from..from + length]);
            }
        }
        self.next += take;
        Ok(())
    }

    /// The extra words of some cells, which stand first in a chunk.
    fn put_words(&mut self, cell: usize, words: &[u8]) {
        let (size, extra) = (self.layout.cell_size(), 4 * self.layout.extra);
        if extra > 0 {
            let list = &mut self.bytes[self.cells_at + cell * size..];
            for (cell, words) in list.chunks_exact_mut(size).zip(words.chunks_exact(extra)) {
                cell[8..8 + extra].copy_from_slice(words);
            }
        }
    }

    /// Leaves out the rows of a whole chunk with so many tokens at the next positions, which begin at `at`. Other code
    /// brings them to the code that takes the state: what is left out, in the order in which a state and a chunk have
    /// it. `words`: the chunk's first [`words_size`](Layout::words_size) bytes, which are not left out.
    ///
    /// # Errors
    /// The positions are not the next ones, or the rows are [scattered](Layout::keeps_rows_together) or have other words.
    pub fn leave_out(
        &mut self,
        at: usize,
        words: &[u8],
        chunk_tokens: usize,
    ) -> Result<impl Iterator<Item = Gap> + use<'_, 'b>, ComposeError> {
        if at != self.next || chunk_tokens > self.positions.end - self.next {
            return Err(ComposeError::Positions);
        }
        let layout = self.layout;
        if !layout.keeps_rows_together() || words.len() != layout.words_size(chunk_tokens) {
            return Err(ComposeError::Rows);
        }
        let cell = at - self.positions.start;
        self.put_words(cell, words);
        self.next += chunk_tokens;
        let sources = layout.in_chunk(chunk_tokens);
        let targets = layout.in_state(self.cells_at, self.positions.len());
        let places = sources.zip(targets).zip(layout.layers());
        Ok(places.map(move |((source, target), rows)| Gap {
            at: target.at + cell * target.unit,
            bytes: chunk_tokens * target.unit,
            from: source.at,
            unit: target.unit,
            kind: Kind::of_rows(rows),
        }))
    }

    /// The bytes of the rows of a chunk.
    pub fn bytes_of(&self, chunk_tokens: usize) -> u64 {
        (chunk_tokens as u64).saturating_mul(self.layout.bytes_per_token() as u64)
    }

    /// What the rows that are put into it consist of.
    pub fn numbers(&self) -> Numbers {
        self.layout.numbers()
    }

    /// See [`Layout::words_size`].
    pub fn words_size(&self, chunk_tokens: usize) -> usize {
        self.layout.words_size(chunk_tokens)
    }

    /// The next position that is missing.
    pub fn next(&self) -> usize {
        self.next
    }

    /// The state.
    ///
    /// # Errors
    /// Positions are missing.
    pub fn finish(self) -> Result<&'b [u8], ComposeError> {
        if self.next == self.positions.end {
            Ok(self.bytes)
        } else {
            Err(ComposeError::Positions)
        }
    }
}

/// Rows that a state lacks: see [`Composer::leave_out`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Where they belong in the state, bytes.
    pub at: usize,
    /// Their size, bytes.
    pub bytes: usize,
    /// Where the rows of the chunk have them, bytes.
    pub from: usize,
    /// The size of a row, bytes.
    pub unit: usize,
    pub(crate) kind: Kind,
}

impl Gap {
    /// So many bytes of it, whole rows, from `skip` on.
    #[must_use]
    pub fn part(&self, skip: usize, bytes: usize) -> Self {
        Self {
            at: self.at + skip,
            bytes,
            from: self.from + skip,
            ..*self
        }
    }

    /// Whether these, some whole rows of it, are finite numbers, as far as it is known of what they consist.
    pub fn are_finite(&self, rows: &[u8]) -> bool {
        self.kind.are_finite(rows)
    }
}

/// Makes room for a state of so many bytes. If there is not enough, what was there before is gone: the system clears fresh
/// pages when they are first used, and `resize` would write zeros there once more, behind a copy of what is not wanted.
pub fn make_room(buffer: &mut Vec<u8>, size: usize) {
    if buffer.capacity() < size {
        *buffer = vec![0; size];
    }
}

struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn u32(&mut self, number: u32) {
        self.put(&number.to_le_bytes());
    }

    fn i32(&mut self, number: i32) {
        self.put(&number.to_le_bytes());
    }
}

/// Why no state came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ComposeError {
    /// The cache has no such sequence.
    Sequence,
    /// The positions are not the next ones, or not all are there.
    Positions,
    /// The rows have another size than the layout says.
    Rows,
}

impl fmt::Display for ComposeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sequence => "the cache has no such sequence",
            Self::Positions => "positions of the state are missing or in the wrong order",
            Self::Rows => "the rows have another size than the layout says",
        })
    }
}

impl std::error::Error for ComposeError {}

/// Takes a state apart in pieces of several sizes, puts it together, and compares it byte for byte.
/// If the cells are not in the order of their positions, the rows are compared.
///
/// Takes two to three times the state's size in memory for a moment. A state of few tokens proves
/// as much as one of many; with two or more tokens, the order of rows is proven, too.
///
/// # Errors
/// The layout is not known, positions are missing, or the state is not the same.
pub fn prove(bytes: &[u8]) -> Result<Layout, LayoutError> {
    let state = SequenceState::read(bytes)?;
    let all = state.indexes().ok_or(LayoutError::Positions)?;
    let composed = composed_again(&state, &all).ok_or(LayoutError::Differs)?;
    let same = if state.is_in_order() {
        composed == bytes
    } else {
        let layout = state.layout();
        let again = SequenceState::read_as(&composed, layout)?;
        again.layout() == layout && rows(&state, &all) == rows(&again, &all)
    };
    if same && composed.len() == bytes.len() {
        Ok(state.layout().clone())
    } else {
        Err(LayoutError::Differs)
    }
}

/// A copy of the state, from pieces. Every second piece is the end of a larger chunk.
fn composed_again(state: &SequenceState<'_>, all: &Range<usize>) -> Option<Vec<u8>> {
    let mut buffer = Vec::new();
    let mut composer =
        Composer::new(state.layout(), state.sequence(), all.clone(), &mut buffer).ok()?;
    composer.place(state.cell_positions());
    let mut rows = Vec::new();
    let mut at = all.start;
    for take in [1, 2, 7].into_iter().chain(std::iter::repeat(GRID)) {
        if at == all.end {
            break;
        }
        let take = take.min(all.end - at);
        let skip = (at - all.start).min(take % 2);
        rows.clear();
        if !state.extract(at - skip..at + take, &mut rows) {
            return None;
        }
        composer.put(at, &rows, skip + take, skip, take).ok()?;
        at += take;
    }
    composer.finish().ok()?;
    Some(buffer)
}

fn rows(state: &SequenceState<'_>, all: &Range<usize>) -> Option<Vec<u8>> {
    let mut rows = Vec::new();
    state.extract(all.clone(), &mut rows).then_some(rows)
}
