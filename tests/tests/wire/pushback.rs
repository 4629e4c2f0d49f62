//! `grpc-retry-pushback-ms`: the server's word on the next wait.

use std::time::Duration;

use damper_tests::peer::{Peer, Reply, Seen};
use tonic::Code;

use super::world::{Sends, World, ms};

/// Waits that no call here outlasts: each ends within 20 s.
const SLOW: &str = "retry: { max_attempts: 3, backoff: { fixed: { delay: 10m } } }";

fn pushed_back(value: &str) -> Reply {
    Reply::trailers_only(&[("grpc-status", "14"), ("grpc-retry-pushback-ms", value)])
}

fn gaps(seen: &[Seen]) -> Vec<Duration> {
    seen.windows(2).map(|pair| pair[1].arrived - pair[0].arrived).collect()
}

#[tokio::test]
async fn a_pushback_is_the_wait_before_the_next_attempt() {
    let peer = Peer::start([pushed_back("120"), pushed_back("0"), Reply::ok("yes")]).await;
    let world = World::new(&peer, SLOW).await;
    assert_eq!(world.call("one").await.unwrap().into_inner(), "yes");
    let gaps = gaps(&peer.seen());
    assert!(gaps[0] >= ms(120), "{gaps:?}");
    world.ended(&[("ok_after_retry", 1)]);
}

#[tokio::test]
async fn after_a_pushback_the_waits_begin_anew() {
    // 100 ms, then ten minutes but for the pushback, which leads back to 100.
    let fields = "retry: { max_attempts: 4, backoff: { custom: { delays: [100ms, 10m] } } }";
    let peer =
        Peer::start([Reply::unavailable(), pushed_back("1"), Reply::unavailable(), Reply::ok("yes")]).await;
    let world = World::new(&peer, fields).await;
    world.call("one").await.unwrap();
    let gaps = gaps(&peer.seen());
    assert!(gaps[0] >= ms(100) && gaps[2] >= ms(100), "{gaps:?}");
    world.ended(&[("ok_after_retry", 1)]);
}

/// One attempt, and the application gets that attempt's own error at once.
async fn stops(reply: Reply, fields: &str) {
    let named = format!("{reply:?}");
    let peer = Peer::start([reply, Reply::ok("again")]).await;
    let world = World::new(&peer, fields).await;
    let error = world.call("one").await.expect_err("the peer failed");
    assert_eq!(error.code(), Code::Unavailable, "{named}");
    assert!(!error.metadata().contains_key("grpc-retry-pushback-ms"), "it spoke to this hop: {named}");
    assert_eq!(peer.seen().len(), 1, "{named}");
    assert_eq!(world.sends(), Sends { attempts: 1, retries: 0, resends: 0 });
    world.ended(&[("pushback", 1)]);
}

#[tokio::test]
async fn a_negative_or_malformed_pushback_means_no_retry() {
    for value in ["-1", "-0", "", "abc", "1.5", "+5", "5ms", "0x10", "1,2"] {
        stops(pushed_back(value), SLOW).await;
    }
}

#[tokio::test]
async fn a_repeated_pushback_means_no_retry() {
    let fields = [("grpc-status", "14"), ("grpc-retry-pushback-ms", "1"), ("grpc-retry-pushback-ms", "1")];
    stops(Reply::trailers_only(&fields), SLOW).await;
}

#[tokio::test]
async fn a_pushback_above_a_minute_means_no_retry() {
    for value in ["60001", "99999999999999999999999999"] {
        stops(pushed_back(value), SLOW).await;
    }
}

#[tokio::test]
async fn a_pushback_longer_than_the_time_left_means_no_retry() {
    stops(pushed_back("50000"), "timeout: 40s, retry: { max_attempts: 3 }").await;
}

#[tokio::test]
async fn a_pushback_with_a_code_that_is_not_retried_changes_nothing() {
    for value in ["1", "-1"] {
        let reply = Reply::trailers_only(&[("grpc-status", "5"), ("grpc-retry-pushback-ms", value)]);
        let peer = Peer::start([reply, Reply::ok("again")]).await;
        let world = World::new(&peer, SLOW).await;
        assert_eq!(world.call("one").await.unwrap_err().code(), Code::NotFound);
        assert_eq!(peer.seen().len(), 1);
        world.ended(&[("not_retryable", 1)]);
    }
}

#[tokio::test]
async fn a_pushback_in_the_trailers_of_an_answer_that_began_repeats_nothing() {
    let fields = [("grpc-status", "14"), ("grpc-retry-pushback-ms", "1")];
    let peer = Peer::start([Reply::begin().trailers(&fields), Reply::ok("again")]).await;
    let world = World::new(&peer, SLOW).await;
    assert_eq!(world.call("one").await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(peer.seen().len(), 1);
    world.ended(&[("committed", 1)]);
}
