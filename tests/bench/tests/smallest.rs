//! Every row is measured at its smallest size, so that the benchmarks do not rot. Their times say nothing here; what is
//! counted is the same as ever. Left out is the row that builds a service of its own.

use std::path::Path;
use std::process::Command;

use damper_bench::rows::IDS;
use damper_tests::binary;
use serde_json::Value;

/// Needs builds of its own.
const LEFT_OUT: &str = "weight";

fn measured(out: &Path) -> Value {
    let rows: Vec<_> = IDS.into_iter().filter(|id| *id != LEFT_OUT).collect();
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["run", "--size", "smallest", "--only", &rows.join(","), "--out"])
        .arg(out)
        .env("DAMPER_BINARY", binary::damper())
        .output()
        .expect("the benchmarks can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json = std::fs::read(out.join("bench.json")).expect("they write what came of them");
    serde_json::from_slice(&json).expect("as JSON")
}

fn rows(report: &Value) -> impl Iterator<Item = &Value> {
    report["rows"].as_array().into_iter().flatten()
}

fn figures(row: &Value) -> impl Iterator<Item = &Value> {
    row["figures"].as_array().into_iter().flatten()
}

#[test]
fn every_row_is_measured_and_the_layer_allocates_nothing_where_it_may_not() {
    let out = tempfile::tempdir().expect("a temporary folder");
    let report = measured(out.path());

    for id in IDS.into_iter().filter(|id| *id != LEFT_OUT) {
        let row = rows(&report).find(|row| row["id"] == id).unwrap_or_else(|| panic!("no row {id}"));
        assert!(figures(row).count() > 0, "{id} has figures");
        assert_eq!(row["measured"]["size"], "smallest", "{id}");
    }

    let counted = |what: &str| -> Vec<f64> {
        let all = rows(&report).flat_map(figures);
        let named = all.filter(|figure| figure["what"].as_str().is_some_and(|name| name.starts_with(what)));
        named.filter_map(|figure| figure["ours"]["median"].as_f64()).collect()
    };
    assert_eq!(counted("allocations added per call, no rule for the route"), [0.0]);
    assert_eq!(counted("allocations, "), [0.0; 3], "of decisions among 1, 100 and 10,000 rules");

    let text = std::fs::read_to_string(out.path().join("README.md")).expect("and for people");
    for id in IDS.into_iter().filter(|id| *id != LEFT_OUT) {
        assert!(text.contains(&format!("--only {id}`")), "{id} says how it is measured");
    }
    for picture in ["layer.svg", "lookup.svg", "streams.svg"] {
        assert!(text.contains(&format!("({picture})")), "{picture} is shown");
        let drawn = std::fs::read_to_string(out.path().join(picture)).expect("pictures are drawn");
        assert!(drawn.contains("<svg"), "{picture}");
    }
}
