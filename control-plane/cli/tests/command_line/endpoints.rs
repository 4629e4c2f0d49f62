//! What `damper endpoints` shows, and what the doctor says of it.

use damper_proto::v1;

use crate::harness::Serving;
use crate::reporting::{Reporting, report, until};

fn endpoint(port: u16, recent_failures: u32) -> v1::EndpointReport {
    v1::EndpointReport {
        address: format!("10.0.0.{port}:7702"),
        zone: "a".to_owned(),
        connected: true,
        ejected: recent_failures > 0,
        in_flight: 3,
        recent: 32,
        recent_failures,
    }
}

fn reporting(server: &Serving) -> Reporting {
    let endpoints = v1::EndpointsReport {
        callee_service: "inventory".to_owned(),
        count: 3,
        worst: vec![endpoint(2, 32), endpoint(1, 0), endpoint(3, 0)],
    };
    let report = report("inventory.v1.Inventory/Reserve", |_| {});
    Reporting::new(server, "checkout", v1::Report { endpoints: vec![endpoints], ..report })
}

#[test]
fn an_endpoint_that_fails_is_the_first_row_and_a_sentence_below() {
    let server = Serving::start();
    let none = server.run(&["endpoints"]);
    assert_eq!(none.code, 0);
    assert!(none.err.contains("no endpoint:"), "{}", none.err);
    let _checkout = reporting(&server);
    let shown = until("the endpoints are shown", || {
        let ended = server.run(&["endpoints", "inventory"]);
        (ended.code == 0 && ended.out.contains("10.0.0.2")).then_some(ended.out)
    });
    let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(shown.starts_with("CALLEE"), "{shown}");
    assert_eq!(rows[1].join(" "), "inventory 10.0.0.2:7702 a 32 of 32 3 1 of 1 0 of 1");
    assert_eq!(rows[2].join(" "), "inventory 10.0.0.1:7702 a 0 of 32 3 0 of 1 0 of 1");
    let problem = "1 of 3 endpoints of inventory fails 100.0% of its last requests: 10.0.0.2:7702 (zone a); ejected by 1 of 1 client";
    assert!(shown.ends_with(&format!("\n{problem}\n")), "{shown}");

    let json = server.run(&["endpoints", "-o", "json"]);
    let told: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(told["callees"][0]["problem"], problem);
    assert!(server.run(&["endpoints", "another"]).err.contains("no endpoint:"));
    until("the doctor tells it", || {
        let told = server.run(&["doctor"]).out;
        (told.contains("endpoint_failing") && told.contains(problem)).then_some(())
    });
}
