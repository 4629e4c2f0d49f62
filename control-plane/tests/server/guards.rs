//! Guards, from the admin API to the services.

use damper_proto::v1::{self, distributed_rule, rule_change};
use prost::Message as _;
use tonic::Code;
use tonic_types::{StatusExt as _, pb};

use crate::harness::{
    Agent, Running, header, hello, key, put_change, rule, shop_rule, soon, start, start_in, start_with,
};

fn guard(key: v1::Pattern, max_attempts: u32) -> v1::Guard {
    let ceiling = v1::Ceiling { max_attempts: Some(max_attempts), ..Default::default() };
    v1::Guard { key: Some(key), ceiling: Some(ceiling), owner: "team-stock".to_owned(), ..Default::default() }
}

fn stock_guard(max_attempts: u32) -> v1::Guard {
    guard(key("*", "stock", "*"), max_attempts)
}

fn put(guard: v1::Guard) -> v1::PutGuardRequest {
    v1::PutGuardRequest { guard: Some(guard), ..Default::default() }
}

async fn put_guard(server: &Running, guard: v1::Guard) -> v1::PutGuardResponse {
    soon(server.guards().put_guard(put(guard))).await.unwrap().into_inner()
}

async fn delete_guard(server: &Running, key: v1::Pattern) -> u64 {
    let request = v1::DeleteGuardRequest { key: Some(key), ..Default::default() };
    soon(server.guards().delete_guard(request)).await.unwrap().into_inner().revision
}

async fn try_rule(server: &Running, rule: v1::Rule) -> Result<v1::PutRuleResponse, tonic::Status> {
    let request = v1::PutRuleRequest { rule: Some(rule), ..Default::default() };
    soon(server.rules().put_rule(request)).await.map(tonic::Response::into_inner)
}

async fn list(server: &Running, request: v1::ListGuardsRequest) -> v1::ListGuardsResponse {
    soon(server.guards().list_guards(request)).await.unwrap().into_inner()
}

fn change(kind: rule_change::Kind) -> v1::ApplyRulesRequest {
    let change = v1::RuleChange { kind: Some(kind), expected_revision: None };
    v1::ApplyRulesRequest { kind: Some(v1::apply_rules_request::Kind::Change(change)) }
}

async fn apply(
    server: &Running,
    options: v1::WriteOptions,
    changes: Vec<v1::ApplyRulesRequest>,
) -> Result<v1::ApplyRulesResponse, tonic::Status> {
    let requests: Vec<_> = std::iter::once(header(options)).chain(changes).collect();
    soon(server.rules().apply_rules(tokio_stream::iter(requests))).await.map(tonic::Response::into_inner)
}

/// Connects a service once the streams have the latest revision, a moment after the write.
async fn settled(server: &Running, hello: v1::Hello) -> Agent {
    let revision = list(server, v1::ListGuardsRequest::default()).await.revision;
    soon(async {
        loop {
            let mut probe = Agent::connect(server, crate::harness::hello("probe")).await;
            if probe.snapshot().await.0.revision == revision {
                break;
            }
        }
    })
    .await;
    server.no_client_is_left().await;
    Agent::connect(server, hello).await
}

fn violations(status: &tonic::Status) -> Vec<(String, String)> {
    let violations = status.get_details_bad_request().unwrap().field_violations;
    violations.into_iter().map(|violation| (violation.field, violation.description)).collect()
}

/// Returns the findings about cut rules.
fn cuts(findings: &[v1::Finding]) -> Vec<&v1::Finding> {
    findings.iter().filter(|found| found.code == "guard_cuts").collect()
}

const CEILING: &str = "5 is more than 3, the ceiling of guard \"* * stock *\" (owner team-stock)";

#[tokio::test]
async fn a_guard_is_read_back_as_it_was_written_also_after_a_restart() {
    let server = start().await;
    let first = put_guard(&server, stock_guard(3)).await;
    assert!(first.changed);
    let mut request = put(stock_guard(4));
    request.options = Some(v1::WriteOptions { author: "ann".to_owned(), ..Default::default() });
    let second = server.guards().put_guard(request).await.unwrap().into_inner();
    assert_eq!(second.revision, first.revision + 1, "rules and guards count on one revision");
    let again = put_guard(&server, stock_guard(4)).await;
    assert!(!again.changed);
    assert_eq!((again.revision, &again.guard), (second.revision, &second.guard));

    let server = start_in(server.stop().await, |_| {}).await;
    let get = v1::GetGuardRequest { key: stock_guard(4).key, min_revision: 0 };
    let read = server.guards().get_guard(get.clone()).await.unwrap().into_inner();
    assert_eq!((&read.ceiling, read.owner.as_str()), (&stock_guard(4).ceiling, "team-stock"));
    assert_eq!((read.revision, read.updated_by.as_str()), (second.revision, "ann"));
    assert!(read.updated_at.is_some());
    assert_eq!(delete_guard(&server, stock_guard(4).key.unwrap()).await, second.revision + 1);
    assert_eq!(server.guards().get_guard(get).await.unwrap_err().code(), Code::NotFound);
    server.stop().await;
}

#[tokio::test]
async fn guard_conflict_has_the_current_guard_and_repeat_its_answer() {
    let server = start().await;
    let id = |guard| v1::PutGuardRequest {
        options: Some(v1::WriteOptions { request_id: "g-1".to_owned(), ..Default::default() }),
        ..put(guard)
    };
    let first = server.guards().put_guard(id(stock_guard(3))).await.unwrap().into_inner();
    let stale = v1::PutGuardRequest { expected_revision: Some(first.revision + 7), ..put(stock_guard(5)) };
    let refused = server.guards().put_guard(stale).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused:?}");
    let details = pb::Status::decode(refused.details()).unwrap().details;
    let packed = details.iter().find(|any| any.type_url.ends_with("/damper.v1.Guard")).unwrap();
    assert_eq!(Some(v1::Guard::decode(&*packed.value).unwrap()), first.guard);
    let stale = v1::DeleteGuardRequest {
        key: stock_guard(3).key,
        expected_revision: Some(first.revision + 7),
        options: None,
    };
    assert_eq!(server.guards().delete_guard(stale).await.unwrap_err().code(), Code::Aborted);

    let again = server.guards().put_guard(id(stock_guard(3))).await.unwrap().into_inner();
    assert_eq!((again.revision, again.guard), (first.revision, first.guard));
    let other = server.guards().put_guard(id(stock_guard(4))).await.unwrap_err();
    assert_eq!(other.code(), Code::AlreadyExists);
    server.stop().await;
}

#[tokio::test]
async fn a_bad_guard_is_refused_with_all_its_faults() {
    let server = start().await;
    let mut bad = guard(key("sh op", "stock", "*"), 11);
    bad.owner = "x".repeat(256);
    let refused = server.guards().put_guard(put(bad)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let fields: Vec<String> = violations(&refused).into_iter().map(|(field, _)| field).collect();
    assert_eq!(fields, ["guard.key.caller_service", "guard.ceiling.max_attempts", "guard.owner"]);
    let mode = v1::RuleFilter { mode: Some(v1::Mode::Off.into()), ..Default::default() };
    let request = v1::ListGuardsRequest { filter: Some(mode), ..Default::default() };
    let refused = server.guards().list_guards(request).await.unwrap_err();
    assert_eq!(violations(&refused)[0].0, "filter.mode");
    assert_eq!(list(&server, v1::ListGuardsRequest::default()).await.total, 0);
    server.stop().await;
}

#[tokio::test]
async fn lists_come_in_pages_that_miss_nothing_and_narrow_by_filter() {
    let server = start().await;
    for n in 0..7 {
        put_guard(&server, guard(key("*", &format!("callee-{}", n % 3), &format!("s.S/M{n}")), 2)).await;
    }
    let (mut seen, mut page_token) = (Vec::new(), String::new());
    loop {
        let page =
            list(&server, v1::ListGuardsRequest { page_size: 3, page_token, ..Default::default() }).await;
        assert_eq!(page.total, 7);
        seen.extend(page.guards.into_iter().map(|guard| guard.key.unwrap().callee_method));
        if page.next_page_token.is_empty() {
            break;
        }
        page_token = page.next_page_token;
    }
    seen.sort();
    assert_eq!(seen, (0..7).map(|n| format!("s.S/M{n}")).collect::<Vec<_>>());
    let filter = v1::RuleFilter { callee_service: Some("callee-1".to_owned()), ..Default::default() };
    let narrowed = list(&server, v1::ListGuardsRequest { filter: Some(filter), ..Default::default() }).await;
    assert_eq!(narrowed.total, 2);
    server.stop().await;
}

#[tokio::test]
async fn rule_that_exceeds_its_guard_is_rejected_with_owner_and_field() {
    let server = start().await;
    put_guard(&server, stock_guard(3)).await;
    let refused = try_rule(&server, shop_rule(5)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let expected = ("rule.policy.retry.max_attempts".to_owned(), CEILING.to_owned());
    assert_eq!(violations(&refused), [expected]);
    let within = try_rule(&server, shop_rule(3)).await.unwrap();
    assert!(cuts(&within.findings).is_empty());
    let mut off = shop_rule(5);
    off.policy.as_mut().unwrap().mode = v1::Mode::Off.into();
    assert!(try_rule(&server, off).await.unwrap().changed, "what is off exceeds nothing");
    server.stop().await;
}

#[tokio::test]
async fn excess_on_some_routes_is_accepted_with_a_finding() {
    let server = start().await;
    put_guard(&server, stock_guard(3)).await;
    let answer = try_rule(&server, rule(key("shop", "*", "*"), 5)).await.unwrap();
    let expected = v1::Finding {
        code: "guard_cuts".to_owned(),
        subject: "shop * * *".to_owned(),
        field: "policy.retry.max_attempts".to_owned(),
        message: format!("{CEILING}; cut where both match"),
        severity: v1::Severity::Warning.into(),
        remedy: "Keep the settings of the rule within the guard, or ask the owner of the guard to raise it."
            .to_owned(),
    };
    assert_eq!(answer.findings, [expected]);
    server.stop().await;
}

#[tokio::test]
async fn new_guard_lists_cut_rules_and_they_can_be_applied_again() {
    let server = start().await;
    let (inside, across) = (shop_rule(5), rule(key("shop", "*", "*"), 4));
    for rule in [&inside, &across, &rule(key("shop", "till", "*"), 9)] {
        server.put(rule.clone()).await;
    }
    let listed = put_guard(&server, stock_guard(3)).await;
    let listed: Vec<(&str, &str)> =
        listed.findings.iter().map(|found| (found.subject.as_str(), found.message.as_str())).collect();
    let four = CEILING.replace('5', "4") + "; cut where both match";
    let five = format!("{CEILING}; cut everywhere");
    assert_eq!(listed, [("shop * * *", &*four), ("shop * stock stock.v1.Stock/Take", &*five)]);

    let again = try_rule(&server, inside.clone()).await.unwrap();
    assert!(!again.changed && cuts(&again.findings).len() == 1, "{again:?}");
    let applied = apply(&server, Default::default(), vec![put_change(inside), put_change(across)]).await;
    assert_eq!(applied.unwrap().unchanged, 2);
    let refused = try_rule(&server, shop_rule(4)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "a change must be within the guard");
    server.stop().await;
}

#[tokio::test]
async fn repeated_request_gets_its_answer_despite_a_new_guard() {
    let server = start().await;
    let request = v1::PutRuleRequest {
        rule: Some(shop_rule(5)),
        options: Some(v1::WriteOptions { request_id: "r-1".to_owned(), ..Default::default() }),
        ..Default::default()
    };
    let first = server.rules().put_rule(request.clone()).await.unwrap().into_inner();
    server.put(shop_rule(2)).await;
    put_guard(&server, stock_guard(3)).await;
    let again = server.rules().put_rule(request.clone()).await.unwrap().into_inner();
    assert_eq!((again.revision, again.changed), (first.revision, true));
    let mut other = request;
    other.options.as_mut().unwrap().request_id = "r-2".to_owned();
    let refused = server.rules().put_rule(other).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let get = v1::GetRuleRequest { key: shop_rule(2).key, min_revision: 0 };
    let there = server.rules().get_rule(get).await.unwrap().into_inner();
    assert_eq!(there.policy, shop_rule(2).policy, "the repetition wrote nothing");
    server.stop().await;
}

#[tokio::test]
async fn apply_checks_rules_against_the_guards_after_it() {
    let server = start().await;
    let guard_change = |guard| change(rule_change::Kind::PutGuard(guard));
    let tight = vec![put_change(shop_rule(5)), guard_change(stock_guard(3))];
    let refused = apply(&server, Default::default(), tight).await.unwrap_err();
    let expected = ("changes[0].put.policy.retry.max_attempts".to_owned(), CEILING.to_owned());
    assert_eq!(violations(&refused), [expected]);
    assert_eq!(list(&server, v1::ListGuardsRequest::default()).await.revision, 0, "all or nothing");

    put_guard(&server, stock_guard(2)).await;
    server.put(rule(key("till", "*", "*"), 6)).await;
    let wider = vec![guard_change(stock_guard(5)), put_change(shop_rule(5))];
    let applied = apply(&server, Default::default(), wider.clone()).await.unwrap();
    assert_eq!((applied.created, applied.updated), (1, 1));
    let results: Vec<(bool, usize)> =
        applied.results.iter().map(|result| (result.guard, cuts(&result.findings).len())).collect();
    assert_eq!(results, [(true, 1), (false, 0)], "the guard lists a rule outside the set: {applied:?}");
    assert_eq!(applied.results[0].findings[0].subject, "till * * *");
    assert_eq!(apply(&server, Default::default(), wider).await.unwrap().unchanged, 2);

    let gone = change(rule_change::Kind::DeleteGuard(key("*", "stock", "*")));
    let in_its_owner_s_stead = v1::WriteOptions { take_over: true, ..Default::default() };
    let applied = apply(&server, in_its_owner_s_stead, vec![put_change(shop_rule(9)), gone]).await.unwrap();
    assert_eq!((applied.updated, applied.deleted), (1, 1));
    let both = vec![guard_change(stock_guard(5)), guard_change(stock_guard(6))];
    let twice = apply(&server, Default::default(), both).await.unwrap_err();
    assert!(violations(&twice)[0].1.contains("also the key of changes[0]"), "{twice:?}");
    server.stop().await;
}

#[tokio::test]
async fn there_are_no_more_guards_than_allowed() {
    let server = start_with(|settings| settings.max_guards = 2).await;
    for n in 0..2 {
        put_guard(&server, guard(key("*", &format!("callee-{n}"), "*"), 2)).await;
    }
    for validate_only in [false, true] {
        let options = Some(v1::WriteOptions { validate_only, ..Default::default() });
        let request = v1::PutGuardRequest { options, ..put(stock_guard(2)) };
        assert_eq!(server.guards().put_guard(request).await.unwrap_err().code(), Code::ResourceExhausted);
        let options = v1::WriteOptions { validate_only, ..Default::default() };
        let set = vec![change(rule_change::Kind::PutGuard(stock_guard(2)))];
        assert_eq!(apply(&server, options, set).await.unwrap_err().code(), Code::ResourceExhausted);
    }
    server.put(shop_rule(2)).await;
    assert!(put_guard(&server, guard(key("*", "callee-0", "*"), 4)).await.changed, "a change is no growth");
    server.stop().await;
}

#[tokio::test]
async fn findings_are_bounded_and_the_last_one_counts_the_rest() {
    const RULES: usize = 1500;
    let server = start().await;
    let rules = (0..RULES).map(|n| put_change(rule(key("shop", "stock", &format!("s.S/M{n}")), 5)));
    apply(&server, Default::default(), rules.collect()).await.unwrap();
    let listed = put_guard(&server, stock_guard(3)).await.findings;
    assert_eq!(listed.len(), 1000);
    assert_eq!(listed[999].message, "and 501 more findings");
    let rules = (0..RULES).map(|n| put_change(rule(key("shop", "stock", &format!("s.S/M{n}")), 5)));
    let applied = apply(&server, Default::default(), rules.collect()).await.unwrap();
    let listed: Vec<&v1::Finding> = applied.results.iter().flat_map(|result| &result.findings).collect();
    assert_eq!((applied.unchanged as usize, applied.results.len(), listed.len()), (RULES, 1000, 1000));
    assert_eq!(listed[999].message, "and 1 more findings; 500 more resources, not checked for them");
    server.stop().await;
}

#[tokio::test]
async fn explain_shows_what_guards_leave_of_the_winner() {
    let server = start().await;
    server.put(shop_rule(5)).await;
    put_guard(&server, stock_guard(3)).await;
    put_guard(&server, guard(key("other", "stock", "*"), 1)).await;
    let repeat_limit = Some(v1::RepeatLimit { mode: v1::Mode::Enforce.into(), ratio: Some(0.2), min: None });
    let ceiling = Some(v1::Ceiling { repeat_limit, ..v1::Ceiling::default() });
    let limiting =
        v1::Guard { key: Some(key("*", "stock", "stock.v1.Stock/Take")), ceiling, ..v1::Guard::default() };
    put_guard(&server, limiting).await;
    let route = v1::RouteKey {
        caller_service: "shop".to_owned(),
        caller_cluster: "default".to_owned(),
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/Take".to_owned(),
    };
    let explain = v1::ExplainRequest { route: Some(route) };
    let answer = server.rules().explain(explain).await.unwrap().into_inner();
    assert_eq!(answer.winner.unwrap().policy, shop_rule(5).policy, "the winner is shown as written");
    assert_eq!(answer.effective.unwrap().retry.unwrap().max_attempts, Some(3));
    assert_eq!(answer.bound.unwrap().max_attempts, 3);
    let cut = v1::Cut {
        guard: stock_guard(3).key,
        owner: "team-stock".to_owned(),
        field: "retry.max_attempts".to_owned(),
        problem: "5 is more than 3".to_owned(),
    };
    assert_eq!(answer.cuts, [cut]);
    let limit = "each process of the callee accepts, per method in 10 s, retries and hedges up to 0.2 of the first attempts, and at least 3";
    assert!(answer.notes.iter().any(|note| note.starts_with(limit)), "{:?}", answer.notes);
    server.stop().await;
}

#[tokio::test]
async fn client_gets_its_guards_and_their_changes() {
    let server = start().await;
    server.put(shop_rule(5)).await;
    put_guard(&server, stock_guard(3)).await;
    put_guard(&server, guard(key("other", "stock", "*"), 2)).await;
    let mut shop = settled(&server, hello("shop")).await;
    let (message, rules, guards) = shop.whole_snapshot().await;
    assert_eq!((rules.len(), guards.len()), (1, 1));
    assert_eq!((&guards[0].key, &guards[0].ceiling), (&stock_guard(3).key, &stock_guard(3).ceiling));
    let policy = shop_rule(5).policy.unwrap();
    let retry = match &rules[0].kind {
        Some(distributed_rule::Kind::Policy(policy)) => policy.retry.clone().unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(retry.max_attempts, policy.retry.unwrap().max_attempts, "the client does the cutting");
    shop.ack(&message, vec![]).await;

    let put = put_guard(&server, stock_guard(2)).await;
    let (message, delta) = shop.delta().await;
    assert_eq!((message.revision, delta.changed.len()), (put.revision, 0));
    assert_eq!((delta.changed_guards.len(), delta.changed_guards[0].revision), (1, put.revision));
    put_guard(&server, guard(key("other", "stock", "*"), 3)).await;
    delete_guard(&server, stock_guard(2).key.unwrap()).await;
    let (_, delta) = shop.delta().await;
    assert_eq!((delta.changed_guards, delta.removed_guards), (vec![], vec![stock_guard(2).key.unwrap()]));

    drop(shop);
    let guard = put_guard(&server, stock_guard(4)).await;
    let resumed = v1::Hello { epoch: message.epoch, revision: message.revision, ..hello("shop") };
    let mut shop = settled(&server, resumed).await;
    let (message, delta) = shop.delta().await;
    assert_eq!((message.revision, delta.changed_guards.len()), (guard.revision, 1), "{delta:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_repeat_limit_reaches_the_callee_itself() {
    let server = start().await;
    let mut limit = stock_guard(3);
    let ceiling = limit.ceiling.as_mut().unwrap();
    ceiling.max_attempts = None;
    ceiling.repeat_limit = Some(v1::RepeatLimit { mode: v1::Mode::Enforce.into(), ..Default::default() });
    put_guard(&server, limit).await;
    let (_, _, guards) = settled(&server, hello("stock")).await.whole_snapshot().await;
    let sent = guards[0].ceiling.as_ref().and_then(|ceiling| ceiling.repeat_limit).unwrap();
    assert_eq!((sent.mode(), sent.ratio, sent.min), (v1::Mode::Enforce, Some(0.1), Some(3)));
    server.stop().await;
}

#[tokio::test]
async fn client_without_guard_support_gets_no_cut_rules() {
    let server = start().await;
    let mut old = hello("shop");
    old.features.retain(|feature| feature != damper_core::feature::GUARDS);
    server.put(shop_rule(5)).await;
    server.put(rule(key("shop", "till", "*"), 5)).await;
    let mut shop = settled(&server, old).await;
    let (_, rules, _) = shop.whole_snapshot().await;
    let is_off = |rule: &v1::DistributedRule| match &rule.kind {
        Some(distributed_rule::Kind::NeedsFeature(feature)) => Some(feature.clone()),
        _ => None,
    };
    assert!(rules.iter().all(|rule| is_off(rule).is_none()), "{rules:?}");

    let listed = put_guard(&server, stock_guard(3)).await;
    assert_eq!(listed.reach.unwrap().clients_lacking_features, 1);
    let (_, delta) = shop.delta().await;
    assert!(delta.changed_guards.is_empty());
    assert_eq!(delta.changed.len(), 1, "{delta:?}");
    assert_eq!(
        (&delta.changed[0].key, is_off(&delta.changed[0])),
        (&shop_rule(5).key, Some("guards".to_owned()))
    );
    assert_eq!(server.clients().await[0].withheld, [shop_rule(5).key.unwrap()]);

    // A guard for other callers changes nothing here.
    put_guard(&server, guard(key("other", "till", "*"), 1)).await;
    delete_guard(&server, stock_guard(3).key.unwrap()).await;
    let (_, delta) = shop.delta().await;
    assert_eq!(delta.changed.len(), 1);
    assert_eq!(is_off(&delta.changed[0]), None, "without the guard the rule is carried out again");
    assert!(server.clients().await[0].withheld.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn a_refused_guard_is_seen_until_its_next_version() {
    let server = start().await;
    server.put(shop_rule(2)).await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    shop.snapshot().await;
    let put = put_guard(&server, stock_guard(3)).await;
    let (message, _) = shop.delta().await;
    let refusal = v1::Refusal {
        key: stock_guard(3).key,
        revision: put.revision,
        reason: "ceiling.max_attempts: must be between 1 and 2, not 3".to_owned(),
        guard: true,
        kill: false,
    };
    shop.ack(&message, vec![refusal.clone()]).await;
    let client = server.client_that(|client| !client.refused.is_empty()).await;
    assert_eq!(client.refused, [refusal]);
    put_guard(&server, stock_guard(2)).await;
    server.client_that(|client| client.refused.is_empty()).await;
    server.stop().await;
}

#[tokio::test]
async fn many_guards_come_in_pages_below_the_limit_and_whole() {
    const GUARDS: usize = 9000;
    let server = start().await;
    let guards = (0..GUARDS).map(|n| guard(key("*", "stock", &format!("stock.v1.Stock/Method{n:0100}")), 2));
    let changes = guards.map(|guard| change(rule_change::Kind::PutGuard(guard))).collect();
    let applied = apply(&server, Default::default(), changes).await.unwrap();
    assert_eq!(applied.created as usize, GUARDS);
    let mut shop = settled(&server, hello("shop")).await;
    let (message, _, guards) = shop.whole_snapshot().await;
    assert_eq!((guards.len(), message.revision), (GUARDS, applied.revision));
    server.stop().await;
}

#[tokio::test]
async fn what_services_serve_and_hedge_is_counted() {
    let server = start().await;
    let mut stock = Agent::connect(&server, hello("stock")).await;
    stock.snapshot().await;
    let report = |n: u64| v1::Report {
        routes: vec![v1::RouteReport {
            callee_service: "till".to_owned(),
            callee_method: "till.v1.Till/Pay".to_owned(),
            calls: 10 * n,
            attempts: 14 * n,
            hedges: 3 * n,
            would_hedges: n,
            outer_loop_calls: 2 * n,
            ..Default::default()
        }],
        served: vec![v1::ServedReport {
            method: "stock.v1.Stock/Take".to_owned(),
            first_sends: 100 * n,
            damper_repeats: 5 * n,
            grpc_repeats: 4 * n,
            envoy_repeats: 3 * n,
            shed_repeats: 2 * n,
            would_shed_repeats: n,
        }],
        since: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        ..Default::default()
    };
    stock.report(report(1)).await;
    stock.report(report(2)).await;
    let route = "caller_service=\"stock\",caller_cluster=\"default\",callee_service=\"till\",\
                 callee_method=\"till.v1.Till/Pay\"";
    let method = "service=\"stock\",method=\"stock.v1.Stock/Take\"";
    let expected = [
        format!("damper_hedges_total{{{route}}} 6\n"),
        format!("damper_would_hedges_total{{{route}}} 2\n"),
        format!("damper_outer_loop_calls_total{{{route}}} 4\n"),
        format!("damper_served_requests_total{{{method},repeated_by=\"none\"}} 200\n"),
        format!("damper_served_requests_total{{{method},repeated_by=\"damper\"}} 10\n"),
        format!("damper_served_requests_total{{{method},repeated_by=\"grpc\"}} 8\n"),
        format!("damper_served_requests_total{{{method},repeated_by=\"envoy\"}} 6\n"),
        format!("damper_shed_repeats_total{{{method}}} 4\n"),
        format!("damper_would_shed_repeats_total{{{method}}} 2\n"),
    ];
    soon(async {
        loop {
            let metrics = server.get(server.metrics, "GET /metrics HTTP/1.1").await;
            if expected.iter().all(|line| metrics.contains(line)) {
                break;
            }
        }
    })
    .await;
    let listed = server.fleet().list_routes(v1::ListRoutesRequest::default()).await.unwrap().into_inner();
    assert_eq!((listed.routes[0].total_hedges, listed.routes[0].total_outer_loop_calls), (6, 4));
    // A restarted process counts from 0 again. Without a start time the server detects the restart by
    // counters that fell.
    stock.report(v1::Report { since: None, ..report(1) }).await;
    soon(async {
        loop {
            let metrics = server.get(server.metrics, "GET /metrics HTTP/1.1").await;
            if metrics.contains(&format!("damper_shed_repeats_total{{{method}}} 6\n")) {
                break;
            }
        }
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn a_client_without_credit_gets_the_rule_in_the_mode_ratio() {
    let server = start().await;
    server.put(shop_rule(3)).await;
    let mut old = hello("shop");
    old.features.retain(|feature| feature != damper_core::feature::CREDIT);
    for (hello, expected) in
        [(old, v1::RetryBreakerMode::Ratio), (hello("shop"), v1::RetryBreakerMode::Credit)]
    {
        let mut shop = settled(&server, hello).await;
        let (_, rules, _) = shop.whole_snapshot().await;
        let Some(v1::distributed_rule::Kind::Policy(policy)) = &rules[0].kind else { panic!("{rules:?}") };
        assert_eq!(policy.retry_breaker.as_ref().unwrap().mode(), expected);
        assert_eq!(server.clients().await[0].withheld, [], "nothing is withheld");
        drop(shop);
    }
    server.stop().await;
}
