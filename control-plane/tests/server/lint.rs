//! Findings in the responses to writes, and in explain.

use damper_proto::v1;

use crate::harness::{Agent, Running, header, hello, key, put_change, rule, shop_rule, soon, start};

fn unbounded() -> v1::Rule {
    let mut rule = rule(key("shop", "stock", "stock.v1.Stock/Get"), 3);
    rule.policy.as_mut().unwrap().retry_breaker =
        Some(v1::RetryBreaker { enabled: Some(false), ..Default::default() });
    rule
}

fn summaries(findings: &[v1::Finding]) -> Vec<(&str, v1::Severity, &str)> {
    findings.iter().map(|found| (found.code.as_str(), found.severity(), found.field.as_str())).collect()
}

const BREAKER_OFF: (&str, v1::Severity, &str) =
    ("breaker_off", v1::Severity::Danger, "policy.retry_breaker.enabled");

async fn try_out(server: &Running, rule: v1::Rule) -> v1::PutRuleResponse {
    let options = Some(v1::WriteOptions { validate_only: true, ..Default::default() });
    let request = v1::PutRuleRequest { rule: Some(rule), options, ..Default::default() };
    soon(server.rules().put_rule(request)).await.unwrap().into_inner()
}

#[tokio::test]
async fn put_returns_findings_for_dry_runs_and_unchanged_rules() {
    let server = start().await;
    let tried = try_out(&server, unbounded()).await;
    let put = server.put(unbounded()).await;
    let again = server.put(unbounded()).await;
    assert!(tried.changed && put.changed && !again.changed);
    for findings in [&tried.findings, &put.findings, &again.findings] {
        assert_eq!(summaries(findings), [BREAKER_OFF]);
        let found = &findings[0];
        assert_eq!(found.subject, "shop * stock stock.v1.Stock/Get");
        assert_eq!(found.remedy, "Turn the retry breaker of the rule on again, or set a budget.");
        assert!(found.message.contains("every call is sent 3 times"), "{found:?}");
    }
    let fine = server.put(rule(key("shop", "stock", "stock.v1.Stock/Get"), 3)).await;
    assert_eq!(fine.findings, []);
    server.stop().await;
}

#[tokio::test]
async fn observed_rule_that_displaces_an_enforced_one_is_found() {
    let server = start().await;
    server.put(rule(key("shop", "stock", "*"), 3)).await;
    let mut observed = rule(key("shop", "stock", "stock.v1.Stock/Get"), 3);
    observed.policy.as_mut().unwrap().set_mode(v1::Mode::Observe);
    let found = ("displaces_enforced", v1::Severity::Warning, "policy.mode");

    let tried = try_out(&server, observed.clone()).await;
    assert_eq!(summaries(&tried.findings), [found]);
    let header = header(v1::WriteOptions { validate_only: true, ..Default::default() });
    let requests = vec![header, put_change(observed.clone())];
    let applied = soon(server.rules().apply_rules(tokio_stream::iter(requests))).await.unwrap().into_inner();
    assert_eq!(summaries(&applied.results[0].findings), [found]);

    let put = server.put(observed.clone()).await;
    assert_eq!(summaries(&put.findings), [found]);
    let again = server.put(observed).await;
    assert_eq!(again.findings, [], "the rule has replaced the other one already");
    server.stop().await;
}

#[tokio::test]
async fn each_result_of_a_set_has_its_own_findings_and_guards_too() {
    let server = start().await;
    let ceiling = Some(v1::Ceiling { max_attempts: Some(10), ..Default::default() });
    let guard = v1::Guard { key: Some(key("*", "till", "*")), ceiling, ..Default::default() };
    let put_guard = v1::ApplyRulesRequest {
        kind: Some(v1::apply_rules_request::Kind::Change(v1::RuleChange {
            kind: Some(v1::rule_change::Kind::PutGuard(guard.clone())),
            expected_revision: None,
        })),
    };
    let fine = rule(key("shop", "stock", "*"), 2);
    let requests = vec![header(Default::default()), put_change(fine), put_guard, put_change(unbounded())];
    let applied = soon(server.rules().apply_rules(tokio_stream::iter(requests))).await.unwrap().into_inner();
    let of_guard = ("ceiling_limits_nothing", v1::Severity::Warning, "ceiling.max_attempts");
    let findings: Vec<_> = applied.results.iter().map(|result| summaries(&result.findings)).collect();
    assert_eq!(findings, [vec![], vec![of_guard], vec![BREAKER_OFF]]);
    let request = v1::PutGuardRequest { guard: Some(guard), ..Default::default() };
    let put = soon(server.guards().put_guard(request)).await.unwrap().into_inner();
    assert_eq!(summaries(&put.findings), [of_guard]);

    let back = v1::RollbackAllRequest {
        to_revision: Some(0),
        options: Some(v1::WriteOptions { reason: "all".to_owned(), ..Default::default() }),
        ..Default::default()
    };
    soon(server.history().rollback_all(back)).await.unwrap();
    let forth = v1::RollbackAllRequest {
        to_revision: Some(1),
        options: Some(v1::WriteOptions {
            reason: "back".to_owned(),
            validate_only: true,
            ..Default::default()
        }),
        ..Default::default()
    };
    let forth = soon(server.history().rollback_all(forth)).await.unwrap().into_inner();
    let found: Vec<_> = forth.results.iter().flat_map(|result| summaries(&result.findings)).collect();
    assert!(found.contains(&BREAKER_OFF) && found.contains(&of_guard), "{found:?}");
    server.stop().await;
}

#[tokio::test]
async fn clients_that_lack_a_feature_are_a_finding() {
    let server = start().await;
    let old = v1::Hello { features: vec!["base".to_owned()], ..hello("shop") };
    let mut shop = Agent::connect(&server, old).await;
    shop.snapshot().await;
    let mut needs = rule(key("shop", "stock", "stock.v1.Stock/Get"), 3);
    needs.policy.as_mut().unwrap().call_id = true;
    let put = server.put(needs).await;
    let lacking = ("clients_lack_feature", v1::Severity::Warning, "");
    assert_eq!(summaries(&put.findings), [lacking]);
    assert!(put.findings[0].message.starts_with("1 of 1 clients lack"), "{put:?}");
    server.stop().await;
}

#[tokio::test]
async fn minimum_of_failures_is_held_against_the_traffic() {
    let server = start().await;
    let mut lax = rule(key("shop", "stock", "stock.v1.Stock/Get"), 3);
    lax.policy.as_mut().unwrap().retry_breaker = Some(v1::RetryBreaker {
        mode: v1::RetryBreakerMode::Ratio.into(),
        min_failures: Some(15),
        ..Default::default()
    });
    assert_eq!(try_out(&server, lax.clone()).await.findings, [], "without traffic 15 are not many");
    let mut shop = Agent::connect(&server, hello("shop")).await;
    shop.snapshot().await;
    let route = v1::RouteReport {
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/Get".to_owned(),
        calls: 1,
        attempts: 1,
        fates: vec![v1::FateCount { fate: v1::Fate::Ok.into(), would: false, count: 1 }],
        ..Default::default()
    };
    shop.report(v1::Report { routes: vec![route], ..Default::default() }).await;
    let findings = soon(async {
        loop {
            let findings = try_out(&server, lax.clone()).await.findings;
            if !findings.is_empty() {
                return findings;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let high = ("min_failures_high", v1::Severity::Hint, "policy.retry_breaker.min_failures");
    assert_eq!(summaries(&findings), [high]);
    server.stop().await;
}

#[tokio::test]
async fn explain_lists_findings_after_the_guards() {
    let server = start().await;
    server.put(unbounded()).await;
    let route = v1::RouteKey {
        caller_service: "shop".to_owned(),
        caller_cluster: "default".to_owned(),
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/Get".to_owned(),
    };
    let explain = async || {
        let request = v1::ExplainRequest { route: Some(route.clone()) };
        soon(server.rules().explain(request)).await.unwrap().into_inner()
    };
    let explained = explain().await;
    assert_eq!(summaries(&explained.findings), [BREAKER_OFF]);
    assert_eq!(explained.chain.unwrap().sends, 3);
    let ceiling = Some(v1::Ceiling { max_retry_breaker_ratio: Some(0.1), ..Default::default() });
    let guard = v1::Guard { key: Some(key("*", "stock", "*")), ceiling, ..Default::default() };
    let request = v1::PutGuardRequest { guard: Some(guard), ..Default::default() };
    soon(server.guards().put_guard(request)).await.unwrap();
    let held = ("max_ratio_stops_credit", v1::Severity::Hint, "policy.retry_breaker.max_ratio");
    assert_eq!(summaries(&explain().await.findings), [held], "the guard switched the retry breaker on");
    server.put(shop_rule(2)).await;
    server.stop().await;
}
