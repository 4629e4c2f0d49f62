//! Tokens are created, shown once, stored and revoked.

use damper_proto::v1::distribution_client::DistributionClient;
use damper_proto::v1::fleet_client::FleetClient;
use damper_proto::v1::history_client::HistoryClient;
use damper_proto::v1::rules_client::RulesClient;
use damper_proto::v1::{self, client_message, object_key};
use tempfile::TempDir;
use tonic::Code;

use super::{Guarded, bearer, wanted};
use crate::harness::{header, hello, settings_in, shop_rule, soon, to_message};
use damper_control_plane::{Auth, StartError};
use damper_tests::control_plane::bind;

fn options(request_id: &str) -> Option<v1::WriteOptions> {
    Some(v1::WriteOptions {
        request_id: request_id.to_owned(),
        reason: "test".to_owned(),
        ..Default::default()
    })
}

impl Guarded {
    fn history(
        &self,
    ) -> HistoryClient<tonic::codegen::InterceptedService<tonic::transport::Channel, super::Bearer>> {
        HistoryClient::with_interceptor(self.server.channel(), bearer(&self.admin))
    }

    async fn listed(&self) -> Vec<v1::Token> {
        soon(self.tokens().list_tokens(v1::ListTokensRequest {})).await.unwrap().into_inner().tokens
    }
}

#[tokio::test]
async fn token_is_shown_once_and_lasts_90_days() {
    let server = Guarded::start().await;
    let request =
        v1::CreateTokenRequest { options: options("once"), ..wanted(v1::Role::Editor, &["shop"], &["st*"]) };
    let first = server.try_make(request.clone()).await.unwrap();
    let token = first.token.clone().unwrap();
    assert!(first.secret.starts_with(&format!("damper_{}_", token.id)));
    let lasts = token.expires_at.unwrap().seconds - token.created_at.unwrap().seconds;
    assert_eq!(lasts, 90 * 86_400);
    assert!(token.created_by.contains("bootstrap"), "{}", token.created_by);
    let again = server.try_make(request.clone()).await.unwrap();
    assert_eq!((again.secret.as_str(), &again.token), ("", &first.token));
    let other = v1::CreateTokenRequest { name: "other".to_owned(), ..request.clone() };
    assert_eq!(server.try_make(other).await.unwrap_err().code(), Code::AlreadyExists);
    let tried = v1::WriteOptions { validate_only: true, ..Default::default() };
    let tried = server.try_make(v1::CreateTokenRequest { options: Some(tried), ..request }).await.unwrap();
    assert_eq!((tried.secret.as_str(), tried.token.unwrap().id.as_str()), ("", ""));
    assert_eq!(server.listed().await.len(), 2);
    let who =
        soon(server.tokens_as(&first.secret).who_am_i(v1::WhoAmIRequest {})).await.unwrap().into_inner();
    let role = who.role();
    assert_eq!(
        (who.principal, role, who.scope),
        (format!("token {} ({})", token.name, token.id), v1::Role::Editor, token.scope)
    );
    assert!(who.tokens_required && !who.session && who.expires_at == token.expires_at);
    server.server.stop().await;
}

#[tokio::test]
async fn invalid_token_request_lists_all_faults() {
    let server = Guarded::start().await;
    let of = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let good = wanted(v1::Role::Viewer, &[], &[]);
    for (request, fields) in [
        (
            v1::CreateTokenRequest { time_to_live: of(1), ..Default::default() },
            vec!["name", "role", "time_to_live"],
        ),
        (v1::CreateTokenRequest { time_to_live: of(59), ..good.clone() }, vec!["time_to_live"]),
        (
            v1::CreateTokenRequest { time_to_live: of(3650 * 86_400 + 1), ..good.clone() },
            vec!["time_to_live"],
        ),
        (
            v1::CreateTokenRequest { time_to_live: of(60), never_expires: true, ..good.clone() },
            vec!["time_to_live"],
        ),
        (v1::CreateTokenRequest { role: 99, name: "x".repeat(256), ..good.clone() }, vec!["name", "role"]),
        (wanted(v1::Role::Viewer, &["shop"], &[]), vec!["scope"]),
        (wanted(v1::Role::Admin, &[], &["stock"]), vec!["scope"]),
        (wanted(v1::Role::Agent, &[], &["stock"]), vec!["scope.callees"]),
        (wanted(v1::Role::Editor, &["a*b"], &[""]), vec!["scope.callers[0]", "scope.callees[0]"]),
    ] {
        let status = server.try_make(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{request:?}");
        let violations = tonic_types::StatusExt::get_details_bad_request(&status).unwrap().field_violations;
        let mut reported: Vec<&str> = violations.iter().map(|violation| violation.field.as_str()).collect();
        reported.sort_unstable();
        let mut fields = fields;
        fields.sort_unstable();
        assert_eq!(reported, fields, "{request:?}");
    }
    server.server.stop().await;
}

#[tokio::test]
async fn last_admin_token_without_expiry_cannot_be_revoked() {
    let server = Guarded::start().await;
    let first = server.listed().await[0].id.clone();
    // Another admin, but with an expiry.
    let (_, admin) = server.make(wanted(v1::Role::Admin, &[], &[])).await;
    let server = Guarded { admin, ..server };
    let tried = v1::WriteOptions { validate_only: true, ..Default::default() };
    for options in [None, Some(tried)] {
        let request = v1::RevokeTokenRequest { id: first.clone(), options };
        let refused = soon(server.tokens().revoke_token(request)).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    }
    let lasting = v1::CreateTokenRequest { never_expires: true, ..wanted(v1::Role::Admin, &[], &[]) };
    let (second, _) = server.make(lasting).await;
    let both = tokio::join!(server.revoke(&first), server.revoke(&second));
    assert!(both.0.is_ok() != both.1.is_ok(), "one of two that are revoked at once stays: {both:?}");
    assert_eq!(server.listed().await.len(), 2);
    server.server.stop().await;
}

#[tokio::test]
async fn unknown_token_cannot_be_revoked() {
    let server = Guarded::start().await;
    assert_eq!(server.revoke(&"0".repeat(16)).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(server.revoke("x").await.unwrap_err().code(), Code::InvalidArgument);
    server.server.stop().await;
}

#[tokio::test]
async fn history_shows_token_authors_but_no_secrets() {
    let server = Guarded::start().await;
    let (id, secret) = server.make(wanted(v1::Role::Editor, &[], &[])).await;
    let mut rules = RulesClient::with_interceptor(server.server.channel(), bearer(&secret));
    let put = v1::PutRuleRequest { rule: Some(shop_rule(2)), ..Default::default() };
    let put = soon(rules.put_rule(put)).await.unwrap().into_inner();
    assert_eq!(put.rule.unwrap().updated_by, "a ROLE_EDITOR", "the author defaults to the token's name");
    let declared = Some(v1::WriteOptions { author: "root@vm".to_owned(), ..Default::default() });
    let put = v1::PutRuleRequest { rule: Some(shop_rule(3)), options: declared, ..Default::default() };
    let put = soon(rules.put_rule(put)).await.unwrap().into_inner();
    assert_eq!(put.rule.unwrap().updated_by, "a ROLE_EDITOR (as root@vm)", "the proven name is first");
    server.revoke(&id).await.unwrap();
    let changes =
        soon(server.history().list_changes(v1::ListChangesRequest::default())).await.unwrap().into_inner();
    let [revoked, _declared, written, made, first] = changes.changes.as_slice() else {
        panic!("{changes:?}")
    };
    assert_eq!(written.principal, format!("token a ROLE_EDITOR ({id})"));
    for change in [revoked, made, first] {
        assert!(matches!(change.objects[0].key.as_ref().unwrap().kind, Some(object_key::Kind::Token(_))));
    }
    assert!(revoked.objects[0].after.is_none() && made.objects[0].before.is_none());
    assert!(made.principal.starts_with("token bootstrap ("), "{}", made.principal);
    let filter = |kind: v1::ObjectKind| Some(v1::ChangeFilter { kind: kind.into(), ..Default::default() });
    let asked = v1::ListChangesRequest { filter: filter(v1::ObjectKind::Token), ..Default::default() };
    assert_eq!(soon(server.history().list_changes(asked)).await.unwrap().into_inner().changes.len(), 3);
    let key = Some(v1::ObjectKey { kind: Some(object_key::Kind::Token(id.clone())) });
    let asked = v1::GetObjectRequest { key: key.clone(), revision: Some(made.revision) };
    let then = soon(server.history().get_object(asked)).await.unwrap().into_inner();
    assert_eq!(Some(&then), made.objects[0].after.as_ref());
    let asked = v1::GetObjectRequest { key: key.clone(), revision: None };
    assert_eq!(soon(server.history().get_object(asked)).await.unwrap_err().code(), Code::NotFound);
    let back = v1::RollbackRequest { key, to_revision: Some(made.revision), ..Default::default() };
    assert_eq!(soon(server.history().rollback(back)).await.unwrap_err().code(), Code::InvalidArgument);
    let reported = format!("{changes:?} {then:?} {:?}", server.listed().await);
    let kept = secret.rsplit('_').next().unwrap();
    let hash = <sha2::Sha256 as sha2::Digest>::digest(unhex(kept));
    for hidden in [kept.to_owned(), hex(&hash), format!("{:?}", hash.to_vec())] {
        assert!(!reported.contains(&hidden), "{hidden}");
    }
    server.server.stop().await;
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[tokio::test]
async fn writes_of_everything_leave_tokens_alone() {
    let server = Guarded::start().await;
    let (id, secret) = server.make(wanted(v1::Role::Viewer, &[], &[])).await;
    let mut rules = RulesClient::with_interceptor(server.server.channel(), bearer(&server.admin));
    let put = v1::PutRuleRequest { rule: Some(shop_rule(2)), ..Default::default() };
    soon(rules.put_rule(put)).await.unwrap();
    let everything = v1::WriteOptions {
        prune: v1::Prune::Everything.into(),
        reason: "test".to_owned(),
        ..Default::default()
    };
    let pruned =
        soon(rules.apply_rules(tokio_stream::iter([header(everything)]))).await.unwrap().into_inner();
    assert_eq!(pruned.deleted, 1);
    let back = v1::RollbackAllRequest { to_revision: Some(0), options: options(""), ..Default::default() };
    soon(server.history().rollback_all(back)).await.unwrap();
    assert!(server.listed().await.iter().any(|token| token.id == id));
    soon(server.tokens_as(&secret).who_am_i(v1::WhoAmIRequest {})).await.unwrap();
    let mut exported =
        soon(server.history().export(v1::ExportRequest::default())).await.unwrap().into_inner();
    let exported = soon(exported.message()).await.unwrap().unwrap();
    assert_eq!((exported.total, exported.objects.len()), (0, 0));
    server.server.stop().await;
}

#[tokio::test]
async fn dry_run_requires_the_same_role_and_scope_as_a_write() {
    let server = Guarded::start().await;
    let editor = server.token(v1::Role::Editor, &[], &[]).await;
    let scoped = server.token(v1::Role::Operator, &["shop"], &[]).await;
    let forced = v1::WriteOptions { force: true, reason: "r".to_owned(), ..Default::default() };
    let taken = v1::WriteOptions { take_over: true, owner: "o".to_owned(), ..Default::default() };
    let everything = v1::WriteOptions { prune: v1::Prune::Everything.into(), ..Default::default() };
    for (token, options, expected) in [
        (&editor, forced.clone(), Some("ROLE")),
        (&editor, taken.clone(), Some("ROLE")),
        (&editor, everything.clone(), Some("ROLE")),
        (&scoped, forced, None),
        (&scoped, taken, None),
        (&scoped, everything.clone(), Some("SCOPE")),
        (&server.admin, everything, None),
    ] {
        for validate_only in [true, false] {
            let mut rules = RulesClient::with_interceptor(server.server.channel(), bearer(token));
            let options = v1::WriteOptions { validate_only, ..options.clone() };
            let answer = soon(rules.apply_rules(tokio_stream::iter([header(options.clone())]))).await;
            let reported = answer.as_ref().err().map(super::reason);
            assert_eq!(reported.as_deref(), expected, "{options:?}: {answer:?}");
        }
    }
    // A guard in an editor's set, and a scoped prune with rules beyond the scope.
    let guard = v1::Guard {
        key: Some(crate::harness::key("*", "stock", "*")),
        ceiling: Some(v1::Ceiling { max_attempts: Some(3), ..Default::default() }),
        ..Default::default()
    };
    let kind = v1::rule_change::Kind::PutGuard(guard);
    let change = v1::RuleChange { kind: Some(kind), expected_revision: None };
    let change = v1::ApplyRulesRequest { kind: Some(v1::apply_rules_request::Kind::Change(change)) };
    let mut rules = RulesClient::with_interceptor(server.server.channel(), bearer(&editor));
    let set = [header(v1::WriteOptions::default()), change];
    let refused = soon(rules.apply_rules(tokio_stream::iter(set))).await.unwrap_err();
    assert_eq!(super::reason(&refused), "ROLE");
    let other = crate::harness::rule(crate::harness::key("other", "stock", "p.S/M"), 2);
    let owned = v1::Rule { owner: "team".to_owned(), ..other };
    let put = v1::PutRuleRequest { rule: Some(owned), ..Default::default() };
    soon(rules.put_rule(put)).await.unwrap();
    let mut rules = RulesClient::with_interceptor(server.server.channel(), bearer(&scoped));
    let prune =
        v1::WriteOptions { owner: "team".to_owned(), prune: v1::Prune::Owned.into(), ..Default::default() };
    let refused = soon(rules.apply_rules(tokio_stream::iter([header(prune)]))).await.unwrap_err();
    assert_eq!(super::reason(&refused), "SCOPE");
    server.server.stop().await;
}

#[tokio::test]
async fn there_are_no_more_tokens_than_the_limit() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("first");
    let first = file.clone();
    let server = crate::harness::start_in(folder, |settings| {
        settings.auth = Auth::Tokens;
        settings.bootstrap_token_file = Some(first);
        settings.max_tokens = 2;
    });
    let server = server.await;
    let server = Guarded { admin: std::fs::read_to_string(file).unwrap().trim().to_owned(), server };
    server.make(wanted(v1::Role::Viewer, &[], &[])).await;
    for validate_only in [false, true] {
        let options = Some(v1::WriteOptions { validate_only, ..Default::default() });
        let request = v1::CreateTokenRequest { options, ..wanted(v1::Role::Viewer, &[], &[]) };
        assert_eq!(server.try_make(request).await.unwrap_err().code(), Code::ResourceExhausted);
    }
    server.server.stop().await;
}

#[tokio::test]
async fn first_token_is_written_once_or_read_from_its_file() {
    let guarded = |folder: &TempDir, file: Option<&str>| {
        let mut settings = settings_in(folder);
        settings.auth = Auth::Tokens;
        settings.bootstrap_token_file = file.map(|file| folder.path().join(file));
        settings
    };
    let folder = TempDir::new().unwrap();
    let refused = bind(guarded(&folder, None)).await;
    assert!(
        matches!(refused, Err(StartError::Bootstrap(damper_control_plane::BootstrapError::NoAdmin))),
        "{refused:?}"
    );
    let path = folder.path().join("first");
    for bad in ["", "damper_x_y", "\u{0}"] {
        std::fs::write(&path, bad).unwrap();
        let refused = bind(guarded(&folder, Some("first"))).await;
        assert!(matches!(refused, Err(StartError::Bootstrap(_))), "{bad:?}: {refused:?}");
    }
    let given = format!("damper_{}_{}", "ab".repeat(8), "cd".repeat(32));
    std::fs::write(&path, format!("{given}\n")).unwrap();
    let server = Guarded::start_in(folder_with(&given)).await;
    assert_eq!(server.admin, given);
    assert_eq!(server.listed().await[0].id, "ab".repeat(8));
    let folder = server.server.stop().await;
    // The store has an admin now, so no other file is created or needed.
    drop(bind(guarded(&folder, Some("second"))).await.unwrap());
    assert!(!folder.path().join("second").exists());
    drop(bind(guarded(&folder, None)).await.unwrap());

    let folder = TempDir::new().unwrap();
    drop(bind(guarded(&folder, Some("new"))).await.unwrap());
    let made = folder.path().join("new");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(std::fs::metadata(&made).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "the store and the token, and nothing unfinished: {names:?}");
    let before = std::fs::read(&made).unwrap();
    drop(bind(guarded(&folder, Some("new"))).await.unwrap());
    assert_eq!(std::fs::read(&made).unwrap(), before);
}

fn folder_with(token: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("first-token"), token).unwrap();
    folder
}

/// Returns the answer to a service without access.
async fn rejection(server: &Guarded, token: &str) -> tonic::Status {
    let mut distribution = DistributionClient::with_interceptor(server.server.channel(), bearer(token));
    let messages = tokio_stream::iter([to_message(client_message::Kind::Hello(hello("shop")))]);
    match soon(distribution.subscribe(messages)).await {
        Ok(answer) => soon(answer.into_inner().message()).await.unwrap_err(),
        Err(status) => status,
    }
}

#[tokio::test]
async fn rejected_service_is_reported_by_doctor() {
    let server = Guarded::start().await;
    let other = server.token(v1::Role::Agent, &["cart"], &[]).await;
    let viewer = server.token(v1::Role::Viewer, &[], &[]).await;
    for token in [&other, &other, &viewer] {
        assert_eq!(rejection(&server, token).await.code(), Code::PermissionDenied);
    }
    assert_eq!(rejection(&server, "damper_x").await.code(), Code::Unauthenticated);
    let reported = async |service: &str| {
        let mut fleet = FleetClient::with_interceptor(server.server.channel(), bearer(&viewer));
        let request = v1::DiagnoseRequest { service: service.to_owned(), window: None };
        let findings = soon(fleet.diagnose(request)).await.unwrap().into_inner().findings;
        let denied = findings.into_iter().filter(|finding| finding.code == "agent_denied");
        denied.map(|finding| (finding.subject, finding.message)).collect::<Vec<_>>()
    };
    let of_shop = reported("shop").await;
    let [(subject, message)] = &of_shop[..] else { panic!("{of_shop:?}") };
    assert_eq!(subject, "shop");
    assert!(
        message.contains("2 times") && message.contains("service shop is outside the scope"),
        "{message}"
    );
    let all = reported("").await;
    assert_eq!(all.len(), 3, "{all:?}");
    for part in ["requires the role agent", "address 127.0.0.1 was rejected once"] {
        assert!(all.iter().any(|(_, message)| message.contains(part)), "{part} is not in {all:?}");
    }
    assert!(reported("cart").await.is_empty());
}

#[tokio::test]
async fn viewer_sees_the_findings_of_a_rule_and_writes_nothing() {
    let server = Guarded::start().await;
    let viewer = server.token(v1::Role::Viewer, &[], &[]).await;
    let mut rules = RulesClient::with_interceptor(server.server.channel(), bearer(&viewer));
    let mut risky = shop_rule(3);
    risky.policy.as_mut().unwrap().retry_breaker =
        Some(v1::RetryBreaker { enabled: Some(false), ..Default::default() });
    let checked = soon(rules.judge_rule(v1::JudgeRuleRequest { rule: Some(risky.clone()) })).await;
    let checked = checked.unwrap().into_inner();
    assert!(
        checked.findings.iter().any(|finding| finding.field == "policy.retry_breaker.enabled"),
        "{checked:?}"
    );
    assert!(checked.reach.is_some() && checked.after.is_some());
    let missing = soon(rules.get_rule(v1::GetRuleRequest { key: risky.key.clone(), min_revision: 0 })).await;
    assert_eq!(missing.unwrap_err().code(), Code::NotFound, "judging writes nothing");
    let put = v1::PutRuleRequest { rule: Some(risky), ..Default::default() };
    assert_eq!(soon(rules.put_rule(put)).await.unwrap_err().code(), Code::PermissionDenied);
    server.server.stop().await;
}
