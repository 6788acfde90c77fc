//! Reads the state of a sequence, and cuts rows out of it.

use std::borrow::Cow;
use std::ops::Range;

use crate::layout::{LAYER_HEAD, MAGIC, MOST, MOST_EXTRA, Rows, WORDS, cell_size};
use crate::numbers::Kind;
use crate::{Layout, LayoutError, media};

/// A state that was understood to its last byte.
#[derive(Clone, Debug)]
pub struct SequenceState<'a> {
    bytes: &'a [u8],
    map: Cow<'a, StateMap>,
    /// Rows of earlier tokens were not copied.
    rows_from: usize,
}

/// What stands where in a state. To find it takes a look at every cell: a caller that wants rows of one state again and again
/// keeps it.
#[derive(Clone, Debug)]
pub struct StateMap {
    /// The size of the state, bytes.
    size: usize,
    layout: Layout,
    sequence: i32,
    cells: usize,
    /// Where the first cell's description is.
    cells_at: usize,
    /// Ordered by index.
    runs: Vec<Run>,
    /// The indexes of its tokens: their positions, or, if some of them share one, from 0 on.
    indexes: Option<Range<usize>>,
    /// Some of its tokens share a position.
    shares: bool,
}

/// Cells that stand side by side and hold successive tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    index: u32,
    cell: u32,
    length: u32,
}

impl<'a> SequenceState<'a> {
    /// Takes at most as much memory again as the state has bytes, and that only if each cell
    /// stands alone.
    ///
    /// # Errors
    /// The state is not one of a dense-attention context of a known version.
    pub fn read(bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let mut error = LayoutError::Unknown;
        let ways = (0..=MOST_EXTRA).flat_map(|extra| WORDS.map(|words| (extra, words)));
        for (nth, (extra, words)) in ways.enumerate() {
            match Self::read_with(bytes, extra, words) {
                Ok(state) => return Ok(state),
                // The first attempt's says most, unless another one has read all but a second part.
                Err(why) if nth == 0 || why == LayoutError::Trailing => error = why,
                Err(_) => {}
            }
            if error == LayoutError::Empty {
                break;
            }
        }
        // Nothing that is read so is read in one of the other ways, too.
        let of_mid_2025 = || Self::read_without_streams(bytes, true);
        Self::read_without_streams(bytes, false)
            .or_else(|why| match why {
                LayoutError::Empty => Err(why),
                _ => of_mid_2025(),
            })
            .map_err(|why| match why {
                LayoutError::Empty | LayoutError::Trailing => why,
                _ => error,
            })
    }

    /// As [`read`](Self::read), for a state that is laid out as another one.
    pub(crate) fn read_as(bytes: &'a [u8], layout: &Layout) -> Result<Self, LayoutError> {
        match layout.streams {
            0 => Self::read_without_streams(bytes, layout.owners),
            _ => Self::read_with(bytes, layout.extra, layout.words.len()),
        }
    }

    /// As [`read`](Self::read), for a state with streams, so many extra words in each cell, and words behind
    /// the number of layers.
    fn read_with(bytes: &'a [u8], extra: usize, words: usize) -> Result<Self, LayoutError> {
        let mut reader = Reader { bytes, at: 0 };
        let mut streams = reader.u32()?;
        let mut prefix = None;
        if streams == MAGIC {
            prefix = Some(reader.i32()?);
            streams = reader.u32()?;
        }
        let streams = bounded(streams, MOST)?;
        let mut stream = 0;
        let mut cells = reader.u32()?;
        while cells == 0 {
            stream += 1;
            if stream == streams {
                return Err(LayoutError::Empty);
            }
            cells = reader.u32()?;
        }
        let cells = cells as usize;
        let list = reader.cells(cells, cell_size(true, extra))?;
        let sequence = sequence_of(list, extra)?;
        if prefix.is_some_and(|prefix| prefix != sequence) {
            return Err(LayoutError::Unknown);
        }
        let head = Head {
            magic: prefix.is_some(),
            streams,
            owners: true,
            stream,
            extra,
            words,
            sequence,
            cells,
        };
        Self::read_rows(bytes, reader.at, list, &head)
    }

    /// As [`read`](Self::read), for a state without streams. One without owners does not say whose it is: 0.
    fn read_without_streams(bytes: &'a [u8], owners: bool) -> Result<Self, LayoutError> {
        let mut reader = Reader { bytes, at: 0 };
        let cells = reader.u32()? as usize;
        if cells == 0 {
            return Err(LayoutError::Empty);
        }
        let size = cell_size(owners, 0);
        let list = reader.cells(cells, size)?;
        let good = |cell: &[u8]| word(cell, 0) >= 0 && word(cell, 4) == 0;
        let sequence = if owners {
            sequence_of(list, 0)?
        } else if list.chunks_exact(size).all(good) {
            0
        } else {
            return Err(LayoutError::Unknown);
        };
        let head = Head {
            magic: false,
            streams: 0,
            owners,
            stream: 0,
            extra: 0,
            words: 0,
            sequence,
            cells,
        };
        Self::read_rows(bytes, reader.at, list, &head)
    }

    /// Reads what comes behind the list of cells, which ends at `at`.
    fn read_rows(
        bytes: &'a [u8],
        at: usize,
        list: &[u8],
        head: &Head,
    ) -> Result<Self, LayoutError> {
        let &Head {
            streams,
            stream,
            cells,
            ..
        } = head;
        // The streams behind this one are empty.
        let rest = 4 * (streams.max(1) - 1 - stream);
        let end = bytes.len().checked_sub(rest).ok_or(LayoutError::Short)?;
        if end < at {
            return Err(LayoutError::Short);
        }
        let mut reader = Reader {
            bytes: &bytes[..end],
            at,
        };
        let transposed = match reader.u32()? {
            0 => false,
            1 => true,
            _ => return Err(LayoutError::Unknown),
        };
        let layers = bounded(reader.u32()?, MOST)?;
        let words = (0..head.words)
            .map(|_| reader.u32())
            .collect::<Result<_, _>>()?;
        // In a state that is cut, they would be bounded by its size only.
        if layers > reader.left() / LAYER_HEAD {
            return Err(LayoutError::Short);
        }
        let mut k = Vec::with_capacity(layers);
        for _ in 0..layers {
            k.push(reader.rows(cells, false)?);
        }
        let mut v = Vec::with_capacity(layers.min(reader.left() / LAYER_HEAD));
        while v.len() < layers && reader.left() > 0 {
            v.push(reader.rows(cells, transposed)?);
        }
        // With latent attention no layer has V, else each has.
        if !v.is_empty() && v.len() < layers {
            return Err(LayoutError::Short);
        }
        if reader.left() > 0 || bytes[end..].iter().any(|byte| *byte != 0) {
            return Err(LayoutError::Trailing);
        }

        let layout = Layout {
            magic: head.magic,
            streams,
            owners: head.owners,
            extra: head.extra,
            transposed,
            words,
            k,
            v,
        };
        if layout.stream(head.sequence) != Some(stream) || layout.bytes_per_token() == 0 {
            return Err(LayoutError::Unknown);
        }
        let (mut runs, mut indexes) = order(list, layout.cell_size());
        let mut shares = false;
        if indexes.is_none() && layout.extra >= 2 {
            if let Some(ordered) = order_shared(list, layout.cell_size()) {
                (runs, indexes, shares) = (ordered, Some(0..cells), true);
            }
        }
        let map = StateMap {
            size: bytes.len(),
            sequence: head.sequence,
            cells,
            cells_at: layout.cells_at(stream),
            layout,
            runs,
            indexes,
            shares,
        };
        Ok(Self {
            bytes,
            map: Cow::Owned(map),
            rows_from: 0,
        })
    }

    /// The same state, of which only rows of the tokens from this one on were copied: see [`WantedBytes`](crate::WantedBytes).
    #[must_use]
    pub fn with_rows_from(self, rows_from: usize) -> Self {
        Self { rows_from, ..self }
    }

    /// Whether it has the rows of all of its tokens.
    pub fn has_all_rows(&self) -> bool {
        self.rows_from == 0
    }

    /// What stands where.
    pub fn map(&self) -> &StateMap {
        &self.map
    }

    /// All of it.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// How the state is laid out.
    pub fn layout(&self) -> &Layout {
        &self.map.layout
    }

    /// Whose state it is.
    pub fn sequence(&self) -> i32 {
        self.map.sequence
    }

    /// How many tokens it has (the engine's cells).
    pub fn tokens(&self) -> usize {
        self.map.cells
    }

    /// The indexes of the tokens, if none between them is missing: their positions, each of which is there once. Or, from 0 on,
    /// the order of tokens of which some share a position.
    pub fn indexes(&self) -> Option<Range<usize>> {
        self.map.indexes.clone()
    }

    /// Positions are 0 to [`tokens`](Self::tokens), each once, in whatever order of cells.
    pub fn is_whole(&self) -> bool {
        let indexes = self.map.indexes.as_ref();
        !self.map.shares && indexes.is_some_and(|range| range.start == 0)
    }

    /// Whether it is the state of these tokens, as far as their number and their positions say.
    pub fn is_of(&self, tokens: &[i32]) -> bool {
        if self.tokens() != tokens.len() {
            false
        } else if self.map.shares {
            media::positions(tokens).eq(self.cell_positions().map(|at| at as usize))
        } else {
            self.is_whole() && !media::is_any_shared(tokens)
        }
    }

    /// The position of each cell, in the order of the tokens.
    pub(crate) fn cell_positions(&self) -> impl Iterator<Item = u32> + use<'_, 'a> {
        let (at, size) = (self.map.cells_at, self.map.layout.cell_size());
        let runs = self.map.runs.iter();
        let cells = runs.flat_map(|run| run.cell..run.cell + run.length);
        cells.map(move |cell| word(self.bytes, at + cell as usize * size) as u32)
    }

    /// Whether the cells are in the order of their tokens, as in a composed state.
    pub(crate) fn is_in_order(&self) -> bool {
        self.map.indexes.is_some() && self.map.runs.len() == 1
    }

    /// Whether all values of its rows are finite numbers.
    pub(crate) fn is_finite(&self) -> bool {
        let layout = &self.map.layout;
        let places = layout.in_state(self.map.cells_at, self.map.cells);
        let mut all = places.zip(layout.layers());
        all.all(|(place, rows)| {
            let end = place.at + self.map.cells * rows.bytes();
            Kind::of_rows(rows).are_finite(&self.bytes[place.at..end])
        })
    }

    /// Appends the rows of the tokens with these indexes in the store's own order: the extra words, then for
    /// each layer K, then V. That is `range.len()` times [`Layout::bytes_per_token`].
    ///
    /// `false`, and nothing is appended, if the state does not have each of these tokens, with its rows.
    #[must_use]
    pub fn extract(&self, range: Range<usize>, out: &mut Vec<u8>) -> bool {
        out.reserve(range.len() * self.map.layout.bytes_per_token());
        self.slices(range)
            .map(|slices| slices.for_each(|slice| out.extend_from_slice(slice)))
            .is_some()
    }

    /// What [`extract`](Self::extract) appends, slice by slice where it stands. Slices may be as short as an
    /// element of a row.
    ///
    /// `None`: the state does not have each of these tokens, with its rows.
    pub fn slices(
        &self,
        range: Range<usize>,
    ) -> Option<impl Iterator<Item = &'a [u8]> + use<'_, 'a>> {
        let has = |all: &Range<usize>| all.start <= range.start && range.end <= all.end;
        let has_rows = self.rows_from <= range.start;
        if range.start > range.end || !has_rows || !self.map.indexes.as_ref().is_some_and(has) {
            return None;
        }
        let bytes = self.bytes;
        let (size, extra) = (self.map.layout.cell_size(), 4 * self.map.layout.extra);
        let cells = self.cells_of(&range).flatten().filter(move |_| extra > 0);
        let words = cells.map(move |cell| {
            let at = self.map.cells_at + cell * size + 8;
            &bytes[at..at + extra]
        });
        let places = self.map.layout.in_state(self.map.cells_at, self.map.cells);
        let rows = places.flat_map(move |place| {
            let range = range.clone();
            (0..place.repeats).flat_map(move |repeat| {
                let rows = place.at + repeat * self.map.cells * place.unit;
                self.cells_of(&range).map(move |cells| {
                    let from = rows + cells.start * place.unit;
                    &bytes[from..from + cells.len() * place.unit]
                })
            })
        });
        Some(words.chain(rows))
    }

    /// The cells that hold these tokens, in their order.
    fn cells_of(&self, range: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<'_> {
        let Range { start, end } = range.clone();
        let first = self.map.runs.partition_point(|run| run.end() <= start);
        self.map.runs[first..]
            .iter()
            .take_while(move |run| (run.index as usize) < end)
            .map(move |run| {
                let (index, cell) = (run.index as usize, run.cell as usize);
                let (from, to) = (start.max(index), end.min(run.end()));
                cell + from - index..cell + to - index
            })
    }
}

impl StateMap {
    /// How the state is laid out.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// A state in which all stands where it stood in that of which this is the map: the same bytes, wherever they are.
    /// What is behind them is not part of it. `None`: they are fewer.
    #[must_use]
    pub fn state_in<'a>(&'a self, bytes: &'a [u8]) -> Option<SequenceState<'a>> {
        Some(SequenceState {
            bytes: bytes.get(..self.size)?,
            map: Cow::Borrowed(self),
            rows_from: 0,
        })
    }
}

impl Run {
    /// The index behind its last one.
    fn end(&self) -> usize {
        self.index as usize + self.length as usize
    }
}

/// What stands before the rows.
struct Head {
    magic: bool,
    streams: usize,
    owners: bool,
    /// The stream that has the cells.
    stream: usize,
    extra: usize,
    /// How many words are behind the number of layers.
    words: usize,
    sequence: i32,
    cells: usize,
}

pub(crate) fn word(cell: &[u8], at: usize) -> i32 {
    i32::from_le_bytes([0, 1, 2, 3].map(|i| cell[at + i]))
}

/// The sequence of all cells, each of which belongs to no other.
pub(crate) fn sequence_of(list: &[u8], extra: usize) -> Result<i32, LayoutError> {
    let size = cell_size(true, extra);
    let sequence = word(list, size - 4);
    let good =
        |cell: &[u8]| word(cell, 0) >= 0 && word(cell, 4) == 1 && word(cell, size - 4) == sequence;
    if sequence >= 0 && list.chunks_exact(size).all(good) {
        Ok(sequence)
    } else {
        Err(LayoutError::Unknown)
    }
}

/// The runs by position, and the positions if there are no gaps and none is there twice.
fn order(list: &[u8], cell_size: usize) -> (Vec<Run>, Option<Range<usize>>) {
    let mut runs: Vec<Run> = Vec::new();
    for (cell, bytes) in list.chunks_exact(cell_size).enumerate() {
        let position = u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[i]));
        match runs.last_mut() {
            Some(run) if run.end() == position as usize => run.length += 1,
            _ => runs.push(Run {
                index: position,
                cell: cell as u32,
                length: 1,
            }),
        }
    }
    runs.sort_unstable_by_key(|run| run.index);
    let follow = |pair: &[Run]| pair[0].end() == pair[1].index as usize;
    let positions = match (runs.first(), runs.last()) {
        (Some(first), Some(last)) if runs.windows(2).all(follow) => {
            Some(first.index as usize..last.end())
        }
        _ => None,
    };
    (runs, positions)
}

/// The runs by token, if cells share positions: those that do are the rows of an image, from left to right and from top to bottom.
/// The first two extra words of a cell say where in it: column, then row. `None`: two cells stand at one place, or there is
/// none at position 0.
fn order_shared(list: &[u8], cell_size: usize) -> Option<Vec<Run>> {
    let place = |cell: &[u8]| (word(cell, 0), word(cell, 12), word(cell, 8));
    let cells = list.chunks_exact(cell_size).zip(0_u32..);
    let mut all: Vec<_> = cells.map(|(cell, nth)| (place(cell), nth)).collect();
    all.sort_unstable();
    let is_one_place = |pair: &[((i32, i32, i32), u32)]| pair[0].0 == pair[1].0;
    if all.first()?.0.0 != 0 || all.windows(2).any(is_one_place) {
        return None;
    }
    let mut runs: Vec<Run> = Vec::new();
    for ((_, cell), index) in all.into_iter().zip(0..) {
        match runs.last_mut() {
            Some(run) if run.cell + run.length == cell => run.length += 1,
            _ => runs.push(Run {
                index,
                cell,
                length: 1,
            }),
        }
    }
    Some(runs)
}

fn bounded(count: u32, most: usize) -> Result<usize, LayoutError> {
    match count as usize {
        count if (1..=most).contains(&count) => Ok(count),
        _ => Err(LayoutError::Unknown),
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], LayoutError> {
        let end = self.at.checked_add(count).ok_or(LayoutError::Short)?;
        let bytes = self.bytes.get(self.at..end).ok_or(LayoutError::Short)?;
        self.at = end;
        Ok(bytes)
    }

    fn cells(&mut self, count: usize, size: usize) -> Result<&'a [u8], LayoutError> {
        self.take(count.checked_mul(size).ok_or(LayoutError::Short)?)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], LayoutError> {
        let bytes = self.take(N)?;
        Ok(std::array::from_fn(|i| bytes[i]))
    }

    fn u32(&mut self) -> Result<u32, LayoutError> {
        self.array().map(u32::from_le_bytes)
    }

    fn i32(&mut self) -> Result<i32, LayoutError> {
        self.array().map(i32::from_le_bytes)
    }

    /// A layer's head, and its rows, which are skipped.
    fn rows(&mut self, cells: usize, transposed: bool) -> Result<Rows, LayoutError> {
        let kind = self.i32()?;
        let (unit, repeats) = if transposed {
            (self.u32()? as usize, self.u32()? as usize)
        } else {
            let unit = u64::from_le_bytes(self.array()?);
            (usize::try_from(unit).map_err(|_| LayoutError::Short)?, 1)
        };
        if transposed && unit == 0 {
            // However many elements: extracting would count them.
            return Err(LayoutError::Unknown);
        }
        let token = unit.checked_mul(repeats).ok_or(LayoutError::Short)?;
        self.take(token.checked_mul(cells).ok_or(LayoutError::Short)?)?;
        Ok(Rows {
            kind,
            unit,
            repeats,
        })
    }
}
