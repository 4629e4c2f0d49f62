//! The fleet as operators and the web UI see it.

use damper_proto::v1;
use prost::Message as _;

use crate::harness::{Agent, Running, header, hello, key, put_change, rule, shop_rule, soon, start};

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
async fn watch_resets_once_and_then_sends_changes() {
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
async fn services_report_more_often_during_a_watch() {
    let server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    assert_eq!(shop.interval().await, 5);
    let watch = server.fleet().watch(v1::WatchRequest::default()).await.unwrap();
    assert_eq!(shop.interval().await, 1);
    drop(watch);
    assert_eq!(shop.interval().await, 5);
    server.stop().await;
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

/// Returns all pages of the list of a service's clients.
async fn paged(server: &Running, service: &str, page_size: u32) -> Vec<v1::ListClientsResponse> {
    let service = service.to_owned();
    let mut request = v1::ListClientsRequest { service, page_size, ..Default::default() };
    let mut pages = Vec::new();
    loop {
        let page = soon(server.fleet().list_clients(request.clone())).await.unwrap().into_inner();
        request.page_token.clone_from(&page.next_page_token);
        pages.push(page);
        if request.page_token.is_empty() {
            return pages;
        }
    }
}

fn instances(pages: &[v1::ListClientsResponse]) -> Vec<&str> {
    let clients = pages.iter().flat_map(|page| &page.clients);
    clients.map(|client| client.identity.as_ref().unwrap().instance.as_str()).collect()
}

#[tokio::test]
async fn clients_are_listed_in_pages() {
    let server = start().await;
    let mut connected = Vec::new();
    for name in ["e", "b", "d", "a", "c"] {
        let mut hello = hello("shop");
        hello.identity.as_mut().unwrap().instance = name.to_owned();
        connected.push(Agent::connect(&server, hello).await);
    }
    connected.push(Agent::connect(&server, hello("cart")).await);
    for agent in &mut connected {
        agent.snapshot().await;
    }
    let pages = paged(&server, "shop", 2).await;
    assert_eq!(pages.iter().map(|page| page.clients.len()).collect::<Vec<_>>(), [2, 2, 1]);
    assert_eq!(instances(&pages), ["a", "b", "c", "d", "e"]);
    assert!(pages.iter().all(|page| page.total == 5));
    // A client that connects between two pages shifts no other one.
    let token = pages[0].next_page_token.clone();
    let mut early = hello("shop");
    early.identity.as_mut().unwrap().instance = "aa".to_owned();
    let mut early = Agent::connect(&server, early).await;
    early.snapshot().await;
    let shop = v1::ListClientsRequest {
        service: "shop".to_owned(),
        page_size: 2,
        page_token: token.clone(),
        ..Default::default()
    };
    let second = server.fleet().list_clients(shop.clone()).await.unwrap().into_inner();
    assert_eq!((instances(std::slice::from_ref(&second)), second.total), (vec!["c", "d"], 6));
    for wrong in [
        v1::ListClientsRequest { service: "cart".to_owned(), ..shop.clone() },
        v1::ListClientsRequest { page_token: format!("{token}/more"), ..shop.clone() },
        v1::ListClientsRequest { page_size: 1001, ..shop },
    ] {
        let refused = server.fleet().list_clients(wrong).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    }
    drop((connected, early));
    server.stop().await;
}

/// The size of the response depends on the clients, not on the number of rules with missing features.
#[tokio::test]
async fn clients_without_features_are_described_briefly() {
    const RULES: usize = 500;
    let server = start().await;
    let changes = (0..RULES).map(|n| put_change(rule(key("*", &format!("callee-{n}"), "*"), 2)));
    let messages: Vec<_> = std::iter::once(header(v1::WriteOptions::default())).chain(changes).collect();
    server.rules().apply_rules(tokio_stream::iter(messages)).await.unwrap();
    let mut connected = Vec::new();
    for n in 0..100 {
        let mut old = v1::Hello { features: Vec::new(), ..hello("shop") };
        old.identity.as_mut().unwrap().instance = format!("shop-{n}");
        connected.push(Agent::connect(&server, old).await);
    }
    for agent in &mut connected {
        agent.snapshot().await;
    }
    let pages = paged(&server, "", 0).await;
    assert_eq!(instances(&pages).len(), 100);
    for page in &pages {
        assert!(page.encoded_len() < 300 << 10, "{} bytes", page.encoded_len());
        for client in &page.clients {
            assert_eq!((client.withheld.len(), client.withheld_count as usize), (20, RULES));
        }
    }
    drop(connected);
    server.stop().await;
}
