//! The tables of the lab, as Markdown: one part for each place in `lab.md`.

use std::fmt::Write as _;

use damper_tests::lab::results::{Circumstances, Results, Row};
use damper_tests::lab::scenario::Trouble;
use damper_tests::lab::strategy::Strategy;
use damper_tests::lab::targets;
use damper_tests::spread::Spread;

use crate::matrix::{COMPARED, LAYERS, LENGTHS, SHARES, TARGETED};

/// The parts of `lab.md`, by name.
pub(crate) fn parts(results: &Results) -> Vec<(&'static str, String)> {
    vec![
        ("machine", machine(results)),
        ("saved", saved(results)),
        ("targets", targets(results)),
        ("lengths", lengths(results)),
        ("stall", stall(results)),
        ("matrix", matrix(results)),
    ]
}

/// All tables, one after the other.
pub(crate) fn all(results: &Results) -> String {
    parts(results).into_iter().map(|(_, part)| part).collect::<Vec<_>>().join("\n")
}

/// Where and how it was measured.
pub(crate) fn machine(results: &Results) -> String {
    circumstances(&results.circumstances)
}

/// The same for any run.
pub(crate) fn circumstances(run: &Circumstances) -> String {
    let machine = &run.machine;
    let changed = if machine.commit.changed { ", with changes that were not committed" } else { "" };
    format!(
        "{} cores of {}, {}; {}; {}. Commit {}{changed}. The {} matrix, {} of each scenario, {} chains at the same \
         time, {:.0} min in all; load of the machine {:.1} before and {:.1} at the end, the lab's own included.\n",
        machine.cores,
        machine.processor,
        machine.kernel,
        machine.rustc,
        machine.crates.join(", "),
        machine.commit.commit,
        run.selection,
        counted(run.runs, "run"),
        run.parallel,
        run.took_s as f64 / 60.0,
        run.load_before,
        run.load_after,
    )
}

fn counted(number: usize, of: &str) -> String {
    if number == 1 { format!("one {of}") } else { format!("{number} {of}s") }
}

fn targets(results: &Results) -> String {
    let mut table =
        "| target, for Damper with both flags | met in | missed by (what it had) |\n|---|--:|---|\n"
            .to_owned();
    for verdict in targets::judge(results).iter().filter(|verdict| verdict.of > 0) {
        let missed = if verdict.missed.is_empty() { "-".to_owned() } else { verdict.missed.join(", ") };
        let _ = writeln!(table, "| {} | {} of {} | {missed} |", verdict.target, verdict.met, verdict.of);
    }
    table
}

/// What the target for chains names, chain beside chain; the long table has the lengths far apart.
fn lengths(results: &Results) -> String {
    let chains = LENGTHS.map(|layers| format!("m = {layers}")).join(" | ");
    let mut table = format!("| fault | strategy | {chains} |\n|---|---|--:|--:|--:|--:|\n");
    for (trouble, strategy) in
        TARGETED.iter().flat_map(|trouble| COMPARED.map(|strategy| (*trouble, strategy)))
    {
        let cell = |layers| match results.row(layers, trouble, strategy) {
            Some(row) => {
                let first = row.spread(|run| run.first.faulty).median;
                format!("{first:.2}, {:.2}, {}", row.steady(|part| part.faulty).median, row.worst())
            }
            None => "-".to_owned(),
        };
        let _ = writeln!(table, "| {trouble} | {strategy} | {} |", LENGTHS.map(cell).join(" | "));
    }
    table
}

/// What repeats save and cost where a part of the attempts fails, which is where strategies differ in it.
fn saved(results: &Results) -> String {
    use Strategy::{Damper, DamperRatio, Naive, TowerBudget};
    let columns = [Naive, TowerBudget, Damper, DamperRatio];
    let mut table =
        format!("| fault | {} |\n|---|--:|--:|--:|--:|\n", columns.map(Strategy::name).join(" | "));
    let troubles =
        SHARES.into_iter().filter(|share| *share < 100).map(Trouble::Errors).chain([Trouble::Partial]);
    for trouble in troubles {
        let cell = |strategy| match results.row(LAYERS, trouble, strategy) {
            Some(row) => {
                let success = row.steady(|part| part.success).median * 1e2;
                format!("{success:.1} %, {:.2}", row.steady(|part| part.faulty).median)
            }
            None => "-".to_owned(),
        };
        let _ = writeln!(table, "| {trouble} | {} |", columns.map(cell).join(" | "));
    }
    table
}

fn stall(results: &Results) -> String {
    let mut table = "| strategy | attempts on the last hop per request: during, after | success: before | during | after, of all 40 s | recovered after |\n|---|--:|--:|--:|--:|--:|\n".to_owned();
    for row in results.rows.iter().filter(|row| row.trouble == Trouble::Stall) {
        let _ = writeln!(
            table,
            "| {} | {}, {} | {} | {} | {} | {} |",
            row.strategy,
            row.spread(|run| run.first.faulty).shown(2),
            row.spread(|run| run.after.faulty).shown(2),
            percent(row.spread(|run| run.healthy.success)),
            percent(row.spread(|run| run.first.success)),
            percent(row.spread(|run| run.after.success)),
            recovery(row),
        );
    }
    table
}

fn matrix(results: &Results) -> String {
    let mut table = "| m | fault | strategy | attempts per request, layer by layer: first window | steady | one request, at most | success, steady | goodput /s | p50 ms | p99 ms | recovered after |\n|--:|---|---|---|---|--:|--:|--:|--:|--:|--:|\n".to_owned();
    for row in results.rows.iter().filter(|row| row.trouble != Trouble::Stall) {
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row.layers,
            row.trouble,
            row.strategy,
            layers(row, |run, layer| run.first.attempts[layer]),
            layers(row, |run, layer| run.steady.attempts[layer]),
            row.worst(),
            percent(row.steady(|part| part.success)),
            row.steady(|part| part.goodput).shown(0),
            row.steady(|part| part.p50_ms).shown(0),
            row.steady(|part| part.p99_ms).shown(0),
            recovery(row),
        );
    }
    table
}

/// The medians from the second layer on; the top has one attempt per request.
fn layers(row: &Row, at: impl Fn(&damper_tests::lab::figures::Figures, usize) -> f64) -> String {
    let all = (1..row.layers).map(|layer| format!("{:.2}", row.spread(|run| at(run, layer)).median));
    all.collect::<Vec<_>>().join(", ")
}

pub(crate) fn percent(share: Spread) -> String {
    let Spread { median, min, max } = share;
    Spread { median: median * 1e2, min: min * 1e2, max: max * 1e2 }.shown(1) + " %"
}

pub(crate) fn recovery(row: &Row) -> String {
    recovered(row.runs.iter().map(|run| run.recovery_ms))
}

/// The shortest and the longest time until a chain had recovered.
pub(crate) fn recovered(runs: impl Iterator<Item = Option<u64>>) -> String {
    let all: Option<Vec<f64>> = runs.map(|ms| Some(ms? as f64 / 1e3)).collect();
    match all.map(Spread::of) {
        Some(Spread { min, max, .. }) if min == max => format!("{min:.1} s"),
        Some(Spread { min, max, .. }) => format!("{min:.1}..{max:.1} s"),
        None => "not in the run".to_owned(),
    }
}
