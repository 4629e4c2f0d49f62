//! Scenarios on the command line: what is printed, what is refused, and the picture.

use std::path::{Path, PathBuf};

use crate::harness::{Ended, damper, run, text};

fn sim(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../sim").join(path)
}

fn simulate(file: &Path, args: &[&str]) -> Ended {
    run(damper().args(["simulate", "-f", text(file)]).args(args))
}

const SMALL: &str = "
name: small
duration: 10s
services: { stock: { methods: { shop.v1.Stock/Take: { time: 5ms } } } }
load: [ { caller: shop, call: stock shop.v1.Stock/Take, open: { rate: 20, even: true } } ]
faults: [ { service: stock, from: 1s, until: 2s, error: {} } ]
strategies:
  - { name: none, none: }
  - { name: governed, damper: rules.yaml }
";

const RULE: &str = "kind: Rule\nkey: { caller_service: shop, caller_cluster: '*', callee_service: stock, \
                    callee_method: '*' }\npolicy: { mode: enforce, retry: { max_attempts: 3 }, \
                    retry_breaker: { mode: ratio, min_failures: 2 } }\n";

/// A folder with the scenario and the rules that it names.
fn folder(scenario: &str, rules: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    let file = folder.path().join("scenario.yaml");
    std::fs::write(&file, scenario).unwrap();
    (folder, file)
}

#[test]
fn figures_are_the_kept_ones_to_the_last_byte() {
    let kept = std::fs::read_to_string(sim("tests/golden/figures.json")).unwrap();
    let found = simulate(&sim("tests/golden/scenario.yaml"), &["-o", "json"]).ok();
    let differs = found.lines().zip(kept.lines()).enumerate().find(|(_, (found, kept))| found != kept);
    assert_eq!((differs, found.len()), (None, kept.len()));
}

#[test]
fn tables_show_strategies_hops_and_services() {
    let (_folder, file) = folder(SMALL, RULE);
    let shown = simulate(&file, &[]).ok();
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], "small: 10 s, seed 1, faults from 1.0 s until 2.0 s");
    let cells = |begin: &str| -> Vec<&str> {
        let found = lines.iter().find(|line| line.starts_with(begin));
        found.unwrap_or_else(|| panic!("{begin} is not in {shown}")).split_whitespace().collect()
    };
    assert_eq!(cells("none      during")[2..5], ["20", "0.0%", "0.0"]);
    assert_eq!(cells("governed  after").last_chunk(), Some(&["0", "s"]), "{shown}");
    let handlers = ["201", "201", "1.01", "1.10"];
    assert_eq!(cells("governed  stock")[2..6], handlers, "22 of them for the 20 requests that fail: {shown}");
    assert!(shown.contains("shop -> stock shop.v1.Stock/Take"), "{shown}");
    assert!(shown.contains("attempts_exhausted"), "{shown}");
}

#[test]
fn tables_show_jobs_of_queued_loads_only() {
    let shown = simulate(&sim("tests/golden/scenario.yaml"), &[]).ok();
    let table = shown.lines().skip_while(|line| !line.contains("DELIVERIES"));
    let row = table.into_iter().find(|line| line.starts_with("damper ")).unwrap_or_else(|| panic!("{shown}"));
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[1..8], ["later", "stock", "shop.v1.Stock/Take", "532", "528", "0", "4"], "{shown}");
    assert_eq!(cells.last(), Some(&"never"), "{shown}");
    let (_folder, file) = folder(SMALL, RULE);
    assert!(!simulate(&file, &[]).ok().contains("DELIVERIES"));
}

#[test]
fn seed_of_the_command_line_goes_first() {
    let (_folder, file) = folder(SMALL, RULE);
    assert_eq!(simulate(&file, &["--seed", "7", "-o", "json"]).json()["seed"], 7);
    assert_eq!(simulate(&file, &["-o", "json"]).json()["seed"], 1);
}

#[test]
fn picture_is_written_and_speed_is_printed() {
    let (folder, file) = folder(SMALL, RULE);
    let picture = folder.path().join("picture.svg");
    let ended = simulate(&file, &["--svg", text(&picture), "--timing"]);
    assert!(ended.err.contains("20 virtual seconds and "), "{ended:?}");
    ended.ok();
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.contains("governed: goodput per second"));
}

#[test]
fn all_faults_are_reported_with_file_and_path() {
    let bad = SMALL.replace("rate: 20", "rate: many").replace("10s", "10");
    let (_folder, file) = folder(&bad, &RULE.replace("max_attempts: 3", "max_attempts: 99"));
    let told = simulate(&file, &[]).failed(65);
    for fault in [
        "scenario.yaml:3: duration: must be a duration with a unit",
        "scenario.yaml:5: load[0].open.rate: must be a number of at least 0, not \"many\"",
        "scenario.yaml:9: strategies[1].damper: rules.yaml: ",
        "policy.retry.max_attempts: must be between 1 and 10, not 99",
    ] {
        assert!(told.contains(fault), "{fault} is not in {told}");
    }
    simulate(Path::new("nowhere.yaml"), &[]).failed(66);
}
