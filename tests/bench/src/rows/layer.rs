//! What the client layer adds to a call that succeeds, beside `tower::retry`; and on a route without a rule.
//!
//! Times: each round makes the same number of calls through each subject, alone and from a thread for each core at
//! the same time (all on one route, sharing what clients of a process share), and the bare service's time is taken
//! off. Allocations are counted by the program `count`. Instructions are counted by valgrind where it is installed.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use damper_tests::machine;
use damper_tests::spread::Spread;

use super::Size;
use crate::calls::{self, Bench, Subject};
use crate::figure::{Chart, Figure, Peer, Point, Row, Series, Target};
use crate::process::{output, sibling, tethered};
use crate::rounds::{interleaved, pairwise, ratio};

const TOWER: &str = "tower::retry with TpsBudget, as a tonic client needs it";
const CLONEABLE: &str = "tower::retry with TpsBudget, where the body can be cloned";
const BARE: &str = "the bare service";

/// With valgrind everything is some fifty times slower.
const COUNTING: Duration = Duration::from_secs(180);

pub(super) async fn measure(size: Size) -> Result<(usize, Row)> {
    let rounds = size.pick(2, 21, 101);
    let server = calls::control_plane().await?;
    let damper = calls::service(server.url()).await?;
    let bench = Bench::new(&damper)?;
    let mut row = Row::new("layer", "SDK layer on a successful call").note(
        "Added time: that of a call less that of the same call without the layer. The request is what tonic makes of a \
         unary call; the service is in the process, ready, and reads it to its end.",
    );
    let mut groups = Vec::new();
    for threads in [1, machine::cores()] {
        let calls = size.pick(1_000, 50_000, 50_000);
        let timed = interleaved(rounds, &Subject::ALL, |subject| {
            Ok::<_, anyhow::Error>(nanoseconds_per_call(&bench, subject, threads, calls))
        })?;
        let timed = Timed(timed);
        groups.push(bars(threads, &timed));
        row = row.with_all(figures(threads, &timed));
    }
    row = row.draw(Chart {
        name: "layer".to_owned(),
        title: "What a successful call costs more through a layer".to_owned(),
        x: None,
        y: "ns added per call".to_owned(),
        series: groups,
    });
    row = row.with_all(allocations(server.url()).await?);
    Ok((rounds, instructions(row, server.url(), size.pick(200, 2_000, 2_000)).await?))
}

/// The rounds of each subject.
struct Timed(Vec<Vec<f64>>);

impl Timed {
    fn of(&self, subject: Subject) -> &[f64] {
        let index = Subject::ALL.iter().position(|&other| other == subject);
        index.and_then(|index| self.0.get(index)).map_or(&[], Vec::as_slice)
    }

    fn added(&self, subject: Subject, bare: Subject) -> Vec<f64> {
        pairwise(self.of(subject), self.of(bare), |with, without| with - without).collect()
    }
}

fn figures(threads: usize, timed: &Timed) -> Vec<Figure> {
    let tasks =
        if threads == 1 { "one task".to_owned() } else { format!("{threads} tasks on all cores, one route") };
    let damper = timed.added(Subject::Damper, Subject::Bare);
    let no_rule = timed.added(Subject::DamperNoRule, Subject::Bare);
    let tower = timed.added(Subject::Tower, Subject::Bare);
    let cloneable = timed.added(Subject::TowerCloneable, Subject::BareCloneable);
    let under_a_rule = format!("time added, under a rule, {tasks}");
    let most = if threads == 1 { 1.0 } else { 0.7 };
    let no_rule = Figure::new(
        format!("time added, no rule for the route, {tasks}"),
        "ns",
        Spread::of(no_rule.iter().copied()),
    );
    vec![
        Figure::new(
            format!("time of the bare call, {tasks}"),
            "ns",
            Spread::of(timed.of(Subject::Bare).iter().copied()),
        ),
        Figure::beside(&under_a_rule, "ns", &damper, TOWER, &tower).aim(Target::RatioAtMost(most)),
        Figure::beside(under_a_rule, "ns", &damper, CLONEABLE, &cloneable),
        if threads == 1 { no_rule.aim(Target::AtMost(150.0)) } else { no_rule },
    ]
}

fn bars(threads: usize, timed: &Timed) -> Series {
    let bars = [
        ("Damper, no rule", Subject::DamperNoRule, Subject::Bare),
        ("Damper, a rule", Subject::Damper, Subject::Bare),
        ("tower::retry", Subject::Tower, Subject::Bare),
        ("tower::retry, cloneable body", Subject::TowerCloneable, Subject::BareCloneable),
    ];
    let point = |(name, subject, bare): (&str, _, _)| Point {
        name: name.to_owned(),
        x: 0.0,
        y: Spread::of(timed.added(subject, bare)),
    };
    let name = if threads == 1 { "one task".to_owned() } else { format!("{threads} tasks, one route") };
    Series { name, points: bars.map(point).into() }
}

/// The time of a call, made by so many threads at once, so many each.
fn nanoseconds_per_call(bench: &Bench, subject: Subject, threads: usize, calls: usize) -> f64 {
    let start = Barrier::new(threads);
    let slowest = std::thread::scope(|scope| {
        let run = || {
            let mut bench = bench.clone();
            bench.calls(subject, calls / 20);
            start.wait();
            let begun = Instant::now();
            bench.calls(subject, calls);
            begun.elapsed()
        };
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let own = run();
        others.into_iter().filter_map(|thread| thread.join().ok()).fold(own, Duration::max)
    });
    slowest.as_nanos() as f64 / calls as f64
}

async fn allocations(url: &str) -> Result<Vec<Figure>> {
    let counted = count(&["calls", "--url", url]).await?;
    let of = |subject: Subject| -> Result<f64> {
        counted.get(subject.name()).and_then(serde_json::Value::as_f64).with_context(|| subject.name())
    };
    let added = |subject, bare| -> Result<f64> { Ok(of(subject)? - of(bare)?) };
    let damper = added(Subject::Damper, Subject::Bare)?;
    let what = "allocations added per call, under a rule";
    let beside = |peer: &str, theirs: f64| Figure {
        peer: Some(Peer { name: peer.to_owned(), figure: Spread::exactly(theirs) }),
        ratio: Some(ratio(&[damper], &[theirs])),
        ..Figure::new(what, "", Spread::exactly(damper))
    };
    let no_rule = Spread::exactly(added(Subject::DamperNoRule, Subject::Bare)?);
    Ok(vec![
        Figure::new("allocations of the bare call", "", Spread::exactly(of(Subject::Bare)?)),
        beside(TOWER, added(Subject::Tower, Subject::Bare)?).aim(Target::RatioAtMost(1.0)),
        beside(CLONEABLE, added(Subject::TowerCloneable, Subject::BareCloneable)?),
        Figure::new("allocations added per call, no rule for the route", "", no_rule)
            .aim(Target::AtMost(0.0)),
    ])
}

/// What the program `count` counts.
pub(super) async fn count(arguments: &[&str]) -> Result<serde_json::Value> {
    let mut command = tethered(sibling("count"));
    command.args(arguments);
    let counted = output("the count of allocations", command, COUNTING).await?;
    Ok(serde_json::from_str(&counted)?)
}

/// Adds what valgrind counts, where it is installed.
async fn instructions(row: Row, url: &str, calls: usize) -> Result<Row> {
    let mut version = tethered("valgrind");
    version.arg("--version");
    let Ok(version) = output("valgrind's version", version, COUNTING).await else {
        return Ok(row.note("Instructions are not offered: valgrind, which counts them, is not installed."));
    };
    let mut counts = Vec::new();
    for subject in Subject::ALL {
        counts.push(vec![executed(url, subject, calls).await? / calls as f64]);
    }
    let row = row.note(format!("Instructions are counted by {}, over {calls} calls.", version.trim()));
    Ok(row.with_all(instructions_added(&Timed(counts))))
}

fn instructions_added(counts: &Timed) -> [Figure; 3] {
    let damper = counts.added(Subject::Damper, Subject::Bare);
    let tower = counts.added(Subject::Tower, Subject::Bare);
    let cloneable = counts.added(Subject::TowerCloneable, Subject::BareCloneable);
    let no_rule = counts.added(Subject::DamperNoRule, Subject::Bare);
    let bare = counts.of(Subject::Bare);
    let what = "instructions added per call, under a rule";
    [
        Figure::beside(what, "", &damper, TOWER, &tower),
        Figure::beside(what, "", &damper, CLONEABLE, &cloneable),
        Figure::beside("instructions added per call, no rule for the route", "", &no_rule, BARE, bare),
    ]
}

/// The instructions that so many calls take, the making of the requests left out.
async fn executed(url: &str, subject: Subject, calls: usize) -> Result<f64> {
    let mut command = tethered("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*drive::call*"])
        .args(["--log-fd=1"])
        .arg(sibling("bench"))
        .args(["calls", "--url", url, "--subject", &subject.name(), "--calls", &calls.to_string()]);
    let said = output("valgrind's count", command, COUNTING).await?;
    let collected = said.lines().find_map(|line| line.split_once("Collected : "));
    let (_, collected) = collected.with_context(|| format!("valgrind counted nothing: {said}"))?;
    Ok(collected.trim().parse()?)
}
