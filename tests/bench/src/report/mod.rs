//! What was measured, kept in docs/benchmarks: `bench.json` for programs, `README.md` and pictures for people.
//!
//! Rows that were not measured anew stay as they were; each says which commit it is of.

mod picture;
mod table;

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use damper_tests::machine::Machine;
use damper_tests::{etcd, machine};

use crate::figure::Row;
use crate::rows;

const JSON: &str = "bench.json";
const TEXT: &str = "README.md";

/// What is compared and what it is made of.
const CRATES: [&str; 7] = ["tonic", "hyper", "h2", "tower", "tokio", "sled", "etcd-client"];

/// Everything that was measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// What the row that was measured last was measured on.
    machine: Machine,
    /// The etcd that it was measured with.
    etcd: String,
    /// The most files that a process might have open there.
    open_files: u64,
    rows: Vec<Row>,
}

impl Report {
    /// What was measured so far, on this machine from now on.
    ///
    /// # Errors
    /// The file is there and can not be read.
    pub fn read(folder: &Path, open_files: u64) -> Result<Self> {
        let path = folder.join(JSON);
        let rows = match fs::read(&path) {
            Ok(json) => {
                serde_json::from_slice::<Self>(&json).with_context(|| path.display().to_string())?.rows
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let etcd = machine::said(etcd::program(), &["--version"])?.replace("etcd Version:", "etcd");
        Ok(Self { machine: Machine::this(&CRATES)?, etcd, open_files, rows })
    }

    /// Takes a row in place of the one of its name; rows that others measure are taken from the folder.
    ///
    /// # Errors
    /// What the others wrote can not be read.
    pub fn put(&mut self, row: Row, folder: &Path) -> Result<()> {
        self.rows.retain(|old| old.id != row.id);
        self.rows.push(row);
        self.rows = rows::in_order(std::mem::take(&mut self.rows), folder)?;
        Ok(())
    }

    /// A row as text.
    #[must_use]
    pub fn shown(&self, row: &Row) -> String {
        table::of_row(row)
    }

    /// Writes everything.
    ///
    /// # Errors
    /// It can not be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        let pictures = picture::draw(&self.rows, folder)?;
        let mut json = serde_json::to_string_pretty(self)?;
        json.push('\n');
        fs::write(folder.join(JSON), json)?;
        let text = table::of_all(self, &pictures);
        fs::write(folder.join(TEXT), text).with_context(|| folder.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_before_can_be_read() {
        let committed = include_str!("../../../../docs/benchmarks/bench.json");
        let report: Report = serde_json::from_str(committed).unwrap();
        let again: serde_json::Value = serde_json::to_value(&report).unwrap();
        assert_eq!(
            again,
            serde_json::from_str::<serde_json::Value>(committed).unwrap(),
            "and names are kept"
        );
    }

    /// Returns the medians of a figure, Damper's and the first peer's, divided by 1,000.
    fn medians(report: &serde_json::Value, row: &str, what: &str) -> (String, String) {
        let rows = report["rows"].as_array().unwrap();
        let figures = rows.iter().find(|found| found["id"] == row).unwrap()["figures"].as_array().unwrap();
        let figure = figures.iter().find(|figure| figure["what"] == what).unwrap();
        let text = |figure: &serde_json::Value| {
            figure["median"].as_f64().map(|median| format!("{:.2}", median / 1_000.0)).unwrap_or_default()
        };
        (text(&figure["ours"]), text(&figure["peer"]["figure"]))
    }

    #[test]
    fn readme_quotes_the_committed_figures() {
        let report = serde_json::from_str(include_str!("../../../../docs/benchmarks/bench.json")).unwrap();
        let (ruled, tower) = medians(&report, "layer", "time added, under a rule, one task");
        let (free, _) = medians(&report, "layer", "time added, no rule for the route, one task");
        let what = "p99 from change to answer, 10000 streams, TLS and tokens; the peer: TLS";
        let (damper, tonic) = medians(&report, "streams", what);
        let cells = [
            format!("| {tower} us (`tower::retry`) | {free} us, under a rule {ruled} us |"),
            format!("| {tonic} s (bare tonic) | {damper} s |"),
        ];
        for (name, text) in [
            ("README.md", include_str!("../../../../README.md")),
            ("docs/comparison.md", include_str!("../../../../docs/comparison.md")),
        ] {
            cells.iter().for_each(|cell| assert!(text.contains(cell), "{name} lacks {cell:?}"));
        }
    }
}
