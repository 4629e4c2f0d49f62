//! Held responses, call ids and outer loops.

use damper_core::MethodPart;

use super::peer::{Peer, Reply, ScriptedBody, begun, data, ok, trailers, unavailable};
use super::*;

/// Three attempts on one method with held responses.
pub(crate) fn holding(replay_limit: u32) -> Arc<Runtime> {
    let policy = Policy { hold_unary: true, replay_limit, ..enforce() };
    let mut pattern = Pattern::parse("*", "*", "*", "*").unwrap();
    pattern.callee_method = MethodPart::Exact(METHOD.trim_start_matches('/').to_owned());
    let engine = Runtime::new("orders", "default");
    engine.apply(Table::from_iter([Arc::new(Rule::new(pattern, policy, 1).unwrap())]));
    engine
}

/// A gRPC message of four bytes, then a status.
pub(crate) fn message_then(status: &'static str) -> Reply {
    begun(ScriptedBody::over([data("\0\0\0\0\u{4}"), data("pong"), trailers(&[("grpc-status", status)])]))
}

async fn one_call(engine: &Arc<Runtime>, script: impl IntoIterator<Item = Reply>) -> Answer {
    call(&mut governed(engine, Peer::new(script)), request()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_after_its_message_is_repeated() {
    let engine = holding(1_000);
    let answer = one_call(&engine, [message_then("14"), message_then("0")]).await;
    assert_eq!(answer.data, ["\0\0\0\0\u{4}", "pong"]);
    assert_eq!((answer.status(), answer.headers["x-served-by"].to_str().unwrap()), ("0", "one"));
    ended(&engine, &[("ok_after_retry", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_final_error_keeps_its_message_and_trailers() {
    let engine = holding(1_000);
    let answer = one_call(&engine, [message_then("5")]).await;
    assert_eq!((answer.data.len(), answer.status()), (2, "5"));
    ended(&engine, &[("not_retryable", 1)]);
}

#[tokio::test(start_paused = true)]
async fn reading_the_last_frame_of_a_released_response_ends_it() {
    let engine = holding(4);
    let peer = Peer::new([begun(ScriptedBody::over([data("\0\0\0\0\u{4}"), data("pong")]))]);
    let mut body = std::pin::pin!(governed(&engine, peer).call(request()).await.unwrap().into_body());
    while !body.is_end_stream() {
        assert!(body.frame().await.unwrap().unwrap().is_data());
    }
    // Without a status, as if the reader had polled again; not cancelled.
    ended(&engine, &[("not_retryable", 1)]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_a_request_that_is_not_kept_is_not_held() {
    let engine = holding(20);
    let answer = begun(ScriptedBody::stalling([data("\0\0\0\0\u{4}pong")]));
    let response =
        governed(&engine, Peer::new([answer])).call(request_of(&["longer than twenty bytes"])).await.unwrap();
    let mut body = std::pin::pin!(response.into_body());
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "\0\0\0\0\u{4}pong");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_begun_to_answer_has_seen_the_request() {
    let engine = holding(1_000);
    let refused = || Err(h2::Error::from(h2::Reason::REFUSED_STREAM).into());
    let refuses = || begun(ScriptedBody::over([data("\0\0\0\0\u{4}pong"), refused()]));
    let answer = one_call(&engine, [refuses(), ok()]).await;
    assert!(answer.error.is_none());
    // Retried as an ordinary failure.
    ended(&engine, &[("ok_after_retry", 1)]);
}

#[tokio::test(start_paused = true)]
async fn without_holding_a_failure_after_the_message_is_final() {
    let engine = engine(enforce());
    assert_eq!(one_call(&engine, [message_then("14")]).await.status(), "14");
    ended(&engine, &[("committed", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_response_longer_than_the_limit_is_released() {
    let engine = holding(8);
    let answer = one_call(&engine, [message_then("14")]).await;
    assert_eq!(
        (answer.data.as_slice(), answer.status()),
        (["\0\0\0\0\u{4}", "pong"].map(Bytes::from).as_slice(), "14")
    );
    ended(&engine, &[("committed", 1)]);
    let engine = holding(9);
    assert_eq!(one_call(&engine, [message_then("14"), ok()]).await.status(), "0", "nine bytes fit");
}

#[tokio::test(start_paused = true)]
async fn a_second_message_is_not_waited_for() {
    let engine = holding(1_000);
    let chunks = [data("\0\0\0\0\u{1}a\0"), data("\0\0\0\u{1}b"), trailers(&[("grpc-status", "14")])];
    let answer = one_call(&engine, [begun(ScriptedBody::over(chunks))]).await;
    assert_eq!((answer.data.len(), answer.status()), (2, "14"));
    ended(&engine, &[("committed", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_prefix_in_pieces_is_read_as_one() {
    let engine = holding(1_000);
    let pieces = ["\0", "\0\0", "\0\u{2}", "p", "q"].map(data);
    let body = ScriptedBody::over(pieces.into_iter().chain([trailers(&[("grpc-status", "14")])]));
    assert_eq!(one_call(&engine, [begun(body), ok()]).await.status(), "0");
    ended(&engine, &[("ok_after_retry", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_held_response_that_breaks_is_retried() {
    let engine = holding(1_000);
    let broken = ScriptedBody::over([data("\0\0"), Err("connection lost".into())]);
    assert_eq!(one_call(&engine, [begun(broken), ok()]).await.status(), "0");
    ended(&engine, &[("ok_after_retry", 1)]);

    let mut request = request();
    request.headers_mut().insert("grpc-timeout", http::HeaderValue::from_static("300m"));
    let peer = Peer::new([begun(ScriptedBody::stalling([data("\0\0")]))]);
    let answer = call(&mut governed(&engine, peer.clone()), request).await.unwrap();
    assert!(answer.status() == "4" && peer.was_hung_up());
    ended(&engine, &[("ok_after_retry", 1), ("deadline", 1)]);
}

#[tokio::test(start_paused = true)]
async fn all_attempts_of_a_call_share_its_call_id() {
    let engine = engine(Policy { call_id: true, ..enforce() });
    let peer = Peer::new([unavailable(), ok(), ok(), ok()]);
    let mut service = governed(&engine, peer.clone());
    call(&mut service, request()).await.unwrap();
    call(&mut service, request()).await.unwrap();
    let mut own = request();
    own.headers_mut().insert("damper-call", http::HeaderValue::from_static("mine"));
    call(&mut service, own).await.unwrap();
    let ids: Vec<_> =
        peer.seen().iter().map(|seen| seen.headers["damper-call"].to_str().unwrap().to_owned()).collect();
    assert!(ids[0].len() == 32 && ids[0].bytes().all(|byte| byte.is_ascii_hexdigit()), "{ids:?}");
    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[1], ids[2]);
    assert_eq!(ids[3], "mine");
}

#[tokio::test(start_paused = true)]
async fn observing_sends_no_call_id() {
    let engine = engine(Policy { call_id: true, ..observe() });
    let peer = Peer::new([ok()]);
    call(&mut governed(&engine, peer.clone()), request()).await.unwrap();
    assert!(!peer.seen()[0].headers.contains_key("damper-call"));
}

#[tokio::test(start_paused = true)]
async fn a_call_repeated_after_its_failure_counts_as_outer_loop() {
    let engine = engine(enforce());
    let failing = || (0..3).map(|_| unavailable());
    let mut service = governed(&engine, Peer::new(failing().chain(failing()).chain([ok()])));
    let context = crate::Context::new(None, None, engine.clock());
    context
        .scope(async {
            for _ in 0..3 {
                call(&mut service, request()).await.unwrap();
            }
        })
        .await;
    let mut loops = 0;
    engine.for_each_route(|_, _, route| loops += route.state().counters.outer_loop_calls());
    assert_eq!(loops, 2);
    ended(&engine, &[("ok", 1), ("attempts_exhausted", 2)]);
}

#[tokio::test(start_paused = true)]
async fn call_declared_as_repeat_counts_as_outer_loop_and_is_sent_once() {
    let engine = engine(enforce());
    let mut service = governed(&engine, Peer::new([unavailable()]));
    let mut repeat = request();
    repeat.extensions_mut().insert(damper_core::CallOptions::new().repeated_by_caller());
    call(&mut service, repeat).await.unwrap();
    let mut loops = 0;
    engine.for_each_route(|_, _, route| loops += route.state().counters.outer_loop_calls());
    assert_eq!(loops, 1);
    ended(&engine, &[("policy_off", 1)]);
}
