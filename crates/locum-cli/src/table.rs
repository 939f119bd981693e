//! Tables of text: columns as wide as what is in them.

use std::fmt;

/// Rows under a head; numbers, so cells are aligned to the right.
pub(crate) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    left_first: bool,
}

impl Table {
    pub(crate) fn new<T: Into<String>>(head: impl IntoIterator<Item = T>) -> Self {
        Self {
            head: head.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
            left_first: false,
        }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The same with names in the first column, aligned to the left.
    pub(crate) fn left_first(self) -> Self {
        Self {
            left_first: true,
            ..self
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let width = |column: usize| {
            let cells = lines().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        for line in lines() {
            let cells: Vec<String> = line
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, &width))| {
                    if column == 0 && self.left_first {
                        format!("{cell:<width$}")
                    } else {
                        format!("{cell:>width$}")
                    }
                })
                .collect();
            writeln!(f, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(["", "b"]);
        table.row(["long".to_owned(), "1".to_owned()]);
        table.row(["x".to_owned(), "‖10".to_owned()]);
        assert_eq!(
            table.left_first().to_string(),
            "        b\nlong    1\nx     ‖10\n"
        );
    }
}
