//! `damper doctor`: what it says and how it ends.

use crate::harness::{Serving, manifest};
use crate::reporting::{Reporting, report, until};

const METHOD: &str = "inventory.v1.Inventory/Get";

#[test]
fn findings_exit_79_with_remedies() {
    let server = Serving::start();
    let unconnected = server.run(&["doctor"]);
    assert!(unconnected.out.contains("warning no_client_connected"), "{unconnected:?}");
    assert!(
        unconnected.out.contains("\n  -> In the code of the service, give `Damper::connect`"),
        "{unconnected:?}"
    );
    unconnected.failed(79);

    let looping = report(METHOD, |route| {
        route.attempts = 60_000;
        route.outer_loop_calls = 500;
    });
    let _checkout = Reporting::new(&server, "checkout", looping);
    let found = until("the storm is found", || {
        let ended = server.run(&["doctor", "--service", "checkout"]);
        ended.out.contains("critical retry_storm").then_some(ended)
    });
    let route = "checkout default inventory inventory.v1.Inventory/Get";
    assert!(
        found.out.starts_with(&format!("critical retry_storm {route}: 3.00 attempts per call")),
        "{found:?}"
    );
    assert!(
        found.out.contains(&format!("warning outer_loop {route}: checkout makes failed calls again")),
        "{found:?}"
    );
    assert!(found.err.contains("1 critical,"), "{found:?}");
    let allowed =
        server.run(&["doctor", "--service", "checkout", "--allow", "outer_loop", "--min-severity", "danger"]);
    assert!(!allowed.out.contains("outer_loop") && allowed.out.contains("retry_storm"), "{allowed:?}");
    allowed.failed(79);
    let storm = ["--allow", "retry_storm", "--min-severity", "danger"];
    server.run(&[&["doctor", "--service", "checkout"], &storm[..]].concat()).ok();
    let unknown = server.run(&["doctor", "--allow", "breaker_off"]).failed(64);
    assert!(unknown.contains("breaker_off: unknown code") && unknown.contains("retry_storm"), "{unknown}");
    let json = server.run(&["doctor", "-o", "json"]);
    let parsed: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(parsed["findings"][0]["code"], "retry_storm");
    assert_eq!(json.code, 79);
}

#[test]
fn healthy_service_exits_0_with_its_checks() {
    let server = Serving::start();
    let _checkout = Reporting::new(&server, "checkout", report(METHOD, |_| {}));
    let _inventory = Reporting::new(&server, "inventory", Default::default());
    server.apply(
        &manifest("checkout", "{ mode: observe, retry: { max_attempts: 3 } }").replace("Reserve", "Get"),
    );
    let well = until("nothing is found", || {
        let ended = server.run(&["doctor", "--service", "checkout"]);
        (ended.code == 0 && ended.out.contains("(1 route)")).then_some(ended)
    });
    assert!(well.out.lines().all(|line| line.starts_with("checked: ")), "{well:?}");
    assert!(well.err.contains("0 critical, 0 warnings, 0 hints"), "{well:?}");
    server.run(&["doctor", "--service", "a b"]).failed(65);
}
