//! The chain of services in several languages: runs its cases, and makes the table of `lab.md`.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use damper_tests::foreign::chain::{Fault, Way};
use damper_tests::lab::figures::Part;
use damper_tests::lab::languages::{Case, Languages, Row, Run as Figures};
use damper_tests::lab::results::Circumstances;
use damper_tests::machine::{self, Machine, said};
use damper_tests::spread::Spread;

use crate::draw::fill;
use crate::run::CRATES;
use crate::table::{percent, recovered};
use crate::{Run, table};

/// Runs the cases one after the other: each has all processors.
pub(crate) async fn run(asked: &Run) -> anyhow::Result<()> {
    let mut cases = Case::all();
    if let Some(only) = &asked.only {
        cases.retain(|case| case.name().contains(only));
        ensure!(!cases.is_empty(), "no case of the languages has `{only}` in its name");
    }
    let machine = machine()?;
    let (begun, load_before) = (Instant::now(), machine::load());
    let mut rows: Vec<_> = cases.into_iter().map(|case| Row { case, runs: Vec::new() }).collect();
    for _ in 0..asked.runs {
        for row in &mut rows {
            let run = row.case.run().await.with_context(|| row.case.name())?;
            eprintln!(
                "{:32} attempts at the last service {:6.2} first, {:6.2} steady, {:3} at most; then {:.2}, {:.2}",
                row.case.name(),
                run.figures.first.faulty,
                run.figures.steady.faulty,
                run.figures.worst,
                run.healed.faulty,
                run.later.faulty,
            );
            row.runs.push(run);
        }
    }
    let circumstances = Circumstances {
        machine,
        selection: "languages".to_owned(),
        runs: asked.runs,
        parallel: 1,
        load_before,
        load_after: machine::load(),
        took_s: begun.elapsed().as_secs(),
        ended_at: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
    };
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    let languages = Languages { circumstances, build: build.to_owned(), rows };
    if asked.only.is_some() {
        print!("{}", table(&languages.rows));
        return Ok(());
    }
    languages.write(&asked.out)?;
    draw(&asked.out)
}

/// This machine, with the versions of the other languages.
fn machine() -> anyhow::Result<Machine> {
    let mut machine = Machine::this(&CRATES)?;
    let program = |variable, name: &str| std::env::var_os(variable).unwrap_or_else(|| name.into());
    machine.crates.push(said(program("DAMPER_TEST_GO", "go"), &["version"])?);
    machine.crates.push(said(program("DAMPER_TEST_PYTHON", "python3"), &["--version"])?);
    machine.crates.push(said("java", &["--version"])?);
    machine.crates.push(format!("node {}", said("node", &["--version"])?));
    Ok(machine)
}

/// Makes the tables again from the figures in the folder.
pub(crate) fn draw(folder: &Path) -> anyhow::Result<()> {
    fill(&folder.join("lab.md"), &parts(&Languages::read(folder)?))
}

fn parts(languages: &Languages) -> Vec<(&'static str, String)> {
    let run = &languages.circumstances;
    let circumstances = format!("{} A {} build.\n", table::circumstances(run).trim_end(), languages.build);
    vec![("languages-machine", circumstances), ("languages", table(&languages.rows))]
}

fn table(rows: &[Row]) -> String {
    let mut table = "| fault | retries | requests at the last service per request: first window | then | one request, at most | success | after the fault, per request: first window | then | success: first window | then | recovered after |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n".to_owned();
    for row in rows {
        let during = |of: fn(&Part) -> f64| spread(row, |run| of(&run.figures.steady));
        let worst = row.runs.iter().map(|run| run.figures.worst).max().unwrap_or_default();
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {worst} | {} | {} | {} | {} | {} | {} |",
            fault(row.case.fault),
            retries(row.case),
            spread(row, |run| run.figures.first.faulty).shown(2),
            during(|part| part.faulty).shown(2),
            percent(during(|part| part.success)),
            spread(row, |run| run.healed.faulty).shown(2),
            spread(row, |run| run.later.faulty).shown(2),
            percent(spread(row, |run| run.healed.success)),
            percent(spread(row, |run| run.later.success)),
            recovered(row.runs.iter().map(|run| run.figures.recovery_ms)),
        );
    }
    table
}

fn spread(row: &Row, figure: impl Fn(&Figures) -> f64) -> Spread {
    Spread::of(row.runs.iter().map(figure))
}

fn fault(fault: Fault) -> &'static str {
    match fault {
        Fault::None => "none",
        Fault::Errors => "errors at the bottom, 100 %",
        Fault::Lost => "lost answers",
        Fault::Slow => "one slow hop",
    }
}

fn retries(case: Case) -> String {
    let way = match case.way {
        Way::OwnRetries => return "of each gRPC client, no proxy".to_owned(),
        Way::Gap => "proxies, one service propagates nothing",
        Way::Proxies => "proxies",
    };
    if case.breaker { way.to_owned() } else { format!("{way}, breaker off") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::tests::{differs, folder};

    #[test]
    fn table_of_languages_is_that_of_committed_figures() {
        let languages = Languages::read(&folder()).unwrap();
        assert_eq!(differs("lab.md", &parts(&languages)), None, "kept, and the table of languages.json");
    }

    #[test]
    fn committed_figures_of_languages_have_all_cases() {
        let languages = Languages::read(&folder()).unwrap();
        let cases: Vec<_> = languages.rows.iter().map(|row| row.case).collect();
        assert_eq!(cases, Case::all());
    }
}
