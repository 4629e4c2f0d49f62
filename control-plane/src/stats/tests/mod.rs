pub(crate) mod endpoints;
pub(crate) mod kills;
pub(crate) mod timeline;

use std::time::SystemTime;

use damper_core::{Fate, Pattern};

use super::*;
use crate::clients::group::ClientGroup;
use crate::state::kills::StoredKill;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use damper_store::{Entry, StoreContents};

fn table() -> Arc<Snapshot> {
    Arc::new(Snapshot::of(&StoreContents { epoch: "e".to_owned(), revision: 0, ..StoreContents::default() }))
}

fn session(instance: &str) -> ClientSession {
    let class =
        ClientGroup { service: "shop".to_owned(), cluster: "default".to_owned(), features: [].into() };
    let identity = v1::Identity { instance: instance.to_owned(), ..Default::default() };
    let hello = v1::Hello { identity: Some(identity), serves: true, ..Default::default() };
    ClientSession::new(hello, None, class, &table(), false)
}

const WATCHED: Duration = Duration::from_secs(60);

fn stats() -> Stats {
    Stats::new(
        8,
        64 << 20,
        watch::channel(ReportSchedule::new(Duration::from_secs(5), Duration::from_secs(1))).1,
    )
}

fn report(method: &str, calls: u64, attempts: u64, failed: u64) -> v1::Report {
    let fate = |fate: Fate, count| v1::FateCount { fate: v1::Fate::from(fate).into(), would: false, count };
    let route = v1::RouteReport {
        callee_service: "stock".to_owned(),
        callee_method: method.to_owned(),
        calls,
        attempts,
        hedges: attempts.saturating_sub(calls),
        fates: vec![fate(Fate::Ok, calls - failed), fate(Fate::AttemptsExhausted, failed)],
        latency: vec![v1::BucketCount { bucket: 10, count: calls }],
        ..Default::default()
    };
    v1::Report { routes: vec![route], ..Default::default() }
}

fn only(stats: &Stats) -> v1::RouteStats {
    let rows = stats.rows_over(RateWindow::default(), &table());
    assert_eq!(rows.len(), 1);
    rows[0].stats.clone()
}

fn about(value: f64, expected: f64) -> bool {
    (value - expected).abs() <= expected * 0.01 + 1e-9
}

async fn pass(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn steady_reports_give_a_steady_rate() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    for n in 1..=6 {
        pass(5).await;
        assert_eq!(stats.report(&one, &report("p.S/M", n * 500, n * 1000, n * 50)), 0);
    }
    let row = only(&stats);
    assert!(about(row.calls_per_s, 100.0), "{row:?}");
    assert!(about(row.attempts_per_s, 200.0), "{row:?}");
    assert!(about(row.hedges_per_s, 100.0), "{row:?}");
    assert!(about(row.amplification, 2.0), "{row:?}");
    assert!(about(row.error_share, 0.1), "{row:?}");
    assert_eq!((row.total_calls, row.total_attempts, row.clients), (3000, 6000, 1));
    assert!(row.p50.is_some() && row.p99.is_some());
}

#[tokio::test(start_paused = true)]
async fn processes_of_one_route_add_up_and_leave_the_sum_when_they_go() {
    let stats = stats();
    let all = [session("one"), session("two")];
    all.iter().for_each(|session| stats.connected(session));
    for n in 1..=4 {
        pass(5).await;
        for session in &all {
            stats.report(session, &report("p.S/M", n * 50, n * 50, 0));
        }
    }
    let row = only(&stats);
    assert!(about(row.calls_per_s, 20.0), "{row:?}");
    assert_eq!((row.clients, row.total_calls), (2, 400));
    stats.disconnected(&all[1]);
    pass(1).await;
    assert_eq!(only(&stats).clients, 1);
    pass(FORGET_GONE_AFTER.as_secs() + 60).await;
    assert_eq!(only(&stats).total_calls, 200);
}

#[tokio::test(start_paused = true)]
async fn reports_are_taken_while_a_pattern_is_measured() {
    let stats = stats();
    let all: Vec<_> = (0..100).map(|n| session(&n.to_string())).collect();
    all.iter().for_each(|session| stats.connected(session));
    pass(5).await;
    for session in &all {
        stats.report(session, &report("p.S/M", 1, 1, 0));
    }
    let mut between = 0;
    let measured = stats.measured_in_parts(&Pattern::parse("*", "*", "*", "*").unwrap(), || {
        between += 1;
        // It would wait for ever if the statistics were locked.
        stats.report(&all[0], &report("p.S/M", 1, 1, 0));
    });
    assert_eq!((measured.routes, measured.calls), (1, 100));
    assert!(between > 100 / 20, "the figures were held for long: {between} times free");
}

#[tokio::test(start_paused = true)]
async fn a_repeated_report_adds_nothing_and_a_lost_one_loses_nothing() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    pass(5).await;
    stats.report(&one, &report("p.S/M", 10, 10, 0));
    stats.report(&one, &report("p.S/M", 10, 10, 0));
    pass(5).await;
    pass(5).await;
    stats.report(&one, &report("p.S/M", 30, 30, 0));
    assert_eq!(stats.counted()[0].calls(), 30);
    assert_eq!(only(&stats).total_calls, 30);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_restarted_counts_from_zero_again() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    pass(5).await;
    stats.report(&one, &report("p.S/M", 100, 100, 0));
    pass(5).await;
    stats.report(&one, &report("p.S/M", 7, 7, 0));
    assert_eq!(stats.counted()[0].calls(), 107);
    assert_eq!(only(&stats).total_calls, 7);
}

#[tokio::test(start_paused = true)]
async fn calls_of_unknown_age_are_totals_but_no_rate() {
    let stats = stats();
    let mut one = session("one");
    one.fresh = false;
    stats.connected(&one);
    pass(2).await;
    stats.report(&one, &report("p.S/M", 1_000_000, 1_000_000, 0));
    pass(1).await;
    let row = only(&stats);
    assert_eq!((row.total_calls, row.calls_per_s), (1_000_000, 0.0));
}

#[tokio::test(start_paused = true)]
async fn calls_of_known_age_are_spread_over_it() {
    let (stats, one) = (stats(), session("one"));
    pass(100).await;
    stats.connected(&one);
    let since = prost_types::Duration::try_from(Duration::from_secs(100)).ok();
    stats.report(&one, &v1::Report { since, ..report("p.S/M", 1000, 1000, 0) });
    assert!(about(only(&stats).calls_per_s, 10.0), "{:?}", only(&stats));
}

#[tokio::test(start_paused = true)]
async fn what_an_older_process_counted_before_this_server_began_is_no_burst() {
    let (stats, one) = (stats(), session("one"));
    pass(2).await;
    stats.connected(&one);
    let since = prost_types::Duration::try_from(Duration::from_secs(3600)).ok();
    stats.report(&one, &v1::Report { since, ..report("p.S/M", 36_000, 36_000, 0) });
    for window in [RateWindow::FiveSeconds, RateWindow::Minute] {
        assert!(about(over(&stats, window).calls_per_s, 10.0), "{}", over(&stats, window).calls_per_s);
    }
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_read_or_kept_is_left_out_and_counted() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    assert_eq!(stats.report(&one, &report("no method", 1, 1, 0)), 1);
    let mut odd = report("p.S/M", 1, 1, 0);
    odd.routes[0].fates.push(v1::FateCount { fate: 99, would: false, count: 1 });
    odd.routes[0].latency.push(v1::BucketCount { bucket: 70_000, count: 1 });
    assert_eq!(stats.report(&one, &odd), 2);
    for n in 0..4 {
        stats.report(&one, &report(&format!("p.S/N{n}"), 1, 1, 0));
    }
    assert_eq!(
        stats.rows_over(RateWindow::default(), &table()).len(),
        4,
        "half of the routes is a service's own"
    );
    assert_eq!(stats.report(&one, &report(OTHER_METHOD, 1, 1, 0)), 1, "full");
}

#[tokio::test(start_paused = true)]
async fn a_report_in_parts_is_one_report() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    for n in 1..=4 {
        pass(5).await;
        stats.report(&one, &report("p.S/M", n * 50, n * 50, 0));
        tokio::time::advance(Duration::from_millis(1)).await;
        stats.report(&one, &report("p.S/N", n * 50, n * 50, 0));
    }
    let rows = stats.rows_over(RateWindow::default(), &table());
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| about(row.stats.calls_per_s, 10.0)), "{rows:?}");
}

/// A route's report with other counters too.
fn detailed(calls: u64, change: impl FnOnce(&mut v1::RouteReport)) -> v1::Report {
    let mut report = report("p.S/M", calls, calls, 0);
    change(&mut report.routes[0]);
    report
}

fn over(stats: &Stats, over: RateWindow) -> v1::RouteStats {
    let rows = stats.rows_over(over, &table());
    assert_eq!(rows.len(), 1);
    rows[0].stats.clone()
}

#[tokio::test(start_paused = true)]
async fn each_window_has_the_rate_of_its_own_time() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    let mut calls = 0;
    // 50 s of 10 calls/s, 5 s of 100, 5 s of 200.
    for (reports, rate) in [(10, 10), (1, 100), (1, 200)] {
        for _ in 0..reports {
            pass(5).await;
            calls += 5 * rate;
            stats.report(&one, &report("p.S/M", calls, calls, 0));
        }
    }
    for (window, rate) in [
        (RateWindow::FiveSeconds, 200.0),
        (RateWindow::TenSeconds, 150.0),
        (RateWindow::Minute, 2000.0 / 60.0),
    ] {
        let row = over(&stats, window);
        assert!(about(row.calls_per_s, rate), "{window:?}: {}", row.calls_per_s);
    }
}

#[tokio::test(start_paused = true)]
async fn a_minute_is_known_although_processes_report_late_and_then_forgotten() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    for n in 1..=60 {
        pass(5).await;
        stats.report(&one, &report("p.S/M", n * 100, n * 100, 0));
    }
    pass(6).await;
    assert!(
        about(over(&stats, RateWindow::Minute).calls_per_s, 20.0),
        "{}",
        over(&stats, RateWindow::Minute).calls_per_s
    );
    stats.disconnected(&one);
    pass(75).await;
    let row = over(&stats, RateWindow::Minute);
    assert_eq!((row.calls_per_s, row.p50, row.total_calls), (0.0, None, 6000));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_begins_does_not_take_what_is_not_reported_yet_for_silence() {
    let (pace, receiver) =
        watch::channel(ReportSchedule::new(Duration::from_secs(5), Duration::from_secs(1)));
    let (stats, one) = (Stats::new(8, 64 << 20, receiver), session("one"));
    stats.connected(&one);
    for n in 1..=6 {
        pass(5).await;
        stats.report(&one, &report("p.S/M", n * 500, n * 500, 0));
    }
    pass(4).await;
    pace.send_modify(ReportSchedule::begin_watching_everything);
    assert!(about(only(&stats).calls_per_s, 100.0), "{}", only(&stats).calls_per_s);
}

#[tokio::test(start_paused = true)]
async fn quantiles_are_those_of_the_window() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    let took = |slow: u64, fast: u64| {
        detailed(slow + fast, |route| {
            route.latency = vec![
                v1::BucketCount { bucket: latency_of(10), count: fast },
                v1::BucketCount { bucket: latency_of(1000), count: slow },
            ];
        })
    };
    let mut counts = (0, 0);
    for n in 0..12 {
        pass(5).await;
        // Slow for 40 s, then fast with one slow call in a hundred.
        let (slow, fast) = if n < 8 { (100, 0) } else { (1, 99) };
        counts = (counts.0 + slow, counts.1 + fast);
        stats.report(&one, &took(counts.0, counts.1));
    }
    let near = |quantile: Option<prost_types::Duration>, ms: u64| {
        let found = Duration::try_from(quantile.unwrap()).unwrap();
        let truth = Duration::from_millis(ms);
        assert!(found.abs_diff(truth) <= truth / 16, "{found:?}");
    };
    for window in [RateWindow::FiveSeconds, RateWindow::TenSeconds] {
        let row = over(&stats, window);
        near(row.p50, 10);
        near(row.p90, 10);
        near(row.p99, 10);
        near(row.p999, 1000);
    }
    let minute = over(&stats, RateWindow::Minute);
    near(minute.p50, 1000);
}

fn latency_of(ms: u64) -> u32 {
    u32::try_from(damper_core::latency::bucket_of(Duration::from_millis(ms))).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_watched_route_is_told_over_the_last_second() {
    let (stats, all) = (stats(), [session("one"), session("two")]);
    all.iter().for_each(|session| stats.connected(session));
    for n in 1..=20 {
        pass(1).await;
        for session in &all {
            // The rate of the last second is ten times that of the seconds before.
            let calls = if n < 20 { n * 10 } else { 290 };
            stats.report(session, &report("p.S/M", calls, calls, 0));
        }
    }
    let route = stats.rows_over(RateWindow::default(), &table())[0].route.clone();
    let row = stats.row(&route, RateWindow::Second, WATCHED, &table()).unwrap().stats;
    assert!(about(row.calls_per_s, 200.0), "{}", row.calls_per_s);
    assert!(row.p99.is_some());
    assert!(about(
        stats.row(&route, RateWindow::TenSeconds, WATCHED, &table()).unwrap().stats.calls_per_s,
        38.0
    ));
    let other = Route { callee_service: "other".into(), ..route };
    assert!(stats.row(&other, RateWindow::Second, WATCHED, &table()).is_none());
}

#[tokio::test(start_paused = true)]
async fn gates_are_those_of_the_last_reports_of_connected_processes() {
    let (stats, all) = (stats(), [session("one"), session("two"), session("three")]);
    all.iter().for_each(|session| stats.connected(session));
    let state = |refuses, circuit: v1::CircuitState| v1::RouteState {
        window_failures: 10,
        window_successes: 90,
        breaker_refuses: refuses,
        budget_refuses: refuses,
        circuit: circuit.into(),
        killed: refuses,
    };
    let states =
        [Some(state(true, v1::CircuitState::HalfOpen)), Some(state(false, v1::CircuitState::Closed)), None];
    pass(5).await;
    for (session, state) in all.iter().zip(&states) {
        stats.report(session, &detailed(10, |route| route.state = *state));
    }
    let gates = |row: &v1::RouteStats| {
        (row.breaker_refuses, row.budget_refuses, row.circuit_open, row.window_failures)
    };
    let row = only(&stats);
    assert_eq!((gates(&row), row.window_successes), ((1, 1, 1, 20), 180));
    pass(5).await;
    stats.report(&all[0], &detailed(11, |route| route.state = states[1]));
    stats.disconnected(&all[1]);
    assert_eq!(gates(&only(&stats)), (0, 0, 0, 10));
}

#[tokio::test(start_paused = true)]
async fn rates_of_retries_hedges_and_loops_are_told() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    for n in 1..=4 {
        pass(5).await;
        let report = detailed(n * 100, |route| {
            route.attempts = n * 200;
            route.retries = n * 50;
            route.hedges = n * 50;
            route.would_hedges = n * 25;
            route.outer_loop_calls = n * 5;
            route.codes = vec![v1::CodeCount { code: v1::Code::Unavailable.into(), count: n * 100 }];
        });
        stats.report(&one, &report);
    }
    let row = only(&stats);
    let rates = [row.retries_per_s, row.hedges_per_s, row.would_hedges_per_s, row.outer_loop_calls_per_s];
    for (rate, expected) in rates.into_iter().zip([10.0, 10.0, 5.0, 1.0]) {
        assert!(about(rate, expected), "{rates:?}");
    }
    let counted = stats.counted();
    assert_eq!(counted[0].codes().collect::<Vec<_>>(), [(Code::Unavailable, 400)]);
    assert_eq!(counted[0].retries(), 200);
}

#[tokio::test(start_paused = true)]
async fn what_the_callee_serves_stands_with_every_route_to_it() {
    let stats = stats();
    let (caller, callee) = (session("one"), serving("stock", "stock-1"));
    [&caller, &callee].into_iter().for_each(|session| stats.connected(session));
    for n in 1..=4 {
        pass(5).await;
        stats.report(&caller, &report("p.S/M", n * 50, n * 50, 0));
        let served = v1::ServedReport {
            method: "p.S/M".to_owned(),
            first_sends: n * 100,
            damper_repeats: n * 10,
            grpc_repeats: n * 20,
            envoy_repeats: n * 5,
            shed_repeats: n * 15,
            would_shed_repeats: n * 25,
        };
        stats.report(&callee, &v1::Report { served: vec![served], ..Default::default() });
    }
    for window in [RateWindow::FiveSeconds, RateWindow::TenSeconds, RateWindow::Minute] {
        let served = over(&stats, window).served.unwrap();
        let rates = [
            (served.first_sends_per_s, 20.0),
            (served.damper_repeats_per_s, 2.0),
            (served.grpc_repeats_per_s, 4.0),
            (served.envoy_repeats_per_s, 1.0),
            (served.shed_repeats_per_s, 3.0),
            (served.would_shed_repeats_per_s, 5.0),
        ];
        assert!(rates.into_iter().all(|(rate, expected)| about(rate, expected)), "{window:?}: {served:?}");
    }
}

fn serving(service: &str, instance: &str) -> ClientSession {
    let class =
        ClientGroup { service: service.to_owned(), cluster: "default".to_owned(), features: [].into() };
    let identity = v1::Identity { instance: instance.to_owned(), ..Default::default() };
    let hello = v1::Hello { identity: Some(identity), serves: true, ..Default::default() };
    ClientSession::new(hello, None, class, &table(), false)
}

#[test]
fn windows_that_do_not_exist_are_refused_with_those_that_do() {
    let wire = |ms: u64| prost_types::Duration::try_from(Duration::from_millis(ms)).ok();
    assert_eq!(RateWindow::read("window", None).unwrap(), RateWindow::TenSeconds);
    assert_eq!(RateWindow::read("window", wire(60_000)).unwrap(), RateWindow::Minute);
    assert_eq!(RateWindow::read_of_one("window", wire(1_000)).unwrap(), RateWindow::Second);
    for (ms, said) in
        [(1_000, "1s is not 5s, 10s or 60s; 1s is for the watch of one route"), (7, "7ms is not")]
    {
        let refused = RateWindow::read("window", wire(ms)).unwrap_err().to_string();
        assert!(refused.contains(said), "{refused}");
    }
    assert!(
        RateWindow::read_of_one("window", Some(prost_types::Duration { seconds: -5, nanos: 0 })).is_err()
    );
}

/// The memory of one route after two minutes of reports.
fn bytes_of_a_route(fates: u64, buckets: u32, processes: usize) -> usize {
    let mut window = Window::new(Duration::ZERO);
    let mut counts: Vec<(u8, u64)> =
        vec![(counters::CALLS, 100), (counters::ATTEMPTS, 110), (counters::RETRIES, 10)];
    counts.extend(
        Fate::ALL.into_iter().take(fates as usize).map(|fate| (counters::ending(Ending::real(fate)), 5)),
    );
    counts.push((counters::code(Code::Ok), 90));
    counts.push((counters::code(Code::Unavailable), 20));
    let mut latency = SparseCounters::default();
    (100..100 + buckets).for_each(|bucket| latency.add(u8::try_from(bucket).unwrap(), 3));
    for n in 1..=24_u64 {
        for process in 0..processes as u64 {
            let to = Duration::from_millis(n * 5_000 + process * 5_000 / processes as u64);
            window.add((to - Duration::from_secs(5), to), to, &counts, &latency, |_, _, _| {});
        }
    }
    window.bytes()
}

#[test]
fn a_route_takes_kilobytes_and_not_more_the_more_processes_report_it() {
    let usual = bytes_of_a_route(2, 20, 2);
    let busy = bytes_of_a_route(6, 60, 20);
    let busier = bytes_of_a_route(6, 60, 2_000);
    println!("bytes of a route: usual {usual}, busy {busy}, with 2,000 processes {busier}");
    assert!(usual <= 10 << 10, "{usual} bytes");
    assert!(busy <= 24 << 10, "{busy} bytes");
    assert!(busier <= busy + 1024, "{busier} bytes, {busy} with 20 processes");
}

/// The largest number in every field of a report.
fn largest() -> v1::Report {
    const MOST: u64 = u64::MAX;
    let route = v1::RouteReport {
        callee_service: "stock".to_owned(),
        callee_method: "p.S/M".to_owned(),
        calls: MOST,
        attempts: MOST,
        retries: MOST,
        transparent_resends: MOST,
        fates: (-1..=v1::Fate::Killed as i32 + 1)
            .flat_map(|fate| [false, true].map(|would| v1::FateCount { fate, would, count: MOST }))
            .chain([v1::FateCount { fate: i32::MAX, would: true, count: MOST }])
            .collect(),
        codes: (-1..=17).chain([i32::MAX]).map(|code| v1::CodeCount { code, count: MOST }).collect(),
        latency: (0..=256).chain([u32::MAX]).map(|bucket| v1::BucketCount { bucket, count: MOST }).collect(),
        no_context_calls: MOST,
        hedges: MOST,
        would_hedges: MOST,
        outer_loop_calls: MOST,
        state: Some(v1::RouteState {
            window_failures: MOST,
            window_successes: MOST,
            breaker_refuses: true,
            budget_refuses: true,
            circuit: i32::MAX,
            killed: true,
        }),
        failed_calls: Vec::new(),
    };
    let served = v1::ServedReport {
        method: "p.S/M".to_owned(),
        first_sends: MOST,
        damper_repeats: MOST,
        grpc_repeats: MOST,
        envoy_repeats: MOST,
        shed_repeats: MOST,
        would_shed_repeats: MOST,
    };
    v1::Report {
        routes: vec![route],
        no_context_calls: MOST,
        governed_calls: MOST,
        source: i32::MAX,
        override_mode: i32::MAX,
        since: Some(prost_types::Duration { seconds: i64::MAX, nanos: i32::MAX }),
        served: vec![served],
        serves: true,
        endpoints: vec![v1::EndpointsReport {
            callee_service: "stock".to_owned(),
            count: 4_000,
            worst: vec![v1::EndpointReport {
                address: "10.0.0.1:80".to_owned(),
                in_flight: u32::MAX,
                ..Default::default()
            }],
        }],
    }
}

#[tokio::test(start_paused = true)]
async fn coverage_is_of_the_calls_of_processes_that_serve() {
    let hello = v1::Hello { identity: Some(v1::Identity::default()), ..Default::default() };
    let class =
        ClientGroup { service: "shop".to_owned(), cluster: "default".to_owned(), features: [].into() };
    let (stats, session) = (stats(), ClientSession::new(hello, None, class, &table(), false));
    stats.connected(&session);
    pass(5).await;
    stats.report(&session, &report("p.S/M", 40, 40, 0));
    assert_eq!(only(&stats).total_serving_calls, 0, "nothing is known of requests");
    pass(5).await;
    // The server layer was created after the hello.
    let mut later = v1::Report { serves: true, ..report("p.S/M", 80, 80, 0) };
    later.routes[0].no_context_calls = 20;
    stats.report(&session, &later);
    let row = only(&stats);
    assert_eq!((row.total_serving_calls, row.chain_coverage), (80, 0.75));
}

#[tokio::test(start_paused = true)]
async fn the_largest_numbers_in_every_field_leave_all_figures_readable() {
    let (stats, all) = (stats(), [session("one"), session("two")]);
    let pattern = damper_core::Pattern::parse("*", "*", "stock", "p.S/M").unwrap();
    all.iter().for_each(|session| stats.connected(session));
    for _ in 0..3 {
        pass(5).await;
        for session in &all {
            stats.report(session, &v1::Report { since: None, ..report("p.S/M", 0, 0, 0) });
            stats.report(session, &largest());
            stats.report(session, &v1::Report { since: None, ..largest() });
        }
    }
    let route = stats.rows_over(RateWindow::default(), &table())[0].route.clone();
    for window in [RateWindow::Second, RateWindow::FiveSeconds, RateWindow::TenSeconds, RateWindow::Minute] {
        let row = over(&stats, window);
        let figures = [row.calls_per_s, row.amplification, row.error_share, row.chain_coverage];
        assert!(figures.into_iter().all(|figure| figure.is_finite() && figure >= 0.0), "{row:?}");
        assert_eq!((row.total_calls, row.window_failures), (u64::MAX, u64::MAX));
        assert!(row.p50.is_some() && row.p50 != row.p999, "every bucket counts the same: {row:?}");
        assert!(stats.row(&route, window, WATCHED, &table()).is_some());
    }
    let measured = stats.measured(&pattern);
    assert_eq!(measured.calls, u64::MAX);
    assert!(measured.quantile(5_000) < measured.quantile(9_900) && measured.quantile(5_000).is_some());
    let share = measured.share(Code::Unavailable);
    assert!(about(share, 1.0 / Code::ALL.len() as f64), "{share}");
    assert_eq!(stats.counted()[0].calls(), u64::MAX);
    assert_eq!(stats.served()[0].2.first_sends, u64::MAX);
    assert!(stats.served_rates(RateWindow::Minute)[0].1.first_sends_per_s.is_finite());
}

/// A report of a process of this age.
fn aged(seconds: u64, report: v1::Report) -> v1::Report {
    v1::Report { since: prost_types::Duration::try_from(Duration::from_secs(seconds)).ok(), ..report }
}

#[tokio::test(start_paused = true)]
async fn two_processes_with_one_name_are_told_and_not_counted_again_and_again() {
    // Started at different times, or together; with high and low counts.
    for (older, newer) in [(1000, 500), (1000, 998)] {
        let (stats, one, two) = (stats(), session("one"), session("one"));
        [&one, &two].into_iter().for_each(|session| stats.connected(session));
        for n in 1..=12 {
            pass(4).await;
            stats.report(
                &one,
                &aged(older + n * 5, report("p.S/M", 1_000_000 + n * 50, 1_000_000 + n * 50, 0)),
            );
            pass(1).await;
            stats.report(&two, &aged(newer + n * 5, report("p.S/M", n * 50, n * 50, 0)));
            assert_eq!(!stats.shared_ids().is_empty(), n >= 2, "{n}: once is not enough");
        }
        let rate = over(&stats, RateWindow::TenSeconds).calls_per_s;
        assert!((9.0..=20.0).contains(&rate), "{rate}");
        assert_eq!(stats.counted()[0].calls(), 1_000_600);
        assert_eq!(stats.shared_ids(), [("shop".to_owned(), "one".to_owned())]);
        stats.disconnected(&two);
        for n in 13..=60 {
            pass(5).await;
            stats.report(
                &one,
                &aged(older + n * 5, report("p.S/M", 1_000_000 + n * 50, 1_000_000 + n * 50, 0)),
            );
        }
        assert!(stats.shared_ids().is_empty(), "it was some minutes ago");
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_part_of_an_old_stream_adds_nothing() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    for (passed, age, calls) in [(5, 100, 1000), (5, 105, 1050), (1, 101, 1000), (4, 110, 1100)] {
        pass(passed).await;
        stats.report(&one, &aged(age, report("p.S/M", calls, calls, 0)));
    }
    assert_eq!(stats.counted()[0].calls(), 1100);
    assert!(about(over(&stats, RateWindow::TenSeconds).calls_per_s, 10.0), "{}", only(&stats).calls_per_s);
    assert!(stats.shared_ids().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_next_process_of_a_name_counts_from_zero_over_its_own_time() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    pass(5).await;
    stats.report(&one, &aged(1000, report("p.S/M", 10_000, 10_000, 0)));
    stats.report(&one, &aged(1000, report("p.S/N", 10_000, 10_000, 0)));
    pass(30).await;
    stats.report(&one, &aged(20, report("p.S/M", 20_000, 20_000, 0)));
    let rows = stats.rows_over(RateWindow::TenSeconds, &table());
    let totals: Vec<_> = rows.iter().map(|row| (row.stats.total_calls, row.stats.clients)).collect();
    assert_eq!(totals, [(20_000, 1), (0, 0)], "what the process before had is gone");
    assert!(about(rows[0].stats.calls_per_s, 1000.0), "{}", rows[0].stats.calls_per_s);
    assert!(stats.shared_ids().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_suspended_or_whose_clock_is_late_goes_on_counting() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    let mut age = 100;
    for n in 1..=20 {
        pass(5).await;
        age += 5;
        if n == 5 {
            pass(60).await;
        }
        stats.report(&one, &aged(age, report("p.S/M", n * 50, n * 50, 0)));
    }
    assert_eq!(stats.counted()[0].calls(), 1000);
    assert!(stats.shared_ids().is_empty());
    assert!(about(over(&stats, RateWindow::TenSeconds).calls_per_s, 10.0), "{}", only(&stats).calls_per_s);
}

#[tokio::test(start_paused = true)]
async fn whoever_goes_on_alone_under_a_shared_name_is_believed_in_the_end() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    pass(5).await;
    stats.report(&one, &aged(1000, report("p.S/M", 10_000, 10_000, 0)));
    for n in 1..=6 {
        pass(5).await;
        stats.report(&one, &aged(500 + n * 5, report("p.S/M", n * 50, n * 50, 0)));
    }
    assert_eq!(over(&stats, RateWindow::TenSeconds).total_calls, 300);
    assert_eq!(stats.counted()[0].calls(), 10_300);
}

#[tokio::test(start_paused = true)]
async fn totals_take_no_more_memory_than_they_may_whatever_is_reported() {
    let all: Vec<_> = (0..40).map(|n| session(&format!("{n}"))).collect();
    let most = 64 << 10;
    let stats = Stats { max_routes: 100, max_bytes: 2 * most, ..stats() };
    all.iter().for_each(|session| stats.connected(session));
    pass(5).await;
    for session in &all {
        for n in 0..20 {
            let mut report = largest();
            report.routes[0].callee_method = format!("p.S/M{n}");
            report.served[0].method = format!("p.S/M{n}");
            stats.report(session, &v1::Report { since: None, ..report });
        }
    }
    let bytes = || {
        let books = stats.books();
        let truth: usize = books.instances.values().map(Instance::bytes).sum();
        assert_eq!(books.totals_of.all(), truth, "the account is that of what is kept");
        truth
    };
    assert!(bytes() <= most / 2 && bytes() > most / 4, "{}", bytes());
    let usual = |n| stats.report(&all[39], &report(&format!("p.S/U{n}"), 10, 10, 0));
    assert!((0..40).map(usual).sum::<u64>() > 0, "what does not fit is counted");
    assert!(bytes() <= most, "{}", bytes());
    // Disconnected processes make room for new ones.
    all.iter().for_each(|session| stats.disconnected(session));
    let new = session("new");
    stats.connected(&new);
    pass(5).await;
    assert_eq!(stats.report(&new, &report("p.S/M1", 10, 10, 0)), 0);
    assert!(bytes() < 2048, "{}", bytes());
}

/// A client of another replica.
fn mirrored(instance: &str) -> ClientSession {
    let class =
        ClientGroup { service: "shop".to_owned(), cluster: "default".to_owned(), features: [].into() };
    let identity = v1::Identity { instance: instance.to_owned(), ..Default::default() };
    let hello = v1::Hello { identity: Some(identity), serves: true, ..Default::default() };
    let told = v1::FollowedClient { number: 7, hello: Some(hello), ..Default::default() };
    ClientSession::mirrored(told, class, "other".into(), &"e".into(), &table())
}

#[tokio::test(start_paused = true)]
async fn a_process_that_moves_from_another_replica_is_counted_once_whatever_comes_late() {
    // With and without the start of the counters, which older SDKs do not send.
    for since in [Some(1000), None] {
        let (stats, there, here) = (stats(), mirrored("one"), session("one"));
        let told = |calls| match since {
            Some(since) => aged(since, report("p.S/M", calls, calls, 0)),
            None => report("p.S/M", calls, calls, 0),
        };
        stats.connected(&there);
        stats.report_of(&there, &told(100), Duration::from_millis(40));
        stats.report_of(&there, &told(200), Duration::from_millis(40));
        stats.connected(&here);
        there.supersede(true);
        stats.report(&here, &told(300));
        // Was in flight from the other replica meanwhile.
        stats.report_of(&there, &told(250), Duration::from_millis(80));
        stats.disconnected(&there);
        stats.report(&here, &told(350));
        let row = only(&stats);
        assert_eq!((row.total_calls, row.clients), (350, 1));
        assert_eq!(stats.counted()[0].calls(), 150, "the counters of this replica are of its own clients");
        assert!(stats.shared_ids().is_empty());
        stats.disconnected(&here);
        pass(1).await;
        assert_eq!(only(&stats).clients, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_totals_of_a_process_are_told_as_it_reported_them() {
    let (told, heard, here, there) = (stats(), stats(), session("one"), mirrored("one"));
    told.connected(&here);
    let state = v1::RouteState { window_failures: 3, breaker_refuses: true, ..Default::default() };
    let since = prost_types::Duration::try_from(Duration::from_secs(60)).ok();
    let mut first = report("p.S/M", 600, 900, 60);
    first.routes[0].state = Some(state);
    first.served =
        vec![v1::ServedReport { method: "q.S/N".to_owned(), first_sends: 9, ..Default::default() }];
    told.report(&here, &v1::Report { since, ..first });
    pass(4).await;
    let (reports, age) = told.totals(&here);
    assert_eq!(age.as_secs(), 4);
    heard.connected(&there);
    assert!(!reports.is_empty());
    for report in &reports {
        assert_eq!(heard.report_of(&there, report, age), 0);
    }
    pass(10).await;
    let (a, b) = (only(&told), only(&heard));
    assert_eq!((a.total_calls, a.total_attempts, a.total_hedges), (600, 900, 300));
    assert_eq!((&a.fates, a.p99, a.breaker_refuses), (&b.fates, b.p99, 1));
    assert_eq!(a, b, "what one replica tells of its clients is what another one knows of them");
    assert_eq!((heard.counted()[0].calls(), told.counted()[0].calls()), (0, 600));
    assert_eq!(told.totals(&session("nobody")).0.len(), 0);
}

fn with_failure(method: &str, calls: u64, ended_at: u64) -> v1::Report {
    let mut all = report(method, calls, calls, 1);
    let zero = Some(prost_types::Duration::default());
    all.routes[0].failed_calls = vec![v1::FailedCall {
        fate: v1::Fate::AttemptsExhausted.into(),
        code: v1::Code::Unavailable.into(),
        ended_at: Some(prost_types::Timestamp { seconds: ended_at as i64, nanos: 0 }),
        latency: zero,
        ..Default::default()
    }];
    all
}

fn the_route(method: &str) -> Route {
    Route {
        caller_service: "shop".into(),
        caller_cluster: "default".into(),
        callee_service: "stock".into(),
        callee_method: method.into(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_listens_late_is_told_the_calls_that_did_not_end_well_of_each_process() {
    let (here, there) = (stats(), stats());
    let both = [session("one"), session("two")];
    for (n, session) in both.iter().enumerate() {
        here.connected(session);
        there.connected(session);
        assert_eq!(here.report(session, &with_failure("p.S/M", 10, 1_000 + n as u64)), 0);
    }
    // Twice, as after a lost connection.
    for session in both.iter().chain(&both) {
        let (reports, age) = here.totals(session);
        for report in reports {
            assert_eq!(there.report_of(session, &report, age), 0);
        }
    }
    let route = the_route("p.S/M");
    assert_eq!(here.failures(&route).len(), 2);
    assert_eq!(there.failures(&route), here.failures(&route));
}

#[tokio::test(start_paused = true)]
async fn calls_that_did_not_end_well_are_forgotten_with_their_route() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    stats.report(&one, &with_failure("p.S/M", 10, 1_000));
    assert!(stats.books().failures_of.all() > 0);
    pass(FORGET_IDLE_AFTER.as_secs() + 1).await;
    stats.connected(&one);
    assert!(stats.failures(&the_route("p.S/M")).is_empty());
    assert_eq!(stats.books().failures_of.all(), 0);
}

/// A client of a service.
fn of_service(service: &str) -> ClientSession {
    let class =
        ClientGroup { service: service.to_owned(), cluster: "default".to_owned(), features: [].into() };
    let identity = v1::Identity { instance: "one".to_owned(), ..Default::default() };
    ClientSession::new(
        v1::Hello { identity: Some(identity), ..Default::default() },
        None,
        class,
        &table(),
        false,
    )
}

#[tokio::test(start_paused = true)]
async fn a_service_that_takes_all_it_can_leaves_room_for_others() {
    let stats = Stats { max_routes: 100, ..stats() };
    let (greedy, other) = (of_service("greedy"), of_service("other"));
    stats.connected(&greedy);
    pass(5).await;
    let mut left_out = 0;
    for n in 0..200 {
        let mut many = report(&format!("p.S/M{n}"), 10, 10, 0);
        many.served =
            vec![v1::ServedReport { method: format!("p.S/M{n}"), first_sends: 1, ..Default::default() }];
        left_out += stats.report(&greedy, &many);
    }
    assert_eq!(left_out, 300, "half of the routes and of the methods");
    stats.connected(&other);
    pass(5).await;
    assert_eq!(stats.report(&other, &report("p.S/M", 10, 10, 0)), 0);
    let rows = stats.rows_over(RateWindow::TenSeconds, &table());
    assert!(rows.iter().any(|row| *row.route.caller_service == *"other"));
}

#[tokio::test(start_paused = true)]
async fn windows_take_no_more_memory_than_they_may() {
    let most = 256 << 10;
    let stats = Stats { max_routes: 10_000, max_bytes: most, ..stats() };
    let one = session("one");
    stats.connected(&one);
    for n in 0..60 {
        pass(1).await;
        let mut large = largest();
        large.since = None;
        for route in &mut large.routes {
            route.callee_method = format!("p.S/M{}", n % 20);
        }
        stats.report(&one, &large);
    }
    let books = stats.books();
    let windows: usize = books.routes.values().map(|book| book.window.bytes()).sum();
    // A part within the limit is added whole.
    assert!(windows <= most / 8 * WINDOWS_PART + (64 << 10), "{windows}");
}
