//! History and rollback on every store, through the server: told with what was before, rolled back in one
//! transaction also against another replica, and as far as the history is kept.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use damper_proto::v1::{self, apply_rules_request, object_key, rule_change};
use damper_store::Store;
use damper_store::etcd::DEFAULT_PREFIX;
use damper_tests::control_plane::ControlPlane;
use damper_tests::etcd::Etcd;
use damper_tests::sled;
use futures_util::StreamExt as _;
use tonic::Code;

/// So many that a change of all of them goes into the store in parts.
const RULES: usize = 1500;

async fn put(replica: &ControlPlane, max_attempts: u32) -> u64 {
    let request = v1::PutRuleRequest { rule: Some(rule("shop", max_attempts)), ..Default::default() };
    replica.rules().put_rule(request).await.unwrap().into_inner().revision
}

async fn attempts(replica: &ControlPlane, min_revision: u64) -> u32 {
    let request = v1::GetRuleRequest { key: Some(key("shop")), min_revision };
    let rule = replica.rules().get_rule(request).await.unwrap().into_inner();
    rule.policy.unwrap().retry.unwrap().max_attempts()
}

async fn differing(replica: &ControlPlane, from: u64, to: u64) -> u64 {
    let request =
        v1::DiffRevisionsRequest { from_revision: Some(from), to_revision: Some(to), ..Default::default() };
    replica.history().diff_revisions(request).await.unwrap().into_inner().total
}

async fn changes(replica: &ControlPlane) -> v1::ListChangesResponse {
    let request = v1::ListChangesRequest::default();
    replica.history().list_changes(request).await.unwrap().into_inner()
}

fn key(caller: &str) -> v1::Pattern {
    v1::Pattern {
        caller_service: caller.to_owned(),
        caller_cluster: "*".to_owned(),
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/*".to_owned(),
    }
}

fn rule(caller: &str, max_attempts: u32) -> v1::Rule {
    let retry = v1::Retry { max_attempts: Some(max_attempts), ..Default::default() };
    let policy = v1::Policy { mode: v1::Mode::Enforce.into(), retry: Some(retry), ..Default::default() };
    v1::Rule { key: Some(key(caller)), policy: Some(policy), ..Default::default() }
}

fn rollback(to: u64) -> v1::RollbackRequest {
    let key = v1::ObjectKey { kind: Some(object_key::Kind::Rule(key("shop"))) };
    v1::RollbackRequest { key: Some(key), to_revision: Some(to), ..Default::default() }
}

fn rollback_all(to: u64, expected_revision: Option<u64>) -> v1::RollbackAllRequest {
    let options = v1::WriteOptions { reason: "incident".to_owned(), ..Default::default() };
    v1::RollbackAllRequest { to_revision: Some(to), expected_revision, options: Some(options) }
}

/// A rule twice, then very many and a guard in one change, which does not fit one transaction.
async fn three_changes(replica: &ControlPlane) {
    assert_eq!((put(replica, 2).await, put(replica, 3).await), (1, 2));
    let ceiling = v1::Ceiling { max_attempts: Some(6), ..Default::default() };
    let guard = v1::Guard { key: Some(key("*")), ceiling: Some(ceiling), ..Default::default() };
    let puts = (0..RULES).map(|n| rule_change::Kind::Put(rule(&format!("caller-{n:04}"), 4)));
    let changes = puts.chain([rule_change::Kind::PutGuard(guard)]).map(|kind| {
        let change = v1::RuleChange { kind: Some(kind), expected_revision: None };
        apply_rules_request::Kind::Change(change)
    });
    let header = apply_rules_request::Kind::Header(v1::WriteOptions::default());
    let messages: Vec<_> =
        [header].into_iter().chain(changes).map(|kind| v1::ApplyRulesRequest { kind: Some(kind) }).collect();
    let applied = replica.rules().apply_rules(tokio_stream::iter(messages)).await.unwrap().into_inner();
    assert_eq!((applied.revision, applied.created as usize), (3, RULES + 1));
}

/// Told by one replica, rolled back by another.
async fn goes_there_and_back(one: &ControlPlane, two: &ControlPlane) {
    three_changes(one).await;
    assert_eq!(attempts(two, 3).await, 3);
    let listed = changes(two).await;
    let told: Vec<u64> = listed.changes.iter().map(|change| change.revision).collect();
    assert_eq!((told, listed.oldest_revision), (vec![3, 2, 1], 0));
    assert_eq!(listed.changes[0].object_count as usize, RULES + 1);
    let exported = two.history().export_audit(v1::ExportAuditRequest::default()).await.unwrap();
    assert_eq!(exported.into_inner().map(Result::unwrap).count().await, RULES + 3);

    let back = two.history().rollback(rollback(1)).await.unwrap().into_inner();
    assert_eq!((back.revision, back.updated), (4, 1));
    assert_eq!(attempts(one, 4).await, 2);
    let all = two.history().rollback_all(rollback_all(2, Some(4))).await.unwrap().into_inner();
    assert_eq!((all.revision, all.updated, all.deleted as usize), (5, 1, RULES + 1));
    assert_eq!(attempts(one, 5).await, 3);
    assert_eq!(differing(one, 2, 5).await, 0);
    let forth = one.history().rollback_all(rollback_all(3, None)).await.unwrap().into_inner();
    assert_eq!((forth.revision, forth.created as usize), (6, RULES + 1));
    assert_eq!(two.rules().list_rules(list_at(6)).await.unwrap().into_inner().total as usize, RULES + 1);
    assert_eq!(
        two.guards().list_guards(v1::ListGuardsRequest::default()).await.unwrap().into_inner().total,
        1
    );
}

fn list_at(min_revision: u64) -> v1::ListRulesRequest {
    v1::ListRulesRequest { min_revision, ..Default::default() }
}

/// Two replicas from one revision: a write by one and a rollback of everything by the other.
async fn exactly_one_wins(one: &ControlPlane, two: &ControlPlane) {
    const ROUNDS: u32 = 12;
    let mut at = put(one, 2).await;
    let first = at;
    for round in 0..ROUNDS {
        let put = v1::PutRuleRequest {
            rule: Some(rule("shop", 3 + round % 3)),
            expected_revision: Some(at),
            options: None,
        };
        let (mut rules, mut history) = (one.rules(), two.history());
        let (put, rolled) =
            tokio::join!(rules.put_rule(put), history.rollback_all(rollback_all(0, Some(at))));
        match (put, rolled) {
            (Ok(done), Err(refused)) => {
                assert_eq!(refused.code(), Code::Aborted, "{refused:?}");
                assert_eq!(done.get_ref().revision, at + 1);
                at += 1;
            }
            (Err(refused), Ok(done)) => {
                assert_eq!(refused.code(), Code::Aborted, "{refused:?}");
                assert_eq!(done.get_ref().revision, at + 1);
                assert_eq!(differing(two, 0, at + 1).await, 0);
                let back = one.history().rollback_all(rollback_all(first, Some(at + 1))).await;
                at = back.unwrap().into_inner().revision;
            }
            both => panic!("round {round}: {both:?}"),
        }
    }
}

/// What was before the changes that are no longer kept can not be had, what is after them can.
async fn ends_where_it_is_kept(replica: &ControlPlane) {
    for to in [0, 1] {
        let refused = replica.history().rollback_all(rollback_all(to, None)).await.unwrap_err();
        assert_eq!(refused.code(), Code::OutOfRange, "{refused:?}");
        assert!(refused.message().contains("reaches back to revision 2"), "{refused:?}");
    }
    assert_eq!(changes(replica).await.oldest_revision, 2);
    let done = replica.history().rollback(rollback(2)).await.unwrap().into_inner();
    assert_eq!(attempts(replica, done.revision).await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sled_tells_the_history_and_goes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let place = format!("sled:{}", path.display());
    let server = ControlPlane::on(&place).await;
    goes_there_and_back(&server, &server).await;
    exactly_one_wins(&server, &server).await;
    server.stop().await;
    let store = sled::open(&path).await;
    store.compact(2).await.unwrap();
    drop(store);
    let server = ControlPlane::on(&place).await;
    ends_where_it_is_kept(&server).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_tells_the_history_and_goes_back_for_all_replicas() {
    let etcd = Etcd::start().await;
    let place = format!("etcd://{}", etcd.endpoint());
    let (one, two) = (ControlPlane::on(&place).await, ControlPlane::on(&place).await);
    goes_there_and_back(&one, &two).await;
    exactly_one_wins(&one, &two).await;
    etcd.store(DEFAULT_PREFIX).compact(2).await.unwrap();
    ends_where_it_is_kept(&two).await;
    one.stop().await;
    two.stop().await;
}
