use std::io::{self, Write};

use comfy_table::{CellAlignment, presets};
use serde::Serialize;

use crate::terminal::output::printed;
use crate::terminal::plain::{plain, plain_lines};
use crate::terminal::{Exit, OrExit, Outcome};

/// Standard output, for people or for scripts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

/// Rows of text under a heading, with columns as wide as they need to be.
#[derive(Debug)]
pub(crate) struct Table(comfy_table::Table);

impl Output {
    /// Prints JSON if `json`, else text.
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether scripts read the output.
    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Prints `value` as one line of JSON, or the text that `text` makes.
    pub(crate) fn print(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Outcome {
        let mut text = if self.json {
            serde_json::to_string(value).or_exit_at(Exit::Software, || {
                "cannot write the result as JSON".to_owned()
            })?
        } else {
            plain_lines(&text())
        };
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        let mut output = io::stdout().lock();
        let written = output.write_all(text.as_bytes());
        printed(written.and_then(|()| output.flush()))
    }
}

impl Table {
    /// A table with these columns; those whose name ends with `#` hold numbers, which are set to
    /// the right.
    pub(crate) fn new(heading: &[&'static str]) -> Self {
        let mut table = comfy_table::Table::new();
        let names = heading.iter().map(|name| name.trim_end_matches('#'));
        table.load_style(presets::NOTHING).set_header(names);
        for (column, name) in table.column_iter_mut().zip(heading) {
            column.set_padding((0, 2));
            if name.ends_with('#') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Self(table)
    }

    /// Adds a row. A cell stays on its line, and one that is very long is cut.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.add_row(cells.into_iter().map(cell));
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.0.trim_fmt())
    }
}

/// A text as it stands in a table.
fn cell(text: String) -> String {
    let text = plain(&text);
    match text.char_indices().nth(CELL_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into_owned(),
    }
}

/// Most letters of a cell; `--json` has them all.
const CELL_CHARS_MAX: usize = 300;

/// A number of bytes for people, in decimal units.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// A time in three digits; a call that ends in the turn in which it began takes none.
pub(crate) fn short(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        1_000_000_000.. => format!("{:.1} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let mut table = Table::new(&["name", "bytes#", "task"]);
        table.row(["a".to_owned(), "1000".to_owned(), "ps:0".to_owned()]);
        table.row(["longer".to_owned(), "2".to_owned(), "ps:1".to_owned()]);
        let expected = "name    bytes  task\na        1000  ps:0\nlonger      2  ps:1\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn wide_letters_count_as_the_two_columns_that_they_take() {
        let mut table = Table::new(&["name", "task"]);
        table.row(["重み".to_owned(), "ps:0".to_owned()]);
        table.row(["weights".to_owned(), "ps:1".to_owned()]);
        let expected = "name     task\n重み     ps:0\nweights  ps:1\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn cells_are_one_line_and_not_endless() {
        let mut table = Table::new(&["name", "task"]);
        table.row(["a\n\x1b[31mb".to_owned(), "ps:0".to_owned()]);
        table.row(["x".repeat(100_000), "ps:0".to_owned()]);
        let text = table.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].starts_with("a\\n\\u{1b}[31mb  "), "{text}");
        assert!(
            lines[2].ends_with("xxx...  ps:0") && lines[2].len() < 400,
            "{text}"
        );
    }

    #[test]
    fn sizes_have_decimal_units() {
        let sizes = [0, 999, 1_000, 90_868_376, 2_500_000_000].map(size);
        assert_eq!(sizes, ["0 B", "999 B", "1.0 kB", "90.9 MB", "2.50 GB"]);
    }
}
