//! Delivery of rules to services.

use std::path::Path;
use std::time::{Duration, Instant};

use damper_control_plane::Rate;
use damper_proto::v1::{self, distributed_rule, server_message};
use tonic::Code;

use crate::harness::{
    Agent, header, hello, key, put_change, rule, shop_rule, soon, start, start_in, start_with,
};

#[tokio::test]
async fn a_put_reaches_the_client_as_a_delta_and_its_ack_is_seen() {
    let server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    let (message, rules) = shop.snapshot().await;
    assert!(rules.is_empty());
    shop.ack(&message, vec![]).await;
    server.client_that(|client| client.acknowledged_revision == 0).await;

    let put = server.put(shop_rule(4)).await;
    assert!(put.changed);
    let (message, delta) = shop.delta().await;
    assert_eq!((message.revision, delta.removed.len()), (put.revision, 0));
    assert_eq!(delta.changed[0].key, shop_rule(4).key);
    assert_eq!(delta.changed[0].revision, put.revision);
    let Some(distributed_rule::Kind::Policy(policy)) = &delta.changed[0].kind else { panic!("{delta:?}") };
    assert_eq!(policy.retry.as_ref().unwrap().max_attempts, Some(4));
    let behind = server.client_that(|client| client.sent_revision == put.revision).await;
    assert_eq!(behind.acknowledged_revision, 0, "sent is not applied");

    shop.ack(&message, vec![]).await;
    let client = server.client_that(|client| client.acknowledged_revision == put.revision).await;
    assert_eq!(client.identity.unwrap().instance, "shop-1");
    assert!(!client.address.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn client_gets_only_its_rules_and_their_removals() {
    let server = start().await;
    server.put(rule(key("*", "stock", "*"), 2)).await;
    server.put(rule(key("other", "stock", "*"), 2)).await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    let (_, rules) = shop.snapshot().await;
    assert_eq!(rules.len(), 1);
    server.put(rule(key("other", "stock", "*"), 3)).await;
    let revision = server.delete(key("*", "stock", "*")).await;
    let (message, delta) = shop.delta().await;
    assert_eq!(message.revision, revision);
    assert_eq!((delta.changed.len(), delta.removed), (0, vec![key("*", "stock", "*")]));
    server.stop().await;
}

#[tokio::test]
async fn resume_gets_a_bookmark_or_the_missed_change() {
    let server = start().await;
    let first = server.put(shop_rule(2)).await.revision;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    let (message, _) = shop.snapshot().await;
    drop(shop);
    let resumed = v1::Hello { epoch: message.epoch.clone(), revision: first, ..hello("shop") };

    let mut shop = Agent::connect(&server, resumed.clone()).await;
    let bookmark = shop.next().await;
    assert!(matches!(bookmark.kind, Some(server_message::Kind::Bookmark(_))), "{bookmark:?}");
    assert_eq!((bookmark.revision, bookmark.nonce), (first, 0));
    assert_eq!(server.client_that(|_| true).await.acknowledged_revision, first);
    drop(shop);

    server.put(shop_rule(3)).await;
    let mut shop = Agent::connect(&server, resumed.clone()).await;
    let (_, delta) = shop.delta().await;
    assert_eq!(delta.changed.len(), 1);
    drop(shop);

    // After a restart the missed changes are not in memory, and the server does not read the history for
    // them.
    let server = start_in(server.stop().await, |_| {}).await;
    let mut shop = Agent::connect(&server, resumed).await;
    let (message, rules) = shop.snapshot().await;
    assert_eq!((message.revision, rules.len()), (first + 1, 1));
    server.stop().await;
}

#[tokio::test]
async fn resume_before_the_retention_gets_a_snapshot() {
    use damper_store::{Change, Edit, Store as _, sled::SledStore};
    let folder = tempfile::TempDir::new().unwrap();
    let store = SledStore::open(folder.path().join("store")).await.unwrap();
    let month_ago = std::time::SystemTime::now() - Duration::from_secs(31 * 24 * 3600);
    let change = |revision| Change {
        revision,
        commit: 0,
        // Age is relative to the newest change, regardless of the clock.
        at: if revision > 1000 { std::time::SystemTime::now() } else { month_ago },
        author: String::new(),
        reason: String::new(),
        peer: String::new(),
        principal: String::new(),
        request_id: String::new(),
        request_digest: 0,
        edits: vec![Edit { key: "notes/n".to_owned(), value: Some(vec![1].into()), before: None }],
    };
    const CHANGES: u64 = 1050;
    for head in (0..CHANGES).step_by(50) {
        let changes: Vec<Change> = (head + 1..=head + 50).map(change).collect();
        store.commit(head, &changes).await.unwrap();
    }
    let epoch = store.load().await.unwrap().epoch;
    drop(store);

    let server = start_in(folder, |settings| settings.first_retention_after = Duration::ZERO).await;
    let audit = async |min_revision| {
        let filter = Some(v1::ChangeFilter { min_revision, ..Default::default() });
        server.history().export_audit(v1::ExportAuditRequest { filter }).await
    };
    soon(async {
        while audit(10).await.err().is_none_or(|refused| refused.code() != Code::OutOfRange) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    // Those before may not have ended yet.
    let kept = async {
        while let Err(refused) = audit(CHANGES - 999).await {
            assert_eq!(refused.code(), Code::ResourceExhausted, "the last 1,000 stay");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(kept).await;
    let resumed = v1::Hello { epoch, revision: 10, ..hello("shop") };
    Agent::connect(&server, resumed).await.snapshot().await;
    server.stop().await;
}

/// Returns a hello with the state of a message.
fn resuming(service: &str, held: &v1::ServerMessage) -> v1::Hello {
    let (epoch, revision) = (held.epoch.clone(), held.revision);
    v1::Hello { epoch, revision, commit: Some(held.commit), ..hello(service) }
}

#[tokio::test]
async fn client_that_claims_more_is_held_and_moves_no_other() {
    let server = start().await;
    let revision = server.put(shop_rule(2)).await.revision;
    let mut other = Agent::connect(&server, hello("shop")).await;
    let (known, rules) = other.snapshot().await;
    assert_eq!(rules.len(), 1);
    assert!(known.commit != 0, "{known:?}");
    let claims = [
        v1::Hello { epoch: "another".to_owned(), ..resuming("shop", &known) },
        v1::Hello { revision: u64::MAX, ..resuming("shop", &known) },
        v1::Hello { commit: Some(known.commit ^ 1), ..resuming("shop", &known) },
    ];
    let mut held = Vec::new();
    for claim in claims {
        let mut agent = Agent::connect(&server, claim.clone()).await;
        let message = agent.next().await;
        assert!(matches!(message.kind, Some(server_message::Kind::Bookmark(_))), "{message:?}");
        assert_eq!((&message.epoch, message.revision), (&claim.epoch, claim.revision));
        assert!(message.kills.is_none(), "kills that it holds must stay: {message:?}");
        held.push(agent);
    }
    let shown = server.get(server.metrics, "GET /metrics HTTP/1.1").await;
    assert!(shown.contains("\ndamper_clients_held 3\n"), "{shown}");
    // Known entries reach only the other clients, with their epoch; a kill is added to the held ones.
    let put = server.put(shop_rule(3)).await.revision;
    let (changed, _) = other.delta().await;
    assert_eq!((&changed.epoch, changed.revision), (&known.epoch, put));
    let kill = v1::KillRequest {
        key: Some(key("*", "stock", "*")),
        options: Some(v1::WriteOptions { reason: "r".to_owned(), ..Default::default() }),
        ..Default::default()
    };
    server.kills().kill(kill).await.unwrap();
    for agent in &mut held {
        let set = loop {
            if let Some(set) = agent.next().await.kills {
                break set;
            }
        };
        assert!(set.adds && set.kills.len() == 1 && set.ended.is_empty(), "{set:?}");
    }
    let unkill = v1::UnkillRequest { key: Some(key("*", "stock", "*")), ..Default::default() };
    server.kills().unkill(unkill).await.unwrap();
    let set = loop {
        if let Some(set) = held[0].next().await.kills {
            break set;
        }
    };
    assert!(set.adds && set.kills.is_empty() && set.ended.len() == 1, "{set:?}");
    let clients = server.fleet().list_clients(v1::ListClientsRequest::default()).await.unwrap().into_inner();
    assert_eq!(clients.clients.iter().filter(|client| client.held).count(), 3);
    // An operator makes the store the successor of the clients' epochs.
    let wrong = v1::AcceptStoreRequest { found_epoch: "x".to_owned(), ..Default::default() };
    let accept = async |request| server.history().accept_store(request).await.unwrap_err().code();
    assert_eq!(accept(wrong.clone()).await, Code::InvalidArgument, "a reason is required");
    let options = Some(v1::WriteOptions { reason: "restored".to_owned(), ..Default::default() });
    let wrong = v1::AcceptStoreRequest { options, ..wrong };
    assert_eq!(accept(wrong.clone()).await, Code::Aborted);
    let accepted = server.accept_store().await;
    assert_ne!(accepted.epoch, known.epoch);
    for agent in &mut held {
        let (message, rules) = agent.snapshot().await;
        assert_eq!((message.epoch, rules.len()), (accepted.epoch.clone(), 1));
    }
    // The kill and its end are sent first, with the known epoch.
    let snapshot = loop {
        let message = other.response().await;
        if matches!(message.kind, Some(server_message::Kind::Snapshot(_))) {
            break message;
        }
        assert_eq!(message.epoch, known.epoch);
    };
    assert_eq!(snapshot.epoch, accepted.epoch);
    assert_eq!(accept(wrong).await, Code::FailedPrecondition, "nothing is left to accept");
    let audit = server.history().list_changes(v1::ListChangesRequest::default()).await.unwrap().into_inner();
    assert!(audit.changes[0].reason.contains("accepted") && audit.changes[0].reason.contains("restored"));
    assert!(revision < accepted.revision);
    server.stop().await;
}

#[tokio::test]
async fn clients_of_a_lost_history_keep_what_they_have() {
    let server = start().await;
    server.put(shop_rule(2)).await;
    let folder = server.stop().await;
    let backup = tempfile::tempdir().unwrap();
    copy(folder.path(), backup.path());
    let server = start_in(folder, |_| {}).await;
    server.put(shop_rule(3)).await;
    let (lost, _) = Agent::connect(&server, hello("shop")).await.snapshot().await;
    server.stop().await;
    // The backup gets other and more changes at the same revisions.
    let server = start_in(backup, |_| {}).await;
    let same = server.put(shop_rule(7)).await.revision;
    assert_eq!(same, lost.revision);
    for others in 0..2 {
        let message = Agent::connect(&server, resuming("shop", &lost)).await.next().await;
        let is_bookmark = matches!(message.kind, Some(server_message::Kind::Bookmark(_)));
        assert!(is_bookmark && message.commit == lost.commit, "after {others} others: {message:?}");
        server.put(shop_rule(8)).await;
    }
    let backup = server.stop().await;
    // The same without the memory of the server.
    let server = start_in(backup, |_| {}).await;
    let message = Agent::connect(&server, resuming("shop", &lost)).await.next().await;
    assert!(matches!(message.kind, Some(server_message::Kind::Bookmark(_))), "{message:?}");
    server.stop().await;
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => {
                std::fs::create_dir_all(&to).unwrap();
                copy(&entry.path(), &to);
            }
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

#[tokio::test]
async fn a_large_table_comes_in_pages_below_the_limit_and_whole() {
    let server = start().await;
    const RULES: u32 = 6000;
    let changes =
        (0..RULES).map(|n| put_change(rule(key("shop", "stock", &format!("stock.v1.Stock/M{n}")), 2)));
    let requests: Vec<_> = std::iter::once(header(Default::default())).chain(changes).collect();
    let applied = soon(server.rules().apply_rules(tokio_stream::iter(requests))).await.unwrap().into_inner();
    assert_eq!(applied.created, RULES);
    let mut shop = Agent::connect(&server, hello("shop")).await;
    let (message, rules) = shop.snapshot().await;
    assert_eq!((rules.len(), message.revision), (RULES as usize, applied.revision));
    server.stop().await;
}

#[tokio::test]
async fn nack_is_shown_until_the_next_version_of_the_rule() {
    let server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    shop.snapshot().await;
    let put = server.put(shop_rule(5)).await;
    let (message, _) = shop.delta().await;
    let refusal = v1::Refusal {
        key: shop_rule(5).key,
        revision: put.revision,
        reason: "policy.retry.max_attempts: must be between 1 and 3, not 5".to_owned(),
        guard: false,
        kill: false,
    };
    shop.ack(&message, vec![refusal.clone()]).await;
    let client = server.client_that(|client| !client.refused.is_empty()).await;
    assert_eq!(client.refused, [refusal]);
    server.put(shop_rule(3)).await;
    server.client_that(|client| client.refused.is_empty()).await;
    let metrics = server.get(server.metrics, "GET /metrics HTTP/1.1").await;
    assert!(metrics.contains("damper_nacks_total 1"), "{metrics}");
    server.stop().await;
}

#[tokio::test]
async fn client_without_a_feature_gets_the_rule_as_off() {
    let server = start().await;
    let old = v1::Hello { features: vec![], ..hello("shop") };
    let mut shop = Agent::connect(&server, old).await;
    shop.snapshot().await;
    let put = server.put(shop_rule(2)).await;
    assert_eq!(put.reach.unwrap().clients_lacking_features, 1);
    let (_, delta) = shop.delta().await;
    assert_eq!(delta.changed[0].kind, Some(distributed_rule::Kind::NeedsFeature("base".to_owned())));
    assert_eq!(server.clients().await[0].withheld, [shop_rule(2).key.unwrap()]);
    server.stop().await;
}

#[tokio::test]
async fn a_burst_of_writes_is_merged_and_nothing_of_it_is_lost() {
    const WRITES: usize = 60;
    let server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    shop.snapshot().await;
    let rules = (0..WRITES).map(|n| rule(key("shop", "stock", &format!("s.S/M{n}")), 2));
    futures_util::future::join_all(rules.map(|rule| server.put(rule))).await;
    let (mut deltas, mut changed) = (0, 0);
    while changed < WRITES {
        changed += shop.delta().await.1.changed.len();
        deltas += 1;
    }
    assert_eq!(changed, WRITES, "each rule was written once");
    assert!(deltas < WRITES, "{deltas}");
    server.stop().await;
}

#[tokio::test]
async fn a_bad_hello_is_refused_with_all_its_faults() {
    use tonic_types::StatusExt as _;
    let server = start().await;
    let mut bad = hello("sh op");
    bad.identity.as_mut().unwrap().cluster = String::new();
    let refused = Agent::connect(&server, bad).await.any().await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let fields = refused.get_details_bad_request().unwrap().field_violations;
    let fields: Vec<&str> = fields.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(fields, ["hello.identity.service", "hello.identity.cluster", "hello.identity.instance"]);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off_and_counted() {
    let server = start_with(|settings| {
        settings.slow_consumer_after = Duration::from_millis(300);
        // The number of writes depends on the buffers of the kernel.
        settings.limits.writes = Rate::UNLIMITED;
    })
    .await;
    let channel = tonic::transport::Endpoint::from_shared(server.url.clone())
        .unwrap()
        .initial_stream_window_size(1024)
        .connect_lazy();
    // The client takes the headers and then nothing: a window of 1 KiB fills at once.
    let shop = Agent::over(channel, hello("shop")).await;
    server.client_that(|_| true).await;
    let counted = async {
        for n in 0.. {
            server.put(rule(key("shop", "stock", &format!("stock.v1.Stock/M{n}")), 2)).await;
            let metrics = server.get(server.metrics, "GET /metrics HTTP/1.1").await;
            if metrics.contains("damper_slow_consumers_closed_total 1") {
                break;
            }
        }
    };
    soon(counted).await;
    server.no_client_is_left().await;
    drop(shop);
    server.stop().await;
}

/// A pending message may be withdrawn; the elapsed time does not count for the next message.
#[tokio::test]
async fn a_client_that_read_late_gets_its_full_time_again() {
    const PATIENCE: Duration = Duration::from_secs(2);
    let server = start_with(|settings| settings.slow_consumer_after = PATIENCE).await;
    let mut reads = Agent::connect(&server, hello("cart")).await;
    reads.snapshot().await;
    assert_eq!(reads.interval().await, 5);
    let changes = (0..50).map(|n| put_change(rule(key("*", "stock", &format!("stock.v1.Stock/M{n}")), 2)));
    let messages: Vec<_> = std::iter::once(header(v1::WriteOptions::default())).chain(changes).collect();
    server.rules().apply_rules(tokio_stream::iter(messages)).await.unwrap();
    reads.delta().await;
    // The snapshot fills the window of the slow client; the report interval is behind it, the next change in
    // the slot.
    let channel = tonic::transport::Endpoint::from_shared(server.url.clone())
        .unwrap()
        .initial_stream_window_size(1024)
        .connect_lazy();
    let slow = Agent::over(channel, hello("shop")).await;
    server.client_that(|client| client.identity.as_ref().unwrap().service == "shop").await;
    let filled = server.put(shop_rule(2)).await.revision;
    server.client_that(|client| client.sent_revision == filled).await;
    // Both clients are to get another interval, which is reverted before the slow one has room for it.
    let watch = server.fleet().watch(v1::WatchRequest::default()).await.unwrap();
    assert_eq!(reads.interval().await, 1);
    drop(watch);
    assert_eq!(reads.interval().await, 5);
    tokio::time::sleep(PATIENCE).await;
    let put = Instant::now();
    server.put(shop_rule(3)).await;
    soon(async {
        while server.clients().await.len() > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(put.elapsed() >= PATIENCE, "{:?}", put.elapsed());
    drop((slow, reads));
    server.stop().await;
}

#[tokio::test]
async fn streams_are_renewed_with_a_goodbye() {
    let server = start_with(|settings| settings.stream_age = Duration::from_millis(200)).await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    shop.snapshot().await;
    let goodbye = shop.response().await;
    assert!(matches!(goodbye.kind, Some(server_message::Kind::Goodbye(_))), "{goodbye:?}");
    assert!(shop.any().await.unwrap().is_none());
    server.stop().await;
}

#[tokio::test]
async fn idle_stream_gets_keepalives() {
    let server = start_with(|settings| settings.bookmark_interval = Duration::from_millis(100)).await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    shop.snapshot().await;
    for _ in 0..3 {
        assert!(matches!(shop.next().await.kind, Some(server_message::Kind::Bookmark(_))));
    }
    server.stop().await;
}

#[tokio::test]
async fn shutdown_sends_goodbye_and_ends_open_streams() {
    let mut server = start().await;
    let mut shop = Agent::connect(&server, hello("shop")).await;
    shop.snapshot().await;
    let watch = server.fleet().watch(v1::WatchRequest::default()).await.unwrap();
    server.tell_to_stop();
    let goodbye = shop.response().await;
    assert!(matches!(goodbye.kind, Some(server_message::Kind::Goodbye(_))), "{goodbye:?}");
    assert!(shop.any().await.unwrap().is_none());
    // Neither client closes its stream before the server has stopped.
    tokio::time::timeout(Duration::from_secs(20), server.stop()).await.expect("it ends by itself");
    drop((shop, watch));
}
