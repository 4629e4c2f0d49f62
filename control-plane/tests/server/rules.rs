//! The admin API.

use damper_proto::v1;
use prost::Message as _;
use tonic::Code;
use tonic_types::{StatusExt as _, pb};

use crate::harness::{Running, header, key, put_change, rule, shop_rule, soon, start, start_in, start_with};

fn put(rule: v1::Rule) -> v1::PutRuleRequest {
    v1::PutRuleRequest { rule: Some(rule), ..Default::default() }
}

fn options(adjust: impl FnOnce(&mut v1::WriteOptions)) -> Option<v1::WriteOptions> {
    let mut options = v1::WriteOptions::default();
    adjust(&mut options);
    Some(options)
}

async fn all(server: &Running) -> v1::ListRulesResponse {
    let request = v1::ListRulesRequest { page_size: 1000, ..Default::default() };
    server.rules().list_rules(request).await.unwrap().into_inner()
}

async fn apply(
    server: &Running,
    options: v1::WriteOptions,
    changes: Vec<v1::ApplyRulesRequest>,
) -> Result<v1::ApplyRulesResponse, tonic::Status> {
    let requests: Vec<_> = std::iter::once(header(options)).chain(changes).collect();
    soon(server.rules().apply_rules(tokio_stream::iter(requests))).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn what_was_put_is_read_back_as_it_was_written() {
    let server = start().await;
    let mut request = put(shop_rule(4));
    request.options = options(|options| options.author = "ann".to_owned());
    let response = server.rules().put_rule(request).await.unwrap().into_inner();
    let read = server.rules().get_rule(v1::GetRuleRequest { key: shop_rule(4).key, min_revision: 0 }).await;
    let read = read.unwrap().into_inner();
    assert_eq!(read.policy, shop_rule(4).policy, "no default is written in");
    assert_eq!((read.revision, read.updated_by.as_str()), (response.revision, "ann"));
    assert!(read.updated_at.is_some());
    assert_eq!(response.rule, Some(read.clone()));

    let server = start_in(server.stop().await, |_| {}).await;
    assert_eq!(all(&server).await.rules, [read]);
    server.stop().await;
}

#[tokio::test]
async fn a_conflict_carries_the_current_rule_and_changes_nothing() {
    let server = start().await;
    let first = server.put(shop_rule(2)).await;
    for expected in [0, first.revision + 7] {
        let request = v1::PutRuleRequest { expected_revision: Some(expected), ..put(shop_rule(5)) };
        let refused = server.rules().put_rule(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::Aborted, "{refused:?}");
        assert_eq!(refused.get_details_precondition_failure().unwrap().violations[0].r#type, "REVISION");
        let details = pb::Status::decode(refused.details()).unwrap().details;
        let packed = details.iter().find(|any| any.type_url.ends_with("/damper.v1.Rule")).unwrap();
        assert_eq!(v1::Rule::decode(&*packed.value).unwrap(), first.rule.clone().unwrap());
    }
    let right = v1::PutRuleRequest { expected_revision: Some(first.revision), ..put(shop_rule(5)) };
    let second = server.rules().put_rule(right).await.unwrap().into_inner();
    assert_eq!(second.revision, first.revision + 1);
    let stale = v1::DeleteRuleRequest {
        key: shop_rule(5).key,
        expected_revision: Some(first.revision),
        options: None,
    };
    assert_eq!(server.rules().delete_rule(stale).await.unwrap_err().code(), Code::Aborted);
    assert_eq!(all(&server).await.total, 1);
    server.stop().await;
}

#[tokio::test]
async fn the_same_rule_again_changes_nothing() {
    let server = start().await;
    let first = server.put(shop_rule(2)).await;
    let again = server.put(shop_rule(2)).await;
    assert!(first.changed && !again.changed);
    assert_eq!((again.revision, again.rule), (first.revision, first.rule));
    server.stop().await;
}

#[tokio::test]
async fn validate_only_checks_everything_and_writes_nothing() {
    let server = start().await;
    let trial = |rule| v1::PutRuleRequest { options: options(|o| o.validate_only = true), ..put(rule) };
    let answer = server.rules().put_rule(trial(shop_rule(2))).await.unwrap().into_inner();
    assert!(answer.changed);
    let bad = server.rules().put_rule(trial(shop_rule(99))).await.unwrap_err();
    assert_eq!(bad.code(), Code::InvalidArgument);
    let conflict = v1::PutRuleRequest { expected_revision: Some(3), ..trial(shop_rule(2)) };
    assert_eq!(server.rules().put_rule(conflict).await.unwrap_err().code(), Code::Aborted);
    let only = v1::WriteOptions { validate_only: true, ..Default::default() };
    let applied = apply(&server, only, vec![put_change(shop_rule(2))]).await.unwrap();
    assert_eq!(applied.created, 1);
    let listed = all(&server).await;
    assert_eq!((listed.total, listed.revision), (0, 0));
    server.stop().await;
}

#[tokio::test]
async fn repeated_request_gets_its_answer_unless_the_body_differs() {
    let server = start().await;
    let request =
        |n| v1::PutRuleRequest { options: options(|o| o.request_id = "r-1".to_owned()), ..put(shop_rule(n)) };
    let first = server.rules().put_rule(request(2)).await.unwrap().into_inner();
    server.put(rule(key("other", "stock", "*"), 3)).await;
    let again = server.rules().put_rule(request(2)).await.unwrap().into_inner();
    assert_eq!((again.revision, again.rule, again.changed), (first.revision, first.rule, true));
    let other = server.rules().put_rule(request(3)).await.unwrap_err();
    assert_eq!(other.code(), Code::AlreadyExists);
    assert_eq!(all(&server).await.revision, first.revision + 1);
    server.stop().await;
}

#[tokio::test]
async fn an_apply_is_one_revision_or_nothing() {
    let server = start().await;
    let old = server.put(rule(key("a", "b", "*"), 2)).await;
    let delete = v1::RuleChange {
        kind: Some(v1::rule_change::Kind::Delete(key("a", "b", "*"))),
        expected_revision: Some(old.revision),
    };
    let delete = v1::ApplyRulesRequest { kind: Some(v1::apply_rules_request::Kind::Change(delete)) };
    let changes = vec![put_change(shop_rule(2)), delete, put_change(rule(key("c", "d", "*"), 2))];

    let mut one_bad = changes.clone();
    one_bad.push(put_change(shop_rule(11)));
    one_bad.push(put_change(rule(key("c", "d", "*"), 2)));
    let refused = apply(&server, Default::default(), one_bad).await.unwrap_err();
    let violations = refused.get_details_bad_request().unwrap().field_violations;
    let fields: Vec<&str> = violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(fields, ["changes[3].put.policy.retry.max_attempts", "changes[4]"]);
    assert!(violations[1].description.contains("changes[2]"), "{violations:?}");
    assert_eq!(all(&server).await.revision, old.revision);

    let done = apply(&server, Default::default(), changes).await.unwrap();
    assert_eq!((done.created, done.updated, done.unchanged, done.deleted), (2, 0, 0, 1));
    assert_eq!(done.revision, old.revision + 1);
    assert_eq!(done.results.len(), 3);
    let listed = all(&server).await;
    assert_eq!((listed.total, listed.revision), (2, done.revision));
    assert!(listed.rules.iter().all(|rule| rule.revision == done.revision));

    let again = vec![put_change(shop_rule(2)), put_change(rule(key("c", "d", "*"), 3))];
    let done = apply(&server, Default::default(), again).await.unwrap();
    assert_eq!((done.created, done.updated, done.unchanged), (0, 1, 1));
    server.stop().await;
}

#[tokio::test]
async fn a_list_comes_in_pages_whose_tokens_fit_their_filter_only() {
    let server = start().await;
    let changes =
        (0..25).map(|n| put_change(rule(key("shop", "stock", &format!("s.S/M{n:02}")), 2))).collect();
    apply(&server, Default::default(), changes).await.unwrap();
    server.put(rule(key("other", "stock", "*"), 2)).await;
    let filter = v1::RuleFilter { caller_service: Some("shop".to_owned()), ..Default::default() };
    let mut request = v1::ListRulesRequest { filter: Some(filter), page_size: 10, ..Default::default() };
    let mut seen = Vec::new();
    loop {
        let page = server.rules().list_rules(request.clone()).await.unwrap().into_inner();
        assert_eq!(page.total, 25);
        assert!(page.rules.len() <= 10);
        seen.extend(page.rules.into_iter().map(|rule| rule.key.unwrap().callee_method));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let expected: Vec<String> = (0..25).map(|n| format!("s.S/M{n:02}")).collect();
    assert_eq!(seen, expected);
    request.filter = None;
    let refused = server.rules().list_rules(request).await.unwrap_err();
    assert_eq!(refused.get_details_bad_request().unwrap().field_violations[0].field, "page_token");
    server.stop().await;
}

#[tokio::test]
async fn explain_names_winner_losers_and_bound() {
    let server = start().await;
    server.put(rule(key("*", "*", "*"), 5)).await;
    server.put(shop_rule(3)).await;
    let route = v1::RouteKey {
        caller_service: "shop".to_owned(),
        caller_cluster: "default".to_owned(),
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/Take".to_owned(),
    };
    let request = v1::ExplainRequest { route: Some(route) };
    let answer = server.rules().explain(request).await.unwrap().into_inner();
    assert_eq!(answer.winner.unwrap().key, shop_rule(3).key);
    assert_eq!(answer.losers.len(), 1);
    assert!(answer.losers[0].reason.contains("callee_service"), "{:?}", answer.losers);
    let bound = answer.bound.unwrap();
    assert_eq!((bound.max_attempts, bound.steady_attempts_per_call), (3, 1.02));
    let breaker = damper_core::RetryBreaker::default();
    assert_eq!(bound.free_retries_per_window, breaker.min_failures);
    assert_eq!(bound.window, prost_types::Duration::try_from(breaker.window.length()).ok());
    assert!(!answer.notes.iter().any(|note| note.contains("at most")), "listed once: {:?}", answer.notes);
    let effective = answer.effective.unwrap();
    assert!(effective.retry_breaker.unwrap().ratio.is_some(), "every default is listed");
    server.stop().await;
}

#[tokio::test]
async fn deleting_and_getting_what_is_not_there_is_not_found() {
    let server = start().await;
    let delete = v1::DeleteRuleRequest { key: shop_rule(1).key, ..Default::default() };
    assert_eq!(server.rules().delete_rule(delete).await.unwrap_err().code(), Code::NotFound);
    let get = v1::GetRuleRequest { key: shop_rule(1).key, min_revision: 0 };
    assert_eq!(server.rules().get_rule(get).await.unwrap_err().code(), Code::NotFound);
    server.stop().await;
}

#[tokio::test]
async fn key_without_a_rule_names_the_most_similar_rule() {
    let server = start().await;
    server.put(shop_rule(2)).await;
    let mut key = shop_rule(2).key.unwrap();
    let known =
        format!("{} {} {} {}", key.caller_service, key.caller_cluster, key.callee_service, key.callee_method);
    key.callee_service.pop();
    let get = v1::GetRuleRequest { key: Some(key), min_revision: 0 };
    let missing = server.rules().get_rule(get).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    assert!(missing.message().ends_with(&format!("; did you mean {known}?")), "{missing}");
    server.stop().await;
}

#[tokio::test]
async fn rule_without_a_route_lists_similar_names() {
    use crate::harness::{Agent, hello};
    let server = start().await;
    let _shop = Agent::connect(&server, hello("checkout")).await;
    server.client_that(|_| true).await;
    let reach = server.put(rule(key("chekout", "stock", "*"), 2)).await.reach.unwrap();
    assert_eq!((reach.clients, reach.routes), (0, 0));
    assert_eq!(reach.nearest, ["caller_service: checkout"]);
    let reach = server.put(rule(key("checkout", "stock", "*"), 2)).await.reach.unwrap();
    assert_eq!((reach.clients, reach.nearest.len()), (1, 0));
    server.stop().await;
}

#[tokio::test]
async fn the_limit_of_rules_holds_for_put_and_apply() {
    let server = start_with(|settings| settings.max_rules = 3).await;
    let many =
        |n: u32| (0..n).map(|n| put_change(rule(key("shop", "stock", &format!("s.S/M{n}")), 2))).collect();
    let refused = apply(&server, Default::default(), many(4)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    apply(&server, Default::default(), many(3)).await.unwrap();
    let refused = server.rules().put_rule(put(shop_rule(2))).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(all(&server).await.total, 3);
    server.stop().await;
}
