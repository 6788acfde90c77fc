//! Rows of text in columns.

/// Cells in columns as wide as they must be, two spaces between them; all but
/// the first `left` columns, and the last if it is `ragged`, to the right.
pub(super) struct Table {
    rows: Vec<Vec<String>>,
    left: &'static [usize],
}

impl Table {
    /// `left`: the columns that are aligned to the left.
    pub(super) fn new(head: &[&str], left: &'static [usize]) -> Self {
        let head = head.iter().map(|&cell| cell.to_owned()).collect();
        Self {
            rows: vec![head],
            left,
        }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub(super) fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                if column > 0 {
                    line.push_str("  ");
                }
                let width = widths[column];
                if self.left.contains(&column) {
                    line.push_str(&format!("{cell:<width$}"));
                } else {
                    line.push_str(&format!("{cell:>width$}"));
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["slot", "ids"], &[1]);
        table.row(vec!["0".to_owned(), "a".to_owned()]);
        table.row(vec!["11".to_owned(), String::new()]);
        assert_eq!(table.text(), "slot  ids\n   0  a\n  11\n");
    }
}
