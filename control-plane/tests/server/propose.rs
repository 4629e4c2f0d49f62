//! Rules proposed from the measurements of routes.

use std::time::Duration;

use damper_core::latency;
use damper_proto::{convert, v1};
use tonic::Code;

use crate::harness::{Agent, Running, hello, key, shop_rule, soon, start};

const GET: &str = "stock.v1.Stock/Get";

/// Calls of 20 ms, one in fifty of 400 ms.
fn report(method: &str, calls: u64) -> v1::Report {
    let bucket = |ms| u32::try_from(latency::bucket_of(Duration::from_millis(ms))).unwrap();
    let route = v1::RouteReport {
        callee_service: "stock".to_owned(),
        callee_method: method.to_owned(),
        calls,
        attempts: calls,
        fates: vec![v1::FateCount { fate: v1::Fate::Ok.into(), would: false, count: calls }],
        codes: vec![
            v1::CodeCount { code: v1::Code::Ok.into(), count: calls - calls / 10 },
            v1::CodeCount { code: v1::Code::Unavailable.into(), count: calls / 10 },
        ],
        latency: vec![
            v1::BucketCount { bucket: bucket(20), count: calls - calls / 50 },
            v1::BucketCount { bucket: bucket(400), count: calls / 50 },
        ],
        ..Default::default()
    };
    let since = prost_types::Duration::try_from(Duration::from_secs(20)).ok();
    v1::Report { routes: vec![route], since, ..Default::default() }
}

async fn proposed(server: &Running, key: v1::Pattern) -> (v1::Rule, String) {
    let request = v1::ProposeRuleRequest { key: Some(key) };
    let response = soon(server.rules().propose_rule(request)).await.unwrap().into_inner();
    let rule = response.rule.unwrap();
    let parsed = convert::rule(&rule).unwrap();
    let found = damper_core::lint::findings(&parsed, &damper_core::lint::LintContext::default());
    assert!(found.iter().all(|finding| finding.severity == damper_core::lint::Severity::Hint), "{found:?}");
    (rule, response.reasons.join("\n"))
}

/// Returns a proposal once it is based on measurements.
async fn measured(server: &Running, key: v1::Pattern) -> (v1::Policy, String) {
    soon(async {
        loop {
            let (rule, reasons) = proposed(server, key.clone()).await;
            if reasons.contains("based on") {
                return (rule.policy.unwrap(), reasons);
            }
        }
    })
    .await
}

async fn with_calls(method: &str, calls: u64) -> (Running, Agent) {
    let server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    shop.snapshot().await;
    shop.report(report(method, calls)).await;
    (server, shop)
}

fn ms(wire: Option<prost_types::Duration>) -> u128 {
    Duration::try_from(wire.unwrap()).unwrap().as_millis()
}

#[tokio::test]
async fn values_follow_what_was_measured_and_say_so() {
    let (server, _shop) = with_calls(GET, 100_000).await;
    let (policy, reasons) = measured(&server, key("shop", "stock", GET)).await;
    assert_eq!(policy.mode(), v1::Mode::Observe);
    let retry = policy.retry.unwrap();
    // 2 x 400 ms plus the width of a bucket.
    let attempt = ms(retry.per_attempt_timeout);
    assert!((750..=900).contains(&attempt), "{attempt}");
    let call = ms(policy.timeout);
    assert!((3 * attempt..=3 * attempt + 1000).contains(&call), "{call}");
    let Some(v1::backoff::Kind::Exponential(backoff)) = retry.backoff.unwrap().kind else { panic!() };
    assert!((19..=25).contains(&ms(backoff.base)), "{backoff:?}");
    let Some(v1::codes::Kind::Allow(codes)) = retry.codes.unwrap().kind else { panic!() };
    assert_eq!(codes.codes, [v1::Code::Unavailable, v1::Code::DeadlineExceeded].map(i32::from));
    assert!(policy.hedge.is_none());
    for part in
        ["of the last minute on 1 route", "UNAVAILABLE (10.0% of", "p99.9", "policy.hedge: none, but the p99"]
    {
        assert!(reasons.contains(part), "{part}: {reasons}");
    }
    server.stop().await;
}

#[tokio::test]
async fn proposal_for_a_write_retries_only_unavailable() {
    let method = "stock.v1.Stock/Take";
    let (server, _shop) = with_calls(method, 100_000).await;
    let (policy, reasons) = measured(&server, key("shop", "stock", method)).await;
    let retry = policy.retry.unwrap();
    let Some(v1::codes::Kind::Allow(codes)) = retry.codes.unwrap().kind else { panic!() };
    assert_eq!((codes.codes, retry.per_attempt_timeout), (vec![i32::from(v1::Code::Unavailable)], None));
    assert!(policy.timeout.is_some() && !reasons.contains("policy.hedge"), "{reasons}");
    server.stop().await;
}

#[tokio::test]
async fn proposal_for_many_methods_has_no_timeouts() {
    let (server, shop) = with_calls(GET, 100_000).await;
    let (policy, reasons) = measured(&server, key("shop", "stock", "*")).await;
    assert!(policy.timeout.is_none() && policy.retry.unwrap().per_attempt_timeout.is_none(), "{reasons}");
    shop.report(report("stock.v1.Stock/Few", 12)).await;
    let (policy, reasons) = measured(&server, key("shop", "stock", "stock.v1.Stock/Few")).await;
    assert!(policy.timeout.is_none() && policy.retry.unwrap().backoff.is_none(), "{reasons}");
    assert!(reasons.contains("12 calls are too few"), "{reasons}");
    let (rule, reasons) = proposed(&server, key("nobody", "stock", GET)).await;
    assert!(rule.policy.unwrap().timeout.is_none());
    assert!(reasons.contains("the values are the defaults"), "{reasons}");
    server.stop().await;
}

#[tokio::test]
async fn proposal_mentions_the_existing_rule() {
    let server = start().await;
    server.put(shop_rule(3)).await;
    let (_, reasons) = proposed(&server, shop_rule(3).key.unwrap()).await;
    assert!(reasons.contains("exists, in mode enforce"), "{reasons}");
    for key in [None, Some(key("", "stock", GET))] {
        let refused = soon(server.rules().propose_rule(v1::ProposeRuleRequest { key })).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
    server.stop().await;
}
