//! A request that is repeated by its id answers as it did first, on every store, whatever has happened since and
//! whichever replica is asked; and every change says from where it was asked for.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use damper_proto::v1::{self, object_key, rule_change};
use damper_tests::control_plane::ControlPlane;
use damper_tests::etcd::Etcd;

fn key(caller: &str) -> v1::Pattern {
    v1::Pattern {
        caller_service: caller.to_owned(),
        caller_cluster: "*".to_owned(),
        callee_service: "stock".to_owned(),
        callee_method: "*".to_owned(),
    }
}

fn rule(caller: &str, max_attempts: u32) -> v1::Rule {
    let retry = v1::Retry { max_attempts: Some(max_attempts), ..Default::default() };
    let policy = v1::Policy { mode: v1::Mode::Observe.into(), retry: Some(retry), ..Default::default() };
    v1::Rule { key: Some(key(caller)), policy: Some(policy), ..Default::default() }
}

fn guard(caller: &str, max_attempts: u32) -> v1::Guard {
    let ceiling = v1::Ceiling { max_attempts: Some(max_attempts), ..Default::default() };
    v1::Guard { key: Some(key(caller)), ceiling: Some(ceiling), ..Default::default() }
}

fn options(request_id: &str) -> v1::WriteOptions {
    v1::WriteOptions {
        request_id: request_id.to_owned(),
        reason: "because".to_owned(),
        author: "ann".to_owned(),
        ..Default::default()
    }
}

/// A set in the name of a team, all of what it has.
fn owned(request_id: &str) -> v1::WriteOptions {
    v1::WriteOptions { owner: "team".to_owned(), prune: v1::Prune::Owned.into(), ..options(request_id) }
}

/// What a request answers, in one type for all.
#[derive(Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "a few of them, in a test")]
enum Answer {
    Set(v1::ApplyRulesResponse),
    Rule(v1::PutRuleResponse),
    Guard(v1::PutGuardResponse),
    Removed(u64, Vec<v1::Finding>),
    Kill(v1::KillResponse),
}

const REQUESTS: [&str; 11] = [
    "set",
    "smaller",
    "same",
    "put",
    "put same",
    "put guard",
    "delete",
    "delete guard",
    "kill",
    "rollback",
    "rollback all",
];

async fn ask(server: &ControlPlane, id: &str) -> Answer {
    let put = rule_change::Kind::Put;
    match id {
        "set" => {
            let set = [put(rule("a", 2)), put(rule("b", 2)), put(rule("c", 2))];
            let guards = ["g", "h"].map(|name| rule_change::Kind::PutGuard(guard(name, 9)));
            Answer::Set(server.write(owned(id), set.into_iter().chain(guards)).await.unwrap())
        }
        "smaller" | "same" => {
            let set = [put(rule("a", 3)), put(rule("b", 2)), put(rule("d", 2))];
            let guards = [rule_change::Kind::PutGuard(guard("h", 9))];
            Answer::Set(server.write(owned(id), set.into_iter().chain(guards)).await.unwrap())
        }
        "put" | "put same" => {
            let request = v1::PutRuleRequest {
                rule: Some(rule("a", 4)),
                options: Some(options(id)),
                ..Default::default()
            };
            Answer::Rule(server.rules().put_rule(request).await.unwrap().into_inner())
        }
        "put guard" => {
            let request = v1::PutGuardRequest {
                guard: Some(guard("h", 5)),
                options: Some(options(id)),
                ..Default::default()
            };
            Answer::Guard(server.guards().put_guard(request).await.unwrap().into_inner())
        }
        "delete" => {
            let request = v1::DeleteRuleRequest {
                key: Some(key("b")),
                options: Some(options(id)),
                ..Default::default()
            };
            let gone = server.rules().delete_rule(request).await.unwrap().into_inner();
            Answer::Removed(gone.revision, gone.findings)
        }
        "delete guard" => {
            let request = v1::DeleteGuardRequest {
                key: Some(key("h")),
                options: Some(options(id)),
                ..Default::default()
            };
            let gone = server.guards().delete_guard(request).await.unwrap().into_inner();
            Answer::Removed(gone.revision, gone.findings)
        }
        "kill" => {
            let request =
                v1::KillRequest { key: Some(key("k")), options: Some(options(id)), ..Default::default() };
            let mut killed = server.kills().kill(request).await.unwrap().into_inner();
            // Time goes on.
            killed.kill.as_mut().unwrap().remaining = None;
            Answer::Kill(killed)
        }
        "rollback" => {
            let of = object_key::Kind::Rule(key("b"));
            let request = v1::RollbackRequest {
                key: Some(v1::ObjectKey { kind: Some(of) }),
                to_revision: Some(1),
                options: Some(options(id)),
                ..Default::default()
            };
            Answer::Set(server.history().rollback(request).await.unwrap().into_inner())
        }
        "rollback all" => {
            let request = v1::RollbackAllRequest {
                to_revision: Some(1),
                options: Some(options(id)),
                ..Default::default()
            };
            Answer::Set(server.history().rollback_all(request).await.unwrap().into_inner())
        }
        other => panic!("{other}"),
    }
}

/// Asks for everything, then again after everything was changed by others, of the same replica and of one that
/// knows it from the store only.
async fn answers_as_it_did_first(one: &ControlPlane, later: impl AsyncFnOnce() -> Option<ControlPlane>) {
    let mut first = Vec::new();
    for id in REQUESTS {
        let answer = ask(one, id).await;
        // While it is new and when others came after it.
        assert_eq!(ask(one, id).await, answer, "{id} at once");
        first.push((id, answer));
    }
    let counts = |n: usize| match &first[n].1 {
        Answer::Set(set) => [set.created, set.updated, set.unchanged, set.deleted],
        other => panic!("{other:?}"),
    };
    assert_eq!([counts(0), counts(1), counts(2)], [[5, 0, 0, 0], [1, 1, 2, 2], [0, 0, 4, 0]]);
    let unkill = v1::UnkillRequest { key: Some(key("k")), ..Default::default() };
    one.kills().unkill(unkill).await.unwrap();
    let everything = v1::WriteOptions {
        prune: v1::Prune::Everything.into(),
        take_over: true,
        owner: "other".to_owned(),
        ..Default::default()
    };
    let set = ["a", "b", "x"].map(|name| rule_change::Kind::Put(rule(name, 7)));
    let head = one.write(everything, set).await.unwrap().revision;
    for (id, answer) in &first {
        assert_eq!(&ask(one, id).await, answer, "{id}");
    }
    if let Some(two) = later().await {
        for (id, answer) in &first {
            // What changed nothing is known to the replica that was asked only.
            if !matches!(*id, "same" | "put same") {
                assert_eq!(&ask(&two, id).await, answer, "{id} on another replica");
            }
        }
    }
    let now = one.history().list_changes(v1::ListChangesRequest::default()).await.unwrap().into_inner();
    assert_eq!(now.revision, head, "nothing was written");
    for change in now.changes {
        let peer: std::net::SocketAddr = change.peer.parse().unwrap();
        assert!(peer.ip().is_loopback(), "{peer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sled_a_repeated_request_answers_as_it_did_first() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("sled:{}", folder.path().join("store").display());
    let server = ControlPlane::on(&place).await;
    answers_as_it_did_first(&server, async || None).await;
    let before = ask(&server, "smaller").await;
    server.stop().await;
    let again = ControlPlane::on(&place).await;
    assert_eq!(ask(&again, "smaller").await, before, "after a restart");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_a_repeated_request_answers_as_it_did_first_on_every_replica() {
    let etcd = Etcd::start().await;
    let place = format!("etcd://{}", etcd.endpoint());
    let server = ControlPlane::on(&place).await;
    answers_as_it_did_first(&server, async || Some(ControlPlane::on(&place).await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_does_by_itself_came_from_nowhere() {
    let server = ControlPlane::start().await;
    let short = prost_types::Duration { seconds: 1, nanos: 0 };
    let request = v1::KillRequest {
        key: Some(key("k")),
        time_to_live: Some(short),
        options: Some(options("")),
        ..Default::default()
    };
    let set = server.kills().kill(request).await.unwrap().into_inner().revision;
    let convergence = v1::WatchConvergenceRequest { revision: set + 1, ..Default::default() };
    // It ends when the change after the kill is there: its clearing away.
    let mut watch = server.fleet().watch_convergence(convergence).await.unwrap().into_inner();
    while let Some(state) = watch.message().await.unwrap() {
        assert!(!state.timed_out, "the kill was not cleared away");
    }
    let changes =
        server.history().list_changes(v1::ListChangesRequest::default()).await.unwrap().into_inner();
    let told: Vec<(&str, bool)> =
        changes.changes.iter().map(|change| (change.author.as_str(), change.peer.is_empty())).collect();
    assert_eq!(told, [("damper", true), ("ann", false)]);
}
