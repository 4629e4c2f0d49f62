//! The demo as a user runs it, and the figures that it promises, read from its own report.
//!
//! One run of the real binary plays the whole scenario, observe mode included, with the shortest phases that
//! can show it: two of them must outlast the retry breaker's window. The bounds hold although the machine
//! pauses once for [`PAUSE_S`].
#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

const PAUSE_S: f64 = 5.0;

const SWITCHED: &str = "fault switch: the demo's service `stock` now fails all of the calls to it";

/// The test interrupts the demo before its end.
const ARGUMENTS: [&str; 12] = [
    "demo",
    "--observe",
    "--phase-seconds=5",
    "--duration=10m",
    "--load=30",
    "--seed=7",
    "--listen",
    "127.0.0.1:0",
    "--control",
    "127.0.0.1:0",
    "--report",
    "report.json",
];

/// Ends the demo also where the test fails.
struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn demo_shows_the_storm_the_cure_and_the_return_of_retries() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run_demo(folder.path());
    let text = std::fs::read_to_string(folder.path().join("report.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    println!("{printed}\n{text}");

    let names: Vec<_> = phases(&report).iter().map(|phase| phase["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["healthy", "observe", "naive", "governed", "healed", "queue"]);
    healthy_requests_pass_once(&report);
    observed_rules_add_nothing_and_predict_the_storm(&report);
    naive_rules_make_a_storm_and_governed_ones_end_it(&report);
    retries_return_within_a_window_and_help(&report);
    kept_orders_are_accepted_and_all_delivered(&report);
    fates_add_up_to_the_calls_that_arrived(&report);
    assert!(printed.contains("no retry blocked"), "the last scene does not close with the return of retries");
    assert!(printed.contains(SWITCHED), "no word of the fault switch");
}

fn healthy_requests_pass_once(report: &Value) {
    let healthy = phase(report, "healthy");
    assert!(number(&healthy["success_percent"]) >= 90.0);
    assert!(number(&healthy["bottom_attempts"]) <= number(&healthy["requests"]));
}

fn observed_rules_add_nothing_and_predict_the_storm(report: &Value) {
    let observed = phase(report, "observe");
    for layer in layers(observed) {
        assert!(number(&layer["attempts"]) <= number(&layer["calls"]), "{layer}");
        assert!(number(&layer["fates"]["would_retry"]) > 0.0, "{layer}");
    }
    let prediction = &report["prediction"];
    let (predicted, measured) =
        (number(&prediction["bottom_amplification"]), number(&prediction["measured"]));
    assert!((predicted / measured - 1.0).abs() <= 0.2, "predicted {predicted}, measured {measured}");
}

fn naive_rules_make_a_storm_and_governed_ones_end_it(report: &Value) {
    assert!(number(&phase(report, "naive")["bottom_amplification"]) >= 20.0);
    assert!(number(&report["apply_to_last_ack_ms"]) <= 1000.0 * (1.0 + PAUSE_S));
    let services: Vec<_> = report["apply"]["acknowledged"].as_array().unwrap().iter().collect();
    assert_eq!(services.len(), 4, "every service acknowledges: {services:?}");

    let governed = phase(report, "governed");
    assert_eq!(number(&governed["fault_percent"]), 100.0);
    assert_eq!(number(&governed["success_percent"]), 0.0, "stock is down all the time");
    let by_second = governed["bottom_amplification_by_second"].as_array().unwrap();
    assert_eq!(by_second[0], report["governed"]["first_second_amplification"]);
    // No request may have started in either time.
    let at_most = |amplification: &Value, most| amplification.as_f64().is_none_or(|found| found <= most);
    assert!(at_most(&by_second[0], 3.0));
    assert!(at_most(&report["governed"]["after_window_amplification"], 1.1));
    assert!(number(&governed["bottom_amplification"]) <= 3.0);
    let bottom = layers(governed).last().unwrap();
    assert!(number(&bottom["fates"]["retry_breaker"]) > 0.0, "{bottom}");
}

fn retries_return_within_a_window_and_help(report: &Value) {
    let healed = &report["healed"];
    // The last refusal has no bound: a pause at any time moves successes out of the window.
    let first_retry = number(&healed["first_retry_after_s"]);
    assert!(
        first_retry <= number(&report["window_s"]) + PAUSE_S,
        "the first retry was seen {first_retry} s later"
    );
    let bottom = layers(phase(report, "healed")).last().unwrap();
    assert!(number(&bottom["fates"]["ok_after_retry"]) > 0.0, "no retry helped: {bottom}");
    assert!(number(&healed["after_window_success_percent"]) > 95.0);
}

fn kept_orders_are_accepted_and_all_delivered(report: &Value) {
    let outage = phase(report, "queue");
    assert_eq!(number(&outage["fault_percent"]), 100.0);
    assert!(number(&outage["success_percent"]) >= 90.0, "orders are accepted: {outage}");
    let kept = &report["kept"];
    // Orders between two phases belong to none.
    assert!(number(&kept["kept"]) >= number(&outage["succeeded"]), "stock took none: {kept}");
    assert_eq!(kept["delivered"], kept["kept"], "each arrives once: {kept}");
    // The first ones until the hold, then one each second.
    let (failed, seconds) = (number(&kept["failed_deliveries"]), number(&outage["seconds"]));
    assert!(failed > 0.0 && failed <= 60.0 + seconds + PAUSE_S, "{kept}");
}

/// Compares the SDKs' own counts with the arrivals. Calls in flight at a change of phase may be in the next
/// one, and those of a pause there arrive in none. Deliveries of the queue are calls of the SDK too, and no
/// attempts of a request.
fn fates_add_up_to_the_calls_that_arrived(report: &Value) {
    for phase in phases(report) {
        let delivered = match phase["name"].as_str() {
            Some("queue") => number(&report["kept"]["failed_deliveries"]),
            _ => 0.0,
        };
        for layer in layers(phase) {
            let counted: f64 = layer["fates"].as_object().unwrap().values().map(number).sum();
            let arrived = number(&layer["calls"]) + if layer["callee"] == "stock" { delivered } else { 0.0 };
            let slack = arrived * 0.05 + 5.0;
            let in_pause = arrived * PAUSE_S / number(&phase["seconds"]);
            assert!((-slack..=slack + in_pause).contains(&(counted - arrived)), "{layer}");
        }
    }
}

/// Runs the demo to the end of its scenario, sets a fault from "another terminal" and interrupts it.
fn run_demo(folder: &Path) -> String {
    let damper = env!("CARGO_BIN_EXE_damper");
    let child =
        Command::new(damper).args(ARGUMENTS).current_dir(folder).stdout(Stdio::piped()).spawn().unwrap();
    let mut demo = Demo(child);
    let mut printed = String::new();
    for line in BufReader::new(demo.0.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if line.contains("The demo continues") {
            let set = Command::new(damper).args(fault_command(&printed)).output().unwrap();
            assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
        }
        if line.contains(SWITCHED) {
            let sent = Command::new("kill").args(["-INT", &demo.0.id().to_string()]).status().unwrap();
            assert!(sent.success());
        }
        printed.push_str(&line);
        printed.push('\n');
    }
    let status = demo.0.wait().unwrap();
    assert!(status.success(), "{status}\n{printed}");
    printed
}

/// `demo fault 100% --control ADDR`, as the demo's first lines tell where its switch is.
fn fault_command(printed: &str) -> Vec<&str> {
    let line = printed.lines().find(|line| line.contains("demo fault 5%")).unwrap();
    let control = line.split_whitespace().last().unwrap();
    vec!["demo", "fault", "100%", "--control", control]
}

fn phases(report: &Value) -> &Vec<Value> {
    report["phases"].as_array().unwrap()
}

fn layers(phase: &Value) -> &Vec<Value> {
    phase["layers"].as_array().unwrap()
}

fn phase<'a>(report: &'a Value, name: &str) -> &'a Value {
    phases(report).iter().find(|phase| phase["name"] == name).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}
