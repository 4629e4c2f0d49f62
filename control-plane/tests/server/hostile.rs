//! Reports with any content: other clients are still answered.

use damper_proto::v1;

use crate::harness::{Agent, Running, hello, shop_rule, soon, start};

/// The largest number in every numeric field.
fn largest() -> v1::Report {
    let count = u64::MAX;
    let route = v1::RouteReport {
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/Take".to_owned(),
        calls: count,
        attempts: count,
        retries: count,
        transparent_resends: count,
        fates: (1..=20).map(|fate| v1::FateCount { fate, would: fate % 2 == 0, count }).collect(),
        codes: (0..=16).map(|code| v1::CodeCount { code, count }).collect(),
        latency: (0..256).map(|bucket| v1::BucketCount { bucket, count }).collect(),
        no_context_calls: count,
        hedges: count,
        would_hedges: count,
        outer_loop_calls: count,
        state: Some(v1::RouteState { window_failures: count, window_successes: count, ..Default::default() }),
        failed_calls: vec![v1::FailedCall { sends: u32::MAX, ..Default::default() }; 100],
    };
    let served = v1::ServedReport {
        method: "shop.v1.Shop/Buy".to_owned(),
        first_sends: count,
        damper_repeats: count,
        grpc_repeats: count,
        envoy_repeats: count,
        shed_repeats: count,
        would_shed_repeats: count,
    };
    v1::Report {
        routes: vec![route],
        no_context_calls: count,
        governed_calls: count,
        served: vec![served],
        ..Default::default()
    }
}

/// Calls every method whose response depends on reports.
async fn everything_answers(server: &Running) -> Vec<v1::RouteStats> {
    let mut fleet = server.fleet();
    let routes = soon(fleet.list_routes(v1::ListRoutesRequest::default())).await.unwrap().into_inner();
    soon(fleet.diagnose(v1::DiagnoseRequest::default())).await.unwrap();
    soon(fleet.get_chain(v1::GetChainRequest::default())).await.unwrap();
    let propose = v1::ProposeRuleRequest { key: shop_rule(1).key };
    soon(server.rules().propose_rule(propose)).await.unwrap();
    let mut watch = soon(fleet.watch(v1::WatchRequest::default())).await.unwrap().into_inner();
    soon(watch.message()).await.unwrap().unwrap();
    let scraped = server.get(server.metrics, "GET /metrics HTTP/1.1").await;
    assert!(scraped.starts_with("HTTP/1.1 200"), "{scraped}");
    server.put(shop_rule(2)).await;
    routes.routes
}

#[tokio::test]
async fn largest_numbers_in_a_report_stop_no_response() {
    let server = start().await;
    for instance in ["shop-1", "shop-2"] {
        let mut hello = hello("shop");
        hello.identity.as_mut().unwrap().instance = instance.to_owned();
        let mut shop = Agent::connect(&server, hello).await;
        let (snapshot, _) = shop.snapshot().await;
        shop.ack(&snapshot, vec![]).await;
        for _ in 0..2 {
            shop.report(largest()).await;
        }
        soon(async { while everything_answers(&server).await.is_empty() {} }).await;
    }
    let mut other = Agent::connect(&server, hello("other")).await;
    other.snapshot().await;
    let rows = everything_answers(&server).await;
    assert_eq!((rows.len(), rows[0].total_calls), (1, u64::MAX));
    server.stop().await;
}

#[tokio::test]
async fn metrics_list_a_thousand_routes_and_sum_the_others() {
    let server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    let (snapshot, _) = shop.snapshot().await;
    shop.ack(&snapshot, vec![]).await;
    let route = |n: u64| v1::RouteReport {
        callee_service: "stock".to_owned(),
        callee_method: format!("stock.v1.Stock/Take{n}"),
        calls: n,
        attempts: n,
        ..Default::default()
    };
    shop.report(v1::Report { routes: (1..=1200).map(route).collect(), ..Default::default() }).await;
    let scraped = soon(async {
        loop {
            let scraped = server.get(server.metrics, "GET /metrics HTTP/1.1").await;
            // Calls come first in the metrics, so the other values are at least as recent.
            if scraped.contains("damper_calls_total{caller_service=\"_OTHER\"") {
                return scraped;
            }
        }
    })
    .await;
    let calls: Vec<(&str, u64)> = scraped
        .lines()
        .filter(|line| line.starts_with("damper_calls_total{"))
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(labels, value)| (labels, value.parse().unwrap()))
        .collect();
    assert_eq!(calls.len(), 1001);
    assert_eq!(calls.iter().map(|(_, calls)| calls).sum::<u64>(), 1200 * 1201 / 2, "nothing is lost");
    let others = "damper_calls_total{caller_service=\"_OTHER\",caller_cluster=\"_OTHER\",\
                  callee_service=\"_OTHER\",callee_method=\"_OTHER\"}";
    assert!(calls.contains(&(others, 200 * 201 / 2)), "the busiest are listed");
    let clients = scraped.lines().filter(|line| line.starts_with("damper_route_clients{"));
    assert_eq!(clients.count(), 1001);
    let modes =
        scraped.lines().find(|line| line.contains("_OTHER") && line.contains("mode=\"none\"")).unwrap();
    assert!(modes.ends_with(" 200"), "{modes}");
    server.stop().await;
}
