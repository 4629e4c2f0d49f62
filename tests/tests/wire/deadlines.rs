//! Time limits: what each attempt tells the server, and what happens when a limit comes.

use std::time::{Duration, Instant};

use damper_tests::peer::{Act, Peer, Reply, Seen};
use tonic::{Code, Request};

use super::world::{Sends, World, ms};

const CANCEL: u32 = 8;

/// The time limit that the request states, in microseconds.
fn timeout_us(request: &Seen) -> u64 {
    let value = request.header("grpc-timeout").expect("a limit");
    assert!(value.len() <= 9, "at most eight digits: {value}");
    let us = value.strip_suffix('u').unwrap_or_else(|| panic!("in microseconds: {value}"));
    us.parse().expect("a number")
}

fn us(limit: Duration) -> u64 {
    u64::try_from(limit.as_micros()).expect("a short limit")
}

#[tokio::test]
async fn every_attempt_tells_what_is_left_of_the_call() {
    let fields = "timeout: 30s, retry: { max_attempts: 5, backoff: { fixed: { delay: 30ms } } }";
    let peer = Peer::by(|_| Reply::unavailable()).await;
    let world = World::new(&peer, fields).await;
    let started = Instant::now();
    world.call("one").await.unwrap_err();
    let seen = peer.seen();
    assert_eq!(seen.len(), 5);
    let limits: Vec<_> = seen.iter().map(timeout_us).collect();
    for (number, ((limit, request), waits)) in limits.iter().zip(&seen).zip(0..).enumerate() {
        assert!(*limit <= us(ms(30_000) - ms(30) * waits), "attempt {number}: {limit:?}");
        // No more is taken off than passed until the request arrived.
        let passed = request.arrived - started;
        assert!(
            *limit + us(passed + ms(1)) >= us(ms(30_000)),
            "attempt {number}: {limit:?} after {passed:?}"
        );
    }
    assert!(
        limits.windows(2).all(|pair| pair[0] - pair[1] >= us(ms(30))),
        "each wait is taken off: {limits:?}"
    );
    world.ended(&[("attempts_exhausted", 1)]);
}

#[tokio::test]
async fn an_attempt_tells_its_own_limit_where_that_is_shorter() {
    let fields = "timeout: 30s, retry: { max_attempts: 3, per_attempt_timeout: 15s, backoff: { none: {} } }";
    let peer = Peer::by(|_| Reply::unavailable()).await;
    let world = World::new(&peer, fields).await;
    world.call("one").await.unwrap_err();
    let limits: Vec<_> = peer.seen().iter().map(timeout_us).collect();
    assert_eq!(limits, [15_000_000; 3]);
}

#[tokio::test]
async fn the_applications_own_limit_counts_where_it_is_shorter_than_the_rules() {
    let peer = Peer::by(|_| Reply::unavailable()).await;
    let world =
        World::new(&peer, "timeout: 60s, retry: { max_attempts: 3, backoff: { fixed: { delay: 20ms } } }")
            .await;
    let mut request = Request::new("one".to_owned());
    request.set_timeout(ms(15_000));
    world.send(request).await.unwrap_err();
    let limits: Vec<_> = peer.seen().iter().map(timeout_us).collect();
    assert!(limits[0] <= us(ms(15_000)) && limits[0] > limits[1] && limits[1] > limits[2], "{limits:?}");
    world.ended(&[("attempts_exhausted", 1)]);
}

#[tokio::test]
async fn a_call_without_a_limit_tells_none() {
    let peer = Peer::by(|_| Reply::unavailable()).await;
    let world = World::new(&peer, super::world::THREE).await;
    world.call("one").await.unwrap_err();
    assert!(peer.seen().iter().all(|request| request.header("grpc-timeout").is_none()));
}

#[tokio::test]
async fn a_call_that_would_have_no_time_is_not_sent() {
    let peer = Peer::by(|_| Reply::ok("never")).await;
    let world = World::new(&peer, super::world::THREE).await;
    let mut request = Request::new("one".to_owned());
    request.metadata_mut().insert("grpc-timeout", "0u".parse().unwrap());
    assert_eq!(world.send(request).await.unwrap_err().code(), Code::DeadlineExceeded);
    assert!(peer.seen().is_empty());
    assert_eq!(world.sends(), Sends { attempts: 0, retries: 0, resends: 0 });
    world.ended(&[("deadline", 1)]);
}

/// A call to a peer that sends no end to it ends at its deadline, and its stream is reset.
async fn is_let_go_at_the_deadline(peer: &Peer) {
    let world = World::new(peer, "timeout: 2s, retry: { max_attempts: 3 }").await;
    let started = Instant::now();
    assert_eq!(world.call("one").await.expect_err("no answer comes").code(), Code::DeadlineExceeded);
    assert!(started.elapsed() >= ms(1_995), "{:?}", started.elapsed());
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen.iter().map(|request| request.reset).collect::<Vec<_>>(), [Some(CANCEL)]);
    world.ended(&[("deadline", 1)]);
}

#[tokio::test]
async fn a_peer_that_never_answers_is_let_go_at_the_deadline_and_its_stream_reset() {
    let peer = Peer::by(|_| Reply::hang()).await;
    is_let_go_at_the_deadline(&peer).await;
}

#[tokio::test]
async fn an_answer_that_stalls_after_its_headers_is_let_go_at_the_deadline() {
    let begun = Peer::start([Reply::begin()]).await;
    let half = Peer::start([Reply::begin().message("half")]).await;
    tokio::join!(is_let_go_at_the_deadline(&begun), is_let_go_at_the_deadline(&half));
}

#[tokio::test]
async fn an_attempt_that_never_answers_is_reset_at_its_own_limit_and_repeated() {
    let fields = "retry: { max_attempts: 3, per_attempt_timeout: 1s, backoff: { none: {} }, \
                  codes: { allow: [UNAVAILABLE, DEADLINE_EXCEEDED] } }";
    let peer = Peer::start([Reply::hang(), Reply::hang(), Reply::ok("yes")]).await;
    let world = World::new(&peer, fields).await;
    assert_eq!(world.call("one").await.unwrap().into_inner(), "yes");
    let seen = peer.until_all_are_over().await;
    assert_eq!(
        seen.iter().map(|request| request.reset).collect::<Vec<_>>(),
        [Some(CANCEL), Some(CANCEL), None]
    );
    assert_eq!(world.attempts_ended_with(Code::DeadlineExceeded), 2);
    world.ended(&[("ok_after_retry", 1)]);
}

#[tokio::test]
async fn an_attempt_that_stalls_in_its_answer_ends_the_call_at_its_own_limit() {
    let fields = "retry: { max_attempts: 3, per_attempt_timeout: 1s, backoff: { none: {} }, \
                  codes: { allow: [UNAVAILABLE, DEADLINE_EXCEEDED] } }";
    let peer = Peer::start([Reply::begin().message("half"), Reply::ok("again")]).await;
    let world = World::new(&peer, fields).await;
    assert_eq!(world.call("one").await.unwrap_err().code(), Code::DeadlineExceeded);
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen.iter().map(|request| request.reset).collect::<Vec<_>>(), [Some(CANCEL)]);
    world.ended(&[("committed", 1)]);
}

#[tokio::test]
async fn the_deadline_ends_a_wait_between_attempts_before_it_begins() {
    let fields = "timeout: 10m, retry: { max_attempts: 3, backoff: { fixed: { delay: 20m } } }";
    let peer = Peer::by(|_| Reply::unavailable()).await;
    let world = World::new(&peer, fields).await;
    assert_eq!(world.call("one").await.unwrap_err().code(), Code::Unavailable, "its own error");
    assert_eq!(peer.seen().len(), 1);
    world.ended(&[("deadline", 1)]);
}

#[tokio::test]
async fn a_server_that_ends_the_call_at_the_limit_itself_ended_it_by_the_deadline() {
    // As tonic's server does: its own timer answers CANCELLED, or resets the stream.
    for end in [Act::Reset(CANCEL), Act::Headers(200, http::HeaderMap::from_iter([cancelled()]), true)] {
        let peer = Peer::start([Reply::hang().pause(ms(998)).then(end)]).await;
        let world = World::new(&peer, "timeout: 1s, retry: { max_attempts: 3 }").await;
        assert_eq!(world.call("one").await.unwrap_err().code(), Code::DeadlineExceeded);
        assert_eq!(peer.seen().len(), 1);
        world.ended(&[("deadline", 1)]);
    }
}

fn cancelled() -> (http::HeaderName, http::HeaderValue) {
    (http::HeaderName::from_static("grpc-status"), http::HeaderValue::from_static("1"))
}

#[tokio::test]
async fn a_stream_of_messages_is_cut_at_the_deadline_too() {
    let peer = Peer::start([Reply::begin().message("1").pause(ms(20)).message("2")]).await;
    let world = World::new(&peer, "timeout: 2s, retry: { max_attempts: 3 }").await;
    let codec = tonic_prost::ProstCodec::<String, String>::default();
    let mut grpc = world.grpc().await;
    let answer = grpc.server_streaming(Request::new("one".to_owned()), super::world::path(), codec).await;
    let mut messages = answer.unwrap().into_inner();
    assert_eq!(messages.message().await.unwrap().unwrap(), "1");
    assert_eq!(messages.message().await.unwrap().unwrap(), "2");
    assert_eq!(messages.message().await.unwrap_err().code(), Code::DeadlineExceeded);
    assert!(peer.until_all_are_over().await[0].reset.is_some());
    world.ended(&[("deadline", 1)]);
}
