//! Which bytes of a state are wanted, if only the rows of some positions are.

use std::ops::Range;

use crate::Layout;
use crate::layout::RowsAt;
use crate::state::word;

/// A state of which the rows before some position are of no use to whoever copies it.
#[derive(Debug)]
pub struct Wanted {
    /// Of each layer.
    rows: Vec<RowsAt>,
    cells: usize,
    /// The cells whose rows are wanted.
    wanted: Range<usize>,
}

impl Wanted {
    /// Of a state of `sequence`, the rows of the positions from `from` on. `begun` is what was written of it so far: at
    /// least all that stands before the rows. `None`: it is not laid out like that, or these rows do not stand side by
    /// side.
    pub fn new(layout: &Layout, sequence: i32, begun: &[u8], from: usize) -> Option<Self> {
        let cells_at = layout.cells_at(layout.stream(sequence)?);
        let count = begun.get(cells_at - 4..cells_at)?;
        let cells = u32::from_le_bytes([0, 1, 2, 3].map(|i| count[i])) as usize;
        let list = cells.checked_mul(layout.cell_size())?;
        let list = begun.get(cells_at..cells_at.checked_add(list)?)?;
        let is_wanted = |cell: &[u8]| usize::try_from(word(cell, 0)).is_ok_and(|at| at >= from);
        let mut all = list.chunks_exact(layout.cell_size()).map(is_wanted);
        let first = all.by_ref().take_while(|wanted| !wanted).count();
        // The first that is wanted was taken, too.
        let more = all.by_ref().take_while(|wanted| *wanted).count();
        let wanted = first..cells.min(first + 1 + more);
        let scattered = all.any(|wanted| wanted);
        (!scattered).then(|| Self {
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
            let from = start.max(begin + self.wanted.start * rows.unit);
            let to = end.min(begin + self.wanted.end * rows.unit);
            if from < to {
                return Some(from..to);
            }
            start = begin + each;
        }
        None
    }

    fn end(&self, rows: &RowsAt) -> usize {
        rows.at + rows.repeats * self.cells * rows.unit
    }
}
