//! Predicted effects of a set of changes.

use std::time::Duration;

use damper_core::latency;
use damper_proto::v1::{self, prediction::Callee, rule_change};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::harness::{Agent, Running, hello, key, rule, shop_rule, soon, start};

const TAKE: &str = "stock.v1.Stock/Take";

/// Calls of 20 ms, one in fifty UNAVAILABLE, one in ten NOT_FOUND.
fn calls(method: &str, calls: u64) -> v1::RouteReport {
    let code = |code: v1::Code, count| v1::CodeCount { code: code.into(), count };
    let bucket = u32::try_from(latency::bucket_of(Duration::from_millis(20))).unwrap();
    v1::RouteReport {
        callee_service: "stock".to_owned(),
        callee_method: method.to_owned(),
        calls,
        attempts: calls,
        fates: vec![v1::FateCount { fate: v1::Fate::Ok.into(), would: false, count: calls }],
        codes: vec![
            code(v1::Code::Ok, calls - calls / 50 - calls / 10),
            code(v1::Code::Unavailable, calls / 50),
            code(v1::Code::NotFound, calls / 10),
        ],
        latency: vec![v1::BucketCount { bucket, count: calls }],
        ..Default::default()
    }
}

/// Starts a server and a caller of these routes.
async fn with_calls(routes: Vec<v1::RouteReport>) -> (Running, Agent) {
    let server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    shop.snapshot().await;
    let since = prost_types::Duration::try_from(Duration::from_secs(20)).ok();
    shop.report(v1::Report { routes, since, ..Default::default() }).await;
    (server, shop)
}

fn put(rule: v1::Rule) -> rule_change::Kind {
    rule_change::Kind::Put(rule)
}

fn request(changes: impl IntoIterator<Item = rule_change::Kind>) -> v1::WhatIfRequest {
    let change = |kind| v1::RuleChange { kind: Some(kind), expected_revision: None };
    v1::WhatIfRequest { changes: changes.into_iter().map(change).collect(), options: None }
}

async fn asked(server: &Running, request: v1::WhatIfRequest) -> Result<v1::WhatIfResponse, Status> {
    soon(server.rules().what_if(request)).await.map(tonic::Response::into_inner)
}

/// Returns a prediction once the calls of the route are known.
async fn predicted(server: &Running, request: v1::WhatIfRequest) -> v1::WhatIfResponse {
    soon(async {
        loop {
            let response = asked(server, request.clone()).await.unwrap();
            if !response.routes.is_empty() {
                return response;
            }
        }
    })
    .await
}

fn sides(prediction: &v1::Prediction) -> [v1::Predicted; 2] {
    [prediction.before.unwrap(), prediction.after.unwrap()]
}

fn bounds(before: &Option<v1::Amplification>, after: &Option<v1::Amplification>) -> [u32; 2] {
    [before, after].map(|side| side.as_ref().unwrap().bound.unwrap().max_attempts)
}

fn is_about(value: f64, expected: f64) -> bool {
    (value - expected).abs() <= expected * 0.03 + 0.005
}

/// Equal except for rounding: the total is weighted by calls per second.
fn are_about(one: &v1::Predicted, other: &v1::Predicted) -> bool {
    let numbers = |of: &v1::Predicted| [of.attempts_per_s, of.attempts_per_call, of.success_share];
    numbers(one).into_iter().zip(numbers(other)).all(|(one, other)| (one - other).abs() <= one * 1e-12)
}

#[tokio::test]
async fn what_if_predicts_from_measurements_and_writes_nothing() {
    let (server, _shop) = with_calls(vec![calls(TAKE, 20_000)]).await;
    let response = predicted(&server, request([put(shop_rule(3))])).await;
    let [route] = &response.routes[..] else { panic!("{response:?}") };
    assert_eq!(route.route.as_ref().unwrap().callee_method, TAKE);
    assert!(is_about(route.calls_per_s, 1_000.0) && is_about(route.attempts_per_call, 1.0), "{route:?}");
    let callees: Vec<Callee> = route.predictions.iter().map(v1::Prediction::callee).collect();
    assert_eq!(callees, [Callee::AsMeasured, Callee::TenthFailing, Callee::Outage]);

    let [before, after] = sides(&route.predictions[0]);
    assert!(is_about(before.success_share, 0.88) && is_about(before.attempts_per_s, 1_000.0), "{before:?}");
    assert!(is_about(after.success_share, 0.90), "what is not found is not asked for again: {after:?}");
    assert!(after.attempts_per_s > before.attempts_per_s + 10.0, "{after:?}");
    assert!(after.attempts_per_s < before.attempts_per_s + 40.0, "{after:?}");
    let p99 = Duration::try_from(before.p99.unwrap()).unwrap();
    assert!((15..=30).contains(&p99.as_millis()), "{p99:?}");

    let [before, after] = sides(&route.predictions[1]);
    assert!(is_about(before.success_share, 0.9 * 0.9), "{before:?}");
    assert!(after.success_share > before.success_share, "{after:?}");

    let [before, after] = sides(&route.predictions[2]);
    assert_eq!((before.success_share, after.success_share, after.p99), (0.0, 0.0, None));
    assert!(
        before.attempts_per_call == 1.0 && after.attempts_per_call < 1.2,
        "the breaker stops it: {after:?}"
    );

    assert_eq!(bounds(&route.before, &route.after), [1, 3]);
    let chain = route.after.as_ref().unwrap().chain.as_ref().unwrap();
    assert_eq!((chain.sends, chain.hops[0].callee_service.as_str()), (3, "stock"));
    for (alone, together) in route.predictions.iter().zip(&response.together) {
        assert_eq!(alone.callee, together.callee);
        for (alone, together) in sides(alone).into_iter().zip(sides(together)) {
            assert!(are_about(&alone, &together) && together.p99.is_none(), "{alone:?} {together:?}");
        }
    }
    assert_eq!(response.together.len(), 3);
    assert!(response.without_traffic.is_empty() && response.routes_left_out == 0);

    let listed = soon(server.rules().list_rules(v1::ListRulesRequest::default())).await.unwrap().into_inner();
    assert_eq!((listed.rules.len(), listed.revision), (0, response.revision));
    server.stop().await;
}

#[tokio::test]
async fn what_removes_repeats_is_predicted_as_what_adds_them() {
    let (server, _shop) = with_calls(vec![calls(TAKE, 20_000)]).await;
    let mut unbounded = shop_rule(3);
    unbounded.policy.as_mut().unwrap().retry_breaker =
        Some(v1::RetryBreaker { enabled: Some(false), ..Default::default() });
    server.put(unbounded).await;
    let guard = v1::Guard {
        key: Some(key("*", "stock", "*")),
        ceiling: Some(v1::Ceiling { max_attempts: Some(1), ..Default::default() }),
        ..Default::default()
    };
    for change in [rule_change::Kind::Delete(shop_rule(3).key.unwrap()), rule_change::Kind::PutGuard(guard)] {
        let response = predicted(&server, request([change])).await;
        let [before, after] = sides(&response.routes[0].predictions[2]);
        assert!(is_about(before.attempts_per_call, 3.0), "no breaker bounds it: {before:?}");
        assert_eq!(after.attempts_per_call, 1.0);
        assert_eq!(bounds(&response.routes[0].before, &response.routes[0].after), [3, 1]);
    }
    server.stop().await;
}

#[tokio::test]
async fn the_busiest_ten_are_predicted_and_the_others_counted() {
    let methods = |n: u64| (format!("stock.v1.Stock/M{n:02}"), 1_000 * (n + 1));
    let (server, _shop) =
        with_calls((0..12).map(methods).map(|(method, count)| calls(&method, count)).collect()).await;
    let response = predicted(&server, request([put(rule(key("*", "stock", "*"), 2))])).await;
    let routes: Vec<&str> =
        response.routes.iter().map(|route| route.route.as_ref().unwrap().callee_method.as_str()).collect();
    let busiest: Vec<String> = (2..12).rev().map(|n| methods(n).0).collect();
    assert_eq!((routes, response.routes_left_out), (busiest.iter().map(String::as_str).collect(), 2));
    let [_, together] = sides(&response.together[2]);
    let sum: f64 = response.routes.iter().map(|route| sides(&route.predictions[2])[1].attempts_per_s).sum();
    assert!(is_about(together.attempts_per_s, sum), "{together:?}");
    server.stop().await;
}

#[tokio::test]
async fn what_if_lists_bounds_of_changes_without_traffic() {
    let (server, _shop) = with_calls(vec![calls(TAKE, 20_000)]).await;
    predicted(&server, request([put(shop_rule(3))])).await;
    let idle = rule(key("till", "stock", "*"), 4);
    let response = asked(&server, request([put(idle.clone())])).await.unwrap();
    let [without] = &response.without_traffic[..] else { panic!("{response:?}") };
    assert_eq!((&without.key, without.guard, response.without_traffic_total), (&idle.key, false, 1));
    let most = [without.before, without.after].map(|bound| bound.unwrap().max_attempts);
    assert_eq!(most, [1, 4]);
    assert!(response.routes.is_empty() && response.together.is_empty());
    let limit = v1::Guard {
        key: Some(key("*", "stock", "*")),
        ceiling: Some(v1::Ceiling { repeat_limit: Some(v1::RepeatLimit::default()), ..Default::default() }),
        ..Default::default()
    };
    let response = asked(&server, request([rule_change::Kind::PutGuard(limit)])).await.unwrap();
    assert!(response.routes.is_empty() && response.without_traffic[0].guard, "in no policy: {response:?}");
    server.put(idle.clone()).await;
    let response = asked(&server, request([put(idle)])).await.unwrap();
    assert_eq!(response, v1::WhatIfResponse { revision: response.revision, ..Default::default() });
    server.stop().await;
}

#[tokio::test]
async fn what_an_apply_would_refuse_is_refused_with_all_that_is_wrong() {
    let server = start().await;
    server.put(v1::Rule { owner: "team-a".to_owned(), ..shop_rule(3) }).await;
    let mut wrong = request([put(rule(key("shop", "", "*"), 0)), put(shop_rule(2)), put(shop_rule(2))]);
    wrong.changes.push(v1::RuleChange::default());
    wrong.options = Some(v1::WriteOptions { force: true, author: "x".repeat(256), ..Default::default() });
    let refused = asked(&server, wrong).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let violations = refused.get_details_bad_request().unwrap().field_violations;
    let fields: Vec<&str> = violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "options.reason",
            "options.author",
            "changes[0].put.key.callee_service",
            "changes[0].put.policy.retry.max_attempts",
            "changes[2]",
            "changes[3]"
        ]
    );
    let many =
        asked(&server, request((0..1001).map(|n| put(rule(key(&format!("c{n}"), "s", "*"), 2))))).await;
    let many = many.unwrap_err().get_details_bad_request().unwrap().field_violations;
    assert_eq!((many.len(), many[0].field.as_str()), (1, "changes"));
    assert!(many[0].description.contains("1001 entries, at most 1000"), "{many:?}");

    let with = |options| v1::WhatIfRequest { options: Some(options), ..request([put(shop_rule(2))]) };
    let owned = v1::WriteOptions { owner: "team-b".to_owned(), ..Default::default() };
    let moved = v1::WriteOptions { expected_head: Some(7), ..Default::default() };
    let mut stale = request([put(v1::Rule { owner: "team-a".to_owned(), ..shop_rule(2) })]);
    stale.changes[0].expected_revision = Some(7);
    for refused in [with(owned), with(moved), stale] {
        assert_eq!(asked(&server, refused).await.unwrap_err().code(), Code::Aborted);
    }
    server.stop().await;
}
