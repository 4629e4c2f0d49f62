//! Runs the scenarios that were chosen, several chains at a time, and writes what came of them.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use damper_tests::lab::figures::Figures;
use damper_tests::lab::fleet::Programs;
use damper_tests::lab::go;
use damper_tests::lab::results::{Circumstances, Fleets, Results, Row, name};
use damper_tests::lab::scenario::Scenario;
use damper_tests::machine::{self, Machine};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use crate::{Run, draw, fleets, languages, matrix, table};

/// What the chains are made of.
pub(crate) const CRATES: [&str; 6] = ["damper-sdk", "tonic", "h2", "hyper", "tokio", "tower"];

/// Runs what was asked for. All scenarios run once before any runs again, so that what else the machine does at some
/// time is spread over them.
pub(crate) async fn run(asked: &Run) -> anyhow::Result<()> {
    ensure!(asked.runs > 0 && asked.parallel > 0, "--runs and --parallel are at least 1");
    if asked.languages {
        return languages::run(asked).await;
    }
    let (selection, mut scenarios) = match asked {
        Run { fleets: true, .. } => ("fleets", matrix::fleets()),
        Run { full: true, .. } => ("full", matrix::full()),
        _ => ("short", matrix::short()),
    };
    if let Some(only) = &asked.only {
        scenarios.retain(|scenario| name(scenario).contains(only));
        ensure!(!scenarios.is_empty(), "no scenario of the {selection} matrix has `{only}` in its name");
    }
    let machine = Machine::this(&CRATES)?;
    let (begun, load_before) = (Instant::now(), machine::load());
    let programs = programs(&scenarios).await?;
    let mut runs = vec![Vec::new(); scenarios.len()];
    for round in 0..asked.runs {
        let figures = once(&programs, &scenarios, asked.parallel, round as u64).await?;
        runs.iter_mut().zip(figures).for_each(|(runs, figures)| runs.push(figures));
    }
    let rows = scenarios.iter().zip(runs).map(|(scenario, runs)| Row::of(scenario, runs));
    let circumstances = Circumstances {
        machine,
        selection: selection.to_owned(),
        runs: asked.runs,
        parallel: asked.parallel,
        load_before,
        load_after: machine::load(),
        took_s: begun.elapsed().as_secs(),
        ended_at: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
    };
    let results = Results { circumstances, rows: rows.collect() };
    if asked.fleets {
        return if asked.only.is_some() {
            let simulated = Vec::new();
            print!("{}", fleets::tables(&Fleets { measured: Some(results), simulated }));
            Ok(())
        } else {
            fleets::write(Some(results), &asked.out)
        };
    }
    if asked.only.is_some() {
        print!("{}", table::all(&results));
        return Ok(());
    }
    results.write(&asked.out)?;
    // A float read back may differ in its last bit and round otherwise, and a test holds the pages to the file.
    draw::all(&Results::read(&asked.out)?, &asked.out)
}

/// This program, and the callers in Go where a scenario has them.
async fn programs(scenarios: &[Scenario]) -> anyhow::Result<Programs> {
    let lab = std::env::current_exe()?;
    let folder = lab.parent().context("a program is in a folder")?;
    let go = match scenarios.iter().any(|scenario| scenario.strategy.is_go()) {
        true => Some(go::build(folder).await?),
        false => None,
    };
    Ok(Programs { lab, go })
}

async fn once(
    programs: &Programs,
    scenarios: &[Scenario],
    parallel: usize,
    round: u64,
) -> anyhow::Result<Vec<Figures>> {
    let one = |scenario: &Scenario| {
        let scenario = Scenario { seed: scenario.seed ^ round << 16, ..*scenario };
        async move {
            let record = scenario.run(programs).await.with_context(|| name(&scenario))?;
            let figures = Figures::of(&record, &scenario);
            eprintln!(
                "{:32} attempts on the last hop {:6.2} first, {:6.2} steady, {:3} at most; success {:5.1} %",
                name(&scenario),
                figures.first.faulty,
                figures.steady.faulty,
                figures.worst,
                figures.steady.success * 100.0,
            );
            anyhow::Ok(figures)
        }
    };
    // Boxed: the compiler can not see that the borrowed ones are general enough.
    let all: Vec<_> = scenarios.iter().map(one).collect();
    stream::iter(all).buffered(parallel).try_collect().await
}
