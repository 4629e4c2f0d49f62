use std::time::SystemTime;

use damper_core::Pattern;

use crate::clients::session::MAX_REFUSAL_BYTES;
use crate::push::outbox::Outboxes;
use crate::push::sessions::*;
use crate::state::resource_key::ResourceKey;
use crate::state::stored::StoredRule;
use damper_store::{Entry, StoreContents};

fn table(epoch: &str) -> Snapshot {
    Snapshot::of(&StoreContents { epoch: epoch.to_owned(), revision: 7, ..StoreContents::default() })
}

fn class() -> ClientGroup {
    ClientGroup { service: "shop".to_owned(), cluster: "default".to_owned(), features: [].into() }
}

fn hello(instance: &str) -> v1::Hello {
    let identity = v1::Identity { instance: instance.to_owned(), ..Default::default() };
    v1::Hello { identity: Some(identity), epoch: "e".to_owned(), revision: 7, ..Default::default() }
}

/// A client of this replica that has everything of the table of the epoch e.
fn own(id: u64) -> Arc<ClientSession> {
    Arc::new(ClientSession::new(hello("one"), None, class(), &table("e"), false).with_id(id))
}

/// A client of another replica.
fn mirrored(id: u64, told: v1::FollowedClient) -> Arc<ClientSession> {
    let told = v1::FollowedClient { hello: Some(hello("one")), ..told };
    Arc::new(ClientSession::mirrored(told, class(), "b".into(), &"e".into(), &table("f")).with_id(id))
}

/// A report of so many bytes, and a few more.
fn report(bytes: usize) -> v1::Report {
    let route = v1::RouteReport { callee_method: "m".repeat(bytes), ..Default::default() };
    v1::Report { routes: vec![route], ..Default::default() }
}

#[test]
fn what_was_confirmed_under_another_epoch_is_told_as_nothing() {
    let session = own(1);
    let told = session.follow_message(&table("e"), false);
    assert_eq!((told.sent_revision, told.acknowledged_revision), (7, 7));
    let refusal = v1::Refusal { key: Some(v1::Pattern::default()), revision: 7, ..Default::default() };
    session.acknowledge(v1::Ack { refused: vec![refusal], ..Default::default() }, &table("e"));
    // The store was replaced. The table is from the new one, of which the client has been sent nothing.
    let told = session.follow_message(&table("f"), true);
    assert_eq!((told.sent_revision, told.acknowledged_revision, told.refused.len()), (0, 0, 0));
    session.progress().reset(table("f").epoch().clone());
    session.progress().sent_revision = 7;
    assert_eq!(session.follow_message(&table("f"), false).sent_revision, 7);
}

#[test]
fn proxy_is_one_for_other_replicas_too() {
    let hello = v1::Hello { via: v1::Via::Proxy.into(), ..hello("one") };
    let session = ClientSession::new(hello, None, class(), &table("e"), false);
    let message = session.follow_message(&table("e"), true);
    let there = ClientSession::mirrored(message, class(), "b".into(), &"e".into(), &table("e"));
    for session in [session, there] {
        assert_eq!(session.describe(&table("e"), &Withheld::default(), 20, "a").via(), v1::Via::Proxy);
    }
}

#[test]
fn what_another_replica_tells_is_of_the_epoch_that_its_stream_was_opened_under() {
    let told = v1::FollowedClient { sent_revision: 7, acknowledged_revision: 7, ..Default::default() };
    let session = mirrored(1, told.clone());
    assert_eq!(&*session.progress().epoch, "e");
    assert_eq!(session.progress().acknowledged_revision(), 7);
    session.follow(told, &"g".into());
    assert_eq!(&*session.progress().epoch, "g");
}

#[test]
fn of_the_streams_of_a_process_the_one_opened_last_counts_whatever_the_clocks_say() {
    let connected = |clock: SystemTime, seconds| v1::FollowedClient {
        connected_at: Some(clock.into()),
        connected_for: Some(prost_types::Duration { seconds, nanos: 0 }),
        ..Default::default()
    };
    let hour = Duration::from_secs(3600);
    // The other replica's clock is an hour fast.
    let (before, here) = (mirrored(1, connected(SystemTime::now() + hour, 5)), own(2));
    settle(&[before.clone(), here.clone()]);
    assert!(before.is_superseded() && !here.is_superseded());
    // An hour slow: it has moved there just now.
    std::thread::sleep(Duration::from_millis(2));
    let after = mirrored(3, connected(SystemTime::now() - hour, 0));
    settle(&[before.clone(), here.clone(), after.clone()]);
    assert!(here.is_superseded() && !after.is_superseded());
    let ages = [i64::MAX, 100 * 365 * 24 * 3600].map(|seconds| connected(SystemTime::now(), seconds));
    assert!(ages.into_iter().all(|told| mirrored(4, told).age_rank() < before.age_rank()));
}

#[test]
fn a_follower_that_does_not_read_is_given_up_as_a_whole_and_no_other_with_it() {
    let (outboxes, session) = (Outboxes::default(), own(1));
    let both = [(); 2].map(|()| outboxes.open([&session].into_iter()).unwrap());
    for outbox in &both {
        assert!(outbox.wants_totals(1) && !outbox.wants_totals(1));
        outbox.take();
    }
    let [slow, quick] = both;
    for turn in 0..17 {
        outboxes.moved(&session);
        outboxes.reported(&session, report(1 << 20));
        let read = quick.take();
        assert_eq!((read.clients.len(), read.reports.len(), read.overflown), (1, 1, false), "{turn}");
    }
    for _ in 0..2 {
        let left = slow.take();
        assert!(left.overflown && left.clients.is_empty() && left.reports.is_empty());
        outboxes.reported(&session, report(10));
    }
}

#[test]
fn reports_wait_for_a_follower_once_it_has_the_totals_that_they_add_to() {
    let (outboxes, session) = (Outboxes::default(), own(1));
    let outbox = outboxes.open([&session].into_iter()).unwrap();
    outboxes.reported(&session, report(10));
    assert!(outbox.take().reports.is_empty(), "the totals will have it");
    assert!(outbox.wants_totals(1));
    outboxes.reported(&session, report(10));
    outboxes.left(&session);
    let waiting = outbox.take();
    assert_eq!((waiting.reports.len(), &*waiting.gone), (1, &[1][..]));
}

/// A table with rules of all callers for so many callees.
fn table_of(rules: usize) -> Snapshot {
    let policy = v1::Policy { mode: v1::Mode::Off.into(), ..Default::default() };
    let value = StoredRule::value(&v1::Rule { policy: Some(policy), ..Default::default() });
    let entry = |n| {
        let pattern = Pattern::parse("*", "*", &format!("callee-{n}"), "*").unwrap();
        (ResourceKey::Rule(pattern).key(), Entry { revision: n as u64 + 1, value: value.clone().into() })
    };
    let entries = (0..rules).map(entry).collect();
    Snapshot::of(&StoreContents {
        epoch: "e".to_owned(),
        revision: rules as u64,
        entries,
        ..StoreContents::default()
    })
}

fn refusal(callee: &str, revision: u64, reason: &str) -> v1::Refusal {
    let any = "*".to_owned();
    let [caller_service, caller_cluster, callee_method] = [any.clone(), any.clone(), any];
    let key =
        v1::Pattern { caller_service, caller_cluster, callee_service: callee.to_owned(), callee_method };
    v1::Refusal { key: Some(key), revision, reason: reason.to_owned(), ..Default::default() }
}

#[test]
fn refusals_of_one_client_keep_no_more_than_their_bound() {
    let (session, view) = (own(1), table_of(1000));
    let reason = "x".repeat(1 << 20);
    for n in 0..1000 {
        let refused = vec![refusal(&format!("callee-{n}"), n + 1, &reason)];
        session.acknowledge(v1::Ack { refused, ..Default::default() }, &view);
    }
    let progress = session.progress();
    assert!(progress.refused_bytes() <= MAX_REFUSAL_BYTES, "{}", progress.refused_bytes());
    // The newest are kept, because a change that is waited for is the newest.
    let newest = progress.refuses(&view).map(|(_, refused)| refused.revision).max();
    assert_eq!(newest, Some(1000));
    assert!(progress.refuses(&view).all(|(_, refused)| refused.reason.len() == 512));
}

#[test]
fn refusals_of_what_is_not_there_or_of_others_are_not_kept() {
    let (session, view) = (own(1), table_of(1));
    let mut of_other = refusal("callee-0", 1, "no");
    of_other.key.as_mut().unwrap().caller_service = "other".to_owned();
    let refused = vec![refusal("callee-1", 1, "no"), of_other];
    session.acknowledge(v1::Ack { refused, ..Default::default() }, &view);
    assert_eq!(session.progress().refused_bytes(), 0);
    let refused = vec![refusal("callee-0", 1, "no")];
    session.acknowledge(v1::Ack { refused, ..Default::default() }, &view);
    assert_eq!(session.progress().refuses(&view).count(), 1);
}
