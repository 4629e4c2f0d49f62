//! Every row is measured at its smallest size, so that the benchmarks do not rot. Their times say nothing here; what is
//! counted is the same as ever. Left out are the row that builds a service of its own, and the one whose
//! services are in Go. The row of queues has no peers here.

use std::path::Path;
use std::process::Command;

use damper_bench::figure::{Figure, Row};
use damper_bench::rows::IDS;
use damper_tests::binary;
use damper_tests::spread::Spread;
use serde_json::Value;

/// They need builds of their own.
const LEFT_OUT: [&str; 2] = ["weight", "proxy"];

fn ids() -> impl Iterator<Item = &'static str> {
    IDS.into_iter().filter(|id| !LEFT_OUT.contains(id))
}

fn measured(rows: &str, out: &Path) -> Vec<Row> {
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["run", "--size", "smallest", "--only", rows, "--out"])
        .arg(out)
        .env("DAMPER_BINARY", binary::damper())
        .output()
        .expect("the benchmarks can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json = std::fs::read(out.join("bench.json")).expect("they write what came of them");
    let report: Value = serde_json::from_slice(&json).expect("as JSON");
    serde_json::from_value(report["rows"].clone()).expect("with rows")
}

/// How many figures a row has, and the least that any of them may be.
fn expected(id: &str) -> (usize, f64) {
    match id {
        // What a layer adds is a difference: on a busy machine it may be below nothing.
        "layer" => (15, f64::MIN),
        "retry" => (6, f64::MIN),
        "decision" => (7, 0.0),
        "unary" => (4, 1.0),
        "lookup" => (4, 1.0),
        "change" => (4, 0.01),
        "streams" => (6, 0.0),
        "reports" => (4, 0.0),
        "reconnect" => (4, f64::MIN),
        "writes" => (4, 0.1),
        "fleet" => (3, 1.0),
        "outage" => (9, 1.0),
        "recovery" => (3, 0.0),
        // A server that was started again may hold less than before.
        "queue" => (35, f64::MIN),
        other => panic!("what has the row {other:?}?"),
    }
}

fn is_ordered(spread: Spread) -> bool {
    let Spread { median, min, max } = spread;
    min.is_finite() && max.is_finite() && min <= median && median <= max
}

fn is_plausible(figure: &Figure, least: f64) -> bool {
    let spreads = [Some(figure.ours), figure.peer.as_ref().map(|peer| peer.figure)];
    let is_sound = |spread: &Spread| is_ordered(*spread) && spread.min >= least;
    !figure.what.is_empty()
        && spreads.iter().flatten().all(is_sound)
        && figure.ratio.is_none_or(is_ordered)
        && (figure.target.is_none() || figure.is_met().is_some())
}

fn of<'a>(rows: &'a [Row], id: &str) -> &'a Row {
    rows.iter().find(|row| row.id == id).unwrap_or_else(|| panic!("no row {id}"))
}

fn counted(rows: &[Row], what: &str) -> Vec<f64> {
    let figures = rows.iter().flat_map(|row| &row.figures);
    figures.filter(|figure| figure.what.starts_with(what)).map(|figure| figure.ours.median).collect()
}

#[test]
fn every_row_has_plausible_figures_and_the_layer_allocates_nothing_where_it_may_not() {
    let out = tempfile::tempdir().expect("a temporary folder");
    let rows = measured(&ids().collect::<Vec<_>>().join(","), out.path());

    for id in ids() {
        let row = of(&rows, id);
        assert_eq!(row.measured.as_ref().map(|measured| measured.size.as_str()), Some("smallest"), "{id}");
        let (figures, least) = expected(id);
        assert_eq!(row.figures.len(), figures, "{id}: {:#?}", row.figures);
        for figure in &row.figures {
            assert!(is_plausible(figure, least), "{id}: {figure:#?}");
        }
        assert!(row.figures.iter().any(|figure| figure.target.is_some()), "{id} aims at something");
    }
    assert_eq!(counted(&rows, "allocations added per call, no rule for the route"), [0.0]);
    assert_eq!(counted(&rows, "allocations, "), [0.0; 3], "of decisions among 1, 100 and 10,000 rules");
    assert!(counted(&rows, "time of the bare call").iter().all(|&ns| ns > 1.0));
    // Simulated figures are the same everywhere.
    assert!(of(&rows, "fleet").figures[0].is_met() == Some(true), "{:#?}", of(&rows, "fleet"));

    let text = std::fs::read_to_string(out.path().join("README.md")).expect("and for people");
    for row in &rows {
        assert!(text.contains(&format!("| `{}` |", row.command)) || row.figures.is_empty(), "{}", row.id);
    }
    assert!(text.contains("| chain |"), "the rows of the lab: {text}");
    for picture in ["layer.svg", "lookup.svg", "streams.svg"] {
        assert!(text.contains(&format!("({picture})")), "{picture} is shown");
        let drawn = std::fs::read_to_string(out.path().join(picture)).expect("pictures are drawn");
        assert!(drawn.contains("<svg"), "{picture}");
    }
}

/// The process that holds the clients must not write the rule that is there already: no change would come.
#[test]
fn streams_are_measured_also_when_nothing_was_measured_before() {
    let out = tempfile::tempdir().expect("a temporary folder");
    let rows = measured("streams", out.path());
    assert!(of(&rows, "streams").figures.iter().all(|figure| is_plausible(figure, 0.0)), "{rows:#?}");
}
