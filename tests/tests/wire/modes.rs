//! The same wire where Damper must not touch it: no rule, a rule that is off, and one that only observes.

use damper_tests::peer::{Peer, Reply};
use tonic::{Code, Request};

use super::world::{Sends, World, ms};

const OURS: [&str; 4] = ["damper-retry", "grpc-previous-rpc-attempts", "grpc-timeout", "damper-call"];

async fn observing(peer: &Peer, fields: &str) -> World {
    let policy = format!("{{ mode: observe, retry_breaker: {{ enabled: false }}, {fields} }}");
    World::under(peer.channel(), "stock", &policy).await
}

#[tokio::test]
async fn without_a_rule_a_failure_is_handed_over_and_nothing_is_said_to_the_server() {
    let off = "{ mode: off, retry: { max_attempts: 3 } }";
    let elsewhere = "{ mode: enforce, retry: { max_attempts: 3 } }";
    for (callee, policy) in [("stock", off), ("shipping", elsewhere)] {
        let failures = [Reply::unavailable(), Reply::reset(7), Reply::reset(2), Reply::http(503)];
        let peer = Peer::start(failures.into_iter().chain([Reply::ok("yes")])).await;
        let world = World::under(peer.channel(), callee, policy).await;
        for code in [Code::Unavailable, Code::Unavailable, Code::Internal, Code::Unavailable] {
            assert_eq!(world.call("one").await.unwrap_err().code(), code);
        }
        world.call("one").await.unwrap();
        let seen = peer.until_all_are_over().await;
        assert_eq!(seen.len(), 5);
        assert!(seen.iter().all(|request| OURS.iter().all(|name| request.header(name).is_none())));
        world.ended(&[("ok", 1), ("policy_off", 4)]);
    }
}

#[tokio::test]
async fn observing_sends_once_and_counts_what_would_have_been() {
    let failures = [Reply::unavailable(), Reply::error(5), Reply::begin().trailers(&[("grpc-status", "14")])];
    let peer = Peer::start(failures.into_iter().chain([Reply::ok("yes")])).await;
    let world = observing(&peer, "retry: { max_attempts: 3, backoff: { none: {} } }").await;
    for code in [Code::Unavailable, Code::NotFound, Code::Unavailable] {
        assert_eq!(world.call("one").await.unwrap_err().code(), code);
    }
    world.call("one").await.unwrap();
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen.len(), 4);
    assert!(seen.iter().all(|request| OURS.iter().all(|name| request.header(name).is_none())));
    assert_eq!(world.sends(), Sends { attempts: 4, retries: 0, resends: 0 });
    world.ended(&[("ok", 1), ("would_not_retryable", 1), ("would_committed", 1), ("would_retry", 1)]);
}

#[tokio::test]
async fn observing_cuts_nothing() {
    let slow = Reply::begin().pause(ms(80)).message("late").pause(ms(80)).trailers(&[("grpc-status", "0")]);
    let peer = Peer::start([slow]).await;
    let world =
        observing(&peer, "timeout: 50ms, retry: { max_attempts: 3, per_attempt_timeout: 20ms }").await;
    assert_eq!(world.call("one").await.unwrap().into_inner(), "late");
    assert_eq!(peer.seen()[0].header("grpc-timeout"), None);
    world.ended(&[("ok", 1)]);
}

#[tokio::test]
async fn the_applications_own_limit_is_told_as_it_was_written_where_nothing_is_enforced() {
    let peer = Peer::by(|_| Reply::ok("yes")).await;
    for policy in ["{ mode: off }", "{ mode: observe, timeout: 1s }"] {
        let world = World::under(peer.channel(), "stock", policy).await;
        let mut request = Request::new("one".to_owned());
        request.metadata_mut().insert("grpc-timeout", "5S".parse().unwrap());
        world.send(request).await.unwrap();
        assert_eq!(peer.seen().last().unwrap().header("grpc-timeout"), Some("5S"));
        world.ended(&[("ok", 1)]);
    }
}
