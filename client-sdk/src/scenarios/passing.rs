//! Calls without a rule: headers, records, and ends of dropped calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use damper_core::Code;
use tower::service_fn;

use super::peer::{Peer, Reply, ScriptedBody, after, begun, data, ok, trailers, trailers_only};
use super::*;
use crate::Context;

fn rules() -> [Option<Policy>; 2] {
    [None, Some(Policy { mode: Mode::Off, ..enforce() })]
}

/// Makes a call under this deadline that the application drops after a time.
async fn abandoned(engine: &Arc<Runtime>, reply: Reply, after: Duration, deadline: Duration) -> Peer {
    let peer = Peer::new([reply]);
    let context = Context::new(None, Some(engine.clock().now() + deadline), engine.clock());
    let mut client = governed(engine, peer.clone());
    let call = context.scope(async move { call(&mut client, request()).await });
    assert!(tokio::time::timeout(after, call).await.is_err(), "it does not end on its own");
    peer
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_counts_as_cancelled_or_timed_out() {
    let body = || begun(ScriptedBody::stalling([data("wor")]));
    for policy in rules() {
        for reply in [|| Reply::Hang, body] {
            for (after, fate, code) in
                [(ms(30), "cancelled", Code::Cancelled), (ms(50), "deadline", Code::DeadlineExceeded)]
            {
                let engine = engine(policy.clone());
                let peer = abandoned(&engine, reply(), after, ms(50)).await;
                assert!(peer.was_hung_up());
                ended(&engine, &[(fate, 1)]);
                engine.for_each_route(|_, _, route| {
                    let counters = &route.state().counters;
                    assert_eq!(counters.code(Code::DeadlineExceeded), u64::from(fate == "deadline"));
                    let left: Vec<_> = route.failures().take().into_iter().collect();
                    let [failed] = &left[..] else { panic!("{left:?}") };
                    assert_eq!((failed.code, failed.latency, failed.sends), (code, after, 1));
                    let attempt = &failed.attempts[0];
                    assert_eq!((attempt.number, attempt.code), (1, code));
                    assert_eq!(attempt.took, Some(after).filter(|_| fate == "deadline"));
                });
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stalls_is_not_cut() {
    for policy in rules() {
        let engine = engine(policy);
        // Without a rule it continues long after its deadline.
        abandoned(&engine, begun(ScriptedBody::stalling([data("wor")])), ms(60_000), ms(50)).await;
        ended(&engine, &[("deadline", 1)]);
    }
}

/// A channel that is ready with a permit.
fn limited(peer: Peer) -> tower::limit::ConcurrencyLimit<Peer> {
    tower::limit::ConcurrencyLimit::new(peer, 1)
}

#[tokio::test(start_paused = true)]
async fn an_inner_service_that_is_not_ready_is_waited_for() {
    // Also under a rule, which uses the same code.
    for policy in rules().into_iter().chain([Some(enforce())]) {
        let (engine, peer) = (engine(policy), Peer::new([after(20, ok()), after(20, ok())]));
        let first = governed(&engine, limited(peer.clone()));
        let (mut first, mut second) = (first.clone(), first);
        let begun = tokio::time::Instant::now();
        let both = tokio::join!(call(&mut first, request()), call(&mut second, request()));
        assert!(both.0.is_ok() && both.1.is_ok());
        assert_eq!(begun.elapsed(), ms(40), "one after the other");
        ended(&engine, &[("ok", 2)]);
        let mut waiting = governed(&engine, Peer::never_ready());
        assert!(tokio::time::timeout(ms(40), call(&mut waiting, request())).await.is_err());
        ended(&engine, &[("ok", 2), ("cancelled", 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_is_passed_on_and_releases_the_service() {
    let (engine, peer) = (engine(None), Peer::new([Reply::Error("broken".into()), ok()]));
    let mut client = governed(&engine, limited(peer));
    let mut failed = std::pin::pin!(client.call(request()));
    assert_eq!(failed.as_mut().await.unwrap_err().to_string(), "broken");
    // The future still exists, but must not hold the permit.
    assert_eq!(call(&mut client, request()).await.unwrap().status(), "0");
    ended(&engine, &[("ok", 1), ("policy_off", 1)]);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_body_decides_the_fate() {
    let failing = begun(ScriptedBody::over([data("wor"), trailers(&[("grpc-status", "8")])]));
    let bare = begun(ScriptedBody::over([data("wor")]));
    let (engine, peer) = (engine(None), Peer::new([failing, bare]));
    let mut client = governed(&engine, peer);
    assert_eq!(call(&mut client, request()).await.unwrap().status(), "8");
    // A reader may check `is_end_stream` instead of polling.
    let mut body = std::pin::pin!(client.call(request()).await.unwrap().into_body());
    assert!(body.frame().await.unwrap().unwrap().is_data() && body.is_end_stream());
    ended(&engine, &[("policy_off", 2)]);
    engine.for_each_route(|_, _, route| {
        assert_eq!(route.state().counters.code(Code::ResourceExhausted), 1);
        assert_eq!(route.state().counters.code(Code::Unknown), 1);
    });
}

#[tokio::test(start_paused = true)]
async fn a_panicking_or_unpolled_call_is_counted_once() {
    let engine = engine(None);
    let panicking = service_fn(|_: Request<Body>| -> std::future::Ready<Result<Response<Body>, BoxError>> {
        panic!("in the application")
    });
    let mut client = governed(&engine, panicking);
    std::future::poll_fn(|cx| client.poll_ready(cx)).await.unwrap();
    let calling = AssertUnwindSafe(|| drop(client.call(request())));
    assert!(catch_unwind(calling).is_err());
    drop(governed(&engine, Peer::new([ok()])).call(request()));
    ended(&engine, &[("cancelled", 2)]);
}

#[tokio::test(start_paused = true)]
async fn flags_of_an_external_callee_are_removed() {
    let flagged = trailers_only(&[("grpc-status", "14"), ("damper-no-more-retry", "1")]);
    let (engine, peer) = (engine(None), Peer::new([flagged]));
    let context = Context::new(Some(2), None, engine.clock());
    let mut client = layer(&engine).external().layer(peer.clone());
    let mut marked = request();
    marked.headers_mut().insert("damper-retry", "7".parse().unwrap());
    let answer = context.clone().scope(call(&mut client, marked)).await.unwrap();
    assert!(!peer.seen()[0].headers.contains_key("damper-retry"));
    assert!(
        !context.chain().no_more_retry(damper_core::Code::Unavailable)
            && !answer.headers.contains_key("damper-no-more-retry")
    );
    ended(&engine, &[("policy_off", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_new_rule_does_not_affect_a_call_in_flight() {
    let (engine, peer) = (engine(None), Peer::new([ok()]));
    let mut client = governed(&engine, peer.clone());
    let in_flight = client.call(request());
    engine.apply(table(enforce()));
    assert_eq!(read(in_flight.await.unwrap()).await.status(), "0");
    engine.for_each_route(|_, _, route| assert_eq!(route.window().counts(engine.clock().now()).successes, 0));
    ended(&engine, &[("ok", 1)]);
}
