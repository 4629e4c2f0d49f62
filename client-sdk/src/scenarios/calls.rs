//! One hop: content of attempts, retries, time limits, results.

use std::error::Error;
use std::fmt;

use damper_core::policy::CircuitBreaker;
use damper_core::{Code, CodeSet};
use http::HeaderValue;
use tokio::time::Instant;
use tonic::GrpcMethod;

use super::peer::{Peer, Reply, ScriptedBody, begun, data, ok, trailers, trailers_only, unavailable};
use super::*;

#[tokio::test(start_paused = true)]
async fn a_failed_call_is_retried_after_the_wait_with_the_flag() {
    let (engine, peer) = (engine(enforce()), Peer::new([unavailable(), unavailable(), ok()]));
    let answer = call(&mut governed(&engine, peer.clone()), request()).await.unwrap();
    assert_eq!(answer.status(), "0");
    assert_eq!(answer.data, ["world"]);
    let seen = peer.seen();
    assert_eq!(seen[1].at - seen[0].at, ms(10));
    let flags = |name: &str| -> Vec<_> {
        seen.iter()
            .map(|seen| seen.headers.get(name).map(|value| value.to_str().unwrap().to_owned()))
            .collect()
    };
    let expected = [None, Some("1".to_owned()), Some("2".to_owned())];
    assert_eq!(flags("damper-retry"), expected);
    assert_eq!(flags("grpc-previous-rpc-attempts"), expected);
    ended(&engine, &[("ok_after_retry", 1)]);
}

#[tokio::test(start_paused = true)]
async fn the_last_failure_is_the_answer_as_it_came() {
    let last = || {
        trailers_only(&[
            ("grpc-status", "14"),
            ("grpc-message", "r%C3%A9seau"),
            ("grpc-status-details-bin", "AQID"),
            ("x-app", "a"),
            ("x-app", "b"),
        ])
    };
    let (engine, peer) = (engine(enforce()), Peer::new([unavailable(), unavailable(), last()]));
    let mut answer = call(&mut governed(&engine, peer.clone()), request()).await.unwrap();
    let Reply::With(sent) = last() else { unreachable!() };
    answer.headers.remove("damper-fate").unwrap();
    assert_eq!(answer.headers, *sent.headers());
    assert!(answer.trailers_only);
    assert_eq!(peer.seen().len(), 3);
    ended(&engine, &[("attempts_exhausted", 1)]);
}

#[tokio::test(start_paused = true)]
async fn every_attempt_has_the_same_metadata_and_extensions() {
    #[derive(Clone, PartialEq, Debug)]
    struct Tenant(u32);
    let (engine, peer) = (engine(enforce()), Peer::new([unavailable(), unavailable(), ok()]));
    let mut request = request();
    for (name, value) in
        [("x-b", "2"), ("x-a", "1"), ("x-b", "3"), ("key-bin", "AAEC"), ("grpc-encoding", "gzip")]
    {
        request.headers_mut().append(name, HeaderValue::from_static(value));
    }
    request.extensions_mut().insert(Tenant(7));
    let sent: Vec<_> = pairs(request.headers());
    call(&mut governed(&engine, peer.clone()), request).await.unwrap();
    for mut seen in peer.seen() {
        seen.headers.remove("damper-retry");
        seen.headers.remove("grpc-previous-rpc-attempts");
        assert_eq!(pairs(&seen.headers), sent);
        assert_eq!(seen.extensions.get(), Some(&Tenant(7)));
    }
}

#[tokio::test(start_paused = true)]
async fn every_attempt_names_the_method_as_a_generated_client_does() {
    #[derive(Clone, PartialEq, Debug)]
    struct Tenant(u32);
    for tenant in [None, Some(Tenant(7))] {
        let (engine, peer) = (engine(enforce()), Peer::new([unavailable(), unavailable(), ok()]));
        let mut request = request();
        request.extensions_mut().insert(GrpcMethod::new("stock.v1.Stock", "Reserve"));
        tenant.clone().map(|tenant| request.extensions_mut().insert(tenant));
        call(&mut governed(&engine, peer.clone()), request).await.unwrap();
        let seen = peer.seen();
        assert_eq!(seen.len(), 3);
        for seen in seen {
            let method = seen.extensions.get::<GrpcMethod<'static>>().unwrap();
            assert_eq!((method.service(), method.method()), ("stock.v1.Stock", "Reserve"));
            assert_eq!(seen.extensions.get(), tenant.as_ref());
        }
    }
}

fn pairs(headers: &HeaderMap) -> Vec<(String, HeaderValue)> {
    headers.iter().map(|(name, value)| (name.to_string(), value.clone())).collect()
}

#[tokio::test(start_paused = true)]
async fn observe_mode_changes_neither_request_nor_attempts() {
    for policy in [Some(observe()), Some(Policy { mode: Mode::Off, ..enforce() }), None] {
        let observes = policy.as_ref().is_some_and(|policy| policy.mode == Mode::Observe);
        let (engine, peer) = (engine(policy), Peer::new([unavailable(), ok()]));
        let mut service = governed(&engine, peer.clone());
        let mut request = request_of(&["a", "b"]);
        request.headers_mut().insert("grpc-timeout", HeaderValue::from_static("1S"));
        let sent = pairs(request.headers());
        assert_eq!(call(&mut service, request).await.unwrap().status(), "14");
        let seen = peer.seen();
        assert_eq!(seen.len(), 1);
        assert_eq!(pairs(&seen[0].headers), sent);
        assert_eq!(seen[0].body, ["a", "b"]);
        assert_eq!(call(&mut service, super::request()).await.unwrap().status(), "0");
        let failed = if observes { "would_retry" } else { "policy_off" };
        ended(&engine, &[("ok", 1), (failed, 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn observing_cuts_nothing() {
    let policy = Policy { timeout: Some(ms(5)), ..observe() };
    let (engine, peer) = (engine(policy), Peer::new([Reply::Hang]));
    let mut service = governed(&engine, peer.clone());
    let waited = tokio::time::timeout(ms(1_000), call(&mut service, request())).await;
    assert!(waited.is_err(), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_has_begun_is_not_sent_again() {
    let body = ScriptedBody::over([data("wor"), trailers(&[("grpc-status", "14")])]);
    let (engine, peer) = (engine(enforce()), Peer::new([begun(body)]));
    let answer = call(&mut governed(&engine, peer.clone()), request()).await.unwrap();
    assert_eq!((answer.status(), answer.data.len()), ("14", 1));
    assert_eq!(peer.seen().len(), 1);
    ended(&engine, &[("committed", 1)]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_a_status_is_a_failure() {
    let (engine, peer) = (
        engine(enforce()),
        Peer::new([begun(ScriptedBody::over([])), begun(ScriptedBody::over([data("x")]))]),
    );
    let mut service = governed(&engine, peer);
    call(&mut service, request()).await.unwrap();
    call(&mut service, request()).await.unwrap();
    ended(&engine, &[("not_retryable", 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stops_at_the_last_frame_has_read_the_answer() {
    let (engine, peer) = (engine(enforce()), Peer::new([begun(ScriptedBody::over([data("x")]))]));
    let response = governed(&engine, peer).call(request()).await.unwrap();
    let mut body = std::pin::pin!(response.into_body());
    assert!(!body.is_end_stream());
    assert!(body.frame().await.unwrap().unwrap().is_data());
    assert!(body.is_end_stream());
    // Without a status, as if the reader had polled again; not cancelled.
    ended(&engine, &[("not_retryable", 1)]);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_cuts_a_body_that_stalls() {
    let policy = Policy { timeout: Some(ms(100)), ..enforce() };
    let (engine, peer) = (engine(policy), Peer::new([begun(ScriptedBody::stalling([data("wor")]))]));
    let start = Instant::now();
    let answer = call(&mut governed(&engine, peer.clone()), request()).await.unwrap();
    assert_eq!(start.elapsed(), ms(100));
    assert_eq!((answer.status(), answer.data.len()), ("4", 1));
    assert!(answer.error.is_none());
    assert!(peer.was_hung_up());
    ended(&engine, &[("deadline", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_attempt_is_cancelled_and_retried() {
    let policy = with_retry(|retry| {
        retry.per_attempt_timeout = Some(ms(50));
        retry.codes = CodeSet::of(&[Code::DeadlineExceeded]);
    });
    let (engine, peer) = (engine(policy), Peer::new([Reply::Hang, ok()]));
    let start = Instant::now();
    let answer = call(&mut governed(&engine, peer.clone()), request()).await.unwrap();
    assert_eq!((answer.status(), start.elapsed()), ("0", ms(60)));
    assert!(peer.was_hung_up());
    for seen in peer.seen() {
        assert_eq!(seen.headers["grpc-timeout"], "50000u");
    }
    ended(&engine, &[("ok_after_retry", 1)]);
}

#[tokio::test(start_paused = true)]
async fn the_timeout_of_a_call_shrinks_with_each_attempt() {
    let (engine, peer) = (engine(enforce()), Peer::new([unavailable(), Reply::Hang]));
    let mut request = request();
    request.headers_mut().insert("grpc-timeout", HeaderValue::from_static("100m"));
    let start = Instant::now();
    let answer = call(&mut governed(&engine, peer.clone()), request).await.unwrap();
    assert_eq!((answer.status(), start.elapsed()), ("4", ms(100)));
    assert!(answer.trailers_only);
    assert_eq!(answer.headers["content-type"], "application/grpc");
    let limits: Vec<_> = peer.seen().iter().map(|seen| seen.headers["grpc-timeout"].clone()).collect();
    assert_eq!(limits, ["100m", "90000u"]);
    ended(&engine, &[("deadline", 1)]);
}

#[tokio::test(start_paused = true)]
async fn waiting_until_the_service_is_ready_is_part_of_the_attempt() {
    let policy = Policy { timeout: Some(ms(30)), ..enforce() };
    let engine = engine(policy);
    let start = Instant::now();
    let answer = call(&mut governed(&engine, Peer::never_ready()), request()).await.unwrap();
    assert_eq!((answer.status(), start.elapsed()), ("4", ms(30)));
    ended(&engine, &[("deadline", 1)]);
}

/// Fails in `poll_ready`.
#[derive(Clone, Default)]
struct Broken(Arc<std::sync::atomic::AtomicU32>);

impl Service<Request<Body>> for Broken {
    type Response = Response<ScriptedBody>;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), BoxError>> {
        let asked = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        std::task::Poll::Ready(Err(Own(asked).into()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        unreachable!("it was never ready")
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_fails_to_be_ready_is_a_failed_attempt() {
    let engine = engine(enforce());
    let error = call(&mut governed(&engine, Broken::default()), request()).await.unwrap_err();
    // Polled once before the call, then once for each of three attempts.
    assert_eq!(error.downcast_ref::<Own>().unwrap().0, 3);
    ended(&engine, &[("attempts_exhausted", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_pushback_is_waited_out_exactly() {
    let pushed = trailers_only(&[("grpc-status", "14"), ("grpc-retry-pushback-ms", "250")]);
    let (engine, peer) = (engine(enforce()), Peer::new([pushed, ok()]));
    let start = Instant::now();
    call(&mut governed(&engine, peer), request()).await.unwrap();
    assert_eq!(start.elapsed(), ms(250));
}

#[derive(Debug)]
struct Own(u32);

impl fmt::Display for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "own error {}", self.0)
    }
}

impl Error for Own {}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_inner_service_is_returned_as_it_came() {
    let errors = [1, 2, 3].map(|number| Reply::Error(Box::new(Own(number))));
    let (engine, peer) = (engine(enforce()), Peer::new(errors));
    let error = call(&mut governed(&engine, peer.clone()), request()).await.unwrap_err();
    assert_eq!(error.downcast_ref::<Own>().unwrap().0, 3);
    assert_eq!(peer.seen().len(), 3);
    ended(&engine, &[("attempts_exhausted", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_status_of_a_service_in_the_process_counts_by_its_code() {
    let refused = Reply::Error(Box::new(tonic::Status::permission_denied("no")));
    let (engine, peer) = (engine(enforce()), Peer::new([refused]));
    assert!(call(&mut governed(&engine, peer), request()).await.is_err());
    ended(&engine, &[("not_retryable", 1)]);
}

#[tokio::test(start_paused = true)]
async fn what_the_process_itself_refuses_is_no_failure_of_the_callee() {
    async fn refused<S, B>(inner: S)
    where
        S: Service<Request<Body>, Response = Response<B>, Error: Into<BoxError>> + Clone + 'static,
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let engine = engine(Policy { circuit_breaker: Some(CircuitBreaker::default()), ..enforce() });
        let mut client = governed(&engine, inner);
        for _ in 0..40 {
            assert!(call(&mut client, request()).await.is_err());
        }
        ended(&engine, &[("not_retryable", 40)]);
        engine.for_each_route(|_, _, route| {
            let counts = route.window().counts(engine.clock().now());
            assert_eq!((counts.failures, counts.successes), (0, 0));
        });
    }
    refused(tower::load_shed::LoadShed::new(Peer::never_ready())).await;
    let (buffer, worker) = tower::buffer::Buffer::pair(Peer::default(), 1);
    drop(worker);
    refused(buffer).await;
}

#[tokio::test(start_paused = true)]
async fn a_timer_below_the_layer_is_a_time_limit_of_the_call() {
    let engine = engine(with_retry(|retry| retry.codes = CodeSet::of(&[Code::DeadlineExceeded])));
    let peer = Peer::new([Reply::Hang, ok()]);
    let slow = tower::timeout::Timeout::new(peer, ms(500));
    assert_eq!(call(&mut governed(&engine, slow), request()).await.unwrap().status(), "0");
    ended(&engine, &[("ok_after_retry", 1)]);
}

/// Waits and limits work without a tokio runtime.
#[test]
fn a_call_polled_outside_a_runtime_keeps_its_waits_and_limits() {
    let policy = Policy { timeout: Some(ms(50)), ..enforce() };
    let (engine, peer) = (engine(policy), Peer::new([unavailable(), Reply::Hang]));
    let mut client = governed(&engine, peer.clone());
    let (thread, mut call) = (std::thread::current(), std::pin::pin!(call(&mut client, request())));
    let waker = futures_util::task::waker(Arc::new(Unparks(thread)));
    let answer = loop {
        match call.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(answer) => break answer.unwrap(),
            std::task::Poll::Pending => std::thread::park(),
        }
    };
    assert_eq!((answer.status(), peer.seen().len()), ("4", 2));
}

struct Unparks(std::thread::Thread);

impl futures_util::task::ArcWake for Unparks {
    fn wake_by_ref(this: &Arc<Self>) {
        this.0.unpark();
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_the_peer_refused_is_resent_at_once_and_not_marked() {
    let refused = || Reply::Error(Box::new(h2::Error::from(h2::Reason::REFUSED_STREAM)));
    let (engine, peer) = (engine(enforce()), Peer::new([refused(), ok()]));
    let start = Instant::now();
    call(&mut governed(&engine, peer.clone()), request()).await.unwrap();
    assert_eq!(start.elapsed(), ms(0));
    assert!(!peer.seen()[1].headers.contains_key("damper-retry"));
    ended(&engine, &[("ok", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_timer_elsewhere_at_the_deadline_is_the_deadline() {
    let policy = Policy { timeout: Some(ms(20)), ..enforce() };
    let (engine, peer) = (engine(policy), Peer::new([]));
    let peer = SlowTimer(peer);
    let answer = call(&mut governed(&engine, peer), request()).await.unwrap();
    assert_eq!(answer.status(), "4");
    ended(&engine, &[("deadline", 1)]);
}

/// tonic's own timer, slightly early.
#[derive(Clone)]
struct SlowTimer(Peer);

impl Service<Request<Body>> for SlowTimer {
    type Response = Response<ScriptedBody>;
    type Error = BoxError;
    type Future = <Peer as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        Box::pin(async {
            tokio::time::sleep(ms(17)).await;
            Err(tonic::TimeoutExpired(()).into())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_on_its_way_counts_as_cancelled_once() {
    let engine = engine(enforce());
    let hanging = Peer::new([Reply::Hang]);
    let mut service = governed(&engine, hanging.clone());
    assert!(tokio::time::timeout(ms(5), call(&mut service, request())).await.is_err());
    assert!(hanging.was_hung_up());
    ended(&engine, &[("cancelled", 1)]);

    // During the wait before a retry.
    let mut service = governed(&engine, Peer::new([unavailable()]));
    assert!(tokio::time::timeout(ms(5), call(&mut service, request())).await.is_err());
    ended(&engine, &[("cancelled", 2)]);

    // While the response is being read.
    let stalling = Peer::new([begun(ScriptedBody::stalling([data("wor")]))]);
    let mut service = governed(&engine, stalling.clone());
    let response = service.call(request()).await.unwrap();
    drop(response);
    assert!(stalling.was_hung_up());
    ended(&engine, &[("cancelled", 3)]);

    // Before the first poll.
    drop(governed(&engine, Peer::new([ok()])).call(request()));
    ended(&engine, &[("cancelled", 4)]);
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_its_deadline_counts_as_timed_out() {
    let engine = engine(Policy { timeout: Some(ms(20)), ..enforce() });
    let mut service = governed(&engine, Peer::new([Reply::Hang]));
    assert!(tokio::time::timeout(ms(18), call(&mut service, request())).await.is_err());
    ended(&engine, &[("deadline", 1)]);
}

#[tokio::test(start_paused = true)]
async fn hostile_answers_are_passed_on_and_never_panic() {
    let odd = [
        ("grpc-status", "99999999999999"),
        ("grpc-status-details-bin", "%%%"),
        ("grpc-message", "%zz%"),
        ("grpc-retry-pushback-ms", "-0x1"),
    ];
    let odd_trailers = begun(ScriptedBody::over([trailers(&odd)]));
    let mut not_ascii = trailers_only(&odd);
    if let Reply::With(response) = &mut not_ascii {
        for name in ["grpc-status", "grpc-message", "damper-no-more-retry", "grpc-retry-pushback-ms"] {
            response.headers_mut().insert(name, HeaderValue::from_bytes(b"\xff\xfe\x80").unwrap());
        }
    }
    let (engine, peer) = (engine(enforce()), Peer::new([trailers_only(&odd), odd_trailers, not_ascii]));
    let mut service = governed(&engine, peer);
    for _ in 0..2 {
        let answer = call(&mut service, request()).await.unwrap();
        assert_eq!(answer.status(), "99999999999999");
    }
    let answer = call(&mut service, request()).await.unwrap();
    assert_eq!(answer.headers["grpc-status"].as_bytes(), b"\xff\xfe\x80");
    ended(&engine, &[("not_retryable", 3)]);
}
