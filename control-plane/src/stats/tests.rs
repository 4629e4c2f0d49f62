use std::collections::BTreeMap;

use damper_core::Fate;

use super::*;
use crate::class::Class;
use crate::store::State;
use crate::table::TableView;

fn table() -> Arc<TableView> {
    Arc::new(TableView::of(&State { epoch: "e".to_owned(), revision: 0, entries: BTreeMap::new() }))
}

fn session(instance: &str) -> Session {
    let class = Class { service: "shop".to_owned(), cluster: "default".to_owned(), features: [].into() };
    let identity = v1::Identity { instance: instance.to_owned(), ..Default::default() };
    let hello = v1::Hello { identity: Some(identity), serves: true, ..Default::default() };
    Session::new(hello, None, class, &table())
}

fn stats() -> Stats {
    Stats::new(3, watch::channel(Duration::from_secs(5)).1)
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
    let rows = stats.rows(&table());
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
        assert_eq!(stats.report(&one, report("p.S/M", n * 500, n * 1000, n * 50)), 0);
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
            stats.report(session, report("p.S/M", n * 50, n * 50, 0));
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
async fn a_repeated_report_adds_nothing_and_a_lost_one_loses_nothing() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    pass(5).await;
    stats.report(&one, report("p.S/M", 10, 10, 0));
    stats.report(&one, report("p.S/M", 10, 10, 0));
    pass(5).await;
    pass(5).await;
    stats.report(&one, report("p.S/M", 30, 30, 0));
    assert_eq!(stats.counted()[0].calls, 30);
    assert_eq!(only(&stats).total_calls, 30);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_restarted_counts_from_zero_again() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    pass(5).await;
    stats.report(&one, report("p.S/M", 100, 100, 0));
    pass(5).await;
    stats.report(&one, report("p.S/M", 7, 7, 0));
    assert_eq!(stats.counted()[0].calls, 107);
    assert_eq!(only(&stats).total_calls, 7);
}

#[tokio::test(start_paused = true)]
async fn calls_of_unknown_age_are_totals_but_no_rate() {
    let stats = stats();
    let mut one = session("one");
    one.fresh = false;
    stats.connected(&one);
    pass(2).await;
    stats.report(&one, report("p.S/M", 1_000_000, 1_000_000, 0));
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
    stats.report(&one, v1::Report { since, ..report("p.S/M", 1000, 1000, 0) });
    assert!(about(only(&stats).calls_per_s, 10.0), "{:?}", only(&stats));
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_read_or_kept_is_left_out_and_counted() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    assert_eq!(stats.report(&one, report("no method", 1, 1, 0)), 1);
    let mut odd = report("p.S/M", 1, 1, 0);
    odd.routes[0].fates.push(v1::FateCount { fate: 99, would: false, count: 1 });
    odd.routes[0].latency.push(v1::BucketCount { bucket: 70_000, count: 1 });
    assert_eq!(stats.report(&one, odd), 2);
    for n in 0..3 {
        stats.report(&one, report(&format!("p.S/N{n}"), 1, 1, 0));
    }
    assert_eq!(stats.rows(&table()).len(), 3, "the limit of routes holds");
    assert_eq!(stats.report(&one, report(OTHER_METHOD, 1, 1, 0)), 1, "full");
}

#[tokio::test(start_paused = true)]
async fn a_report_in_parts_is_one_report() {
    let (stats, one) = (stats(), session("one"));
    stats.connected(&one);
    for n in 1..=4 {
        pass(5).await;
        stats.report(&one, report("p.S/M", n * 50, n * 50, 0));
        tokio::time::advance(Duration::from_millis(1)).await;
        stats.report(&one, report("p.S/N", n * 50, n * 50, 0));
    }
    let rows = stats.rows(&table());
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| about(row.stats.calls_per_s, 10.0)), "{rows:?}");
}
