//! docs/adoption.md is followed as it stands: every command of its shell blocks, in order, against services that do
//! what the guide's services do.

use damper_proto::v1;
use damper_tests::guide::{self, Session};

use crate::harness::Serving;
use crate::reporting::{Reporting, report, until};

const GUIDE: &str = include_str!("../../../../docs/adoption.md");
const METHOD: &str = "shop.v1.Inventory/Reserve";

#[test]
fn every_command_of_the_guide_works_in_its_order() {
    let server = Serving::start();
    let looping = report(METHOD, |route| route.outer_loop_calls = 200);
    let _orders = Reporting::new(&server, "orders", looping);
    let served = v1::ServedReport { method: METHOD.to_owned(), grpc_repeats: 100, ..Default::default() };
    let _inventory =
        Reporting::new(&server, "inventory", v1::Report { served: vec![served], ..Default::default() });
    until("the routes are known", || {
        let table = server.run(&["routes", "--window", "1m"]).ok();
        (table.contains("caller's loop") && table.contains("gRPC")).then_some(())
    });
    let session = Session::of(GUIDE);
    let commands = guide::commands(GUIDE);
    let printed: String = commands.iter().map(|command| session.succeed(&server.address, command)).collect();
    assert!(commands.len() >= 18, "{commands:?}");
    for part in [
        "warning outer_loop",
        "warning repeats_by_grpc",
        "would_retry",
        "at-least-10%-failing",
        "it would have sent ",
        "1 created",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    let rule = server.run(&["rules", "get", "orders", "*", "inventory", METHOD, "-o", "json"]).json();
    assert_eq!((&rule[0]["policy"]["mode"], &rule[0]["owner"]), (&"off".into(), &"team-orders".into()));
}

#[test]
fn the_guide_names_every_heading_that_it_links_to() {
    let anchors = guide::anchors(GUIDE);
    let links: Vec<&str> = GUIDE.split("](#").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(!links.is_empty());
    for link in links {
        assert!(anchors.iter().any(|anchor| anchor == link), "no heading for #{link} among {anchors:?}");
    }
}
