//! What the simulator says of three troubles, from the scenarios that come with it, each with several seeds.
//!
//! The program that users run is run, `damper simulate`; the figures of one seed are the same on every machine. Beside
//! Damper stand what else is in the scenario: no guard, naive retries, the budget of tower, gRPC's throttling, the quota
//! of the AWS SDKs.

use std::path::Path;

use anyhow::{Context as _, Result};
use damper_tests::binary;
use serde::Deserialize;

use super::Size;
use crate::figure::{Figure, Row, Target};
use crate::patience::PATIENCE;
use crate::process::{output, tethered};

const SCENARIOS: &str = "control-plane/sim/scenarios";
/// The breaker's window by default, in seconds.
const WINDOW: usize = 10;

/// What a strategy came to, as `damper simulate -o json` says it.
#[derive(Debug, Deserialize)]
struct Figures {
    strategy: String,
    recovered_after_s: Option<u64>,
    phases: Vec<Phase>,
    hops: Vec<Hop>,
    timeline: Vec<Second>,
}

#[derive(Debug, Deserialize)]
struct Phase {
    name: String,
    handler_runs_per_request: Vec<f64>,
}

#[derive(Debug, Deserialize)]
struct Hop {
    retries: u64,
}

#[derive(Debug, Deserialize)]
struct Second {
    requests: u64,
    answered: u64,
}

#[derive(Debug, Deserialize)]
struct Outcome {
    trouble_us: Option<[u64; 2]>,
    strategies: Vec<Figures>,
}

/// The outcomes of a scenario, seed by seed.
struct Seeds(Vec<Outcome>);

/// Many callers with little traffic each.
pub(super) async fn fleet(size: Size) -> Result<(usize, Row)> {
    let seeds = Seeds::of("fleet", size).await?;
    let runs = |strategy| seeds.each(strategy, |_, figures| handler_runs(figures));
    let limited = runs("repeat limit")?;
    let what = "handler runs per first send while the callee fails, repeat limit enforced";
    let beside =
        |peer, strategy| -> Result<Figure> { Ok(Figure::beside(what, "", &limited, peer, &runs(strategy)?)) };
    let row = row("fleet", "1,000 callers with 0.3 calls/s each, the callee fails completely")
        .note(
            "Without a reserve a caller with this little traffic can hardly retry even when all is well; \
             [docs/simulator.md](../simulator.md#caps-of-peers) has the cost.",
        )
        .with(beside("no guard", "rule alone")?.aim(Target::AtMost(1.15)))
        .with(beside("tower's budget in each caller, its reserve of 10/s", "budget (reserve 10/s)")?)
        .with(beside("tower's budget in each caller, no reserve", "budget (no reserve)")?);
    Ok((seeds.0.len(), row))
}

/// One busy caller.
pub(super) async fn outage(size: Size) -> Result<(usize, Row)> {
    let seeds = Seeds::of("outage", size).await?;
    let extra = |strategy| {
        seeds.each(strategy, |_, figures| Ok(figures.hops.first().context("a hop")?.retries as f64))
    };
    let what = |mode: &str| format!("extra attempts in 20 s of outage, {mode}");
    let (credit, ratio) = (extra("credit")?, extra("ratio")?);
    let peers = [
        ("tower's budget, no reserve", extra("budget (no reserve)")?),
        ("gRPC's throttling, 10 tokens", extra("gRPC (10 tokens)")?),
        ("gRPC's throttling, 1,000 tokens", extra("gRPC (1000 tokens)")?),
        ("the AWS SDKs' quota", extra("AWS quota")?),
    ];
    let mut row = row("outage", "Total outage at 1,000 calls/s from one process");
    for (at, (peer, theirs)) in peers.iter().enumerate() {
        let figure = Figure::beside(what("credit"), "", &credit, peer, theirs);
        row = row.with(if at == 0 { figure.aim(Target::AtMost(300.0)) } else { figure });
    }
    for (peer, theirs) in peers.into_iter().chain([("naive retries", extra("naive")?)]) {
        row = row.with(Figure::beside(what("mode ratio"), "", &ratio, peer, &theirs));
    }
    Ok((seeds.0.len(), row))
}

/// A queue that callers keep full.
pub(super) async fn recovery(size: Size) -> Result<(usize, Row)> {
    let seeds = Seeds::of("overload", size).await?;
    let seconds = |strategy| seeds.each(strategy, recovered_after);
    let goodput = |strategy| seeds.each(strategy, goodput_after_a_window);
    let (ours, share) = (seconds("damper")?, goodput("damper")?);
    let row = row("recovery", "Recovery of a service at 0.8 of its capacity from an outage of 10 s")
        .shown_by(format!("damper simulate -f {SCENARIOS}/overload.yaml"))
        .note("A run that does not recover counts with all seconds of the scenario that are left.")
        .with(
            Figure::beside("until well again", "s", &ours, "naive retries", &seconds("naive")?)
                .aim(Target::AtMost(WINDOW as f64)),
        )
        .with(Figure::beside(
            "until well again",
            "s",
            &ours,
            "tower's budget, its reserve of 10/s",
            &seconds("budget (reserve 10/s)")?,
        ))
        .with(
            Figure::beside(
                "requests answered of those made, from one window after the outage on",
                "%",
                &share,
                "naive retries",
                &goodput("naive")?,
            )
            .aim(Target::AtLeast(95.0)),
        );
    Ok((seeds.0.len(), row))
}

fn row(id: &str, title: &str) -> Row {
    Row::new(id, title).shown_by(format!("damper simulate -f {SCENARIOS}/{id}.yaml")).note(format!(
        "Simulated in virtual time: a round is a seed, and `cargo xtask bench --only {id}` runs all of them.",
    ))
}

impl Seeds {
    async fn of(scenario: &str, size: Size) -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(SCENARIOS);
        let mut outcomes = Vec::new();
        for seed in 1..=size.pick(1, 5, 15) {
            let mut command = tethered(binary::damper());
            command.args(["simulate", "-o", "json", "--seed", &seed.to_string(), "-f"]);
            command.arg(root.join(scenario).with_extension("yaml"));
            let what = format!("the simulation {scenario} with seed {seed}");
            outcomes.push(serde_json::from_str(&output(&what, command, PATIENCE).await?).context(what)?);
        }
        Ok(Self(outcomes))
    }

    /// A figure of a strategy, seed by seed.
    fn each(&self, strategy: &str, figure: impl Fn(&Outcome, &Figures) -> Result<f64>) -> Result<Vec<f64>> {
        let of = |outcome: &Outcome| {
            let found = outcome.strategies.iter().find(|figures| figures.strategy == strategy);
            figure(outcome, found.with_context(|| format!("the strategy {strategy}"))?)
        };
        self.0.iter().map(of).collect()
    }
}

/// Each request is one call here, so one first send.
fn handler_runs(figures: &Figures) -> Result<f64> {
    let during = figures.phases.iter().find(|phase| phase.name == "during").context("a phase")?;
    during.handler_runs_per_request.first().copied().context("a service")
}

fn recovered_after(outcome: &Outcome, figures: &Figures) -> Result<f64> {
    let left = figures.timeline.len() - end_of_trouble(outcome)?;
    Ok(figures.recovered_after_s.map_or(left as f64, |seconds| seconds as f64))
}

fn goodput_after_a_window(outcome: &Outcome, figures: &Figures) -> Result<f64> {
    let after = figures.timeline.iter().skip(end_of_trouble(outcome)? + WINDOW);
    let (answered, made) =
        after.fold((0, 0), |(answered, made), second| (answered + second.answered, made + second.requests));
    Ok(answered as f64 / made as f64 * 100.0)
}

/// The second in which all that goes wrong is over.
fn end_of_trouble(outcome: &Outcome) -> Result<usize> {
    let [_, until] = outcome.trouble_us.context("something goes wrong")?;
    Ok(usize::try_from(until.div_ceil(1_000_000))?)
}
