//! Guards on every store, through the server: written with rules in one change, told in the history, read by the
//! next server and by another replica.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use std::sync::Arc;

use damper_proto::v1::{self, apply_rules_request, rule_change};
use damper_store::etcd::DEFAULT_PREFIX;
use damper_store::{Change, Store};
use damper_tests::control_plane::ControlPlane;
use damper_tests::etcd::Etcd;
use damper_tests::sled;

/// The guard once this replica has reached a revision.
async fn guard_at(replica: &ControlPlane, min_revision: u64) -> v1::Guard {
    let request = v1::GetGuardRequest { key: guard(1).key, min_revision };
    replica.guards().get_guard(request).await.unwrap().into_inner()
}

async fn attempts_in_force(replica: &ControlPlane) -> u32 {
    let route = v1::RouteKey {
        caller_service: "shop".to_owned(),
        caller_cluster: "default".to_owned(),
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/Take".to_owned(),
    };
    let request = v1::ExplainRequest { route: Some(route) };
    let explained = replica.rules().explain(request).await.unwrap().into_inner();
    explained.effective.unwrap().retry.unwrap().max_attempts()
}

fn guard(max_attempts: u32) -> v1::Guard {
    let key = v1::Pattern {
        caller_service: "*".to_owned(),
        caller_cluster: "*".to_owned(),
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/*".to_owned(),
    };
    let ceiling = v1::Ceiling { max_attempts: Some(max_attempts), ..Default::default() };
    v1::Guard { key: Some(key), ceiling: Some(ceiling), owner: "team".to_owned(), ..Default::default() }
}

fn rule(max_attempts: u32) -> v1::Rule {
    let key = v1::Pattern { caller_service: "shop".to_owned(), ..guard(1).key.unwrap() };
    let retry = v1::Retry { max_attempts: Some(max_attempts), ..Default::default() };
    let policy = v1::Policy { mode: v1::Mode::Enforce.into(), retry: Some(retry), ..Default::default() };
    v1::Rule { key: Some(key), policy: Some(policy), ..Default::default() }
}

/// A rule and a guard in one change, then another version of the guard.
async fn write(replica: &ControlPlane) {
    let change = |kind| {
        let change = v1::RuleChange { kind: Some(kind), expected_revision: None };
        apply_rules_request::Kind::Change(change)
    };
    let messages = [
        apply_rules_request::Kind::Header(v1::WriteOptions::default()),
        change(rule_change::Kind::PutGuard(guard(6))),
        change(rule_change::Kind::Put(rule(5))),
    ];
    let messages = messages.map(|kind| v1::ApplyRulesRequest { kind: Some(kind) });
    let applied = replica.rules().apply_rules(tokio_stream::iter(messages)).await.unwrap().into_inner();
    assert_eq!((applied.revision, applied.created), (1, 2));
    let options = v1::WriteOptions {
        author: "ann".to_owned(),
        reason: "peak season".to_owned(),
        request_id: "g-1".to_owned(),
        owner: "team".to_owned(),
        ..Default::default()
    };
    let request =
        v1::PutGuardRequest { guard: Some(guard(3)), expected_revision: Some(1), options: Some(options) };
    let first = replica.guards().put_guard(request.clone()).await.unwrap().into_inner();
    assert_eq!((first.revision, first.findings.len()), (2, 1), "{first:?}");
    let again = replica.guards().put_guard(request).await.unwrap().into_inner();
    assert_eq!((again.revision, again.changed), (2, true), "a repeated request gets the first answer");
}

async fn is_there(replica: &ControlPlane) {
    let there = guard_at(replica, 2).await;
    assert_eq!((there.revision, there.updated_by.as_str()), (2, "ann"));
    assert_eq!(attempts_in_force(replica).await, 3);
}

/// The history tells of both kinds, and may be dropped without the entries.
async fn is_told(store: Arc<dyn Store>) {
    let changes = store.changes(0, u64::MAX).await.unwrap();
    let keys = |change: &Change| {
        let mut keys: Vec<String> = change.edits.iter().map(|edit| edit.key.clone()).collect();
        keys.sort();
        keys
    };
    let (of_guard, of_rule) = (
        "guards/*/*/stock/stock.v1.Stock%2F*".to_owned(),
        "rules/shop/*/stock/stock.v1.Stock%2F*".to_owned(),
    );
    assert_eq!(keys(&changes[0]), [of_guard.clone(), of_rule.clone()]);
    assert_eq!(keys(&changes[1]), std::slice::from_ref(&of_guard));
    let told = (changes[1].author.as_str(), changes[1].reason.as_str(), changes[1].request_id.as_str());
    assert_eq!(told, ("ann", "peak season", "g-1"));
    store.compact(2).await.unwrap();
    let entries = store.load().await.unwrap().entries;
    let revisions: Vec<(String, u64)> =
        entries.into_iter().map(|(key, entry)| (key, entry.revision)).collect();
    assert_eq!(revisions, [(of_guard, 2), (of_rule, 1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sled_keeps_guards_beside_rules() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let place = format!("sled:{}", path.display());
    let server = ControlPlane::on(&place).await;
    write(&server).await;
    server.stop().await;
    let server = ControlPlane::on(&place).await;
    is_there(&server).await;
    server.stop().await;
    is_told(Arc::new(sled::open(&path).await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_keeps_guards_beside_rules_for_all_replicas() {
    let etcd = Etcd::start().await;
    let place = format!("etcd://{}", etcd.endpoint());
    let (one, two) = (ControlPlane::on(&place).await, ControlPlane::on(&place).await);
    write(&one).await;
    is_there(&two).await;
    let stale = v1::PutGuardRequest { guard: Some(guard(2)), expected_revision: Some(1), options: None };
    let refused = two.guards().put_guard(stale).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Aborted, "{refused:?}");
    one.stop().await;
    two.stop().await;
    let server = ControlPlane::on(&place).await;
    is_there(&server).await;
    server.stop().await;
    is_told(Arc::new(etcd.store(DEFAULT_PREFIX))).await;
}
