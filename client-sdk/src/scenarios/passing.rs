//! Calls without a rule: what they carry, what they leave, and how they end when nobody waits for them.

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

/// A call whose application stops waiting after so long, made under this deadline.
async fn abandoned(engine: &Arc<Runtime>, reply: Reply, after: Duration, deadline: Duration) -> Peer {
    let peer = Peer::new([reply]);
    let context = Context::new(None, Some(engine.clock().now() + deadline), engine.clock());
    let mut client = governed(engine, peer.clone());
    let call = context.scope(async move { call(&mut client, request()).await });
    assert!(tokio::time::timeout(after, call).await.is_err(), "it does not end by itself");
    peer
}

#[tokio::test(start_paused = true)]
async fn a_call_that_nobody_waits_for_is_cancelled_or_over_its_time_wherever_it_is() {
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
        // No rule cuts it, so it is still under way long after its deadline.
        abandoned(&engine, begun(ScriptedBody::stalling([data("wor")])), ms(60_000), ms(50)).await;
        ended(&engine, &[("deadline", 1)]);
    }
}

/// A channel that is ready when a permit is.
fn limited(peer: Peer) -> tower::limit::ConcurrencyLimit<Peer> {
    tower::limit::ConcurrencyLimit::new(peer, 1)
}

#[tokio::test(start_paused = true)]
async fn an_inner_service_that_is_not_ready_is_waited_for() {
    // Under a rule as well: it is the same sending.
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
async fn an_error_in_place_of_an_answer_is_handed_on_and_lets_go_of_the_service() {
    let (engine, peer) = (engine(None), Peer::new([Reply::Error("broken".into()), ok()]));
    let mut client = governed(&engine, limited(peer));
    let mut failed = std::pin::pin!(client.call(request()));
    assert_eq!(failed.as_mut().await.unwrap_err().to_string(), "broken");
    // Its future is still there; its permit must not be.
    assert_eq!(call(&mut client, request()).await.unwrap().status(), "0");
    ended(&engine, &[("ok", 1), ("policy_off", 1)]);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_body_says_how_the_call_ended() {
    let failing = begun(ScriptedBody::over([data("wor"), trailers(&[("grpc-status", "8")])]));
    let bare = begun(ScriptedBody::over([data("wor")]));
    let (engine, peer) = (engine(None), Peer::new([failing, bare]));
    let mut client = governed(&engine, peer);
    assert_eq!(call(&mut client, request()).await.unwrap().status(), "8");
    // A reader that asks whether there is more does not ask for it.
    let mut body = std::pin::pin!(client.call(request()).await.unwrap().into_body());
    assert!(body.frame().await.unwrap().unwrap().is_data() && body.is_end_stream());
    ended(&engine, &[("policy_off", 2)]);
    engine.for_each_route(|_, _, route| {
        assert_eq!(route.state().counters.code(Code::ResourceExhausted), 1);
        assert_eq!(route.state().counters.code(Code::Unknown), 1);
    });
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_service_panics_or_that_is_never_polled_is_counted_once() {
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
async fn an_external_callee_gets_no_flags_and_its_own_are_ignored_and_kept_from_the_application() {
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
async fn a_rule_that_comes_meanwhile_changes_nothing_for_a_call_under_way() {
    let (engine, peer) = (engine(None), Peer::new([ok()]));
    let mut client = governed(&engine, peer.clone());
    let under_way = client.call(request());
    engine.apply(table(enforce()));
    assert_eq!(read(under_way.await.unwrap()).await.status(), "0");
    engine.for_each_route(|_, _, route| assert_eq!(route.window().counts(engine.clock().now()).successes, 0));
    ended(&engine, &[("ok", 1)]);
}
