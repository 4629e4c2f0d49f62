use crate::stats::tests::*;

fn told(callee: &str, ejected: bool) -> v1::Report {
    let endpoint = v1::EndpointReport {
        address: "10.0.0.1:80".to_owned(),
        connected: true,
        ejected,
        ..Default::default()
    };
    let endpoints =
        vec![v1::EndpointsReport { callee_service: callee.to_owned(), count: 2, worst: vec![endpoint] }];
    v1::Report { endpoints, ..Default::default() }
}

/// Of the callee `stock`: clients that report it, and those that have ejected the listed endpoint.
fn stock(stats: &Stats) -> Option<(u32, u32)> {
    let callees = stats.endpoints("stock");
    callees.first().map(|callee| (callee.clients, callee.endpoints[0].ejected))
}

#[tokio::test(start_paused = true)]
async fn endpoints_are_those_of_the_last_report_of_each_process_that_is_connected() {
    let (stats, one, two) = (stats(), session("one"), session("two"));
    stats.connected(&one);
    stats.connected(&two);
    assert_eq!(stats.report(&one, &told("stock", true)), 0);
    assert_eq!(stats.report(&two, &told("stock", true)), 0);
    assert_eq!(stock(&stats), Some((2, 2)));
    stats.report(&one, &told("stock", false));
    stats.report(&one, &told("price", false));
    assert_eq!(stock(&stats), Some((2, 1)));
    assert_eq!(stats.endpoints("").len(), 2);
    stats.connected(&one);
    assert_eq!(stock(&stats), Some((1, 1)), "on a new stream nothing is known until it is told again");
    stats.disconnected(&one);
    stats.report(&one, &told("stock", false));
    assert_eq!(stock(&stats), Some((2, 1)));
    stats.disconnected(&two);
    assert_eq!(stock(&stats), Some((1, 0)));
    stats.disconnected(&one);
    assert_eq!(stats.endpoints("").len(), 0);
    assert_eq!(stats.books().totals_of.all(), 0, "and no byte is counted for them");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_listens_late_is_told_the_endpoints() {
    let (here, there, one) = (stats(), stats(), session("one"));
    here.connected(&one);
    here.report(&one, &told("stock", true));
    there.connected(&one);
    for report in here.totals(&one).0 {
        there.report(&one, &report);
    }
    assert_eq!(stock(&there), Some((1, 1)));
}
