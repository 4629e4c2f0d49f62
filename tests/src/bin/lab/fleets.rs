//! Fleets: their simulations, and the page with their tables.
//!
//! Simulations are kept in the file with what was measured: there are hundreds, which take an optimised build half a
//! minute, and a test that makes some of them anew.

use std::fmt::Write as _;
use std::path::Path;

use damper_tests::lab::figures::Figures;
use damper_tests::lab::results::{Fleets, Results, Row};
use damper_tests::lab::scenario::{Scenario, Trouble};

use crate::compare::on_all_cores;
use crate::draw::fill;
use crate::matrix::{self, FLEETS};
use crate::table::{machine, percent, recovery};

/// Where the tables are written.
pub(crate) const PAGE: &str = "fleets.md";

/// Simulates all of them anew, and writes them with what was measured, or else with what is kept of that.
pub(crate) fn write(measured: Option<Results>, folder: &Path) -> anyhow::Result<()> {
    let measured = match measured {
        Some(measured) => Some(measured),
        None => Fleets::read(folder)?.measured,
    };
    let simulated = on_all_cores(&matrix::simulated_fleets(), simulated);
    Fleets { measured, simulated }.write(folder)?;
    // A float read back may differ in its last bit and round otherwise, and a test holds the page to the file.
    fill(&folder.join(PAGE), &parts(&Fleets::read(folder)?))
}

fn simulated(scenario: &Scenario) -> Row {
    let figures = Figures::of(&scenario.simulated(), scenario);
    Row::of(scenario, vec![Figures { goodput: Vec::new(), ..figures }])
}

/// The parts of the page, by name.
pub(crate) fn parts(fleets: &Fleets) -> Vec<(&'static str, String)> {
    let not_yet = "Nothing was measured with real processes yet.\n".to_owned();
    vec![("machine", fleets.measured.as_ref().map_or(not_yet, machine)), ("fleets", tables(fleets))]
}

/// Everything that was measured, and its simulations.
pub(crate) fn tables(fleets: &Fleets) -> String {
    let measured = fleets.measured.as_ref().map_or(&[][..], |results| &results.rows);
    let mut troubles = Vec::new();
    for row in fleets.simulated.iter().chain(measured) {
        if !troubles.contains(&row.trouble) {
            troubles.push(row.trouble);
        }
    }
    let tables = troubles.into_iter().map(|trouble| table(trouble, measured, &fleets.simulated));
    tables.collect::<Vec<_>>().join("\n")
}

/// One trouble: a line for each strategy, a column for each fleet, those of real processes first.
fn table(trouble: Trouble, measured: &[Row], simulated: &[Row]) -> String {
    let of_it = |rows: &'_ [Row]| rows.iter().any(|row| row.trouble == trouble);
    let mut columns: Vec<(&str, &[Row], usize)> = Vec::new();
    for (kind, rows) in [("real processes", measured), ("simulated", simulated)] {
        if of_it(rows) {
            let sizes = FLEETS.into_iter().filter(|size| rows.iter().any(|row| row.callers == Some(*size)));
            columns.extend(sizes.map(|size| (kind, rows, size)));
        }
    }
    let heads: Vec<_> = columns.iter().map(|(kind, _, size)| format!("{kind}, {}", shape(*size))).collect();
    let mut table = format!("### {trouble}\n\n| strategy | {} |\n|---|", heads.join(" | "));
    table.push_str(&"--:|".repeat(columns.len()));
    table.push('\n');
    for strategy in matrix::OF_FLEETS {
        let cells: Vec<_> = columns
            .iter()
            .map(|(_, rows, size)| {
                let is_it = |row: &&Row| {
                    row.trouble == trouble && row.strategy == strategy && row.callers == Some(*size)
                };
                rows.iter().find(is_it).map(cell)
            })
            .collect();
        if cells.iter().any(Option::is_some) {
            let cells: Vec<_> =
                cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".to_owned())).collect();
            let _ = writeln!(table, "| {strategy} | {} |", cells.join(" | "));
        }
    }
    table
}

fn shape(callers: usize) -> String {
    format!("{callers} x {}", 300.0 / callers as f64)
}

/// Attempts per call in the first window of the fault and then, success, and after a stall how long it took to recover.
fn cell(row: &Row) -> String {
    let first = row.spread(|run| run.first.faulty).median;
    if row.trouble.is_stall() {
        let after = row.spread(|run| run.after.faulty).median;
        let success = percent(row.spread(|run| run.after.success));
        return format!(
            "{first:.2}, {after:.2}, {success}, {}",
            recovery(row).replace("not in the run", "never")
        );
    }
    let success = percent(row.steady(|part| part.success));
    format!("{first:.2}, {:.2}, {success}", row.steady(|part| part.faulty).median)
}

#[cfg(test)]
mod tests {
    use damper_tests::lab::results::name;
    use damper_tests::lab::strategy::Strategy;

    use super::*;
    use crate::draw::tests::{differs, folder};

    #[test]
    fn tables_of_fleets_are_those_of_their_committed_figures() {
        let fleets = Fleets::read(&folder()).unwrap();
        assert_eq!(differs(PAGE, &parts(&fleets)), None, "kept, and what fleets.json comes to");
    }

    #[test]
    fn kept_simulations_are_what_the_present_engine_comes_to() {
        let kept = Fleets::read(&folder()).unwrap().simulated;
        assert_eq!(kept.len(), matrix::simulated_fleets().len(), "`cargo xtask lab draw`");
        let some = [(1_000, Trouble::Stall), (1_000, Trouble::Errors(100)), (20, Trouble::Errors(10))];
        for (callers, trouble) in some {
            let scenario = matrix::fleet(callers, trouble, Strategy::Damper);
            let now = simulated(&scenario);
            let is_it = |row: &&Row| {
                (row.callers, row.trouble, row.strategy) == (now.callers, now.trouble, now.strategy)
            };
            let (kept, name) = (kept.iter().find(is_it).map(cell), name(&scenario));
            assert_eq!(kept, Some(cell(&now)), "{name}: `cargo xtask lab draw`, and look at the difference");
        }
    }
}
