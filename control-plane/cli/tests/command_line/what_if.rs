//! `damper apply --what-if`: what a set would do, and that it does not do it.

use crate::harness::{Serving, manifest, text};
use crate::reporting::{Reporting, report, until};

const METHOD: &str = "inventory.v1.Inventory/Reserve";
const ENFORCE: &str = "{ mode: enforce, retry: { max_attempts: 3 }, retry_breaker: { enabled: false } }";

#[test]
fn prediction_is_shown_and_nothing_is_written() {
    let server = Serving::start();
    let _checkout = Reporting::new(&server, "checkout", report(METHOD, |_| {}));
    let set = format!("{}---\n{}", manifest("checkout", ENFORCE), manifest("nobody", ENFORCE));
    let file = server.file("set.yaml", set);
    let what_if = ["apply", "--what-if", "-f", text(&file)];
    let shown = until("the route's calls are known", || {
        Some(server.run(&what_if)).filter(|shown| shown.code != 0 || shown.out.contains("outage"))
    });
    let rows: Vec<Vec<&str>> =
        shown.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(rows[0][..5], ["CALLER", "CLUSTER", "CALLEE", "METHOD", "CALLEE-IS"], "{shown:?}");
    let callees: Vec<&str> = rows[1..].iter().map(|row| row[4]).collect();
    assert_eq!(
        callees,
        ["as-measured", "at-least-10%-failing", "outage"],
        "one route needs no sum: {shown:?}"
    );
    for row in &rows[1..] {
        assert_eq!((row[..4].join(" "), row[11]), (format!("checkout default inventory {METHOD}"), "1->3"));
        assert!(row[6].contains("->") && row[7].starts_with('+'), "{row:?}");
    }
    assert_eq!((rows[3][8], rows[3][9], rows[3][10]), ("0.0%", "0.0pp", "none"));
    assert!(rows[1][9].starts_with("+9.") || rows[1][9].starts_with("+10."), "a tenth fails: {shown:?}");
    for line in [
        "checkout default inventory inventory.v1.Inventory/Reserve: more on this hop: at most 3 attempts per call",
        "nobody * inventory inventory.v1.Inventory/Reserve: no effect on calls of the last minute",
        "predicted at revision 0, nothing was changed",
    ] {
        assert!(shown.err.contains(line), "{line}: {shown:?}");
    }
    let json = server.run(&[&what_if[..], &["-o", "json"]].concat()).json();
    assert_eq!(json["together"].as_array().unwrap().len(), 3);
    assert_eq!(json["routes"][0]["predictions"][2]["callee"], "outage", "{json}");
    assert_eq!(server.rules(), 0);
}

#[test]
fn invalid_set_is_rejected() {
    let server = Serving::start();
    let bad = server.file("bad.yaml", manifest("checkout", "{ mode: enforce, retry: { max_attempts: 11 } }"));
    let refused = server.run(&["apply", "--what-if", "-f", text(&bad)]).failed(65);
    assert!(refused.contains("bad.yaml") && refused.contains("max_attempts"), "{refused}");
    for other in [&["--dry-run"][..], &["--wait"], &["--request-id", "x"]] {
        let refused = server.run(&[&["apply", "--what-if", "-f", text(&bad)], other].concat()).failed(64);
        assert!(refused.contains("cannot be used with"), "{refused}");
    }
}
