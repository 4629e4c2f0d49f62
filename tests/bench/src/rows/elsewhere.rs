//! Rows of the table that another task measures.

use std::path::Path;

use anyhow::Result;
use damper_tests::lab::results::{self, Results};
use damper_tests::lab::targets::{self, Verdict};
use damper_tests::spread::Spread;

use crate::figure::{Figure, Row, Target};

/// What the lab wrote into this folder.
pub(super) fn rows(folder: &Path) -> Result<Vec<Row>> {
    Ok(vec![chain(folder)?])
}

/// Judged by the lab's own targets, over all scenarios that it ran.
fn chain(folder: &Path) -> Result<Row> {
    let row = Row::new("chain", "Chains of 2 to 5 layers: attempts on the last hop");
    if !folder.join(results::FILE).exists() {
        return Ok(row.note("No run of `cargo xtask lab` is here."));
    }
    let lab = Results::read(folder)?;
    let run = &lab.circumstances;
    let row = row.shown_by(format!("cargo xtask lab --{} --runs {}", run.selection, run.runs)).note(format!(
        "From [lab.md](lab.md), which compares every scenario with naive retries and tower's budget: commit {}, {} runs \
         of each. Each row counts the scenarios that met a target. `damper-hedge` and credit may exceed 1.1 in the \
         steady part: they spend a budget on hedges of slow attempts and on retries that succeed.",
        run.machine.commit, run.runs,
    ));
    let verdicts = targets::judge(&lab);
    let missed = verdicts.iter().filter(|verdict| !verdict.missed.is_empty());
    let row = missed.fold(row, |row, verdict| {
        row.note(format!("Missed, {}: {}.", verdict.target, verdict.missed.join(", ")))
    });
    Ok(row.with_all(verdicts.iter().filter(|verdict| verdict.of > 0).map(figure)))
}

fn figure(verdict: &Verdict) -> Figure {
    let unit = format!("of {} scenarios", verdict.of);
    let met = Spread::exactly(verdict.met as f64);
    Figure::new(verdict.target, &unit, met).aim(Target::AtLeast(verdict.of as f64))
}
