//! Delivery of changes: which clients have a change, which do not, and why.

use std::time::{Duration, Instant};

use damper_proto::v1::{self, laggard::Reason};
use tonic::{Code, Streaming};

use crate::harness::{Agent, Running, hello, key, rule, shop_rule, soon, start};

fn until(revision: u64) -> v1::WatchConvergenceRequest {
    v1::WatchConvergenceRequest { revision, ..Default::default() }
}

fn at_most(revision: u64, ms: u64) -> v1::WatchConvergenceRequest {
    let within = prost_types::Duration::try_from(Duration::from_millis(ms)).ok();
    v1::WatchConvergenceRequest { within, ..until(revision) }
}

async fn watch(server: &Running, request: v1::WatchConvergenceRequest) -> Streaming<v1::Convergence> {
    soon(server.fleet().watch_convergence(request)).await.unwrap().into_inner()
}

async fn next(stream: &mut Streaming<v1::Convergence>) -> v1::Convergence {
    soon(stream.message()).await.unwrap().expect("the stream goes on")
}

/// Returns the first message that meets the condition; earlier ones are neither done nor timed out.
async fn next_that(
    stream: &mut Streaming<v1::Convergence>,
    is_so: impl Fn(&v1::Convergence) -> bool,
) -> v1::Convergence {
    loop {
        let message = next(stream).await;
        if is_so(&message) {
            return message;
        }
        assert!(!message.done && !message.timed_out && !message.hopeless, "{message:?}");
    }
}

/// Returns the last message, followed by the end of the stream.
async fn last(stream: &mut Streaming<v1::Convergence>) -> v1::Convergence {
    let last = next_that(stream, |message| message.done || message.timed_out || message.hopeless).await;
    assert_eq!(soon(stream.message()).await.unwrap(), None);
    last
}

/// Acknowledged, waiting, rejected, lacking, left.
fn counts(state: &v1::Convergence) -> [u32; 5] {
    let v1::Convergence { affected, acknowledged, waiting, refused, lacking_features, left, .. } = state;
    assert_eq!(*affected, acknowledged + waiting + refused + lacking_features + left, "{state:?}");
    [*acknowledged, *waiting, *refused, *lacking_features, *left]
}

fn reasons(state: &v1::Convergence) -> Vec<(String, Reason, &str)> {
    let instance_of = |laggard: &v1::Laggard| laggard.identity.clone().unwrap().instance;
    let lags = state.laggards.iter();
    lags.map(|laggard| (instance_of(laggard), laggard.reason(), laggard.detail.as_str())).collect()
}

fn instance(name: &str) -> v1::Hello {
    let mut hello = hello("shop");
    hello.identity.as_mut().unwrap().instance = name.to_owned();
    hello
}

/// Connects a service that has everything so far.
async fn connected(server: &Running, hello: v1::Hello) -> Agent {
    let mut agent = Agent::connect(server, hello).await;
    let (message, _) = agent.snapshot().await;
    agent.ack(&message, vec![]).await;
    agent
}

#[tokio::test]
async fn change_has_converged_once_all_clients_acknowledged() {
    let server = start().await;
    let mut one = connected(&server, instance("shop-1")).await;
    let mut two = connected(&server, instance("shop-2")).await;
    // Another service is not counted.
    let _cart = connected(&server, hello("cart")).await;
    let put = server.put(shop_rule(2)).await.revision;
    let mut stream = watch(&server, until(put)).await;
    let first = next(&mut stream).await;
    assert_eq!((first.revision, counts(&first)), (put, [0, 2, 0, 0, 0]));
    assert_eq!(first.laggards.len(), 2);
    let (message, _) = one.delta().await;
    one.ack(&message, vec![]).await;
    let half = next_that(&mut stream, |state| state.acknowledged == 1).await;
    assert!(!half.done);
    assert_eq!(reasons(&half), [("shop-2".to_owned(), Reason::Waiting, "")]);
    // Half of the clients are enough for this watch.
    let half = v1::WatchConvergenceRequest { share: Some(0.5), ..until(put) };
    let half = last(&mut watch(&server, half).await).await;
    assert_eq!((half.done, counts(&half)), (true, [1, 1, 0, 0, 0]));
    let (message, _) = two.delta().await;
    two.ack(&message, vec![]).await;
    let done = last(&mut stream).await;
    assert_eq!((done.done, done.timed_out, counts(&done)), (true, false, [2, 0, 0, 0, 0]));
    assert!(done.laggards.is_empty() && done.elapsed.is_some());
    // A later watch is done at once.
    assert!(next(&mut watch(&server, until(put)).await).await.done);
    server.stop().await;
}

#[tokio::test]
async fn laggards_are_named_with_the_reason() {
    let server = start().await;
    let _silent = connected(&server, instance("silent")).await;
    let mut refusing = connected(&server, instance("refusing")).await;
    let old = v1::Hello { features: vec!["base".to_owned()], ..instance("old") };
    let mut old = connected(&server, old).await;
    let leaving = connected(&server, instance("leaving")).await;
    let mut hedged = shop_rule(2);
    hedged.policy.as_mut().unwrap().retry = None;
    hedged.policy.as_mut().unwrap().hedge = Some(v1::Hedge {
        delay: Some(v1::HedgeDelay {
            kind: Some(v1::hedge_delay::Kind::Fixed(prost_types::Duration { seconds: 1, nanos: 0 })),
        }),
        ..Default::default()
    });
    let put = server.put(hedged).await.revision;
    let mut stream = watch(&server, until(put)).await;
    assert_eq!(counts(&next(&mut stream).await), [0, 3, 0, 1, 0]);
    let (message, _) = refusing.delta().await;
    let reason = "policy.hedge: is more than I like".to_owned();
    let refusal = v1::Refusal { key: shop_rule(2).key, revision: put, reason, ..Default::default() };
    refusing.ack(&message, vec![refusal]).await;
    let (message, _) = old.delta().await;
    old.ack(&message, vec![]).await;
    drop(leaving);
    let state = next_that(&mut stream, |state| counts(state) == [0, 1, 1, 1, 1]).await;
    let refused = "rule shop * stock stock.v1.Stock/Take: policy.hedge: is more than I like";
    assert_eq!(
        reasons(&state),
        [
            ("refusing".to_owned(), Reason::Refused, refused),
            ("old".to_owned(), Reason::LackingFeature, "hedge"),
            ("silent".to_owned(), Reason::Waiting, ""),
            ("leaving".to_owned(), Reason::Left, ""),
        ]
    );
    // A client that returns is waited for again, until it acknowledges.
    let mut back = Agent::connect(&server, instance("leaving")).await;
    let (message, _) = back.snapshot().await;
    next_that(&mut stream, |state| counts(state) == [0, 2, 1, 1, 0]).await;
    back.ack(&message, vec![]).await;
    next_that(&mut stream, |state| counts(state) == [1, 1, 1, 1, 0]).await;
    // A client that leaves with the change has it.
    drop(back);
    server.client_that(|client| client.identity.as_ref().unwrap().instance == "silent").await;
    let timed_out = last(&mut watch(&server, at_most(put, 100)).await).await;
    assert!(timed_out.timed_out && !timed_out.done, "{timed_out:?}");
    server.stop().await;
}

#[tokio::test]
async fn of_two_streams_of_one_process_the_newer_speaks_for_it() {
    let server = start().await;
    // The connection is dead, but the server has not noticed yet.
    let _old = connected(&server, instance("shop-1")).await;
    let mut new = connected(&server, instance("shop-1")).await;
    let put = server.put(shop_rule(2)).await.revision;
    let mut stream = watch(&server, until(put)).await;
    assert_eq!(counts(&next(&mut stream).await), [0, 1, 0, 0, 0]);
    let (message, _) = new.delta().await;
    new.ack(&message, vec![]).await;
    let done = last(&mut stream).await;
    assert_eq!((done.done, counts(&done)), (true, [1, 0, 0, 0, 0]));
    server.stop().await;
}

#[tokio::test]
async fn convergence_waits_for_a_restart_but_not_for_a_lost_client() {
    let server = start().await;
    let before = connected(&server, instance("shop-before")).await;
    let put = server.put(shop_rule(2)).await.revision;
    let mut stream = watch(&server, until(put)).await;
    assert_eq!(counts(&next(&mut stream).await), [0, 1, 0, 0, 0]);
    let left = Instant::now();
    drop(before);
    let _after = connected(&server, instance("shop-after")).await;
    let done = last(&mut stream).await;
    assert_eq!((done.done, counts(&done)), (true, [1, 0, 0, 0, 1]));
    assert_eq!(reasons(&done), [("shop-before".to_owned(), Reason::Left, "")]);
    assert!(left.elapsed() >= Duration::from_secs(2), "it may come back at once");
    server.stop().await;
}

#[tokio::test]
async fn unreachable_share_is_reported_at_once() {
    let server = start().await;
    let _old = connected(&server, v1::Hello { features: vec![], ..instance("old") }).await;
    let mut shop = connected(&server, instance("shop")).await;
    let put = server.put(shop_rule(2)).await.revision;
    let mut stream = watch(&server, until(put)).await;
    let half = v1::WatchConvergenceRequest { share: Some(0.5), ..until(put) };
    let mut half = watch(&server, half).await;
    assert!(!next(&mut stream).await.hopeless, "a client is waited for");
    let (message, _) = shop.delta().await;
    shop.ack(&message, vec![]).await;
    let end = last(&mut stream).await;
    assert!(end.hopeless && !end.done && !end.timed_out, "{end:?}");
    assert_eq!(counts(&end), [1, 0, 0, 1, 0]);
    assert!(last(&mut half).await.done, "half is enough for the other watch");
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_with_a_change_counts_as_having_it() {
    let server = start().await;
    let mut one = connected(&server, instance("shop-1")).await;
    let mut two = connected(&server, instance("shop-2")).await;
    let put = server.put(shop_rule(2)).await.revision;
    let mut stream = watch(&server, until(put)).await;
    let (message, _) = one.delta().await;
    one.ack(&message, vec![]).await;
    next_that(&mut stream, |state| state.acknowledged == 1).await;
    drop(one);
    soon(async {
        while server.clients().await.len() > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let (message, _) = two.delta().await;
    two.ack(&message, vec![]).await;
    assert_eq!(counts(&last(&mut stream).await), [2, 0, 0, 0, 0]);
    server.stop().await;
}

#[tokio::test]
async fn convergence_of_a_kill_names_clients_that_lack_the_feature() {
    let server = start().await;
    let mut shop = connected(&server, hello("shop")).await;
    let features = vec!["base".to_owned(), "guards".to_owned()];
    let _old = connected(&server, v1::Hello { features, ..instance("old") }).await;
    let options = v1::WriteOptions { reason: "down".to_owned(), ..Default::default() };
    let key = Some(key("*", "stock", "*"));
    let kill = v1::KillRequest { key: key.clone(), options: Some(options), ..Default::default() };
    let killed = server.kills().kill(kill).await.unwrap().into_inner().revision;
    let mut stream = watch(&server, until(killed)).await;
    assert_eq!(counts(&next(&mut stream).await), [0, 1, 0, 1, 0]);
    let (message, _) = shop.delta().await;
    shop.ack(&message, vec![]).await;
    let state = next_that(&mut stream, |state| state.acknowledged == 1).await;
    assert_eq!(reasons(&state), [("old".to_owned(), Reason::LackingFeature, "kill_switch")]);
    // The end of a kill requires nothing of clients that never had it.
    let unkill = v1::UnkillRequest { key, ..Default::default() };
    let ended = server.kills().unkill(unkill).await.unwrap().into_inner().revision;
    let mut stream = watch(&server, until(ended)).await;
    let (message, _) = shop.delta().await;
    shop.ack(&message, vec![]).await;
    assert_eq!(counts(&last(&mut stream).await), [2, 0, 0, 0, 0]);
    server.stop().await;
}

#[tokio::test]
async fn a_guard_with_a_repeat_limit_concerns_its_callee_too() {
    let server = start().await;
    let mut stock = connected(&server, hello("stock")).await;
    let limit = v1::RepeatLimit { mode: v1::Mode::Enforce.into(), ..Default::default() };
    let ceiling = v1::Ceiling { repeat_limit: Some(limit), ..Default::default() };
    let guard = v1::Guard { key: Some(key("*", "stock", "*")), ceiling: Some(ceiling), ..Default::default() };
    let request = v1::PutGuardRequest { guard: Some(guard), ..Default::default() };
    let put = server.guards().put_guard(request).await.unwrap().into_inner().revision;
    let mut stream = watch(&server, until(put)).await;
    assert_eq!(counts(&next(&mut stream).await), [0, 1, 0, 0, 0]);
    let (message, _) = stock.delta().await;
    stock.ack(&message, vec![]).await;
    assert!(last(&mut stream).await.done);
    server.stop().await;
}

#[tokio::test]
async fn change_without_matching_clients_converges_at_once() {
    let server = start().await;
    let _cart = connected(&server, hello("cart")).await;
    let put = server.put(shop_rule(2)).await.revision;
    let done = last(&mut watch(&server, until(put)).await).await;
    assert_eq!((done.done, done.affected), (true, 0));
    server.stop().await;
}

#[tokio::test]
async fn convergence_waits_for_a_future_revision() {
    let server = start().await;
    let mut shop = connected(&server, hello("shop")).await;
    let mut stream = watch(&server, until(2)).await;
    let first = next(&mut stream).await;
    assert_eq!((first.done, first.affected), (false, 0));
    server.put(shop_rule(2)).await;
    let timed_out = last(&mut watch(&server, at_most(9, 100)).await).await;
    assert_eq!((timed_out.timed_out, timed_out.affected), (true, 0));
    server.put(rule(key("shop", "*", "*"), 3)).await;
    while shop.delta().await.0.revision < 2 {}
    let state = next_that(&mut stream, |state| state.affected == 1).await;
    assert!(!state.done, "nothing is acknowledged yet");
    let refused = server.fleet().watch_convergence(until(0)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let within = Some(prost_types::Duration { seconds: 601, nanos: 0 });
    let too_long = v1::WatchConvergenceRequest { within, ..until(1) };
    assert_eq!(server.fleet().watch_convergence(too_long).await.unwrap_err().code(), Code::InvalidArgument);
    server.stop().await;
}

#[tokio::test]
async fn convergence_lists_since_when_and_why_a_client_lags() {
    let server = start().await;
    let features = vec!["base".to_owned(), "guards".to_owned(), "kill_switch".to_owned()];
    let hello = v1::Hello { serves: true, features, ..hello("shop") };
    let mut shop = connected(&server, hello).await;
    let current = server.client_that(|client| client.behind_since.is_none()).await;
    assert!(current.serves);
    assert!(current.features_lacking.contains(&"hedge".to_owned()), "{current:?}");
    assert!(!current.features_lacking.contains(&"base".to_owned()), "{current:?}");
    server.put(shop_rule(2)).await;
    let (first, _) = shop.delta().await;
    let behind = server.client_that(|client| client.behind_since.is_some()).await;
    server.put(shop_rule(3)).await;
    let (second, _) = shop.delta().await;
    let still = server.client_that(|client| client.sent_revision == 2).await;
    assert_eq!(still.behind_since, behind.behind_since, "since the first that is not answered");
    shop.ack(&first, vec![]).await;
    let later = server.client_that(|client| client.acknowledged_revision == 1).await;
    let nanos = |client: &v1::Client| client.behind_since.map(|at| (at.seconds, at.nanos));
    assert!(nanos(&later) > nanos(&behind), "since the second");
    shop.ack(&second, vec![]).await;
    server.client_that(|client| client.behind_since.is_none() && client.acknowledged_revision == 2).await;
    server.stop().await;
}

#[tokio::test]
async fn convergence_counts_each_cluster_for_its_own_changes() {
    let server = start().await;
    let of = |cluster: &str, features: Option<&str>| {
        let mut hello = instance("shop-1");
        hello.identity.as_mut().unwrap().cluster = cluster.to_owned();
        if let Some(feature) = features {
            hello.features = vec![feature.to_owned()];
        }
        hello
    };
    // One instance id, but two processes: ids are unique only within their cluster.
    let mut eu = connected(&server, of("eu", None)).await;
    let mut us = connected(&server, of("us", None)).await;
    let mut narrow = shop_rule(2);
    narrow.key.as_mut().unwrap().caller_cluster = "eu".to_owned();
    let put = server.put(narrow).await.revision;
    let mut stream = watch(&server, until(put)).await;
    let first = next(&mut stream).await;
    assert_eq!(
        (counts(&first), first.laggards[0].identity.clone().unwrap().cluster.as_str()),
        ([0, 1, 0, 0, 0], "eu")
    );
    let (message, _) = eu.delta().await;
    eu.ack(&message, vec![]).await;
    assert_eq!(counts(&last(&mut stream).await), [1, 0, 0, 0, 0]);
    let wide = server.put(shop_rule(3)).await.revision;
    let mut stream = watch(&server, until(wide)).await;
    assert_eq!(counts(&next(&mut stream).await), [0, 2, 0, 0, 0]);
    for agent in [&mut us, &mut eu] {
        let (message, _) = agent.delta().await;
        agent.ack(&message, vec![]).await;
    }
    assert_eq!(counts(&last(&mut stream).await), [2, 0, 0, 0, 0]);
    // A lack in one cluster does not affect the other.
    drop(us);
    server.client_that(|client| client.identity.as_ref().unwrap().cluster == "eu").await;
    let _old = connected(&server, of("us", Some("base"))).await;
    let guard = v1::Guard {
        key: Some(key("shop", "stock", "*")),
        ceiling: Some(v1::Ceiling { max_attempts: Some(2), ..Default::default() }),
        ..Default::default()
    };
    let request = v1::PutGuardRequest { guard: Some(guard), ..Default::default() };
    let guarded = server.guards().put_guard(request).await.unwrap().into_inner().revision;
    let mut stream = watch(&server, until(guarded)).await;
    let (message, _) = eu.delta().await;
    eu.ack(&message, vec![]).await;
    let state = next_that(&mut stream, |state| state.acknowledged == 1).await;
    assert_eq!((state.waiting, state.lacking_features), (0, 1), "{state:?}");
    server.stop().await;
}

#[tokio::test]
async fn another_epoch_ends_a_watch_with_the_reason() {
    let server = start().await;
    let mut one = connected(&server, instance("shop-1")).await;
    let put = server.put(shop_rule(2)).await.revision;
    let mut stream = watch(&server, until(put)).await;
    assert_eq!(counts(&next(&mut stream).await), [0, 1, 0, 0, 0]);
    let (message, _) = one.delta().await;
    // A client has a later revision than this store: the store is a backup, which an operator accepts.
    let ahead = v1::Hello { epoch: message.epoch.clone(), revision: put + 100, ..hello("cart") };
    let mut ahead = Agent::connect(&server, ahead).await;
    ahead.next().await;
    server.accept_store().await;
    let ended = soon(async {
        loop {
            if let Err(ended) = stream.message().await {
                return ended;
            }
        }
    })
    .await;
    assert_eq!(ended.code(), Code::Unavailable);
    assert!(ended.message().contains("the store was replaced"), "{ended:?}");
    let (snapshot, _) = one.snapshot().await;
    assert_ne!(snapshot.epoch, message.epoch);
    server.stop().await;
}
