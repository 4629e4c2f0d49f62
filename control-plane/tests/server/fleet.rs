//! What the fleet does, as operators and the page see it.

use damper_proto::v1::{self, server_message};

use crate::harness::{Agent, Running, hello, shop_rule, soon, start};

fn report(calls: u64, attempts: u64) -> v1::Report {
    let fate = |fate: v1::Fate, count| v1::FateCount { fate: fate.into(), would: false, count };
    let route = v1::RouteReport {
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/Take".to_owned(),
        calls,
        attempts,
        fates: vec![fate(v1::Fate::Ok, calls / 2), fate(v1::Fate::AttemptsExhausted, calls - calls / 2)],
        latency: vec![v1::BucketCount { bucket: 40, count: calls }],
        ..Default::default()
    };
    v1::Report { routes: vec![route], ..Default::default() }
}

async fn route_that(server: &Running, is_so: impl Fn(&v1::RouteStats) -> bool) -> v1::RouteStats {
    soon(async {
        loop {
            let listed =
                server.fleet().list_routes(v1::ListRoutesRequest::default()).await.unwrap().into_inner();
            if let Some(route) = listed.routes.into_iter().find(|route| is_so(route)) {
                return route;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

#[tokio::test]
async fn reported_calls_are_listed_with_the_rule_that_applies() {
    let server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    shop.snapshot().await;
    shop.report(report(100, 150)).await;
    let route = route_that(&server, |route| route.total_calls == 100).await;
    assert_eq!((route.total_attempts, route.clients, route.rule), (150, 1, None));
    assert_eq!(server.put(shop_rule(3)).await.reach.unwrap().routes, 1);
    let route = route_that(&server, |route| route.rule.is_some()).await;
    assert_eq!((route.rule, route.mode), (shop_rule(3).key, v1::Mode::Enforce.into()));
    let route = route_that(&server, |route| route.amplification > 0.0).await;
    assert!((route.amplification - 1.5).abs() < 1e-3, "{route:?}");
    assert!((route.error_share - 0.5).abs() < 1e-3, "{route:?}");
    let metrics = server.get(server.metrics, "GET /metrics HTTP/1.1").await;
    let labels = "caller_service=\"shop\",caller_cluster=\"default\",callee_service=\"stock\",\
                  callee_method=\"stock.v1.Stock/Take\"";
    for line in [
        format!("damper_calls_total{{{labels}}} 100"),
        format!("damper_attempts_total{{{labels}}} 150"),
        format!("damper_call_fates_total{{{labels},fate=\"attempts_exhausted\"}} 50"),
    ] {
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_watch_resets_once_and_then_tells_what_changed() {
    let server = start().await;
    let put = server.put(shop_rule(2)).await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    let (snapshot, _) = shop.snapshot().await;
    let request = v1::WatchRequest { rules: true, ..Default::default() };
    let mut watch = server.fleet().watch(request).await.unwrap().into_inner();
    let first = soon(watch.message()).await.unwrap().unwrap();
    assert!(first.reset);
    assert_eq!((first.revision, first.connected_clients), (put.revision, 1));
    assert_eq!((first.rules[0].clients, first.rules[0].applied), (1, 0));
    assert!(first.window.is_some() && first.as_of.is_some());

    shop.ack(&snapshot, vec![]).await;
    let mut applied = None;
    while applied.is_none() {
        let next = soon(watch.message()).await.unwrap().unwrap();
        assert!(!next.reset);
        applied = next.rules.into_iter().find(|rule| rule.applied == 1);
    }
    let still = soon(watch.message()).await.unwrap().unwrap();
    assert!(still.rules.is_empty() && still.removed_rules.is_empty(), "only what changed: {still:?}");

    shop.report(report(10, 10)).await;
    while soon(watch.message()).await.unwrap().unwrap().routes.is_empty() {}
    server.delete(shop_rule(2).key.unwrap()).await;
    let removed = loop {
        let next = soon(watch.message()).await.unwrap().unwrap();
        if !next.removed_rules.is_empty() {
            break next.removed_rules;
        }
    };
    assert_eq!(removed, [shop_rule(2).key.unwrap()]);
    server.stop().await;
}

#[tokio::test]
async fn services_report_more_often_while_somebody_watches() {
    let server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    assert_eq!(next_interval(&mut shop).await, 5);
    let watch = server.fleet().watch(v1::WatchRequest::default()).await.unwrap();
    assert_eq!(next_interval(&mut shop).await, 1);
    drop(watch);
    assert_eq!(next_interval(&mut shop).await, 5);
    server.stop().await;
}

async fn next_interval(agent: &mut Agent) -> i64 {
    loop {
        let message = agent.any().await.unwrap().unwrap();
        if let Some(server_message::Kind::ReportSettings(settings)) = message.kind {
            return settings.interval.unwrap().seconds;
        }
    }
}

#[tokio::test]
async fn a_watch_of_odd_length_is_refused() {
    let server = start().await;
    let interval = Some(prost_types::Duration { seconds: 0, nanos: 1 });
    let request = v1::WatchRequest { interval, ..Default::default() };
    let refused = server.fleet().watch(request).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    server.stop().await;
}
