//! Failed calls, reported by services and shown to watchers of their route.

use damper_proto::v1;
use tonic::Streaming;

use crate::harness::{Agent, Running, hello, soon, start};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn route() -> v1::RouteKey {
    v1::RouteKey {
        caller_service: "shop".to_owned(),
        caller_cluster: "default".to_owned(),
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/Take".to_owned(),
    }
}

fn second(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

/// Returns a call that ended this many seconds after the start of 2026.
fn failed(ended: i64) -> v1::FailedCall {
    v1::FailedCall {
        fate: v1::Fate::Deadline.into(),
        code: v1::Code::DeadlineExceeded.into(),
        ended_at: Some(prost_types::Timestamp { seconds: 1_767_225_600 + ended, nanos: 0 }),
        latency: second(2),
        attempts: vec![v1::FailedAttempt {
            sent_after: second(0),
            took: second(2),
            code: v1::Code::DeadlineExceeded.into(),
            hedge: false,
            detail: "no answer within its time limit".to_owned(),
        }],
        sends: 1,
        trace_id: TRACE.to_owned(),
        ..Default::default()
    }
}

fn report(calls: u64, failed_calls: Vec<v1::FailedCall>) -> v1::Report {
    let route = v1::RouteReport {
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/Take".to_owned(),
        calls,
        attempts: calls,
        failed_calls,
        ..Default::default()
    };
    v1::Report { routes: vec![route], since: second(20), ..Default::default() }
}

async fn watched(server: &Running, route: v1::RouteKey) -> Streaming<v1::WatchResponse> {
    let request = v1::WatchRequest { route: Some(route), ..Default::default() };
    soon(server.fleet().watch(request)).await.unwrap().into_inner()
}

/// Returns the failed calls of a watch once it has this number.
async fn failures_of(watch: &mut Streaming<v1::WatchResponse>, calls: usize) -> Vec<v1::RouteFailure> {
    soon(async {
        loop {
            let message = watch.message().await.unwrap().unwrap();
            if message.failures.len() == calls {
                return message.failures;
            }
        }
    })
    .await
}

#[tokio::test]
async fn failed_call_is_shown_as_reported_with_its_process() {
    let server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    shop.snapshot().await;
    let mut watch = watched(&server, route()).await;
    assert!(failures_of(&mut watch, 0).await.is_empty());
    shop.report(report(1, vec![failed(1)])).await;
    let [only] = failures_of(&mut watch, 1).await.try_into().unwrap();
    assert_eq!(only.call, Some(failed(1)));
    assert_eq!(only.client, hello("shop").identity);
    // Live, the latest first, and in every message.
    shop.report(report(3, vec![failed(2), failed(3)])).await;
    let three: Vec<_> =
        failures_of(&mut watch, 3).await.into_iter().filter_map(|failure| failure.call).collect();
    assert_eq!(three, [failed(3), failed(2), failed(1)]);
    assert_eq!(failures_of(&mut watch, 3).await.len(), 3);
    server.stop().await;
}

#[tokio::test]
async fn failed_calls_go_only_to_watchers_of_the_route() {
    let server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    shop.snapshot().await;
    shop.report(report(1, vec![failed(1)])).await;
    failures_of(&mut watched(&server, route()).await, 1).await;
    let other = v1::RouteKey { callee_method: "stock.v1.Stock/Give".to_owned(), ..route() };
    assert!(failures_of(&mut watched(&server, other).await, 0).await.is_empty());
    let mut all = soon(server.fleet().watch(v1::WatchRequest::default())).await.unwrap().into_inner();
    let first = soon(all.message()).await.unwrap().unwrap();
    assert_eq!((first.routes.len(), first.failures.len()), (1, 0));
    server.stop().await;
}

#[tokio::test]
async fn hostile_report_of_failed_calls_does_not_stop_the_server() {
    let server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    shop.snapshot().await;
    let negative = second(-1);
    let with = |change: &dyn Fn(&mut v1::FailedCall)| {
        let mut call = failed(0);
        change(&mut call);
        call
    };
    let hostile = vec![
        with(&|call| call.trace_id = "<script>".to_owned()),
        with(&|call| call.call_id = "x".repeat(1_000)),
        with(&|call| call.latency = negative),
        with(&|call| call.ended_at = Some(prost_types::Timestamp { seconds: i64::MAX, nanos: i32::MIN })),
        with(&|call| call.attempts = vec![call.attempts[0].clone(); 1_000]),
        with(&|call| call.attempts[0].detail = "\u{1b}[2J".to_owned()),
        with(&|call| call.fate = v1::Fate::Ok.into()),
        with(&|call| call.fate = i32::MIN),
        // From a clock that is years ahead: shown as reported.
        failed(500_000_000),
    ];
    shop.report(report(9, hostile)).await;
    let mut watch = watched(&server, route()).await;
    assert_eq!(failures_of(&mut watch, 1).await[0].call, Some(failed(500_000_000)));
    let flood = (0..10_000).map(|n| v1::FailedCall { attempts: Vec::new(), ..failed(n) }).collect();
    shop.report(report(10_009, flood)).await;
    let latest = failures_of(&mut watch, 20).await;
    let ended = |failure: &v1::RouteFailure| failure.call.as_ref().unwrap().ended_at.unwrap().seconds;
    assert_eq!(ended(&latest[1]), failed(9_999).ended_at.unwrap().seconds);
    server.stop().await;
}
