//! Reports to the control plane.

use std::collections::HashMap;
use std::time::Duration;

use damper_proto::v1;
use damper_proto::v1::server_message::Kind;
use damper_sdk::Damper;
use tokio::time::Instant;

use crate::callee::{REPEAT, attempts, served};
use crate::server::*;

fn callees(report: &v1::Report) -> Vec<&str> {
    let mut all: Vec<_> = report.routes.iter().map(|route| route.callee_service.as_str()).collect();
    all.sort_unstable();
    all
}

async fn ruled() -> (ControlPlane, Damper, Stream) {
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options()).unwrap();
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    (plane, damper, stream)
}

#[tokio::test(start_paused = true)]
async fn a_server_layer_made_after_the_hello_is_reported() {
    let (_plane, damper, mut stream) = ruled().await;
    assert!(!stream.hello.serves);
    let _layer = damper.server_layer();
    while !stream.report().await.serves {}
}

#[tokio::test(start_paused = true)]
async fn a_report_contains_the_fates_of_each_route() {
    let (_plane, damper, mut stream) = ruled().await;
    for callee in ["a", "a", "without-rule"] {
        attempts(&damper, callee).await;
    }
    let report = stream.report().await;
    assert_eq!(report.source, i32::from(v1::Source::Live));
    assert_eq!(report.override_mode, i32::from(v1::Mode::Unspecified));
    assert!(report.since.is_some_and(|since| (4..7).contains(&since.seconds)), "{:?}", report.since);
    assert_eq!(callees(&report), ["a", "without-rule"]);
    let route = |callee: &str| report.routes.iter().find(|route| route.callee_service == callee).unwrap();
    let ended = |fate: v1::Fate, count| v1::FateCount { fate: fate.into(), would: false, count };
    let unavailable = |count| v1::CodeCount { code: v1::Code::Unavailable.into(), count };

    let a = route("a");
    assert_eq!(a.callee_method, "a.B/C");
    assert_eq!((a.calls, a.attempts, a.retries, a.transparent_resends), (2, 6, 4, 0));
    assert_eq!(a.fates, [ended(v1::Fate::AttemptsExhausted, 2)]);
    assert_eq!(a.codes, [unavailable(6)]);
    assert_eq!(a.latency.iter().map(|bucket| bucket.count).sum::<u64>(), 2);

    let fates: Vec<_> =
        a.failed_calls.iter().map(|call| (call.fate(), call.sends, call.attempts.len())).collect();
    assert_eq!(fates, [(v1::Fate::AttemptsExhausted, 3, 3); 2]);

    let plain = route("without-rule");
    assert_eq!(plain.failed_calls.len(), 1);
    assert_eq!((plain.calls, plain.attempts, plain.retries), (1, 1, 0));
    assert_eq!(plain.fates, [ended(v1::Fate::PolicyOff, 1)]);
    assert_eq!(plain.codes, [unavailable(1)]);
}

#[tokio::test(start_paused = true)]
async fn changed_routes_are_reported_and_all_on_a_new_stream() {
    let (mut plane, damper, mut stream) = ruled().await;
    // Without a rule a route has no gates that change on their own.
    attempts(&damper, "c").await;
    attempts(&damper, "b").await;
    assert_eq!(callees(&stream.report().await), ["b", "c"]);
    attempts(&damper, "b").await;
    let second = stream.report().await;
    assert_eq!(callees(&second), ["b"]);
    assert_eq!(second.routes[0].calls, 2, "cumulative");
    let quiet = tokio::time::timeout(Duration::from_secs(30), stream.hear()).await;
    assert!(quiet.is_err(), "no changes, no report");
    drop(stream);
    assert_eq!(callees(&plane.accept().await.report().await), ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn the_latest_five_failed_calls_are_reported_once() {
    let (mut plane, damper, mut stream) = ruled().await;
    stream.report().await;
    for _ in 0..12 {
        attempts(&damper, "b").await;
        // At most five in a second are reported.
        tokio::time::advance(Duration::from_millis(300)).await;
    }
    let report = stream.report().await;
    let [route] = report.routes.as_slice() else { panic!("{report:?}") };
    assert_eq!((route.calls, route.failed_calls.len()), (12, 5));
    let ended: Vec<_> = route.failed_calls.iter().map(|call| call.ended_at.unwrap()).collect();
    assert!(ended.is_sorted_by_key(|at| (at.seconds, at.nanos)), "latest last: {ended:?}");
    assert!(route.failed_calls.iter().all(|call| call.code() == v1::Code::Unavailable));
    drop(stream);
    let again = plane.accept().await.report().await;
    assert_eq!(callees(&again), ["b"]);
    assert!(again.routes[0].failed_calls.is_empty(), "only the counters are reported again");
}

#[tokio::test(start_paused = true)]
async fn a_report_contains_changed_served_methods() {
    let (mut plane, damper, mut stream) = ruled().await;
    let limit = guard("orders", 8, repeats(v1::Mode::Enforce, 2));
    let observed = guard("*", 8, repeats(v1::Mode::Observe, 1));
    stream.exchange(8, 2, guards_changed(vec![limit, observed], &[])).await;
    served(&damper, 4, &[]).await;
    served(&damper, 1, REPEAT).await;
    served(&damper, 3, &[("grpc-previous-rpc-attempts", "1")]).await;
    served(&damper, 1, &[("x-envoy-attempt-count", "2")]).await;
    let report = stream.report().await;
    let expected = v1::ServedReport {
        method: "a.B/Served".to_owned(),
        first_sends: 4,
        damper_repeats: 1,
        grpc_repeats: 3,
        envoy_repeats: 1,
        shed_repeats: 3,
        would_shed_repeats: 1,
    };
    assert_eq!(report.served, std::slice::from_ref(&expected));
    attempts(&damper, "a").await;
    let second = stream.report().await;
    assert_eq!(
        (second.served, callees(&v1::Report { routes: second.routes, ..Default::default() })),
        (vec![], vec!["a"])
    );
    served(&damper, 1, &[]).await;
    let third = v1::ServedReport { first_sends: 5, ..expected };
    assert_eq!(stream.report().await.served, std::slice::from_ref(&third), "cumulative");
    drop(stream);
    assert_eq!(plane.accept().await.report().await.served, [third], "all of them on a new stream");
}

#[tokio::test(start_paused = true)]
async fn the_server_sets_how_often() {
    let (_plane, damper, mut stream) = ruled().await;
    let every = |seconds| {
        let interval = Some(prost_types::Duration { seconds, nanos: 0 });
        Kind::ReportSettings(v1::ReportSettings { interval, token_ends_at: None })
    };
    for (seconds, expected) in [(1, 800..1300), (20, 17_000..23_000), (-1, 17_000..23_000)] {
        stream.say(7, 0, every(seconds)).await;
        attempts(&damper, "a").await;
        stream.report().await;
        let since = Instant::now();
        attempts(&damper, "a").await;
        stream.report().await;
        let waited = since.elapsed().as_millis();
        assert!(expected.contains(&waited), "{seconds} s: {waited} ms");
        // The next settings must arrive after this wait began.
        stream.say(7, 0, Kind::Bookmark(v1::Bookmark {})).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pace_that_changes_all_the_time_puts_no_report_off() {
    let (_plane, damper, mut stream) = ruled().await;
    attempts(&damper, "b").await;
    let begun = Instant::now();
    // A watcher comes every half second and leaves at once.
    for look in 0..40 {
        let interval = if look % 2 == 0 { Duration::from_secs(1) } else { Duration::from_secs(5) };
        let interval = prost_types::Duration::try_from(interval).ok();
        stream.say(7, 0, Kind::ReportSettings(v1::ReportSettings { interval, token_ends_at: None })).await;
        if tokio::time::timeout(Duration::from_millis(500), stream.report()).await.is_ok() {
            break;
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_last_calls_are_reported_when_it_shuts_down() {
    let (_plane, damper, mut stream) = ruled().await;
    stream.report().await;
    attempts(&damper, "a").await;
    let begun = Instant::now();
    let received = async {
        let report = stream.report().await;
        assert_eq!(callees(&report), ["a"]);
        assert!(stream.hear().await.is_none(), "then the stream ends");
        drop(stream);
    };
    tokio::join!(damper.shutdown(), received);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_read_delays_no_rules_and_no_calls() {
    let (_plane, damper, stream) = ruled().await;
    let interval = Some(prost_types::Duration { seconds: 1, nanos: 0 });
    stream.say(7, 0, Kind::ReportSettings(v1::ReportSettings { interval, token_ends_at: None })).await;
    // 40 reports of 100 KiB: more than HTTP/2 and the client queue for a server that does not read.
    let callees: Vec<_> = (0..250).map(|i| format!("{i:-<250}")).collect();
    for round in 1..=40 {
        for callee in &callees {
            attempts(&damper, callee).await;
        }
        stream.say(7 + round, 0, delta(vec![rule("b", 7 + round)], &[])).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        until(&damper, |status| status.revision == 7 + round).await;
    }
    assert_eq!(attempts(&damper, "b").await, 3);
    let mut stream = stream;
    let mut calls = HashMap::new();
    while callees.iter().any(|callee| calls.get(callee) != Some(&40)) {
        for route in stream.report().await.routes {
            calls.insert(route.callee_service, route.calls);
        }
    }
}
