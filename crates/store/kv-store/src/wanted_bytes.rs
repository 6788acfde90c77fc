//! Which bytes of a state are wanted, if only the rows of some positions are.

use std::ops::Range;

use crate::Layout;
use crate::layout::RowsAt;
use crate::state::word;

/// A state of which the rows before some position are of no use to the code that copies it.
#[derive(Debug)]
pub struct WantedBytes {
    /// Where the rows of each layer are.
    rows: Vec<RowsAt>,
    cells: usize,
    /// The cells whose rows are wanted, in order.
    wanted: Vec<Range<usize>>,
}

impl WantedBytes {
    /// Of a state of `sequence`, the rows of the positions from `from` on. `begun` is what was written of it so far: at
    /// least all that stands before the rows. `None`: it is not laid out like that.
    pub fn new(layout: &Layout, sequence: i32, begun: &[u8], from: usize) -> Option<Self> {
        let cells_at = layout.cells_at(layout.stream(sequence)?);
        let count = begun.get(cells_at - 4..cells_at)?;
        let cells = u32::from_le_bytes([0, 1, 2, 3].map(|i| count[i])) as usize;
        let bytes = cells.checked_mul(layout.cell_size())?;
        let list = begun.get(cells_at..cells_at.checked_add(bytes)?)?;
        let mut wanted: Vec<Range<usize>> = Vec::new();
        for (nth, cell) in list.chunks_exact(layout.cell_size()).enumerate() {
            if usize::try_from(word(cell, 0)).is_ok_and(|position| position >= from) {
                match wanted.last_mut() {
                    Some(last) if last.end == nth => last.end += 1,
                    _ => wanted.push(nth..nth + 1),
                }
            }
        }
        Some(Self {
            rows: layout.in_state(cells_at, cells).collect(),
            cells,
            wanted,
        })
    }

    /// The first bytes that are wanted in a range of the state: its rows that are, and all that is no row.
    pub fn next(&self, range: Range<usize>) -> Option<Range<usize>> {
        let Range { mut start, end } = range;
        while start < end {
            let nth = self.rows.partition_point(|rows| self.end(rows) <= start);
            let Some(rows) = self.rows.get(nth).filter(|rows| rows.at < end) else {
                return Some(start..end);
            };
            if start < rows.at {
                return Some(start..rows.at);
            }
            let each = self.cells * rows.unit;
            let begin = start - (start - rows.at) % each;
            let at = |cell: usize| begin + cell * rows.unit;
            let first = self.wanted.partition_point(|cells| at(cells.end) <= start);
            if let Some(cells) = self.wanted.get(first) {
                let part = start.max(at(cells.start))..end.min(at(cells.end));
                return (!part.is_empty()).then_some(part);
            }
            start = begin + each;
        }
        None
    }

    fn end(&self, rows: &RowsAt) -> usize {
        rows.at + rows.repeats * self.cells * rows.unit
    }
}
