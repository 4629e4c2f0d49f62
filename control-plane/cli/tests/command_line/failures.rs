//! What `damper failures` shows of the calls that did not end well.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use damper_proto::v1;

use crate::harness::Serving;
use crate::reporting::{Reporting, report, until};

const ROUTE: [&str; 4] = ["checkout", "default", "inventory", "inventory.v1.Inventory/Reserve"];
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn ms(ms: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds: 0, nanos: ms * 1_000_000 })
}

/// A call that ended so long after the year began, after a retry that found nobody.
fn failed(second: i64) -> v1::FailedCall {
    let attempt = |at, took, detail: &str| v1::FailedAttempt {
        sent_after: ms(at),
        took: ms(took),
        code: v1::Code::Unavailable.into(),
        hedge: false,
        detail: detail.to_owned(),
    };
    v1::FailedCall {
        fate: v1::Fate::AttemptsExhausted.into(),
        would: false,
        code: v1::Code::Unavailable.into(),
        ended_at: Some(prost_types::Timestamp { seconds: 1_767_225_600 + second, nanos: 5_000_000 }),
        latency: ms(37),
        attempts: vec![attempt(0, 3, ""), attempt(30, 7, "not connected: Connection refused")],
        sends: 2,
        trace_id: TRACE.to_owned(),
        call_id: String::new(),
    }
}

fn failing(server: &Serving, calls: Vec<v1::FailedCall>) -> Reporting {
    Reporting::new(server, "checkout", report(ROUTE[3], |route| route.failed_calls = calls))
}

fn failures<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["failures"], &ROUTE[..], more].concat()
}

#[test]
fn the_latest_calls_that_failed_are_shown_with_each_attempt() {
    let server = Serving::start();
    let _checkout = failing(&server, vec![failed(1), failed(2)]);
    let table = until("the calls are shown", || {
        let ended = server.run(&failures(&[]));
        (ended.code == 0 && ended.out.contains("attempts_exhausted")).then_some(ended.out)
    });
    let rows: Vec<_> = table.lines().collect();
    assert!(rows[0].starts_with("ENDED") && rows.len() == 3, "{table}");
    assert!(rows[1].starts_with("2026-01-01T00:00:02.005Z"), "the latest first: {table}");
    for words in ["UNAVAILABLE", "37ms", TRACE, "checkout-1", "at 0ms: 3.0ms UNAVAILABLE; at 30ms: 7.0ms"] {
        assert!(rows[1].contains(words), "{words}: {table}");
    }
    assert!(rows[1].ends_with("(not connected: Connection refused)"), "{table}");
    let json = server.run(&failures(&["-o", "json"])).json();
    assert_eq!(json["failures"][0]["call"]["trace_id"], TRACE);
    assert_eq!(json["failures"][0]["client"]["instance"], "checkout-1");
    assert_eq!(json["failures"].as_array().map(Vec::len), Some(2));
}

#[test]
fn watch_lists_new_calls_latest_last() {
    let server = Serving::start();
    let mut watch = server.command(&failures(&["-w", "-o", "json"]));
    let mut child = watch.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || -> String {
        let line: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        line["call"]["ended_at"].as_str().unwrap().to_owned()
    };
    // Nobody calls yet, which is no error here.
    let _checkout = failing(&server, vec![failed(1), failed(2)]);
    assert_eq!([next(), next()].map(|at| at[17..19].to_owned()), ["01", "02"]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn unknown_route_is_an_error_and_healthy_one_is_not() {
    let server = Serving::start();
    let missing = server.run(&failures(&[])).failed(66);
    assert!(missing.contains("no client reports the route checkout default inventory"), "{missing}");
    let _checkout = failing(&server, Vec::new());
    let ended = until("the route is known", || {
        let ended = server.run(&failures(&[]));
        (ended.code == 0).then_some(ended)
    });
    assert_eq!(ended.out.lines().count(), 1, "headings alone: {}", ended.out);
    server.run(&["failures", "checkout", "default", "inventory", "*"]).failed(65);
}
