//! Options of single calls: they reduce what the rule allows.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use damper_core::{CallOptions, Hedge, HedgeDelay};
use http::HeaderValue;
use tokio::time::Instant;

use super::peer::{Peer, Reply, after, ok, unavailable};
use super::*;
use crate::Context;
use crate::operation::{Governed, Operation};

fn request_with(options: CallOptions) -> Request<Body> {
    let mut request = request();
    request.extensions_mut().insert(options);
    request
}

/// Returns the peer after a call with these options to a callee that always fails.
async fn failing(policy: impl Into<Option<Policy>>, options: CallOptions, fate: &str) -> Peer {
    let (engine, peer) = (engine(policy), Peer::new([unavailable(), unavailable(), unavailable()]));
    let context = Context::new(None, None, engine.clock());
    let mut client = governed(&engine, peer.clone());
    let call = context.clone().scope(async { call(&mut client, request_with(options)).await });
    assert_eq!(call.await.unwrap().status(), "14");
    ended(&engine, &[(fate, 1)]);
    assert_eq!(context.chain().has_marks(), fate == "attempts_exhausted", "layers above may retry it");
    peer
}

#[tokio::test(start_paused = true)]
async fn call_without_retries_is_sent_once() {
    let peer = failing(enforce(), CallOptions::new().no_retries(), "policy_off").await;
    assert_eq!(peer.seen().len(), 1);
    failing(observe(), CallOptions::new().no_retries(), "would_policy_off").await;
    failing(None, CallOptions::new().no_retries(), "policy_off").await;
}

#[tokio::test(start_paused = true)]
async fn attempts_are_at_most_those_of_the_rule_and_of_the_call() {
    for (limit, attempts, fate) in
        [(0, 1, "policy_off"), (2, 2, "attempts_exhausted"), (9, 3, "attempts_exhausted")]
    {
        let peer = failing(enforce(), CallOptions::new().max_attempts(limit), fate).await;
        assert_eq!(peer.seen().len(), attempts);
    }
}

#[tokio::test(start_paused = true)]
async fn limit_of_a_call_includes_hedges_and_resends() {
    let hedge = Some(Hedge { delay: HedgeDelay::Fixed(ms(50)), max_hedges: 2 });
    let slow = || [after(200, ok()), after(200, ok()), after(200, ok())];
    for limit in [1, 2] {
        let (engine, peer) = (engine(Policy { hedge, ..enforce() }), Peer::new(slow()));
        let request = request_with(CallOptions::new().max_attempts(limit));
        call(&mut governed(&engine, peer.clone()), request).await.unwrap();
        assert_eq!(peer.seen().len(), limit as usize);
    }
    let refused = || Reply::Error(Box::new(h2::Error::from(h2::Reason::REFUSED_STREAM)));
    let (engine, peer) = (engine(enforce()), Peer::new([refused(), ok()]));
    let request = request_with(CallOptions::new().no_retries());
    call(&mut governed(&engine, peer.clone()), request).await.unwrap_err();
    assert_eq!(peer.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn timeout_of_a_call_only_shortens() {
    let policy = Policy { timeout: Some(ms(100)), ..enforce() };
    for (timeout, expected) in [(ms(30), 30), (ms(60), 50), (ms(5_000), 50)] {
        let (engine, peer, began) = (engine(policy.clone()), Peer::new([Reply::Hang]), Instant::now());
        let mut request = request_with(CallOptions::new().timeout(timeout));
        request.headers_mut().insert("grpc-timeout", HeaderValue::from_static("50m"));
        let answer = call(&mut governed(&engine, peer.clone()), request).await.unwrap();
        assert_eq!((answer.status(), began.elapsed()), ("4", ms(expected)));
        let sent = peer.seen()[0].headers["grpc-timeout"].clone();
        assert_eq!(sent == "50m", expected == 50, "{sent:?}");
        ended(&engine, &[("deadline", 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn timeout_of_a_call_without_a_rule_is_passed_on() {
    let (engine, peer) = (engine(None), Peer::new([ok()]));
    let request = request_with(CallOptions::new().timeout(ms(30)));
    call(&mut governed(&engine, peer.clone()), request).await.unwrap();
    assert_eq!(peer.seen()[0].headers["grpc-timeout"], "30000u");
}

#[tokio::test(start_paused = true)]
async fn operation_heeds_the_options_of_its_handle() {
    let engine = engine(enforce());
    let callee = engine.callee("billing-db").unwrap();
    let insert = Governed::new(Arc::clone(&engine), callee, "orders/insert");
    let insert = Operation::from_source("insert", insert, damper_retry::ByType);
    let runs = AtomicU32::new(0);
    let fails = async |_| {
        runs.fetch_add(1, Ordering::Relaxed);
        Err::<(), _>(io::Error::from(io::ErrorKind::ConnectionReset))
    };
    insert.with_options(CallOptions::new().no_retries()).call(fails).await.unwrap_err();
    assert_eq!(runs.swap(0, Ordering::Relaxed), 1);
    insert.with_options(CallOptions::new().timeout(ms(15))).call(fails).await.unwrap_err();
    assert_eq!(runs.swap(0, Ordering::Relaxed), 2, "the second retry would exceed the timeout");
    insert.call(fails).await.unwrap_err();
    assert_eq!(runs.load(Ordering::Relaxed), 3);
    ended(&engine, &[("attempts_exhausted", 1), ("deadline", 1), ("policy_off", 1)]);
}
