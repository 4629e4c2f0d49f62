//! Rate windows, the watch of one route, and the metrics for Prometheus.

use std::time::{Duration, Instant};

use damper_proto::v1::{self, server_message};
use tonic::Code;

use crate::harness::{Agent, Running, hello, shop_rule, soon, start};

fn route() -> v1::RouteKey {
    v1::RouteKey {
        caller_service: "shop".to_owned(),
        caller_cluster: "default".to_owned(),
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/Take".to_owned(),
    }
}

fn report(calls: u64) -> v1::Report {
    let route = v1::RouteReport {
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/Take".to_owned(),
        calls,
        attempts: calls + calls / 2,
        retries: calls / 2,
        fates: vec![v1::FateCount { fate: v1::Fate::Ok.into(), would: false, count: calls }],
        latency: vec![v1::BucketCount { bucket: 100, count: calls }],
        state: Some(v1::RouteState {
            window_failures: 4,
            window_successes: 6,
            breaker_refuses: true,
            circuit: v1::CircuitState::Closed.into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let since = prost_types::Duration::try_from(Duration::from_secs(20)).ok();
    v1::Report { routes: vec![route], since, ..Default::default() }
}

/// Returns the counters of a process with ten calls a second that started 20 s before.
fn steady(connected: Instant) -> v1::Report {
    let age = Duration::from_secs(20) + connected.elapsed();
    let since = prost_types::Duration::try_from(age).ok();
    v1::Report { since, ..report(age.as_millis() as u64 / 100) }
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

async fn listed(server: &Running, request: v1::ListRoutesRequest) -> Vec<v1::RouteStats> {
    soon(server.fleet().list_routes(request)).await.unwrap().into_inner().routes
}

#[tokio::test]
async fn routes_are_listed_over_the_window_that_was_asked_for() {
    let server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    shop.snapshot().await;
    let connected = Instant::now();
    for length in [5, 10, 60] {
        let request = v1::ListRoutesRequest { window: seconds(length), ..Default::default() };
        let row = soon(async {
            loop {
                // The window ends at the last report, and is empty once that report is older than the window.
                shop.report(steady(connected)).await;
                let rows = listed(&server, request.clone()).await;
                if let Some(row) = rows.into_iter().find(|row| row.calls_per_s > 0.0) {
                    return row;
                }
            }
        })
        .await;
        assert!((9.0..=11.0).contains(&row.calls_per_s), "{length}: {}", row.calls_per_s);
        assert!((4.5..=5.5).contains(&row.retries_per_s), "{length}: {}", row.retries_per_s);
        assert!([row.p50, row.p90, row.p99, row.p999].iter().all(Option::is_some), "{row:?}");
        assert_eq!((row.breaker_refuses, row.circuit_open, row.window_failures), (1, 0, 4));
    }
    server.stop().await;
}

#[tokio::test]
async fn a_window_that_does_not_exist_is_refused_with_those_that_do() {
    let server = start().await;
    for window in [seconds(1), seconds(30), seconds(-5)] {
        let request = v1::ListRoutesRequest { window, ..Default::default() };
        let refused = soon(server.fleet().list_routes(request)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("5s, 10s or 60s"), "{refused:?}");
        let watch = v1::WatchRequest { window, ..Default::default() };
        assert_eq!(soon(server.fleet().watch(watch)).await.unwrap_err().code(), Code::InvalidArgument);
    }
    let watch = v1::WatchRequest { window: seconds(2), route: Some(route()), ..Default::default() };
    let refused = soon(server.fleet().watch(watch)).await.unwrap_err();
    assert!(refused.message().contains("1s, 5s, 10s or 60s"), "{refused:?}");
    let nameless = v1::RouteKey { callee_method: "nothing".to_owned(), ..route() };
    let watch = v1::WatchRequest { route: Some(nameless), ..Default::default() };
    let refused = soon(server.fleet().watch(watch)).await.unwrap_err();
    assert!(refused.message().contains("route.callee_method"), "{refused:?}");
    server.stop().await;
}

#[tokio::test]
async fn only_routes_without_a_rule_are_listed_where_those_are_wanted() {
    let server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    shop.snapshot().await;
    shop.report(report(10)).await;
    let without = || v1::ListRoutesRequest { without_rule: true, ..Default::default() };
    soon(async { while listed(&server, without()).await.is_empty() {} }).await;
    server.put(shop_rule(3)).await;
    soon(async { while !listed(&server, without()).await.is_empty() {} }).await;
    assert_eq!(listed(&server, v1::ListRoutesRequest::default()).await.len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn only_the_callers_of_a_watched_route_report_every_second() {
    let server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    let mut other = Agent::connect(&server, hello("other")).await;
    assert_eq!((interval(&mut shop).await, interval(&mut other).await), (5, 5));
    let request = v1::WatchRequest { route: Some(route()), window: seconds(1), ..Default::default() };
    let mut watch = soon(server.fleet().watch(request)).await.unwrap().into_inner();
    assert_eq!(interval(&mut shop).await, 1);
    let first = soon(watch.message()).await.unwrap().unwrap();
    assert_eq!((first.window, first.routes.len()), (seconds(1), 0));
    shop.report(report(10)).await;
    let row = loop {
        let message = soon(watch.message()).await.unwrap().unwrap();
        if let Some(row) = message.routes.into_iter().next() {
            break row;
        }
    };
    assert_eq!((row.key, row.total_calls), (Some(route()), 10));
    drop(watch);
    assert_eq!(interval(&mut shop).await, 5);
    // Another interval in between would have come first.
    let all = soon(server.fleet().watch(v1::WatchRequest::default())).await.unwrap();
    assert_eq!(interval(&mut other).await, 1);
    drop(all);
    assert_eq!(interval(&mut other).await, 5);
    server.stop().await;
}

async fn interval(agent: &mut Agent) -> i64 {
    loop {
        let message = agent.any().await.unwrap().unwrap();
        if let Some(server_message::Kind::ReportSettings(settings)) = message.kind {
            return settings.interval.unwrap().seconds;
        }
    }
}

/// Advances the time of the server, which runs in this process.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_watch_begins_with_what_was_before_it() {
    let server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    shop.snapshot().await;
    let mut calls = 0;
    for _ in 0..4 {
        calls += 100;
        shop.report(report(calls)).await;
        soon(async {
            while listed(&server, v1::ListRoutesRequest::default())
                .await
                .iter()
                .all(|row| row.total_calls < calls)
            {}
        })
        .await;
        pass(Duration::from_secs(10)).await;
    }
    let first = async |request: v1::WatchRequest| {
        let mut watch = soon(server.fleet().watch(request)).await.unwrap().into_inner();
        let first = soon(watch.message()).await.unwrap().unwrap();
        let next = soon(watch.message()).await.unwrap().unwrap();
        assert!(next.past.is_empty(), "it is sent once");
        first.past
    };
    let of_route = first(v1::WatchRequest { route: Some(route()), ..Default::default() }).await;
    let of_all = first(v1::WatchRequest::default()).await;
    for (past, has_latency) in [(&of_route, true), (&of_all, false)] {
        assert!(past.len() >= 2, "{past:?}");
        let called = past.iter().filter(|span| span.calls_per_s > 0.0);
        assert!(called.clone().count() >= 2, "{past:?}");
        assert!(called.clone().all(|span| span.attempts_per_s > 1.4 * span.calls_per_s), "{past:?}");
        assert!(called.clone().all(|span| span.p99.is_some() == has_latency), "{past:?}");
    }
    let filter = v1::RuleFilter { caller_service: Some("shop".to_owned()), ..Default::default() };
    let chosen = first(v1::WatchRequest { filter: Some(filter), ..Default::default() }).await;
    assert!(chosen.is_empty(), "of some routes nothing is kept: {chosen:?}");
    server.stop().await;
}
