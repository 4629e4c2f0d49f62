//! The kill switch, from the admin API to the services.

use std::time::{Duration, SystemTime};

use damper_control_plane::Rate;
use damper_core::kill::{DEFAULT_TIME_TO_LIVE, MAX_KILLS};
use damper_proto::v1::{self, object, object_key, server_message};
use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::{StatusExt as _, pb};

use crate::harness::{Agent, Running, hello, key, shop_rule, soon, start, start_in, start_with};

const SECOND: prost_types::Duration = prost_types::Duration { seconds: 1, nanos: 0 };
/// Long enough to be observed on a busy machine.
const SHORT: prost_types::Duration = prost_types::Duration { seconds: 5, nanos: 0 };

fn of_stock() -> v1::Pattern {
    key("*", "stock", "*")
}

fn kill(key: v1::Pattern) -> v1::KillRequest {
    let options = v1::WriteOptions {
        reason: "stock is down".to_owned(),
        author: "ann".to_owned(),
        ..Default::default()
    };
    v1::KillRequest { key: Some(key), options: Some(options), ..Default::default() }
}

fn with_options(mut request: v1::KillRequest, adjust: impl FnOnce(&mut v1::WriteOptions)) -> v1::KillRequest {
    adjust(request.options.as_mut().unwrap());
    request
}

async fn try_kill(server: &Running, request: v1::KillRequest) -> Result<v1::KillResponse, Status> {
    soon(server.kills().kill(request)).await.map(tonic::Response::into_inner)
}

async fn set(server: &Running, request: v1::KillRequest) -> v1::KillResponse {
    try_kill(server, request).await.unwrap()
}

async fn unkill(server: &Running, key: v1::Pattern) -> Result<u64, Status> {
    let request = v1::UnkillRequest { key: Some(key), ..Default::default() };
    soon(server.kills().unkill(request)).await.map(|ended| ended.into_inner().revision)
}

async fn listed(server: &Running) -> Vec<v1::KillSwitch> {
    let request = v1::ListKillsRequest::default();
    soon(server.kills().list_kills(request)).await.unwrap().into_inner().kills
}

async fn metric(server: &Running, name: &str) -> Option<String> {
    let metrics = server.get(server.metrics, "GET /metrics HTTP/1.1").await;
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned);
    metrics.lines().find_map(value)
}

fn in_whole_seconds(remaining: Option<prost_types::Duration>) -> i64 {
    let remaining = remaining.unwrap();
    remaining.seconds + i64::from(remaining.nanos > 0)
}

/// Returns the callees of the kills in a message; `None` if it has no kills.
fn brought(message: &v1::ServerMessage) -> Option<Vec<String>> {
    let set = message.kills.as_ref()?;
    Some(set.kills.iter().map(|kill| kill.key.as_ref().unwrap().callee_service.clone()).collect())
}

async fn connected(server: &Running, hello: v1::Hello) -> (Agent, v1::ServerMessage) {
    let mut agent = Agent::connect(server, hello).await;
    let (message, _) = agent.snapshot().await;
    agent.ack(&message, vec![]).await;
    (agent, message)
}

/// A client of a version without kill support.
fn old(service: &str) -> v1::Hello {
    let hello = hello(service);
    let features = hello.features.iter().filter(|feature| *feature != damper_core::feature::KILL_SWITCH);
    v1::Hello { features: features.cloned().collect(), ..hello }
}

#[tokio::test]
async fn kill_and_its_end_are_sent_with_a_response() {
    let server = start().await;
    let (mut shop, first) = connected(&server, hello("shop")).await;
    assert_eq!(brought(&first), Some(vec![]), "the first response of a stream has all kills");
    let before = SystemTime::now();
    let request = v1::KillRequest { calls: true, ..kill(of_stock()) };
    let answer = set(&server, request).await;
    let shown = answer.kill.unwrap();
    let until = SystemTime::try_from(shown.expires_at.unwrap()).unwrap();
    assert!((before..).contains(&(until - DEFAULT_TIME_TO_LIVE)), "1 h by default: {shown:?}");
    assert_eq!((shown.revision, shown.updated_by.as_str()), (answer.revision, "ann"));
    let reach = answer.reach.unwrap();
    assert_eq!((reach.clients, reach.clients_lacking_features), (1, 0));

    let (message, delta) = shop.delta().await;
    assert_eq!((message.revision, delta), (answer.revision, v1::Delta::default()));
    assert!(message.nonce > 0, "the answer is the proof");
    let [active] = &message.kills.as_ref().unwrap().kills[..] else { panic!("{message:?}") };
    assert_eq!((&active.key, active.revision), (&Some(of_stock()), answer.revision));
    assert_eq!((active.calls, active.reason.as_str()), (true, "stock is down"));
    assert_eq!((in_whole_seconds(active.remaining), active.expires_at), (3600, shown.expires_at));
    shop.ack(&message, vec![]).await;
    server.client_that(|client| client.acknowledged_revision == answer.revision).await;

    let put = server.put(shop_rule(2)).await;
    let (message, _) = shop.delta().await;
    assert_eq!((message.revision, brought(&message)), (put.revision, None), "sent once is enough");
    let ended = unkill(&server, of_stock()).await.unwrap();
    let (message, _) = shop.delta().await;
    assert_eq!((message.revision, brought(&message)), (ended, Some(vec![])));
    assert_eq!(unkill(&server, of_stock()).await.unwrap_err().code(), Code::NotFound);
    server.stop().await;
}

#[tokio::test]
async fn kills_go_to_matching_clients_with_kill_support() {
    let server = start().await;
    let (mut shop, _) = connected(&server, hello("shop")).await;
    let (mut cart, _) = connected(&server, hello("cart")).await;
    let (mut old_shop, first) = connected(&server, old("shop")).await;
    assert_eq!(brought(&first), None);
    let reach = set(&server, kill(key("shop", "stock", "*"))).await.reach.unwrap();
    assert_eq!((reach.clients, reach.clients_lacking_features), (2, 1));
    assert_eq!(brought(&shop.delta().await.0), Some(vec!["stock".to_owned()]));
    // The next message of the others is a rule, without kills.
    server.put(crate::harness::rule(key("*", "stock", "*"), 2)).await;
    for other in [&mut cart, &mut old_shop] {
        let (message, delta) = other.delta().await;
        assert_eq!((delta.changed.len(), brought(&message)), (1, None));
    }
    assert_eq!(metric(&server, "damper_kills").await.as_deref(), Some("1"));
    assert_eq!(metric(&server, "damper_killed_clients").await.as_deref(), Some("2"));
    assert_eq!(metric(&server, "damper_killed_clients_lacking_feature").await.as_deref(), Some("1"));
    let clients = server.clients().await;
    let lacking: Vec<_> = clients.iter().map(|client| client.features_lacking.join(",")).collect();
    assert_eq!(lacking.iter().filter(|lacking| *lacking == "kill_switch").count(), 1, "{lacking:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_kill_does_not_wait_for_the_rest_of_a_snapshot() {
    let server = start().await;
    // Pages of 512 KiB, more than the buffers on the way to a client that does not read.
    let changes = (0..9_000).map(|n| {
        let method = format!("{}.S/M{n}", "x".repeat(230));
        crate::harness::put_change(crate::harness::rule(key("shop", &"y".repeat(200), &method), 2))
    });
    let header = crate::harness::header(v1::WriteOptions::default());
    let requests: Vec<_> = std::iter::once(header).chain(changes).collect();
    let mut rules = server.rules();
    soon(rules.apply_rules(tokio_stream::iter(requests))).await.unwrap();
    let narrow = tonic::transport::Endpoint::from_shared(server.url.clone())
        .unwrap()
        .initial_stream_window_size(1024)
        .connect_lazy();
    let mut shop = Agent::over(narrow, hello("shop")).await;
    let first = shop.next().await;
    assert_eq!(brought(&first), Some(vec![]));
    let killed = set(&server, kill(of_stock())).await.revision;
    let (mut pages, mut brought_at) = (1, None);
    let last = loop {
        let message = shop.next().await;
        let Some(server_message::Kind::Snapshot(page)) = &message.kind else { panic!("{message:?}") };
        pages += 1;
        if brought(&message) == Some(vec!["stock".to_owned()]) {
            brought_at = Some(pages);
        }
        if page.last {
            break message;
        }
    };
    assert!(brought_at.is_some_and(|at| at < pages), "with page {brought_at:?} of {pages}");
    assert!(last.revision < killed, "the snapshot itself is older");
    // The client acknowledges the kill with the rules; the kill has no acknowledgement of its own.
    shop.ack(&last, vec![]).await;
    server.client_that(|client| client.acknowledged_revision == killed).await;
    server.stop().await;
}

#[tokio::test]
async fn a_diagnosis_names_who_does_not_obey() {
    let server = start().await;
    let (mut shop, _) = connected(&server, hello("shop")).await;
    let (_cart, _) = connected(&server, old("cart")).await;
    let (_stock, _) = connected(&server, hello("stock")).await;
    let revision = set(&server, kill(of_stock())).await.revision;
    let diagnose = || async {
        let request = v1::DiagnoseRequest::default();
        soon(server.fleet().diagnose(request)).await.unwrap().into_inner().findings
    };
    let found = |findings: &[v1::Finding], code: &str| -> Vec<(String, String)> {
        let found = findings.iter().filter(|finding| finding.code == code);
        found.map(|finding| (finding.subject.clone(), finding.message.clone())).collect()
    };
    let subject = "kill * * stock *".to_owned();
    let lacks = (subject.clone(), "cart cart-1: its SDK lacks the feature kill_switch".to_owned());
    assert_eq!(found(&diagnose().await, "kill_not_applied"), [lacks]);
    let (message, _) = shop.delta().await;
    let reason = "remaining: is no time".to_owned();
    let refusal = v1::Refusal { key: Some(of_stock()), revision, reason, kill: true, ..Default::default() };
    shop.ack(&message, vec![refusal]).await;
    server.client_that(|client| !client.refused.is_empty()).await;
    let findings = diagnose().await;
    let [(_, message_text)] = &found(&findings, "kill_not_applied")[..] else { panic!("{findings:?}") };
    assert!(message_text.starts_with("2 processes, one of them cart cart-1: "), "{message_text}");
    let refused = found(&findings, "entry_refused");
    assert_eq!(refused, [(subject, "rejected by 1 process: remaining: is no time".to_owned())]);
    unkill(&server, of_stock()).await.unwrap();
    assert!(found(&diagnose().await, "kill_not_applied").is_empty());
    server.stop().await;
}

#[tokio::test]
async fn reconnecting_client_gets_the_kills_in_force() {
    let server = start().await;
    let (shop, first) = connected(&server, hello("shop")).await;
    drop(shop);
    let killed = set(&server, kill(of_stock())).await.revision;
    let resumed = |revision| v1::Hello { epoch: first.epoch.clone(), revision, ..hello("shop") };
    let next = |server: &Running, revision| {
        let (hello, channel) = (resumed(revision), server.channel());
        async move { Agent::over(channel, hello).await.next().await }
    };
    // Having missed the kill or not, the client gets all kills.
    for holds in [first.revision, killed] {
        let message = next(&server, holds).await;
        assert!(matches!(message.kind, Some(server_message::Kind::Delta(_))), "{message:?}");
        assert_eq!(brought(&message), Some(vec!["stock".to_owned()]), "from {holds}");
    }
    let server = start_in(server.stop().await, |_| {}).await;
    assert_eq!(brought(&next(&server, killed).await), Some(vec!["stock".to_owned()]));
    // A client that was away when the kill ended gets an empty list.
    let ended = unkill(&server, of_stock()).await.unwrap();
    let message = next(&server, killed).await;
    assert_eq!((message.revision, brought(&message)), (ended, Some(vec![])));
    assert!(message.nonce > 0);
    let message = next(&server, ended).await;
    assert!(matches!(message.kind, Some(server_message::Kind::Bookmark(_))), "{message:?}");
    assert_eq!(brought(&message), Some(vec![]));
    server.stop().await;
}

#[tokio::test]
async fn invalid_kill_lists_all_faults_and_stores_nothing() {
    let server = start().await;
    let too_long = prost_types::Duration { seconds: 24 * 3600 + 1, nanos: 0 };
    let bad = v1::KillRequest {
        key: Some(key("sh op", "stock", "Take")),
        time_to_live: Some(too_long),
        options: Some(v1::WriteOptions { author: "x".repeat(256), ..Default::default() }),
        ..Default::default()
    };
    let refused = try_kill(&server, bad).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let shown: Vec<_> = refused.get_details_bad_request().unwrap().field_violations;
    let mut fields: Vec<&str> = shown.iter().map(|violation| violation.field.as_str()).collect();
    fields.sort_unstable();
    let expected =
        ["key.callee_method", "key.caller_service", "options.author", "options.reason", "time_to_live"];
    assert_eq!(fields, expected);
    for (time_to_live, good) in [
        (prost_types::Duration { seconds: 0, nanos: 999_999_999 }, false),
        (prost_types::Duration { seconds: -1, nanos: 0 }, false),
        (prost_types::Duration { seconds: i64::MAX, nanos: i32::MAX }, false),
        (SECOND, true),
        (prost_types::Duration { seconds: 24 * 3600, nanos: 0 }, true),
    ] {
        let request = v1::KillRequest { time_to_live: Some(time_to_live), ..kill(of_stock()) };
        let tried = try_kill(&server, with_options(request, |options| options.validate_only = true)).await;
        assert_eq!(tried.is_ok(), good, "{time_to_live:?}: {tried:?}");
    }
    for reason in [String::new(), " \t\n".to_owned(), "x".repeat(1025)] {
        let request = with_options(kill(of_stock()), |options| options.reason = reason);
        assert_eq!(try_kill(&server, request).await.unwrap_err().code(), Code::InvalidArgument);
    }
    let missing = v1::KillRequest { key: None, ..kill(of_stock()) };
    assert_eq!(try_kill(&server, missing).await.unwrap_err().code(), Code::InvalidArgument);
    assert!(listed(&server).await.is_empty());
    assert_eq!(metric(&server, "damper_table_revision").await.as_deref(), Some("0"));
    server.stop().await;
}

#[tokio::test]
async fn kill_conflict_has_the_kill_and_repeat_does_not_extend_it() {
    let server = start().await;
    let id = |request| with_options(request, |options| options.request_id = "k-1".to_owned());
    let first = set(&server, id(kill(of_stock()))).await;
    let again = set(&server, id(kill(of_stock()))).await;
    let end = |answer: &v1::KillResponse| answer.kill.as_ref().unwrap().expires_at;
    assert_eq!((again.revision, end(&again)), (first.revision, end(&first)));
    let other = try_kill(&server, id(kill(key("*", "cart", "*")))).await.unwrap_err();
    assert_eq!(other.code(), Code::AlreadyExists);

    for expected in [0, first.revision + 7] {
        let stale = v1::KillRequest { expected_revision: Some(expected), ..kill(of_stock()) };
        for tried in [false, true] {
            let stale = with_options(stale.clone(), |options| options.validate_only = tried);
            let refused = try_kill(&server, stale).await.unwrap_err();
            assert_eq!(refused.code(), Code::Aborted, "{refused:?}");
            let details = pb::Status::decode(refused.details()).unwrap().details;
            let packed = details.iter().find(|any| any.type_url.ends_with("/damper.v1.KillSwitch")).unwrap();
            let current = v1::KillSwitch::decode(&*packed.value).unwrap();
            assert_eq!((current.revision, current.updated_by.as_str()), (first.revision, "ann"));
        }
    }
    let prolonged = set(
        &server,
        v1::KillRequest { expected_revision: Some(first.revision), calls: true, ..kill(of_stock()) },
    )
    .await;
    assert_eq!(prolonged.revision, first.revision + 1);
    assert_eq!(listed(&server).await.len(), 1, "it took the place of the first");
    let stale = v1::UnkillRequest {
        key: Some(of_stock()),
        expected_revision: Some(first.revision),
        ..Default::default()
    };
    assert_eq!(server.kills().unkill(stale).await.unwrap_err().code(), Code::Aborted);
    server.stop().await;
}

#[tokio::test]
async fn the_history_shows_kills_and_no_rollback_touches_them() {
    let server = start().await;
    server.put(shop_rule(2)).await;
    set(&server, kill(of_stock())).await;
    server.put(shop_rule(3)).await;
    let of_kill = v1::ObjectKey { kind: Some(object_key::Kind::Kill(of_stock())) };
    let filter = v1::ChangeFilter { kind: v1::ObjectKind::Kill.into(), ..Default::default() };
    let request = v1::ListChangesRequest { filter: Some(filter.clone()), ..Default::default() };
    let changes = server.history().list_changes(request).await.unwrap().into_inner().changes;
    let [change] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(
        (change.revision, change.author.as_str(), change.reason.as_str()),
        (2, "ann", "stock is down")
    );
    assert_eq!(change.objects[0].key.as_ref(), Some(&of_kill));
    let Some(object::Kind::Kill(after)) = change.objects[0].after.clone().and_then(|after| after.kind) else {
        panic!("{change:?}")
    };
    assert_eq!((after.revision, after.remaining), (2, None));
    let export = v1::ExportAuditRequest { filter: Some(filter) };
    let mut exported = server.history().export_audit(export).await.unwrap().into_inner();
    assert_eq!(soon(exported.message()).await.unwrap().unwrap().objects, change.objects);
    let get = v1::GetObjectRequest { key: Some(of_kill.clone()), revision: Some(2) };
    let read = server.history().get_object(get).await.unwrap().into_inner();
    assert_eq!(read.kind, Some(object::Kind::Kill(after)));
    let diff =
        v1::DiffRevisionsRequest { from_revision: Some(1), to_revision: Some(2), ..Default::default() };
    let differs = server.history().diff_revisions(diff).await.unwrap().into_inner();
    assert_eq!((differs.total, &differs.objects[0].before), (1, &None));

    let rollback = v1::RollbackRequest { key: Some(of_kill), to_revision: Some(1), ..Default::default() };
    let refused = server.history().rollback(rollback).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("unkill"), "{refused:?}");
    let options = v1::WriteOptions { reason: "back".to_owned(), ..Default::default() };
    let all = v1::RollbackAllRequest { to_revision: Some(1), options: Some(options), ..Default::default() };
    let rolled = server.history().rollback_all(all).await.unwrap().into_inner();
    assert_eq!((rolled.updated, rolled.deleted), (1, 0), "{rolled:?}");
    assert_eq!(listed(&server).await.len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn expired_kill_is_not_shown_and_then_deleted() {
    let server = start().await;
    let (mut shop, first) = connected(&server, hello("shop")).await;
    let request = v1::KillRequest { time_to_live: Some(SHORT), ..kill(of_stock()) };
    let set_at = set(&server, request).await.revision;
    let (message, _) = shop.delta().await;
    let remaining = Duration::try_from(message.kills.unwrap().kills[0].remaining.unwrap()).unwrap();
    assert!(remaining <= Duration::from_secs(5), "{remaining:?}");
    soon(async {
        while !listed(&server).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // Expired and, for a moment, still stored: it is not shown anywhere.
    assert_eq!(metric(&server, "damper_kills").await.as_deref(), Some("0"));
    assert_eq!(unkill(&server, of_stock()).await.unwrap_err().code(), Code::NotFound);
    let resumed = v1::Hello { epoch: first.epoch.clone(), revision: set_at, ..hello("shop") };
    let message = Agent::connect(&server, resumed).await.next().await;
    assert_eq!(brought(&message), Some(vec![]));
    let must_be_new = v1::KillRequest { expected_revision: Some(0), ..kill(of_stock()) };
    let tried = with_options(must_be_new, |options| options.validate_only = true);
    try_kill(&server, tried).await.expect("a kill that is over does not exist");

    // Deleted by a normal change.
    let (message, delta) = shop.delta().await;
    assert_eq!((message.revision, delta), (set_at + 1, v1::Delta::default()));
    let changes = server.history().list_changes(v1::ListChangesRequest::default()).await.unwrap();
    let last = changes.into_inner().changes[0].clone();
    assert_eq!(
        (last.revision, last.author.as_str(), last.reason.as_str()),
        (set_at + 1, "damper", "expired")
    );
    assert_eq!(last.objects[0].after, None);
    server.stop().await;
}

#[tokio::test]
async fn kills_are_limited_to_1000_without_expired_ones() {
    let server = start_with(|settings| {
        settings.limits.writes = Rate::UNLIMITED;
        settings.limits.max_open_requests_per_identity = MAX_KILLS;
    })
    .await;
    let callee = |n: usize| key("*", &format!("callee-{n}"), "*");
    let short = v1::KillRequest { time_to_live: Some(SECOND), ..kill(of_stock()) };
    let over_at = set(&server, short).await.kill.unwrap().expires_at.unwrap();
    let kills = server.kills();
    let all = (1..MAX_KILLS).map(|n| {
        let mut kills = kills.clone();
        async move { kills.kill(kill(callee(n))).await }
    });
    let all = tokio::time::timeout(Duration::from_secs(120), futures_util::future::join_all(all)).await;
    for set in all.expect("a thousand writes are done") {
        set.unwrap();
    }
    let left = SystemTime::try_from(over_at).unwrap().duration_since(SystemTime::now()).unwrap_or_default();
    tokio::time::sleep(left + Duration::from_millis(1)).await;
    set(&server, kill(callee(0))).await;
    assert_eq!(listed(&server).await.len(), MAX_KILLS);
    for tried in [false, true] {
        let one_more = with_options(kill(key("cart", "*", "*")), |options| options.validate_only = tried);
        let refused = try_kill(&server, one_more).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
        assert!(refused.message().contains("1001") && refused.message().contains("1000"), "{refused:?}");
    }
    set(&server, kill(callee(7))).await;
    // All of them fit into one message.
    let (_, message) = connected(&server, hello("shop")).await;
    assert_eq!(message.kills.unwrap().kills.len(), MAX_KILLS);
    server.stop().await;
}

#[tokio::test]
async fn concurrent_kills_and_rules_arrive_complete() {
    let server = start().await;
    let (mut shop, _) = connected(&server, hello("shop")).await;
    // Writes continuously, so that the streams always get merged snapshots.
    let writing = async {
        for n in 0.. {
            server.put(crate::harness::rule(key("shop", "stock", &format!("s.S/M{n}")), 2)).await;
        }
    };
    let killing = async {
        let (mut killed, mut shown) = (0, Vec::new());
        for n in 0..10 {
            let callee = format!("callee-{n}");
            let revision = set(&server, kill(key("*", &callee, "*"))).await.revision;
            // Not after the message with the change; possibly with an earlier one.
            while !shown.contains(&callee) {
                let (message, _) = shop.delta().await;
                shown = brought(&message).unwrap_or(shown);
                assert!(message.revision < revision || shown.contains(&callee), "{message:?}");
            }
            killed += 1;
        }
        killed
    };
    let killed = tokio::select! {
        () = writing => unreachable!("it writes for ever"),
        killed = soon(killing) => killed,
    };
    assert_eq!(killed, 10);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_keeps_no_kill_from_the_others() {
    let server = start().await;
    let (mut shop, _) = connected(&server, hello("shop")).await;
    let channel = tonic::transport::Endpoint::from_shared(server.url.clone())
        .unwrap()
        .initial_stream_window_size(1024)
        .connect_lazy();
    let mut stuck = hello("shop");
    stuck.identity.as_mut().unwrap().instance = "stuck".to_owned();
    let stuck = Agent::over(channel, stuck).await;
    // A few of these fill the window of 1 KiB.
    let mut revision = 0;
    for n in 0..20 {
        let name = "x".repeat(200);
        revision = server
            .put(crate::harness::rule(key("shop", "stock", &format!("{name}.S/M{n}")), 2))
            .await
            .revision;
        while shop.delta().await.0.revision < revision {}
    }
    let killed = set(&server, kill(of_stock())).await.revision;
    let (message, _) = shop.delta().await;
    assert_eq!((message.revision, brought(&message)), (killed, Some(vec!["stock".to_owned()])));
    shop.ack(&message, vec![]).await;
    let behind = server.client_that(|client| client.identity.as_ref().unwrap().instance == "stuck").await;
    assert!(behind.behind_since.is_some() && behind.acknowledged_revision < revision, "{behind:?}");
    let mut sent = 0;
    let mut stuck = stuck;
    while let Ok(Ok(Some(message))) =
        tokio::time::timeout(Duration::from_millis(200), stuck.responses.message()).await
    {
        sent += usize::from(matches!(message.kind, Some(server_message::Kind::Delta(_))));
    }
    assert!(sent < 20, "it was stuck: what it missed was merged, {sent}");
    server.stop().await;
}

#[tokio::test]
async fn watch_sends_all_kills_once_per_interval() {
    let server = start().await;
    let changes = (0..2_000).map(|n| {
        let method = format!("{}.S/M{n}", "x".repeat(230));
        crate::harness::put_change(crate::harness::rule(key("shop", &"y".repeat(200), &method), 2))
    });
    let header = crate::harness::header(v1::WriteOptions::default());
    let requests: Vec<_> = std::iter::once(header).chain(changes).collect();
    soon(server.rules().apply_rules(tokio_stream::iter(requests))).await.unwrap();
    set(&server, kill(of_stock())).await;
    let request = v1::WatchRequest { rules: true, ..Default::default() };
    let mut watch = server.fleet().watch(request).await.unwrap().into_inner();
    let (mut rules, mut messages) = (0, 0);
    while rules < 2_000 {
        let message = soon(watch.message()).await.unwrap().unwrap();
        assert_eq!((message.continued, message.kills.len()), (messages > 0, usize::from(messages == 0)));
        (rules, messages) = (rules + message.rules.len(), messages + 1);
    }
    assert!(messages > 1, "they do not fit one message");
    let next = soon(watch.message()).await.unwrap().unwrap();
    assert_eq!((next.continued, next.kills.len()), (false, 1));
    server.stop().await;
}

#[tokio::test]
async fn watch_and_explain_show_kills() {
    let server = start().await;
    server.put(shop_rule(3)).await;
    let mut watch = server.fleet().watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    assert!(soon(watch.message()).await.unwrap().unwrap().kills.is_empty());
    set(&server, kill(key("*", "*", "*"))).await;
    let calls = v1::KillRequest {
        calls: true,
        time_to_live: Some(prost_types::Duration { seconds: 60, nanos: 0 }),
        ..kill(of_stock())
    };
    set(&server, calls).await;
    let mut shown = Vec::new();
    while shown.len() < 2 {
        shown = soon(watch.message()).await.unwrap().unwrap().kills;
    }
    let before = shown[0].remaining.unwrap();
    let after = soon(watch.message()).await.unwrap().unwrap().kills[0].remaining.unwrap();
    let time = |left: prost_types::Duration| Duration::try_from(left).unwrap();
    assert!(time(after) < time(before), "what remains is right in each message");

    let route = v1::RouteKey {
        caller_service: "shop".to_owned(),
        caller_cluster: "default".to_owned(),
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/Take".to_owned(),
    };
    let explain = |route| {
        let mut rules = server.rules();
        async move { rules.explain(v1::ExplainRequest { route: Some(route) }).await.unwrap().into_inner() }
    };
    let explained = explain(route.clone()).await;
    let killed = explained.kill.unwrap();
    assert_eq!((killed.key, killed.calls), (Some(of_stock()), true), "the one that stops most");
    assert!(explained.notes[0].contains("every call is rejected"), "{:?}", explained.notes);
    assert!(explained.winner.is_some());
    let other = v1::RouteKey { callee_service: "cart".to_owned(), ..route };
    let explained = explain(other).await;
    assert_eq!(explained.kill.unwrap().key, Some(key("*", "*", "*")));
    assert!(explained.notes[0].contains("no call is retried or hedged"), "{:?}", explained.notes);
    server.stop().await;
}

fn storm() -> v1::KillRequest {
    let also = vec![key("*", "orders", "*"), key("*", "inventory", "*")];
    v1::KillRequest { also, ..kill(of_stock()) }
}

#[tokio::test]
async fn kills_of_a_storm_are_set_and_ended_in_one_change_each() {
    let server = start().await;
    let (mut shop, _) = connected(&server, hello("shop")).await;
    let answer = set(&server, storm()).await;
    assert_eq!(answer.reach.unwrap().clients, 1, "a client that three kills concern counts once");
    let all = listed(&server).await;
    assert_eq!(all.len(), 3);
    assert!(all.iter().all(|kill| kill.revision == answer.revision), "{all:?}");
    let (message, _) = shop.delta().await;
    assert_eq!(brought(&message).map(|kills| kills.len()), Some(3));
    shop.ack(&message, vec![]).await;

    let v1::KillRequest { key, also, .. } = storm();
    let end = v1::UnkillRequest { key, also, ..Default::default() };
    let ended = soon(server.kills().unkill(end.clone())).await.unwrap().into_inner().revision;
    assert_eq!(ended, answer.revision + 1);
    assert!(listed(&server).await.is_empty());
    let again = soon(server.kills().unkill(end)).await.unwrap_err();
    assert_eq!(again.code(), Code::NotFound);
    server.stop().await;
}

#[tokio::test]
async fn kills_of_several_keys_are_refused_together_when_one_is_bad() {
    let server = start().await;
    let twice = v1::KillRequest { also: vec![key("*", "orders", "*"), of_stock()], ..storm() };
    let bad = v1::KillRequest { also: vec![key("", "orders", "*")], ..storm() };
    let many =
        v1::KillRequest { also: (0..32).map(|n| key("*", &format!("s{n}"), "*")).collect(), ..storm() };
    for (request, field) in [(twice, "also[1]"), (bad, "also[0].caller_service"), (many, "also")] {
        let refused = try_kill(&server, request).await.unwrap_err();
        let violations = refused.get_details_bad_request().unwrap().field_violations;
        assert_eq!(violations.iter().map(|one| one.field.as_str()).collect::<Vec<_>>(), [field]);
    }
    assert!(listed(&server).await.is_empty(), "all or none");
    server.stop().await;
}
