//! Output: data on stdout, messages on stderr.
//!
//! Data is a table, or messages of the wire as YAML or JSON. Control characters in foreign text (names,
//! reasons) are escaped, so that it cannot control the terminal. A closed pipe is not an error.

pub(crate) mod amplification;
pub(crate) mod changes;
pub(crate) mod difference;
pub(crate) mod figures;
pub(crate) mod findings;
pub(crate) mod prediction;
pub(crate) mod route_detail;

use std::fmt::{self, Display};
use std::io::{self, IsTerminal as _, Write as _};

use clap::ValueEnum;
use damper_proto::manifest;
use serde::Serialize;

use crate::error::{CliError, print_message};

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text in columns
    Table,
    /// YAML; rules, guards and queues are manifests for `damper apply -f`
    Yaml,
    /// JSON; commands that keep running print one value per line
    Json,
}

/// Writes data to stdout.
pub(crate) fn data(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CliError::io("standard output"))
}

/// Writes a message of the wire, or a table.
pub(crate) fn show(
    format: Format,
    message: &impl Serialize,
    table: impl FnOnce() -> String,
) -> Result<(), CliError> {
    match format {
        Format::Table => data(&table()),
        Format::Yaml => data(&manifest::yaml(message)),
        Format::Json => data(&(manifest::json(message) + "\n")),
    }
}

/// True if stdout takes colours.
pub(crate) fn colours() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows under headings with aligned columns; no borders, for `awk`.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns an empty table with these headings.
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; an empty cell is shown as `-`.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| match cell.as_str() {
            "" => "-".to_owned(),
            text => printable(text),
        });
        self.rows.push(cells.collect());
    }

    fn widths(&self) -> Vec<usize> {
        let width = |(i, (heading, _)): (usize, &(&str, Align))| {
            let cells = self.rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count());
            cells.chain([heading.len()]).max().unwrap_or_default()
        };
        self.columns.iter().enumerate().map(width).collect()
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let headings: Vec<String> = self.columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
        for row in [&headings].into_iter().chain(&self.rows) {
            let cells = row.iter().zip(&self.columns).zip(&widths);
            let padded = cells.map(|((cell, (_, align)), width)| match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            });
            writeln!(f, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// Returns the text with control and invisible characters escaped.
pub(crate) fn printable(text: &str) -> String {
    let visible = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if visible(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}

/// Warns that the output does not cover the whole fleet.
pub(crate) fn warn_missing_replicas(missing_replicas: &[String]) {
    if !missing_replicas.is_empty() {
        let ids = printable(&missing_replicas.join(", "));
        print_message(format!(
            "warning: unreachable replicas: {ids}; their clients are missing here, see damper replicas"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_words_left_numbers_right() {
        let mut table = Table::new(&[("NAME", Align::Left), ("N", Align::Right), ("END", Align::Left)]);
        table.row(["a".into(), "10".into(), "x".into()]);
        table.row(["longer".into(), "7".into(), String::new()]);
        assert_eq!(table.to_string(), "NAME     N  END\na       10  x\nlonger   7  -\n");
    }

    #[test]
    fn foreign_text_is_escaped() {
        assert_eq!(printable("a\x1b[2Jb\n\u{202e}c é"), "a\\u{1b}[2Jb\\n\\u{202e}c é");
    }
}
