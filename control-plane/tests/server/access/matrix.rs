//! Each role and each method, in and out of scope, by the documented table.

use damper_proto::v1::{self, client_message};
use prost::Message;
use tonic::{Code, Status};

use super::raw::call;
use super::{Guarded, folder_with_known_key, reason, replica_credential};
use crate::harness::{header, hello, key, put_change, rule};

const ROLES: [&str; 6] = ["viewer", "editor", "operator", "admin", "agent", "replica"];

/// Returns the rows of the table: a method and its cell for each role.
fn table() -> Vec<(String, Vec<String>)> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/security.md");
    let text = std::fs::read_to_string(file).unwrap();
    let part = text.split("<!-- the authorisation test reads this table -->").nth(1).unwrap();
    let part = part.split("<!-- end -->").next().unwrap();
    let cells = |line: &str| -> Vec<String> {
        line.trim().trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let mut rows = part.lines().filter(|line| line.starts_with('|')).map(cells);
    assert_eq!(rows.next().unwrap()[1..], ROLES);
    rows.skip(1).map(|mut row| (row.remove(0), row)).collect()
}

/// Returns the messages of a method, about this caller and callee if it has such fields.
fn messages(method: &str, caller: &str, callee: &str) -> Vec<Vec<u8>> {
    let named = key(caller, callee, "p.S/M");
    let wrong_revision = Some(u64::MAX);
    let wanted = v1::WriteOptions { reason: "test".to_owned(), ..Default::default() };
    let options = Some(wanted.clone());
    let guard = v1::Guard { key: Some(named.clone()), ..Default::default() };
    let one = |message: Vec<u8>| vec![message];
    match method {
        "Rules/PutRule" => {
            let rule = Some(rule(named, 2));
            one(v1::PutRuleRequest { rule, expected_revision: wrong_revision, options }.encode_to_vec())
        }
        "Rules/DeleteRule" => {
            let key = Some(named);
            one(v1::DeleteRuleRequest { key, expected_revision: wrong_revision, options }.encode_to_vec())
        }
        "Rules/ApplyRules" => {
            vec![header(wanted).encode_to_vec(), put_change(rule(named, 2)).encode_to_vec()]
        }
        "Rules/WhatIf" => {
            let change = v1::RuleChange {
                kind: Some(v1::rule_change::Kind::Put(rule(named, 2))),
                ..Default::default()
            };
            one(v1::WhatIfRequest { changes: vec![change], options }.encode_to_vec())
        }
        "Guards/PutGuard" => {
            let guard = Some(v1::Guard {
                ceiling: Some(v1::Ceiling { max_attempts: Some(2), ..Default::default() }),
                ..guard
            });
            one(v1::PutGuardRequest { guard, expected_revision: wrong_revision, options }.encode_to_vec())
        }
        "Guards/DeleteGuard" => {
            let key = Some(named);
            one(v1::DeleteGuardRequest { key, expected_revision: wrong_revision, options }.encode_to_vec())
        }
        "Queues/PutQueue" => {
            let policy = v1::Policy { mode: v1::Mode::Off.into(), ..Default::default() };
            let queue =
                Some(v1::Queue { name: "later".to_owned(), policy: Some(policy), ..Default::default() });
            one(v1::PutQueueRequest { queue, expected_revision: wrong_revision, options }.encode_to_vec())
        }
        "Queues/DeleteQueue" => {
            let name = "later".to_owned();
            one(v1::DeleteQueueRequest { name, expected_revision: wrong_revision, options }.encode_to_vec())
        }
        "Kills/Kill" => {
            let kill = v1::KillRequest { key: Some(named), options, ..Default::default() };
            one(v1::KillRequest { expected_revision: wrong_revision, ..kill }.encode_to_vec())
        }
        "Kills/Unkill" => {
            let key = Some(named);
            one(v1::UnkillRequest { key, expected_revision: wrong_revision, options, ..Default::default() }
                .encode_to_vec())
        }
        "History/Rollback" => {
            let key = Some(v1::ObjectKey { kind: Some(v1::object_key::Kind::Rule(named)) });
            one(v1::RollbackRequest { key, to_revision: Some(0), options, ..Default::default() }
                .encode_to_vec())
        }
        "Distribution/Subscribe" => {
            one(crate::harness::to_message(client_message::Kind::Hello(hello(caller))).encode_to_vec())
        }
        _ => one(Vec::new()),
    }
}

/// True if access was granted, with any result of the method.
fn admitted(answer: &Result<(), Status>) -> bool {
    !matches!(answer, Err(status) if matches!(status.code(), Code::PermissionDenied | Code::Unauthenticated))
}

struct Credentials {
    unscoped: String,
    /// Scoped to shop and stock.
    scoped: Option<String>,
}

async fn credentials(server: &Guarded, role: &str) -> Credentials {
    let made = |role: v1::Role| server.token(role, &[], &[]);
    match role {
        "viewer" => Credentials { unscoped: made(v1::Role::Viewer).await, scoped: None },
        "editor" | "operator" => {
            let role = if role == "editor" { v1::Role::Editor } else { v1::Role::Operator };
            let scoped = Some(server.token(role, &["shop"], &["stock*"]).await);
            Credentials { unscoped: made(role).await, scoped }
        }
        "admin" => Credentials { unscoped: made(v1::Role::Admin).await, scoped: None },
        "agent" => {
            let scoped = Some(server.token(v1::Role::Agent, &["shop"], &[]).await);
            Credentials { unscoped: made(v1::Role::Agent).await, scoped }
        }
        _ => Credentials { unscoped: replica_credential(), scoped: None },
    }
}

#[tokio::test]
async fn roles_have_the_documented_permissions_in_and_out_of_scope() {
    let server = Guarded::start_in(folder_with_known_key().await).await;
    let rows = table();
    assert!(rows.len() > 30, "{}", rows.len());
    let ask = async |method: &str, token: Option<&str>, caller: &str, callee: &str| {
        let path = format!("/damper.v1.{method}");
        call(server.server.channel(), &path, token, messages(method, caller, callee)).await
    };
    for (n, role) in ROLES.into_iter().enumerate() {
        let Credentials { unscoped, scoped } = credentials(&server, role).await;
        for (method, cells) in &rows {
            let cell = cells[n].as_str();
            let case = format!("{role} {method}: {cell}");
            let anywhere = ask(method, Some(&unscoped), "other", "other").await;
            assert_eq!(admitted(&anywhere), cell != "no", "{case}: {anywhere:?}");
            if let ("no", Err(status)) = (cell, &anywhere) {
                assert_eq!(
                    (status.code(), reason(status).as_str()),
                    (Code::PermissionDenied, "ROLE"),
                    "{case}"
                );
            }
            let Some(scoped) = &scoped else { continue };
            let within = ask(method, Some(scoped), "shop", "stock2").await;
            assert_eq!(admitted(&within), matches!(cell, "yes" | "scope"), "{case}: {within:?}");
            let mut outside = vec![("other", "stock"), ("*", "stock")];
            if role != "agent" {
                outside.extend([("shop", "other"), ("shop", "*"), ("*", "*")]);
            }
            for (caller, callee) in
                outside.into_iter().filter(|_| method != "Distribution/Subscribe" || role == "agent")
            {
                let caller =
                    if method == "Distribution/Subscribe" && caller == "*" { "shop2" } else { caller };
                let without = ask(method, Some(scoped), caller, callee).await;
                assert_eq!(admitted(&without), cell == "yes", "{case} {caller} {callee}: {without:?}");
                if let ("scope" | "unscoped", Err(status)) = (cell, &without) {
                    assert_eq!(
                        (status.code(), reason(status).as_str()),
                        (Code::PermissionDenied, "SCOPE"),
                        "{case}"
                    );
                }
            }
        }
    }
    server.server.stop().await;
}

#[tokio::test]
async fn without_a_good_credential_every_method_is_unauthenticated() {
    let server = Guarded::start().await;
    let wrong = format!("damper_{}_{}", "0".repeat(16), "0".repeat(64));
    let mut forged = server.admin.clone();
    forged.replace_range(forged.len() - 1.., if forged.ends_with('0') { "1" } else { "0" });
    let bad = [None, Some("x"), Some(wrong.as_str()), Some(&forged), Some("damper-replica_0")];
    for (method, _) in table() {
        for token in bad {
            let answer =
                call(server.server.channel(), &format!("/damper.v1.{method}"), token, vec![vec![]]).await;
            let status = answer.unwrap_err();
            assert_eq!(status.code(), Code::Unauthenticated, "{method} {token:?}");
            let expected = if token.is_some() { "TOKEN_INVALID" } else { "CREDENTIAL_MISSING" };
            assert_eq!(reason(&status), expected);
        }
    }
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    for (path, token, open) in [
        (reflection, None, false),
        (reflection, Some(server.admin.as_str()), true),
        ("/grpc.health.v1.Health/Check", None, true),
        ("/damper.v1.Rules/Other", Some(&server.admin), false),
    ] {
        let answer = call(server.server.channel(), path, token, vec![vec![]]).await;
        assert_eq!(admitted(&answer), open, "{path} {token:?}: {answer:?}");
    }
    let scraped = server.server.get(server.server.metrics, "GET /metrics HTTP/1.1").await;
    for reason in ["TOKEN_INVALID", "CREDENTIAL_MISSING", "ROLE"] {
        let counted = format!("damper_denied_total{{reason=\"{reason}\"}}");
        assert!(scraped.contains(&counted), "{counted} is not in {scraped}");
    }
    for (head, status) in [
        ("GET /metrics HTTP/1.1".to_owned(), "401"),
        (format!("GET /metrics HTTP/1.1\r\nauthorization: Bearer {}", server.admin), "200"),
        ("GET /readyz HTTP/1.1".to_owned(), "200"),
        ("GET / HTTP/1.1".to_owned(), "200"),
    ] {
        let answer = server.server.get(server.server.address, &head).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{head}: {answer}");
    }
    server.server.stop().await;
}
