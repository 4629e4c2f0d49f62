//! What `damper stats` and `damper routes` show of services that make calls.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use damper_proto::v1;

use crate::harness::{Serving, manifest};
use crate::reporting::{Reporting, report, until};

const METHOD: &str = "inventory.v1.Inventory/Reserve";
const ROUTE: &str = "checkout default inventory inventory.v1.Inventory/Reserve";

fn refusing(server: &Serving) -> Reporting {
    let state = v1::RouteState { breaker_refuses: true, window_failures: 7, ..Default::default() };
    let report = report(METHOD, |route| {
        route.attempts = 22_000;
        route.retries = 2_000;
        route.outer_loop_calls = 200;
        route.state = Some(state);
    });
    Reporting::new(server, "checkout", report)
}

#[test]
fn stats_show_rates_latency_and_open_gates() {
    let server = Serving::start();
    let _checkout = refusing(&server);
    for window in ["5s", "10s", "1m"] {
        let table = until("the route is shown", || {
            Some(server.run(&["stats", "--window", window]).ok()).filter(|table| table.contains("1.10"))
        });
        let headings = table.lines().find(|line| line.starts_with("CALLER")).unwrap();
        for heading in ["CALLS/S", "ATTEMPTS/S", "AMPLIFICATION", "ERRORS", "P50", "P99", "HEDGES/S", "STATE"]
        {
            assert!(headings.contains(heading), "{heading}: {table}");
        }
        assert!(table.contains("retry breaker open"), "{table}");
    }
    let refused = server.run(&["stats", "--window", "7s"]).failed(65);
    assert!(refused.contains("5s, 10s or 60s"), "{refused}");
    let refused = server.run(&["stats", "--window", "1s"]).failed(65);
    assert!(refused.contains("one route"), "{refused}");
}

#[test]
fn one_route_is_shown_with_every_figure() {
    let server = Serving::start();
    let _checkout = refusing(&server);
    let text = until("the route is known", || {
        let ended = server.run(&["stats", "--route", ROUTE]);
        (ended.code == 0).then_some(ended.out)
    });
    for line in [
        "state            retry breaker open",
        "breaker windows  7 failures, 0 successes",
        "rule             none",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    for start in ["latency          p50 ", "would_retry_breaker ", "in a loop of the caller ", "retries "] {
        assert!(text.lines().any(|line| line.starts_with(start)), "{start}: {text}");
    }
    let json = server.run(&["stats", "--route", ROUTE, "-o", "json"]).json();
    assert_eq!(json["routes"][0]["window_failures"], 7);
    server.run(&["stats", "--route", &ROUTE.replace("Reserve", "Other")]).failed(66);
    let refused = server.run(&["stats", "--route", "checkout inventory"]).failed(64);
    assert!(refused.contains("four words"), "{refused}");
}

#[test]
fn watched_route_covers_the_last_second() {
    let server = Serving::start();
    let _checkout = refusing(&server);
    let mut watch = server.command(&["stats", "-w", "--route", ROUTE, "-o", "json"]);
    let mut child = watch.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let line = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let first: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(first["window"], "1s");
}

#[test]
fn routes_shows_other_retry_sources_and_missing_rules() {
    let server = Serving::start();
    let _checkout = refusing(&server);
    let served = v1::ServedReport {
        method: METHOD.to_owned(),
        first_sends: 2_000,
        grpc_repeats: 200,
        envoy_repeats: 100,
        ..Default::default()
    };
    let _inventory =
        Reporting::new(&server, "inventory", v1::Report { served: vec![served], ..Default::default() });
    let table = until("all who repeat are shown", || {
        let table = server.run(&["routes", "--window", "1m"]).ok();
        ["caller's loop", "gRPC", "Envoy"].iter().all(|who| table.contains(who)).then_some(table)
    });
    assert!(table.contains("COVERAGE") && table.contains("none"), "{table}");
    let without = |server: &Serving| {
        let listed = server.run(&["routes", "--without-rule", "-o", "json"]).json();
        listed["routes"].as_array().map_or(0, Vec::len)
    };
    assert_eq!(without(&server), 1);
    server.apply(&manifest("checkout", "{ mode: observe, retry: { max_attempts: 3 } }"));
    assert_eq!(without(&server), 0);
}

#[test]
fn a_watch_goes_on_with_the_next_server_and_ends_with_the_last() {
    for what in [["stats", "-w"].as_slice(), &["clients", "-w", "--interval", "100ms"]] {
        let (first, second) = (Serving::start(), Serving::start());
        let mut watch = first.command(what);
        watch.args(["-o", "json"]).env("DAMPER_SERVER", format!("{},{}", first.address, second.address));
        let mut child = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut told = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.next().unwrap().unwrap();
        let reading = std::thread::spawn(move || lines.map_while(Result::ok).count());
        let went_on = format!("{} was lost; going on with {}", first.address, second.address);
        drop(first);
        assert_eq!(told.next().unwrap(), went_on);
        drop(second);
        assert_eq!(child.wait().unwrap().code(), Some(69), "{what:?}");
        let last = told.last().unwrap();
        assert!(last.starts_with("error: ") && !last.contains("docs.rs"), "{last}");
        reading.join().unwrap();
    }
}
