//! Findings of the doctor, each from its cause, and none for a healthy fleet.

use std::time::Duration;

use damper_proto::v1;

use crate::harness::{Agent, Running, hello, key, rule, shop_rule, soon, start, start_with};

const TAKE: &str = "stock.v1.Stock/Take";

async fn diagnosis(server: &Running, service: &str) -> v1::DiagnoseResponse {
    let request = v1::DiagnoseRequest { service: service.to_owned(), window: None };
    soon(server.fleet().diagnose(request)).await.unwrap().into_inner()
}

/// Returns the finding of this code once it appears.
async fn found(server: &Running, service: &str, code: &str) -> v1::Finding {
    let mut last = Vec::new();
    let finding = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            last = diagnosis(server, service).await.findings;
            if let Some(finding) = last.iter().find(|finding| finding.code == code) {
                return finding.clone();
            }
            tokio::task::yield_now().await;
        }
    });
    let finding = finding.await.unwrap_or_else(|_| panic!("no {code} among {last:?}"));
    assert!(!finding.remedy.is_empty() && !finding.message.is_empty(), "{finding:?}");
    assert_ne!(finding.severity(), v1::Severity::Unspecified);
    finding
}

fn serving(service: &str) -> v1::Hello {
    v1::Hello { serves: true, source: v1::Source::Live.into(), ..hello(service) }
}

fn report(change: impl FnOnce(&mut v1::RouteReport)) -> v1::Report {
    let mut route = v1::RouteReport {
        callee_service: "stock".to_owned(),
        callee_method: TAKE.to_owned(),
        calls: 1000,
        attempts: 1000,
        fates: vec![v1::FateCount { fate: v1::Fate::Ok.into(), would: false, count: 1000 }],
        ..Default::default()
    };
    change(&mut route);
    let since = prost_types::Duration::try_from(Duration::from_secs(20)).ok();
    v1::Report { routes: vec![route], since, source: v1::Source::Live.into(), ..Default::default() }
}

/// A server, a caller and a callee; the caller has made its report.
async fn fleet(change: impl FnOnce(&mut v1::RouteReport)) -> (Running, Agent, Agent) {
    let server = start().await;
    let (mut shop, mut stock) =
        (Agent::connect(&server, serving("shop")).await, Agent::connect(&server, serving("stock")).await);
    for agent in [&mut shop, &mut stock] {
        let (snapshot, _) = agent.snapshot().await;
        agent.ack(&snapshot, vec![]).await;
    }
    shop.report(report(change)).await;
    (server, shop, stock)
}

#[tokio::test]
async fn healthy_fleet_has_no_finding_and_lists_the_checks() {
    let (server, _shop, _stock) = fleet(|_| {}).await;
    server.put(shop_rule(3)).await;
    let well = soon(async {
        loop {
            let diagnosis = diagnosis(&server, "").await;
            if diagnosis.findings.is_empty()
                && diagnosis.checked.iter().any(|line| line.contains("(1 route)"))
            {
                return diagnosis;
            }
        }
    })
    .await;
    assert!(well.checked.len() >= 20, "{:?}", well.checked);
    assert!(well.checked.iter().all(|line| line.ends_with("nothing found")), "{:?}", well.checked);
    server.stop().await;
}

#[tokio::test]
async fn what_routes_measure_is_found_with_who_and_how_much() {
    let (server, _shop, stock) = fleet(|route| {
        route.attempts = 2000;
        route.outer_loop_calls = 100;
        route.no_context_calls = 500;
        route.fates = vec![
            v1::FateCount { fate: v1::Fate::Ok.into(), would: false, count: 900 },
            v1::FateCount { fate: v1::Fate::PolicyOff.into(), would: false, count: 40 },
            v1::FateCount { fate: v1::Fate::Deadline.into(), would: false, count: 60 },
        ];
        route.state = Some(v1::RouteState {
            breaker_refuses: true,
            budget_refuses: true,
            circuit: v1::CircuitState::Open.into(),
            ..Default::default()
        });
    })
    .await;
    let served = v1::ServedReport {
        method: TAKE.to_owned(),
        first_sends: 500,
        grpc_repeats: 100,
        envoy_repeats: 50,
        shed_repeats: 20,
        ..Default::default()
    };
    let since = prost_types::Duration::try_from(Duration::from_secs(20)).ok();
    let source = v1::Source::Live.into();
    stock.report(v1::Report { served: vec![served], since, source, ..Default::default() }).await;
    let route = format!("shop default stock {TAKE}");
    for (code, subject, part) in [
        ("retry_storm", &*route, "2.00 attempts per call"),
        ("breaker_refuses", &*route, "in 1 of 1 process"),
        ("time_runs_out", &*route, "expire; p50 "),
        ("budget_used_up", &*route, "in 1 of 1 process"),
        ("circuit_not_closed", &*route, "in 1 of 1 process"),
        ("outer_loop", &*route, "shop makes failed calls again"),
        ("context_lost", &*route, "50.0% of the calls"),
        ("failing_without_rule", &*route, "10.0% of"),
        ("repeats_by_grpc", &*format!("* * stock {TAKE}"), "by gRPC clients"),
        ("repeats_by_envoy", &*format!("* * stock {TAKE}"), "by Envoy"),
        ("repeats_shed", &*format!("* * stock {TAKE}"), "blocks"),
    ] {
        for service in ["", "stock"] {
            let finding = found(&server, service, code).await;
            assert_eq!(finding.subject, subject);
            assert!(finding.message.contains(part), "{finding:?}");
        }
    }
    let all = diagnosis(&server, "").await.findings;
    assert!(all.is_sorted_by_key(|finding| std::cmp::Reverse(finding.severity)), "{all:?}");
    let elsewhere = diagnosis(&server, "elsewhere").await.findings;
    assert_eq!(
        elsewhere.iter().map(|finding| finding.code.as_str()).collect::<Vec<_>>(),
        ["no_client_connected"]
    );
    assert!(elsewhere[0].message.contains("shop, stock"), "{elsewhere:?}");
    server.stop().await;
}

#[tokio::test]
async fn what_is_odd_about_clients_is_found_for_their_service() {
    let server = start().await;
    let mut shop = Agent::connect(&server, serving("shop")).await;
    shop.snapshot().await;
    let odd = v1::Hello {
        sdk_version: "0.0.9".to_owned(),
        features: vec!["base".to_owned()],
        override_mode: v1::Mode::Observe.into(),
        ..hello("stock")
    };
    let mut stock = Agent::connect(&server, odd).await;
    stock.snapshot().await;
    shop.report(report(|_| {})).await;
    let mut hedged = rule(key("stock", "other", "o.S/M"), 2);
    hedged.policy.as_mut().unwrap().hedge = Some(v1::Hedge {
        delay: Some(v1::HedgeDelay {
            kind: Some(v1::hedge_delay::Kind::Fixed(prost_types::Duration { seconds: 0, nanos: 5_000_000 })),
        }),
        ..Default::default()
    });
    server.put(hedged).await;
    for (code, part) in [
        ("server_layer_missing", "stock-1: is called"),
        ("old_sdk", "SDK 0.0.9, others have 0.1.0"),
        ("mode_overridden", "override to observe"),
        ("clients_lack_feature", "hedge"),
    ] {
        let finding = found(&server, "", code).await;
        assert_eq!(finding.subject, "stock");
        assert!(finding.message.contains(part), "{finding:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn refusals_and_a_lack_of_confirmation_are_found() {
    let server = start_with(|settings| settings.lags_after = Duration::from_millis(50)).await;
    let mut shop = Agent::connect(&server, serving("shop")).await;
    let (snapshot, _) = shop.snapshot().await;
    shop.ack(&snapshot, vec![]).await;
    let put = server.put(shop_rule(3)).await;
    let (delta, _) = shop.delta().await;
    let refusal = v1::Refusal {
        key: shop_rule(3).key,
        revision: put.revision,
        reason: "policy.retry: is not for me".to_owned(),
        ..Default::default()
    };
    shop.ack(&delta, vec![refusal]).await;
    let finding = found(&server, "shop", "entry_refused").await;
    assert!(finding.message.contains("rejected by 1 process: policy.retry: is not for me"), "{finding:?}");
    server.put(shop_rule(4)).await;
    let finding = found(&server, "", "client_lags").await;
    assert!(finding.message.contains("acknowledged revision 1; revision 2 was sent"), "{finding:?}");
    server.stop().await;
}

#[tokio::test]
async fn doctor_finds_idle_rules_and_unconnected_callees() {
    let (server, _shop, stock) = fleet(|_| {}).await;
    drop(stock);
    server.put(rule(key("shop", "nobody", "n.S/M"), 3)).await;
    let idle = found(&server, "", "matches_nothing").await;
    assert_eq!(idle.subject, "shop * nobody n.S/M");
    let unknown = found(&server, "shop", "callee_unknown").await;
    assert_eq!((unknown.subject.as_str(), unknown.severity()), ("stock", v1::Severity::Hint));
    server.stop().await;
}

#[tokio::test]
async fn unconnected_fleet_has_one_finding() {
    let server = start().await;
    let findings = diagnosis(&server, "").await.findings;
    assert_eq!(
        findings.iter().map(|finding| finding.code.as_str()).collect::<Vec<_>>(),
        ["no_client_connected"]
    );
    let request = v1::DiagnoseRequest { service: "a b".to_owned(), window: None };
    let refused = soon(server.fleet().diagnose(request)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    server.stop().await;
}

async fn kill_stock(server: &Running) {
    let request = v1::KillRequest {
        key: Some(key("*", "stock", "*")),
        options: Some(v1::WriteOptions {
            reason: "stock is down".to_owned(),
            author: "kim".to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut kills = v1::kills_client::KillsClient::new(server.channel());
    soon(kills.kill(request)).await.unwrap();
}

#[tokio::test]
async fn a_kill_in_force_is_found_with_its_reason() {
    let (server, _shop, _stock) = fleet(|_| {}).await;
    kill_stock(&server).await;
    let finding = found(&server, "stock", "kill_in_force").await;
    assert!(finding.message.contains("stock is down") && finding.message.contains("kim"), "{finding:?}");
    assert_eq!(finding.subject, "* * stock *");
    server.stop().await;
}

#[tokio::test]
async fn a_storm_that_a_kill_has_just_stopped_waits_for_its_proof() {
    let (server, _shop, _stock) = fleet(|route| route.attempts = 2000).await;
    found(&server, "", "retry_storm").await;
    kill_stock(&server).await;
    let finding = found(&server, "", "storm_stopped").await;
    assert_eq!(finding.subject, format!("shop default stock {TAKE}"));
    let says = "stopped by kill * * stock *, verifying; 2.00 attempts per call over the last minute";
    assert!(finding.message.starts_with(says), "{finding:?}");
    let all = diagnosis(&server, "").await.findings;
    assert!(all.iter().all(|finding| finding.code != "retry_storm"), "{all:?}");
    server.stop().await;
}

#[tokio::test]
async fn two_processes_under_one_instance_id_are_found() {
    let (server, shop, _stock) = fleet(|_| {}).await;
    let mut other = Agent::connect(&server, serving("shop")).await;
    other.snapshot().await;
    let since = prost_types::Duration::try_from(Duration::from_secs(3600)).ok();
    let mut few = report(|route| route.calls = 1);
    few.since = since;
    let finding = soon(async {
        for n in 1001.. {
            shop.report(report(|route| route.calls = n)).await;
            other.report(few.clone()).await;
            let findings = diagnosis(&server, "shop").await.findings;
            if let Some(finding) = findings.into_iter().find(|finding| finding.code == "duplicate_instance") {
                return finding;
            }
        }
        unreachable!()
    })
    .await;
    assert_eq!((finding.subject.as_str(), finding.severity()), ("shop", v1::Severity::Warning));
    assert!(finding.message.contains("shop-1"), "{finding:?}");
    assert!(diagnosis(&server, "stock").await.findings.iter().all(|other| other.code != finding.code));
    server.stop().await;
}

#[tokio::test]
async fn figures_of_a_diagnosis_are_of_the_window_asked_for() {
    let (server, _shop, _stock) = fleet(|route| route.attempts = 2000).await;
    found(&server, "", "retry_storm").await;
    let window = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let request = v1::DiagnoseRequest { window: window(10), ..Default::default() };
    let findings = soon(server.fleet().diagnose(request)).await.unwrap().into_inner().findings;
    let storm = findings.iter().find(|finding| finding.code == "retry_storm").unwrap();
    assert!(storm.message.contains("attempts per call over the last 10 s"), "{storm:?}");
    let odd = v1::DiagnoseRequest { window: window(7), ..Default::default() };
    assert_eq!(soon(server.fleet().diagnose(odd)).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    server.stop().await;
}

#[tokio::test]
async fn kill_without_an_author_is_by_unknown_for_a_readable_time() {
    let (server, _shop, _stock) = fleet(|_| {}).await;
    let options = v1::WriteOptions { reason: "stock is down".to_owned(), ..Default::default() };
    let request =
        v1::KillRequest { key: Some(key("*", "stock", "*")), options: Some(options), ..Default::default() };
    let mut kills = v1::kills_client::KillsClient::new(server.channel());
    soon(kills.kill(request)).await.unwrap();
    let finding = found(&server, "stock", "kill_in_force").await;
    assert!(finding.message.contains("for 60 min more; set by unknown:"), "{finding:?}");
    server.stop().await;
}
