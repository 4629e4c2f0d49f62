//! The history: changes, earlier versions and rollback.

use std::time::SystemTime;

use damper_proto::v1::{self, object, object_key, rule_change, rule_result};
use damper_store::{OpenError, Store, sled::SledStore};
use tokio_stream::StreamExt as _;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::harness::{Running, header, key, put_change, rule, shop_rule, soon, start, start_in};

fn guard(max_attempts: u32) -> v1::Guard {
    let ceiling = v1::Ceiling { max_attempts: Some(max_attempts), ..Default::default() };
    v1::Guard { key: Some(key("*", "stock", "*")), ceiling: Some(ceiling), ..Default::default() }
}

async fn put_guard(server: &Running, max_attempts: u32) -> u64 {
    let request = v1::PutGuardRequest { guard: Some(guard(max_attempts)), ..Default::default() };
    soon(server.guards().put_guard(request)).await.unwrap().into_inner().revision
}

fn options(author: &str, reason: &str) -> v1::WriteOptions {
    v1::WriteOptions { author: author.to_owned(), reason: reason.to_owned(), ..Default::default() }
}

fn of_rule(key: v1::Pattern) -> Option<v1::ObjectKey> {
    Some(v1::ObjectKey { kind: Some(object_key::Kind::Rule(key)) })
}

fn of_guard() -> Option<v1::ObjectKey> {
    Some(v1::ObjectKey { kind: Some(object_key::Kind::Guard(guard(1).key.unwrap())) })
}

fn shop_key() -> v1::Pattern {
    shop_rule(1).key.unwrap()
}

async fn list(server: &Running, request: v1::ListChangesRequest) -> v1::ListChangesResponse {
    soon(server.history().list_changes(request)).await.unwrap().into_inner()
}

async fn revisions(server: &Running, filter: v1::ChangeFilter) -> Vec<u64> {
    let listed = list(server, v1::ListChangesRequest { filter: Some(filter), ..Default::default() }).await;
    listed.changes.iter().map(|change| change.revision).collect()
}

/// Returns the attempts that a rule or guard allows.
fn attempts(object: Option<&v1::Object>) -> Option<u32> {
    match object?.kind.as_ref().unwrap() {
        object::Kind::Rule(rule) => rule.policy.as_ref().unwrap().retry.as_ref().unwrap().max_attempts,
        object::Kind::Guard(guard) => guard.ceiling.as_ref().unwrap().max_attempts,
        object::Kind::Kill(_) | object::Kind::Token(_) | object::Kind::Queue(_) | object::Kind::Jobs(_) => {
            panic!("{object:?}")
        }
    }
}

fn steps(objects: &[v1::ObjectChange]) -> Vec<(Option<u32>, Option<u32>)> {
    objects.iter().map(|change| (attempts(change.before.as_ref()), attempts(change.after.as_ref()))).collect()
}

async fn diff(server: &Running, from: u64, to: Option<u64>) -> Result<v1::DiffRevisionsResponse, Status> {
    let request =
        v1::DiffRevisionsRequest { from_revision: Some(from), to_revision: to, ..Default::default() };
    soon(server.history().diff_revisions(request)).await.map(tonic::Response::into_inner)
}

fn back(key: Option<v1::ObjectKey>, to: u64) -> v1::RollbackRequest {
    v1::RollbackRequest { key, to_revision: Some(to), ..Default::default() }
}

async fn roll_back(server: &Running, request: v1::RollbackRequest) -> Result<v1::ApplyRulesResponse, Status> {
    soon(server.history().rollback(request)).await.map(tonic::Response::into_inner)
}

fn all_back(to: u64) -> v1::RollbackAllRequest {
    let options = Some(options("kim", "incident 7"));
    v1::RollbackAllRequest { to_revision: Some(to), expected_revision: None, options }
}

async fn roll_all_back(
    server: &Running,
    request: v1::RollbackAllRequest,
) -> Result<v1::ApplyRulesResponse, Status> {
    soon(server.history().rollback_all(request)).await.map(tonic::Response::into_inner)
}

/// Returns the rules and guards in force, without author and time.
async fn state(server: &Running) -> (Vec<v1::Rule>, Vec<v1::Guard>) {
    let request = v1::ListRulesRequest { page_size: 1000, ..Default::default() };
    let rules = soon(server.rules().list_rules(request)).await.unwrap().into_inner().rules;
    let request = v1::ListGuardsRequest { page_size: 1000, ..Default::default() };
    let guards = soon(server.guards().list_guards(request)).await.unwrap().into_inner().guards;
    let rule = |rule: v1::Rule| v1::Rule { key: rule.key, policy: rule.policy, ..Default::default() };
    let guard = |guard: v1::Guard| v1::Guard { key: guard.key, ceiling: guard.ceiling, ..Default::default() };
    (rules.into_iter().map(rule).collect(), guards.into_iter().map(guard).collect())
}

fn violations(status: &Status) -> Vec<String> {
    let violations = status.get_details_bad_request().unwrap().field_violations;
    violations.into_iter().map(|violation| violation.field).collect()
}

/// Five revisions: a rule with 3 and then 5 attempts, another and a guard in one set, the rule removed, the guard
/// changed.
async fn five_changes(server: &Running) {
    let mut first = v1::PutRuleRequest { rule: Some(shop_rule(3)), ..Default::default() };
    first.options = Some(options("ann", "a first try"));
    server.rules().put_rule(first).await.unwrap();
    server.put(shop_rule(5)).await;
    let guard_change =
        v1::RuleChange { kind: Some(rule_change::Kind::PutGuard(guard(6))), ..Default::default() };
    let guard_change =
        v1::ApplyRulesRequest { kind: Some(v1::apply_rules_request::Kind::Change(guard_change)) };
    let set = [header(options("ci", "")), put_change(rule(key("a", "b", "*"), 2)), guard_change];
    soon(server.rules().apply_rules(tokio_stream::iter(set))).await.unwrap();
    server.delete(shop_key()).await;
    assert_eq!(put_guard(server, 4).await, 5);
}

#[tokio::test]
async fn changes_are_listed_newest_first_with_before_and_after() {
    let server = start().await;
    let none = list(&server, v1::ListChangesRequest::default()).await;
    assert_eq!((none.changes.len(), none.revision, none.oldest_revision), (0, 0, 0));
    let begun = SystemTime::now();
    five_changes(&server).await;
    let listed = list(&server, v1::ListChangesRequest::default()).await;
    assert_eq!((listed.revision, listed.oldest_revision, listed.next_page_token.as_str()), (5, 0, ""));
    let found: Vec<_> =
        listed.changes.iter().map(|change| (change.revision, steps(&change.objects))).collect();
    let expected = [
        (5, vec![(Some(6), Some(4))]),
        (4, vec![(Some(5), None)]),
        (3, vec![(None, Some(2)), (None, Some(6))]),
        (2, vec![(Some(3), Some(5))]),
        (1, vec![(None, Some(3))]),
    ];
    assert_eq!(found, expected);
    let first = &listed.changes[4];
    assert_eq!((first.author.as_str(), first.reason.as_str()), ("ann", "a first try"));
    assert!(SystemTime::try_from(first.at.unwrap()).unwrap() >= begun - std::time::Duration::from_secs(1));
    let Some(object::Kind::Rule(before)) = listed.changes[3].objects[0].before.clone().unwrap().kind else {
        panic!("no rule: {listed:?}");
    };
    assert_eq!((before.revision, before.updated_by.as_str()), (1, "ann"));
    assert_eq!(before.key, Some(shop_key()));
    server.stop().await;
}

#[tokio::test]
async fn every_part_of_a_filter_narrows_the_list() {
    let server = start().await;
    five_changes(&server).await;
    let names = |names| v1::ChangeFilter { names: Some(names), ..Default::default() };
    let stock = v1::RuleFilter { callee_service: Some("stock".to_owned()), ..Default::default() };
    assert_eq!(revisions(&server, names(stock.clone())).await, [5, 4, 3, 2, 1]);
    let guards = v1::ChangeFilter { kind: v1::ObjectKind::Guard.into(), ..names(stock.clone()) };
    assert_eq!(revisions(&server, guards).await, [5, 3]);
    let rules = v1::ChangeFilter { kind: v1::ObjectKind::Rule.into(), ..names(stock) };
    assert_eq!(revisions(&server, rules).await, [4, 2, 1]);
    let by = v1::ChangeFilter { author: "ci".to_owned(), ..Default::default() };
    assert_eq!(revisions(&server, by).await, [3]);
    let range = v1::ChangeFilter { min_revision: 2, max_revision: 4, ..Default::default() };
    assert_eq!(revisions(&server, range).await, [4, 3, 2]);
    let third = list(&server, v1::ListChangesRequest::default()).await.changes[2].clone();
    let since = v1::ChangeFilter { since: third.at, ..Default::default() };
    assert_eq!(revisions(&server, since).await, [5, 4, 3]);
    let until = v1::ChangeFilter { until: third.at, ..Default::default() };
    assert_eq!(revisions(&server, until).await, [2, 1]);

    let mode = v1::RuleFilter { mode: Some(v1::Mode::Off.into()), ..Default::default() };
    let bad = v1::ChangeFilter { kind: 9, min_revision: 4, max_revision: 2, ..names(mode) };
    let request = v1::ListChangesRequest { filter: Some(bad), ..Default::default() };
    let refused = server.history().list_changes(request).await.unwrap_err();
    assert_eq!(violations(&refused), ["filter.names.mode", "filter.kind", "filter.max_revision"]);
    server.stop().await;
}

#[tokio::test]
async fn pages_hold_what_was_there_while_changes_go_on() {
    const BEFORE: u64 = 150;
    let server = start().await;
    for attempts in 0..BEFORE {
        server.put(shop_rule(2 + (attempts % 8) as u32)).await;
    }
    let filter = v1::ChangeFilter::default();
    let mut page_token = String::new();
    let mut seen = Vec::new();
    loop {
        let request = v1::ListChangesRequest { filter: Some(filter.clone()), page_size: 7, page_token };
        let page = list(&server, request).await;
        seen.extend(page.changes.iter().map(|change| change.revision));
        server.put(rule(key("a", "b", "*"), 2 + (seen.len() % 8) as u32)).await;
        if page.next_page_token.is_empty() {
            break;
        }
        page_token = page.next_page_token;
        let other = v1::ChangeFilter { author: "x".to_owned(), ..Default::default() };
        let request =
            v1::ListChangesRequest { filter: Some(other), page_size: 7, page_token: page_token.clone() };
        let refused = server.history().list_changes(request).await.unwrap_err();
        assert_eq!(violations(&refused), ["page_token"]);
    }
    assert_eq!(seen, (1..=BEFORE).rev().collect::<Vec<_>>());
    server.stop().await;
}

#[tokio::test]
async fn a_change_of_many_is_shown_in_part_and_exported_whole() {
    const RULES: usize = 250;
    let server = start().await;
    let set = (0..RULES).map(|n| put_change(rule(key(&format!("c{n:03}"), "b", "*"), 3)));
    let set: Vec<_> = [header(v1::WriteOptions::default())].into_iter().chain(set).collect();
    soon(server.rules().apply_rules(tokio_stream::iter(set))).await.unwrap();
    let listed = list(&server, v1::ListChangesRequest::default()).await;
    assert_eq!((listed.changes[0].objects.len(), listed.changes[0].object_count), (100, 250));
    let exported = export(&server, v1::ChangeFilter::default()).await.unwrap();
    assert_eq!(exported.len(), RULES);
    assert!(exported.iter().all(|found| found.objects.len() == 1 && found.object_count == 250));

    let mut found = Vec::new();
    let mut request =
        v1::DiffRevisionsRequest { from_revision: Some(0), page_size: 60, ..Default::default() };
    loop {
        let page = soon(server.history().diff_revisions(request.clone())).await.unwrap().into_inner();
        assert_eq!((page.to_revision, page.total), (1, 250), "the first page has the last revision");
        found.extend(page.objects.into_iter().map(|change| change.key.unwrap()));
        server.put(shop_rule(2 + (found.len() / 60) as u32)).await;
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    let keys: Vec<_> = (0..RULES).map(|n| of_rule(key(&format!("c{n:03}"), "b", "*")).unwrap()).collect();
    assert_eq!(found, keys);
    server.stop().await;
}

async fn export(server: &Running, filter: v1::ChangeFilter) -> Result<Vec<v1::Change>, Status> {
    let request = v1::ExportAuditRequest { filter: Some(filter) };
    let stream = soon(server.history().export_audit(request)).await?.into_inner();
    soon(stream.collect::<Result<Vec<_>, _>>()).await
}

#[tokio::test]
async fn the_audit_log_has_a_message_for_each_object_oldest_first() {
    let server = start().await;
    five_changes(&server).await;
    let found = |exported: Vec<v1::Change>| -> Vec<_> {
        exported.iter().map(|change| (change.revision, steps(&change.objects)[0])).collect()
    };
    let all = found(export(&server, v1::ChangeFilter::default()).await.unwrap());
    let expected = [
        (1, (None, Some(3))),
        (2, (Some(3), Some(5))),
        (3, (None, Some(2))),
        (3, (None, Some(6))),
        (4, (Some(5), None)),
        (5, (Some(6), Some(4))),
    ];
    assert_eq!(all, expected);
    let guards =
        v1::ChangeFilter { kind: v1::ObjectKind::Guard.into(), min_revision: 4, ..Default::default() };
    assert_eq!(found(export(&server, guards).await.unwrap()), [(5, (Some(6), Some(4)))]);
    server.stop().await;
}

#[tokio::test]
async fn an_object_is_shown_as_it_was_at_each_revision() {
    let server = start().await;
    five_changes(&server).await;
    let at = |key, revision| {
        let server = &server;
        async move {
            let request = v1::GetObjectRequest { key, revision };
            let object = soon(server.history().get_object(request)).await;
            object.map(|object| attempts(Some(object.get_ref()))).map_err(|status| status.code())
        }
    };
    let shop = || of_rule(shop_key());
    let was = [Err(Code::NotFound), Ok(Some(3)), Ok(Some(5)), Ok(Some(5)), Err(Code::NotFound)];
    for (revision, was) in was.into_iter().enumerate() {
        assert_eq!(at(shop(), Some(revision as u64)).await, was, "{revision}");
    }
    assert_eq!(at(of_guard(), Some(3)).await, Ok(Some(6)));
    assert_eq!(at(of_guard(), None).await, Ok(Some(4)));
    assert_eq!(at(shop(), Some(6)).await, Err(Code::InvalidArgument), "there is no such revision yet");
    assert_eq!(at(None, None).await, Err(Code::InvalidArgument));
    server.stop().await;
}

#[tokio::test]
async fn diff_omits_changes_that_were_reverted() {
    let server = start().await;
    five_changes(&server).await;
    let found = diff(&server, 1, None).await.unwrap();
    assert_eq!((found.from_revision, found.to_revision, found.total), (1, 5, 3));
    assert_eq!(steps(&found.objects), [(None, Some(2)), (Some(3), None), (None, Some(4))]);
    let backwards = diff(&server, 5, Some(1)).await.unwrap();
    assert_eq!(steps(&backwards.objects), [(Some(2), None), (None, Some(3)), (Some(4), None)]);
    assert_eq!(diff(&server, 2, Some(2)).await.unwrap().objects, []);
    put_guard(&server, 6).await;
    let found = diff(&server, 3, None).await.unwrap();
    assert_eq!(steps(&found.objects), [(Some(5), None)], "the guard is as it was");
    assert_eq!(violations(&diff(&server, 3, Some(9)).await.unwrap_err()), ["to_revision"]);
    let none = v1::DiffRevisionsRequest::default();
    let refused = server.history().diff_revisions(none).await.unwrap_err();
    assert_eq!(violations(&refused), ["from_revision"]);
    server.stop().await;
}

#[tokio::test]
async fn one_rule_or_guard_is_rolled_back_in_a_new_revision() {
    let server = start().await;
    five_changes(&server).await;
    let tried = v1::WriteOptions { validate_only: true, ..Default::default() };
    let tried = v1::RollbackRequest { options: Some(tried), ..back(of_rule(shop_key()), 1) };
    let tried = roll_back(&server, tried).await.unwrap();
    assert_eq!((tried.revision, tried.created), (5, 1));

    let mut request = back(of_rule(shop_key()), 1);
    request.options = Some(v1::WriteOptions {
        request_id: "r-1".to_owned(),
        author: "kim".to_owned(),
        ..Default::default()
    });
    let done = roll_back(&server, request.clone()).await.unwrap();
    assert_eq!((done.revision, done.created), (6, 1));
    let get = v1::GetRuleRequest { key: Some(shop_key()), min_revision: 6 };
    let there = server.rules().get_rule(get).await.unwrap().into_inner();
    assert_eq!((there.policy, there.revision), (shop_rule(3).policy, 6));
    assert_eq!(there.updated_by, "kim", "it is kim's change, not ann's");
    let change = list(&server, v1::ListChangesRequest::default()).await.changes[0].clone();
    assert_eq!((change.author.as_str(), change.reason.as_str()), ("kim", "rollback to revision 1"));

    assert_eq!(put_guard(&server, 8).await, 7);
    let again = roll_back(&server, request).await.unwrap();
    assert_eq!((again.revision, again.created, again.results.len()), (6, 1, 1), "the first answer");
    let guard = roll_back(&server, back(of_guard(), 5)).await.unwrap();
    assert_eq!((guard.revision, guard.updated, guard.results[0].guard), (8, 1, true));
    let same = roll_back(&server, back(of_guard(), 5)).await.unwrap();
    assert_eq!((same.revision, same.unchanged), (8, 1), "nothing is written");
    let gone = roll_back(&server, back(of_rule(shop_key()), 0)).await.unwrap();
    assert_eq!((gone.revision, gone.deleted), (9, 1));
    assert_eq!(gone.results[0].change(), rule_result::Change::Deleted);
    let nothing = roll_back(&server, back(of_rule(shop_key()), 0)).await.unwrap_err();
    assert_eq!(nothing.code(), Code::NotFound);
    server.stop().await;
}

#[tokio::test]
async fn a_rollback_is_checked_as_any_write() {
    let server = start().await;
    server.put(shop_rule(5)).await;
    server.put(shop_rule(2)).await;
    put_guard(&server, 3).await;
    let refused = roll_back(&server, back(of_rule(shop_key()), 1)).await.unwrap_err();
    assert_eq!(violations(&refused), ["policy.retry.max_attempts"], "{refused:?}");
    let stale = v1::RollbackRequest { expected_revision: Some(1), ..back(of_guard(), 0) };
    let stale = roll_back(&server, stale).await.unwrap_err();
    assert_eq!(stale.code(), Code::Aborted);
    assert_eq!(stale.get_details_precondition_failure().unwrap().violations[0].subject, "guard * * stock *");

    let long = v1::WriteOptions { reason: "x".repeat(2000), ..Default::default() };
    let bad = v1::RollbackRequest { options: Some(long), ..Default::default() };
    let refused = roll_back(&server, bad).await.unwrap_err();
    assert_eq!(violations(&refused), ["key", "options.reason", "to_revision"]);
    let refused = roll_all_back(&server, v1::RollbackAllRequest::default()).await.unwrap_err();
    assert_eq!(violations(&refused), ["options.reason", "to_revision"]);
    let future = roll_all_back(&server, all_back(4)).await.unwrap_err();
    assert_eq!(violations(&future), ["to_revision"]);
    assert_eq!(list(&server, v1::ListChangesRequest::default()).await.revision, 3);
    server.stop().await;
}

#[tokio::test]
async fn everything_is_rolled_back_to_each_revision() {
    let server = start().await;
    let mut states = vec![state(&server).await];
    five_changes(&server).await;
    for revision in 1..=5 {
        roll_all_back(&server, all_back(revision)).await.unwrap();
        states.push(state(&server).await);
    }
    assert_eq!(states[1].0, [shop_rule(3)]);
    assert_eq!((states[3].0.len(), &states[3].1[0].ceiling), (2, &guard(6).ceiling));
    assert_eq!((states[5].0.len(), &states[5].1[0].ceiling), (1, &guard(4).ceiling));
    let server = start_in(server.stop().await, |_| {}).await;
    for (revision, was) in states.iter().enumerate().rev() {
        roll_all_back(&server, all_back(revision as u64)).await.unwrap();
        assert_eq!(state(&server).await, *was, "{revision}");
    }
    let before = list(&server, v1::ListChangesRequest::default()).await.revision;
    let same = roll_all_back(&server, all_back(before)).await.unwrap();
    assert_eq!((same.revision, same.results.len()), (before, 0));
    server.stop().await;
}

#[tokio::test]
async fn everything_is_rolled_back_at_one_revision_and_once() {
    let server = start().await;
    five_changes(&server).await;
    let tried = v1::WriteOptions { validate_only: true, ..options("kim", "try") };
    let tried = v1::RollbackAllRequest { options: Some(tried), ..all_back(2) };
    let tried = roll_all_back(&server, tried).await.unwrap();
    assert_eq!((tried.revision, tried.created, tried.deleted), (5, 1, 2));
    for wrong in [0, 4, 6] {
        let request = v1::RollbackAllRequest { expected_revision: Some(wrong), ..all_back(2) };
        let refused = roll_all_back(&server, request).await.unwrap_err();
        assert_eq!(refused.code(), Code::Aborted, "{refused:?}");
        assert!(refused.message().contains("the store has changed: it is at revision 5"), "{refused:?}");
    }
    let named = v1::WriteOptions { request_id: "all-1".to_owned(), ..options("kim", "incident 7") };
    let request = v1::RollbackAllRequest { expected_revision: Some(5), options: Some(named), ..all_back(2) };
    let done = roll_all_back(&server, request.clone()).await.unwrap();
    assert_eq!((done.revision, done.created, done.updated, done.deleted), (6, 1, 0, 2));
    server.put(shop_rule(4)).await;
    let again = roll_all_back(&server, request.clone()).await.unwrap();
    assert_eq!(again, done, "a repeated request gets the first answer");
    let other = v1::RollbackAllRequest { to_revision: Some(1), ..request };
    assert_eq!(roll_all_back(&server, other).await.unwrap_err().code(), Code::AlreadyExists);
    server.stop().await;
}

#[tokio::test]
async fn what_a_guard_cut_then_is_cut_again_and_not_refused() {
    let server = start().await;
    server.put(shop_rule(5)).await;
    put_guard(&server, 3).await;
    server.delete(shop_key()).await;
    let done = roll_all_back(&server, all_back(2)).await.unwrap();
    let cut = &done.results[0].findings[0];
    assert_eq!((done.created, cut.code.as_str()), (1, "guard_cuts"), "{done:?}");
    assert_eq!(cut.field, "policy.retry.max_attempts");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_a_concurrent_rollback_and_write_wins() {
    const ROUNDS: u64 = 40;
    let server = start().await;
    let mut at = server.put(shop_rule(2)).await.revision;
    let mut won = [0, 0];
    for round in 0..ROUNDS {
        let put = v1::PutRuleRequest {
            rule: Some(shop_rule(3 + (round % 6) as u32)),
            expected_revision: Some(at),
            options: None,
        };
        let (everything, mut rules, mut history) = (round % 2 == 0, server.rules(), server.history());
        let rolled = async {
            if everything {
                let request = v1::RollbackAllRequest { expected_revision: Some(at), ..all_back(0) };
                history.rollback_all(request).await
            } else {
                let request =
                    v1::RollbackRequest { expected_revision: Some(at), ..back(of_rule(shop_key()), 0) };
                history.rollback(request).await
            }
        };
        let (put, rolled) = soon(async { tokio::join!(rules.put_rule(put), rolled) }).await;
        let (put, rolled) =
            (put.map(|done| done.get_ref().revision), rolled.map(|done| done.get_ref().revision));
        match (put, rolled) {
            (Ok(revision), Err(refused)) => {
                assert_eq!((revision, refused.code()), (at + 1, Code::Aborted), "{refused:?}");
                won[0] += 1;
                at = revision;
            }
            (Err(refused), Ok(revision)) => {
                assert_eq!((revision, refused.code()), (at + 1, Code::Aborted), "{refused:?}");
                won[1] += 1;
                at = server.put(shop_rule(2)).await.revision;
            }
            both => panic!("round {round}: {both:?}"),
        }
    }
    assert_eq!(won[0] + won[1], ROUNDS);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_rolled_back_although_others_write() {
    let server = start().await;
    let to = server.put(shop_rule(2)).await.revision;
    let writes = async {
        for attempts in 0..60 {
            server.put(rule(key("a", "b", "*"), 2 + attempts % 8)).await;
        }
    };
    let rolled = async {
        for _ in 0..6 {
            let request = all_back(to);
            match roll_all_back(&server, request).await {
                Ok(done) => {
                    let found = diff(&server, to, Some(done.revision)).await.unwrap();
                    assert_eq!(found.objects, [], "at its revision everything is as it was");
                }
                Err(refused) => assert_eq!(refused.code(), Code::Aborted, "{refused:?}"),
            }
        }
    };
    soon(async { tokio::join!(writes, rolled) }).await;
    let done = roll_all_back(&server, all_back(to)).await.unwrap();
    assert_eq!(diff(&server, to, Some(done.revision)).await.unwrap().objects, []);
    server.stop().await;
}

#[tokio::test]
async fn history_reaches_back_to_the_last_dropped_change() {
    let server = start().await;
    five_changes(&server).await;
    let folder = server.stop().await;
    let path = folder.path().join("store");
    let store = soon(async {
        loop {
            // Sled releases its files a moment after the server has stopped.
            match SledStore::open(&path).await {
                Err(OpenError::Locked { .. }) => tokio::task::yield_now().await,
                opened => return opened.unwrap(),
            }
        }
    })
    .await;
    store.compact(3).await.unwrap();
    drop(store);
    let server = start_in(folder, |_| {}).await;
    let listed = list(&server, v1::ListChangesRequest::default()).await;
    let found: Vec<_> =
        listed.changes.iter().map(|change| (change.revision, steps(&change.objects))).collect();
    assert_eq!(found, [(5, vec![(Some(6), Some(4))]), (4, vec![(Some(5), None)])]);
    assert_eq!((listed.oldest_revision, listed.next_page_token.as_str()), (3, ""));
    assert_eq!(export(&server, v1::ChangeFilter::default()).await.unwrap().len(), 2);

    let from = |min_revision| v1::ChangeFilter { min_revision, ..Default::default() };
    let get = v1::GetObjectRequest { key: of_guard(), revision: Some(2) };
    let refused = [
        diff(&server, 2, None).await.unwrap_err(),
        diff(&server, 1, Some(2)).await.unwrap_err(),
        soon(server.history().get_object(get)).await.unwrap_err(),
        roll_back(&server, back(of_guard(), 2)).await.unwrap_err(),
        roll_all_back(&server, all_back(2)).await.unwrap_err(),
        export(&server, from(2)).await.unwrap_err(),
    ];
    for refused in refused {
        assert_eq!(refused.code(), Code::OutOfRange, "{refused:?}");
        let message = refused.message();
        assert!(message.starts_with("the history no longer contains revision "), "{refused:?}");
        assert!(message.ends_with("; it reaches back to revision 3"), "{refused:?}");
        let found = refused.get_details_error_info().unwrap();
        assert_eq!((found.reason.as_str(), found.metadata["oldest"].as_str()), ("NO_LONGER_KEPT", "3"));
    }
    assert_eq!(export(&server, from(4)).await.unwrap().len(), 2);
    assert_eq!(steps(&diff(&server, 3, None).await.unwrap().objects), [(Some(5), None), (Some(6), Some(4))]);
    let done = roll_all_back(&server, all_back(3)).await.unwrap();
    assert_eq!((done.revision, done.created, done.updated), (6, 1, 1));
    assert_eq!(state(&server).await.0, [rule(key("a", "b", "*"), 2), shop_rule(5)]);
    server.stop().await;
}
