//! The application lets go of a call: every stream is reset, and nothing of the call is left behind.

use std::time::{Duration, Instant};

use damper_tests::peer::{Act, Peer, Reply};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;

use super::world::{THREE, World, path, within};

const CANCEL: u32 = 8;

fn codec() -> tonic_prost::ProstCodec<String, String> {
    tonic_prost::ProstCodec::default()
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// Tasks end a moment after what they served; there is no event for that.
async fn until_tasks_are(baseline: usize) {
    let started = Instant::now();
    while tasks() > baseline {
        assert!(started.elapsed() < Duration::from_secs(10), "{} tasks, {baseline} before", tasks());
        tokio::task::yield_now().await;
    }
}

/// A world whose connection is open, and how many tasks it has at rest.
async fn at_rest(peer: &Peer, fields: &str) -> (World, usize) {
    let world = World::new(peer, fields).await;
    world.call("first").await.expect("an answer");
    peer.until_all_are_over().await;
    // The peer's own task for that stream is the last to go.
    let mut fewest = tasks();
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
        fewest = fewest.min(tasks());
    }
    (world, fewest)
}

#[tokio::test]
async fn a_call_dropped_before_its_answer_is_reset() {
    let peer = Peer::by(|place| if place == 0 { Reply::ok("yes") } else { Reply::hang() }).await;
    let (world, baseline) = at_rest(&peer, THREE).await;
    let mut calls = Box::pin(futures_util::future::join_all((0..20).map(|_| world.call("one"))));
    let arrived = peer.until("all requests", |seen| seen.len() == 21 && seen.iter().all(|one| one.whole));
    tokio::select! {
        _ = &mut calls => panic!("nobody answers"),
        _ = arrived => drop(calls),
    }
    let seen = peer.until_all_are_over().await;
    assert!(seen[1..].iter().all(|request| request.reset == Some(CANCEL)), "{seen:#?}");
    world.ended(&[("ok", 1), ("cancelled", 20)]);
    until_tasks_are(baseline).await;
}

#[tokio::test]
async fn a_call_dropped_in_its_second_attempt_leaves_no_stream_open() {
    let peer =
        Peer::start([Reply::ok("yes"), Reply::begin_with(&[("grpc-status", "14")]), Reply::hang()]).await;
    let (world, baseline) = at_rest(&peer, THREE).await;
    let mut call = Box::pin(world.call("one"));
    tokio::select! {
        _ = &mut call => panic!("nobody answers"),
        _ = peer.until("the retry", |seen| seen.len() == 3) => drop(call),
    }
    let seen = peer.until_all_are_over().await;
    assert!(seen[1..].iter().all(|request| request.reset.is_some()), "{seen:#?}");
    world.ended(&[("ok", 1), ("cancelled", 1)]);
    until_tasks_are(baseline).await;
}

#[tokio::test]
async fn a_call_dropped_while_it_waits_to_retry_is_not_sent_again() {
    let peer = Peer::start([Reply::ok("yes"), Reply::unavailable()]).await;
    let fields = "retry: { max_attempts: 3, backoff: { fixed: { delay: 60s } } }";
    let (world, baseline) = at_rest(&peer, fields).await;
    let mut call = Box::pin(world.call("one"));
    tokio::select! {
        _ = &mut call => panic!("a minute is not over"),
        _ = peer.until("the failure", |seen| seen.len() == 2 && seen[1].over) => {}
    }
    // The failure may still be on its way to the client; a call that follows it on the connection is not.
    world.call("other").await.unwrap_err();
    drop(call);
    assert_eq!(peer.seen().len(), 3);
    world.ended(&[("ok", 1), ("not_retryable", 1), ("cancelled", 1)]);
    until_tasks_are(baseline).await;
}

#[tokio::test]
async fn an_answer_dropped_half_read_is_reset() {
    let peer = Peer::start([Reply::ok("yes"), Reply::begin().message("1").message("2")]).await;
    let (world, baseline) = at_rest(&peer, THREE).await;
    let (first, rest) = world.begin().await;
    assert_eq!(first, "1");
    drop(rest);
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen[1].reset, Some(CANCEL));
    world.ended(&[("ok", 1), ("cancelled", 1)]);
    until_tasks_are(baseline).await;
}

#[tokio::test]
async fn a_request_that_streams_dropped_before_its_answer_is_reset_and_its_source_let_go() {
    let peer = Peer::start([Reply::ok("yes"), Reply::hang()]).await;
    let (world, baseline) = at_rest(&peer, THREE).await;
    let (send, receive) = mpsc::channel(1);
    let mut grpc = world.grpc().await;
    let mut call =
        Box::pin(grpc.client_streaming(Request::new(ReceiverStream::new(receive)), path(), codec()));
    send.send("one".to_owned()).await.unwrap();
    tokio::select! {
        _ = &mut call => panic!("nobody answers"),
        _ = peer.until("the message", |seen| seen.len() == 2 && !seen[1].body.is_empty()) => drop(call),
    }
    within("the request's source is let go", send.closed()).await;
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen[1].reset, Some(CANCEL));
    world.ended(&[("ok", 1), ("cancelled", 1)]);
    until_tasks_are(baseline).await;
}

/// A request stream whose source stays open and silent, and the source.
fn silent_source() -> (mpsc::Sender<String>, Request<ReceiverStream<String>>) {
    let (send, receive) = mpsc::channel(1);
    (send, Request::new(ReceiverStream::new(receive)))
}

#[tokio::test]
async fn a_stream_whose_time_is_over_is_reset_although_its_source_is_silent() {
    let peer = Peer::start([Reply::begin().then(Act::Echo)]).await;
    let world = World::new(&peer, "timeout: 2s, retry: { max_attempts: 3 }").await;
    let (source, request) = silent_source();
    let mut answers = world.grpc().await.streaming(request, path(), codec()).await.unwrap().into_inner();
    source.send("one".to_owned()).await.unwrap();
    assert_eq!(answers.message().await.unwrap().unwrap(), "one");
    assert_eq!(answers.message().await.unwrap_err().code(), tonic::Code::DeadlineExceeded);
    assert_eq!(peer.until_all_are_over().await[0].reset, Some(CANCEL));
    source.closed().await;
    world.ended(&[("deadline", 1)]);
}

#[tokio::test]
async fn a_stream_dropped_before_its_answer_is_reset_although_its_source_is_silent() {
    let peer = Peer::by(|_| Reply::hang()).await;
    let world = World::new(&peer, THREE).await;
    let (source, request) = silent_source();
    let mut grpc = world.grpc().await;
    let mut call = Box::pin(grpc.streaming(request, path(), codec()));
    tokio::select! {
        _ = &mut call => panic!("nobody answers"),
        _ = peer.until("the request", |seen| seen.len() == 1) => drop(call),
    }
    assert_eq!(peer.until_all_are_over().await[0].reset, Some(CANCEL));
    source.closed().await;
    world.ended(&[("cancelled", 1)]);
}

#[tokio::test]
async fn an_application_that_lets_go_of_an_answer_may_go_on_sending() {
    let peer = Peer::start([Reply::begin().then(Act::Echo)]).await;
    let world = World::new(&peer, THREE).await;
    let (source, request) = silent_source();
    let mut answers = world.grpc().await.streaming(request, path(), codec()).await.unwrap().into_inner();
    source.send("one".to_owned()).await.unwrap();
    assert_eq!(answers.message().await.unwrap().unwrap(), "one");
    drop(answers);
    assert!(!source.is_closed());
    world.ended(&[("cancelled", 1)]);
}

/// The transport notices that an answer was dropped when it next sends something of the request or finds its
/// end; so here the application drops both, as it does when it returns.
#[tokio::test]
async fn a_stream_dropped_on_both_sides_is_reset() {
    let peer = Peer::start([Reply::ok("yes"), Reply::begin().then(Act::Echo)]).await;
    let (world, baseline) = at_rest(&peer, THREE).await;
    let (send, receive) = mpsc::channel(1);
    let mut grpc = world.grpc().await;
    let answer = grpc.streaming(Request::new(ReceiverStream::new(receive)), path(), codec()).await.unwrap();
    let mut answers: tonic::Streaming<String> = answer.into_inner();
    send.send("one".to_owned()).await.unwrap();
    assert_eq!(answers.message().await.unwrap().unwrap(), "one");
    drop(answers);
    drop(send);
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen[1].reset, Some(CANCEL));
    world.ended(&[("ok", 1), ("cancelled", 1)]);
    until_tasks_are(baseline).await;
}

/// The bytes kept of requests are bounded for the whole process, so what a dropped call forgot to give back
/// would be missing for the calls after it.
#[tokio::test]
async fn a_dropped_call_gives_back_the_bytes_that_were_kept_of_it() {
    const LARGE: usize = (4 << 20) - 64;
    let peer = Peer::by(|place| if place % 5 == 4 { Reply::unavailable() } else { Reply::hang() }).await;
    let fields = "replay_limit_bytes: 4194304, retry: { max_attempts: 2, backoff: { none: {} } }";
    let world = World::new(&peer, fields).await;
    let large = "a".repeat(LARGE);
    for round in 0..3 {
        // Four such calls are all that may be kept: a fifth is sent once.
        let mut calls = Box::pin(futures_util::future::join_all((0..4).map(|_| world.call(&large))));
        let before = round * 5;
        tokio::select! {
            _ = &mut calls => panic!("nobody answers"),
            _ = peer.until("four requests", |seen| seen.len() == before + 4) => {}
        }
        let mut fifth = Box::pin(world.call(&large));
        let refused = tokio::select! {
            _ = &mut calls => panic!("nobody answers"),
            refused = &mut fifth => refused,
        };
        refused.unwrap_err();
        drop(calls);
        let seen = peer.until_all_are_over().await;
        assert_eq!(seen.len(), before + 5, "the fifth was sent once");
    }
    world.ended(&[("not_replayable", 3), ("cancelled", 12)]);
}
