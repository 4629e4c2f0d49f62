//! Data of earlier versions: a store and an export that version 0.1.0 wrote are read in full.
//!
//! `golden/store-0.1.0` has the files of an embedded store, the export of its contents and a token of it.
//! They are never renewed, because data of users is not. A later version whose format has grown adds a
//! folder: `DAMPER_TEST_UPDATE=1 cargo test -p damper-control-plane --test server stored`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use damper_control_plane::Auth;
use damper_proto::manifest::{self, Manifest};
use damper_proto::v1::history_client::HistoryClient;
use damper_proto::v1::kills_client::KillsClient;
use damper_proto::v1::rules_client::RulesClient;
use damper_proto::v1::{self, object};
use tempfile::TempDir;

use crate::access::{Guarded, bearer, wanted};
use crate::harness::{Running, header, key, put_change, shop_rule, soon, start, start_in};

/// The files of a store that have contents.
const STORE_FILES: [&str; 2] = ["conf", "db"];

fn folder(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/store-{version}"))
}

fn fixture(name: &str) -> String {
    std::fs::read_to_string(folder("0.1.0").join(name)).unwrap()
}

/// Starts a server on a copy of a store. It drops no history, however old the store is.
async fn start_on(store: &Path) -> Running {
    let copy = TempDir::new().unwrap();
    std::fs::create_dir(copy.path().join("store")).unwrap();
    for file in STORE_FILES {
        std::fs::copy(store.join(file), copy.path().join("store").join(file)).unwrap();
    }
    start_in(copy, |settings| {
        settings.auth = Auth::Tokens;
        settings.first_retention_after = Duration::from_secs(86_400);
    })
    .await
}

fn manifest_of(object: v1::Object) -> Manifest {
    match object.kind.unwrap() {
        object::Kind::Rule(rule) => rule.into(),
        object::Kind::Guard(guard) => guard.into(),
        other => panic!("{other:?}"),
    }
}

fn change_of(manifest: Manifest) -> v1::ApplyRulesRequest {
    let kind = match manifest {
        Manifest::Rule(rule) => return put_change(rule),
        Manifest::Guard(guard) => v1::rule_change::Kind::PutGuard(guard),
        other => panic!("{other:?}"),
    };
    let change = v1::RuleChange { kind: Some(kind), expected_revision: None };
    v1::ApplyRulesRequest { kind: Some(v1::apply_rules_request::Kind::Change(change)) }
}

/// Returns all rules and guards at a revision as YAML.
async fn export(server: &Running, token: &str, revision: Option<u64>) -> String {
    let mut history = HistoryClient::with_interceptor(server.channel(), bearer(token));
    let mut parts = soon(history.export(v1::ExportRequest { revision })).await.unwrap().into_inner();
    let mut manifests = Vec::new();
    while let Some(part) = soon(parts.message()).await.unwrap() {
        manifests.extend(part.objects.into_iter().map(manifest_of));
    }
    manifest::to_yaml(&manifests)
}

fn everything(text: &str) -> Vec<v1::ApplyRulesRequest> {
    // As a whole, because some of its rules exceed its own guard.
    let whole = header(v1::WriteOptions {
        author: "ann".to_owned(),
        reason: "all".to_owned(),
        request_id: "id-all".to_owned(),
        prune: v1::Prune::Everything.into(),
        ..Default::default()
    });
    let changes = manifest::parse(text).unwrap().into_iter().map(|document| change_of(document.manifest));
    std::iter::once(whole).chain(changes).collect()
}

#[tokio::test]
async fn store_of_version_0_1_0_is_read_in_full() {
    let server = start_on(&folder("0.1.0")).await;
    let token = fixture("token");
    assert_eq!(export(&server, &token, Some(8)).await, fixture("export.yaml"), "rules and guards");

    let mut history = HistoryClient::with_interceptor(server.channel(), bearer(&token));
    let filter = v1::ChangeFilter { max_revision: 8, ..Default::default() };
    let request = v1::ListChangesRequest { filter: Some(filter), ..Default::default() };
    let listed = soon(history.list_changes(request)).await.unwrap().into_inner();
    let revisions: Vec<u64> = listed.changes.iter().map(|change| change.revision).collect();
    assert_eq!(revisions, [8, 7, 6, 5, 4, 3, 2], "the first change is the key of the cluster");
    let [created, killed, deleted, updated, ..] = &listed.changes[..] else { panic!("{listed:?}") };

    assert_eq!((created.author.as_str(), created.reason.as_str()), ("ann", "token"));
    assert!(created.principal.starts_with("token "), "{}", created.principal);
    let Some(object::Kind::Token(made)) = after(created) else { panic!("{created:?}") };
    assert!(token.starts_with(&format!("damper_{}_", made.id)), "the token of the fixture");
    assert_eq!((made.role(), made.expires_at), (v1::Role::Admin, None));

    let Some(object::Kind::Kill(kill)) = after(killed) else { panic!("{killed:?}") };
    assert_eq!((kill.key, kill.calls, &*kill.reason), (Some(key("*", "stock", "*")), true, "incident 7"));
    assert!(kill.expires_at.is_some());

    assert!(deleted.objects[0].before.is_some() && deleted.objects[0].after.is_none(), "{deleted:?}");
    let Some(object::Kind::Rule(rule)) = after(updated) else { panic!("{updated:?}") };
    assert_eq!((rule.policy, &*rule.owner), (shop_rule(3).policy, "team-shop"));
    server.stop().await;
}

fn after(change: &v1::Change) -> Option<object::Kind> {
    change.objects.first()?.after.clone()?.kind
}

#[tokio::test]
async fn export_of_version_0_1_0_is_imported_in_full() {
    let server = start().await;
    let requests = everything(&fixture("export.yaml"));
    soon(server.rules().apply_rules(tokio_stream::iter(requests))).await.unwrap();
    assert_eq!(export(&server, "none", None).await, fixture("export.yaml"));
    server.stop().await;
}

/// Writes an entry of every kind, one that is changed and one that is removed. Returns an admin's token.
async fn write_all(server: &Guarded) -> String {
    let options = |reason: &str| {
        Some(v1::WriteOptions {
            author: "ann".to_owned(),
            reason: reason.to_owned(),
            request_id: format!("id-{reason}"),
            ..Default::default()
        })
    };
    let channel = || server.server.channel();
    let mut rules = RulesClient::with_interceptor(channel(), bearer(&server.admin));
    let requests = everything(include_str!("../../../tests/tests/export/everything.yaml"));
    soon(rules.apply_rules(tokio_stream::iter(requests))).await.unwrap();
    for attempts in [2, 3] {
        let rule = Some(v1::Rule { owner: "team-shop".to_owned(), ..shop_rule(attempts) });
        soon(rules.put_rule(v1::PutRuleRequest { rule, ..Default::default() })).await.unwrap();
    }
    let removed = v1::DeleteRuleRequest { key: Some(key("none", "*", "*")), ..Default::default() };
    soon(rules.delete_rule(removed)).await.unwrap();
    let kill = v1::KillRequest {
        key: Some(key("*", "stock", "*")),
        calls: true,
        options: options("incident 7"),
        ..Default::default()
    };
    soon(KillsClient::with_interceptor(channel(), bearer(&server.admin)).kill(kill)).await.unwrap();
    let request = wanted(v1::Role::Admin, &[], &[]);
    let token = v1::CreateTokenRequest { never_expires: true, options: options("token"), ..request };
    server.try_make(token).await.unwrap().secret
}

/// With `DAMPER_TEST_UPDATE=1` the files become the fixture of this version, if it has none.
#[tokio::test]
async fn store_of_this_version_is_read_in_full() {
    let server = Guarded::start().await;
    let token = write_all(&server).await;
    let exported = export(&server.server, &token, None).await;
    let stopped = server.server.stop().await;
    let store = stopped.path().join("store");

    let again = start_on(&store).await;
    assert_eq!(export(&again, &token, None).await, exported);
    again.stop().await;

    let fixture = folder(env!("CARGO_PKG_VERSION"));
    if std::env::var_os("DAMPER_TEST_UPDATE").is_some() && !fixture.exists() {
        std::fs::create_dir(&fixture).unwrap();
        for file in STORE_FILES {
            std::fs::copy(store.join(file), fixture.join(file)).unwrap();
        }
        std::fs::write(fixture.join("export.yaml"), exported).unwrap();
        std::fs::write(fixture.join("token"), token).unwrap();
    }
}
