//! Flags and deadlines across hops: through the server layer into a handler's calls, and back with its
//! response.

use std::convert::Infallible;
use std::sync::Mutex;

use http::HeaderValue;
use tower::service_fn;

use super::peer::{Peer, Reply, ScriptedBody, begun, data, ok, trailers, trailers_only, unavailable};
use super::*;
use crate::{Context, ServerLayer, spawn};

const RETRIED: &[(&str, &str)] = &[("damper-retry", "2")];

fn inbound(headers: &[(&'static str, &'static str)]) -> Request<Body> {
    let mut request = request();
    for (name, value) in headers {
        request.headers_mut().append(*name, HeaderValue::from_static(value));
    }
    request
}

/// Result of a caller of a service whose handler makes one call to `below` and forwards its response.
async fn relayed(engine: &Arc<Runtime>, layer: &ServerLayer, below: Peer, request: Request<Body>) -> Answer {
    let client = governed(engine, below);
    let handler = service_fn(move |_: Request<Body>| {
        let mut client = client.clone();
        async move { client.call(super::request()).await }
    });
    call(&mut layer.layer(handler), request).await.unwrap()
}

fn server(engine: &Arc<Runtime>) -> ServerLayer {
    ServerLayer::new(Arc::clone(engine))
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    assert!(headers.get_all(name).iter().count() <= 1, "{name} is there more than once");
    headers.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_call_in_serving_a_retry_is_sent_once_with_the_flag() {
    for mark in [("damper-retry", "2"), ("grpc-previous-rpc-attempts", "2"), ("x-envoy-attempt-count", "3")] {
        let (engine, below) = (engine(enforce()), Peer::new([unavailable()]));
        let answer = relayed(&engine, &server(&engine), below.clone(), inbound(&[mark])).await;
        assert_eq!(header(&below.seen()[0].headers, "damper-retry"), Some("2"), "{mark:?}");
        // The upstream service is the one retrying: it gets no flag.
        assert_eq!(header(&answer.headers, "damper-no-more-retry"), None);
        ended(&engine, &[("chain_retry_flag", 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hop_that_does_not_retry_passes_flags_and_deadline_on() {
    for policy in [None, Some(Policy { mode: Mode::Off, ..enforce() }), Some(observe())] {
        let flagged = trailers_only(&[
            ("grpc-status", "14"),
            ("damper-no-more-retry", "1"),
            ("grpc-retry-pushback-ms", "-1"),
        ]);
        let (engine, below) = (engine(policy), Peer::new([flagged]));
        let request = inbound(&[("damper-retry", "2"), ("grpc-timeout", "5S")]);
        let answer = relayed(&engine, &server(&engine), below.clone(), request).await;
        let seen = &below.seen()[0];
        assert_eq!(header(&seen.headers, "damper-retry"), Some("2"));
        assert_eq!(header(&seen.headers, "grpc-timeout"), Some("5000000u"));
        assert_eq!(header(&seen.headers, "grpc-previous-rpc-attempts"), None);
        assert_eq!(header(&answer.headers, "damper-no-more-retry"), Some("1"));
        assert_eq!(header(&answer.headers, "grpc-retry-pushback-ms"), Some("-1"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_without_flag_or_deadline_adds_no_header_below() {
    let (engine, below) = (engine(None), Peer::new([ok()]));
    relayed(&engine, &server(&engine), below.clone(), request()).await;
    assert_eq!(below.seen()[0].headers, *request().headers());
}

#[tokio::test(start_paused = true)]
async fn the_earliest_deadline_counts() {
    for (own, expected) in [("9S", "5000000u"), ("2S", "2S")] {
        let (engine, below) = (engine(None), Peer::new([ok()]));
        let client = governed(&engine, below.clone());
        let handler = service_fn(move |_: Request<Body>| {
            let mut client = client.clone();
            async move { client.call(inbound(&[("grpc-timeout", own)])).await }
        });
        let mut served = server(&engine).layer(handler);
        call(&mut served, inbound(&[("grpc-timeout", "5S")])).await.unwrap();
        assert_eq!(header(&below.seen()[0].headers, "grpc-timeout"), Some(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn without_time_left_a_governed_call_is_not_sent() {
    for (policy, sends, fate) in [(Some(enforce()), 0, "deadline"), (None, 1, "ok")] {
        let (engine, below) = (engine(policy), Peer::new([ok()]));
        let context = Context::new(None, Some(engine.clock().now() + ms(10)), engine.clock());
        tokio::time::advance(ms(10)).await;
        let mut client = governed(&engine, below.clone());
        let answer = context.clone().scope(call(&mut client, request())).await.unwrap();
        assert_eq!(below.seen().len(), sends);
        assert_eq!(answer.status(), if sends == 0 { "4" } else { "0" });
        assert_eq!(context.chain().no_more_retry(damper_core::Code::DeadlineExceeded), sends == 0);
        ended(&engine, &[(fate, 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_after_the_retries_were_made_carries_the_flag_up() {
    let below = Peer::new([unavailable(), unavailable(), unavailable()]);
    let engine = engine(enforce());
    let answer = relayed(&engine, &server(&engine), below, request()).await;
    assert!(answer.trailers_only);
    assert_eq!(header(&answer.headers, "damper-no-more-retry"), Some("1"));
    assert_eq!(header(&answer.headers, "grpc-retry-pushback-ms"), Some("-1"));
    assert_eq!(header(&answer.headers, "x-envoy-ratelimited"), None);
    assert_eq!(header(&answer.headers, "grpc-message"), Some("down"));
}

#[tokio::test(start_paused = true)]
async fn envoy_gets_its_own_header() {
    let below = Peer::new([unavailable(), unavailable(), unavailable()]);
    let engine = engine(enforce());
    let request = inbound(&[("x-envoy-expected-rq-timeout-ms", "1000")]);
    let answer = relayed(&engine, &server(&engine), below, request).await;
    assert_eq!(header(&answer.headers, "x-envoy-ratelimited"), Some("true"));
}

#[tokio::test(start_paused = true)]
async fn an_error_that_no_retry_could_help_carries_no_flag() {
    let below = Peer::new([trailers_only(&[("grpc-status", "5")])]);
    let engine = engine(enforce());
    let answer = relayed(&engine, &server(&engine), below, request()).await;
    assert_eq!(header(&answer.headers, "damper-no-more-retry"), None);
    assert_eq!(header(&answer.headers, "grpc-retry-pushback-ms"), None);
}

/// A handler whose call fails for good, with this response.
async fn answered(reply: Reply) -> Answer {
    let engine = engine(enforce());
    let client = governed(&engine, Peer::new([unavailable(), unavailable(), unavailable()]));
    let reply = Arc::new(Mutex::new(Some(reply)));
    let handler = service_fn(move |_: Request<Body>| {
        let (mut client, reply) = (client.clone(), reply.lock().unwrap().take());
        async move {
            call(&mut client, request()).await.unwrap();
            match reply {
                Some(Reply::With(response)) => Ok::<_, Infallible>(response),
                _ => unreachable!("one request, one answer"),
            }
        }
    });
    call(&mut server(&engine).layer(handler), request()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_successful_answer_never_carries_the_flag() {
    let answer = answered(ok()).await;
    assert_eq!(header(&answer.headers, "damper-no-more-retry"), None);
    assert_eq!(answer.trailers.unwrap().len(), 1);
    let answer = answered(trailers_only(&[("grpc-status", "0")])).await;
    assert_eq!(answer.headers.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_flag_goes_into_the_trailers_of_an_answer_that_had_begun() {
    let body = ScriptedBody::over([data("some"), trailers(&[("grpc-status", "14"), ("x-app", "a")])]);
    let answer = answered(begun(body)).await;
    assert_eq!(header(&answer.headers, "damper-no-more-retry"), None);
    let trailers = answer.trailers.unwrap();
    assert_eq!(header(&trailers, "damper-no-more-retry"), Some("1"));
    assert_eq!(header(&trailers, "grpc-retry-pushback-ms"), Some("-1"));
    assert_eq!(header(&trailers, "x-app"), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn a_handlers_own_error_has_no_flag_after_a_failed_call() {
    for own in ["5", "10", "13"] {
        let answer = answered(trailers_only(&[("grpc-status", own)])).await;
        assert_eq!(header(&answer.headers, "damper-no-more-retry"), None, "{own}");
        let answer =
            answered(begun(ScriptedBody::over([data("some"), trailers(&[("grpc-status", own)])]))).await;
        assert_eq!(header(&answer.trailers.unwrap(), "damper-no-more-retry"), None, "{own}");
    }
    for passed_on in ["14", "4"] {
        let answer = answered(trailers_only(&[("grpc-status", passed_on)])).await;
        assert_eq!(header(&answer.headers, "damper-no-more-retry"), Some("1"), "{passed_on}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_fields_of_a_handler_are_replaced() {
    let own = trailers_only(&[("grpc-status", "14"), ("grpc-retry-pushback-ms", "250")]);
    let answer = answered(own).await;
    assert_eq!(header(&answer.headers, "grpc-retry-pushback-ms"), Some("-1"));
}

#[tokio::test(start_paused = true)]
async fn words_for_one_hop_end_at_that_hop() {
    let fields: &[_] = &[
        ("grpc-status", "9"),
        ("grpc-retry-pushback-ms", "250"),
        ("x-envoy-ratelimited", "true"),
        ("x-app", "a"),
        ("x-app", "b"),
    ];
    let in_trailers = begun(ScriptedBody::over([trailers(fields)]));
    let Reply::With(mut before_the_body) = trailers_only(fields) else { unreachable!() };
    before_the_body.headers_mut().remove("grpc-status");
    *before_the_body.body_mut() = ScriptedBody::over([trailers(&[("grpc-status", "9")])]);
    let script = [trailers_only(fields), in_trailers, Reply::With(before_the_body)];
    let engine = engine(enforce());
    let mut client = governed(&engine, Peer::new(script));
    for _ in 0..3 {
        let answer = call(&mut client, request()).await.unwrap();
        assert_eq!(answer.status(), "9");
        let fields = answer.trailers.iter().chain([&answer.headers]);
        assert_eq!(fields.clone().flat_map(|fields| fields.get_all("x-app")).collect::<Vec<_>>(), ["a", "b"]);
        for fields in fields {
            assert_eq!(header(fields, "grpc-retry-pushback-ms"), None);
            assert_eq!(header(fields, "x-envoy-ratelimited"), None);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn at_the_edge_flags_of_requests_are_dropped() {
    let (engine, below) = (engine(enforce()), Peer::new([unavailable(), ok()]));
    let marks = inbound(&[
        ("damper-retry", "2"),
        ("grpc-previous-rpc-attempts", "2"),
        ("x-envoy-attempt-count", "3"),
    ]);
    let answer = relayed(&engine, &server(&engine).edge(), below.clone(), marks).await;
    assert_eq!(answer.status(), "0");
    assert_eq!(header(&below.seen()[0].headers, "damper-retry"), None);
    assert_eq!(header(&below.seen()[1].headers, "damper-retry"), Some("1"));
}

#[tokio::test(start_paused = true)]
async fn an_edge_sends_the_flag_up_in_standard_headers_only() {
    let (engine, below) = (engine(enforce()), Peer::new([unavailable(), unavailable(), unavailable()]));
    let marks = inbound(&[("x-envoy-attempt-count", "1")]);
    let answer = relayed(&engine, &server(&engine).edge(), below, marks).await;
    let fields = answer.trailers.as_ref().unwrap_or(&answer.headers);
    assert_eq!(header(fields, "grpc-retry-pushback-ms"), Some("-1"));
    assert_eq!(header(fields, "x-envoy-ratelimited"), Some("true"));
    assert_eq!(header(fields, "damper-no-more-retry"), None);
}

#[tokio::test(start_paused = true)]
async fn an_external_callee_gets_no_flags_and_its_own_are_ignored() {
    let flagged = || {
        trailers_only(&[
            ("grpc-status", "14"),
            ("damper-no-more-retry", "1"),
            ("grpc-retry-pushback-ms", "-1"),
        ])
    };
    let (engine, peer) = (engine(enforce()), Peer::new([flagged(), ok(), ok()]));
    let mut client = layer(&engine).external().layer(peer.clone());
    assert_eq!(call(&mut client, request()).await.unwrap().status(), "0");
    let context = Context::new(Some(2), None, engine.clock());
    context.clone().scope(call(&mut client, request())).await.unwrap();
    assert!(!context.chain().no_more_retry(damper_core::Code::Unavailable));
    assert!(peer.seen().iter().all(|seen| !seen.headers.contains_key("damper-retry")));
    ended(&engine, &[("ok", 1), ("ok_after_retry", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_grpc_pushback_of_an_external_callee_is_followed() {
    let pushed = trailers_only(&[("grpc-status", "14"), ("grpc-retry-pushback-ms", "-1")]);
    let (engine, peer) = (engine(enforce()), Peer::new([pushed]));
    call(&mut layer(&engine).external().layer(peer), request()).await.unwrap();
    ended(&engine, &[("pushback", 1)]);
}

#[tokio::test(start_paused = true)]
async fn the_context_in_a_requests_extensions_comes_before_the_tasks() {
    let (engine, peer) = (engine(None), Peer::new([ok()]));
    let mut request = request();
    request.extensions_mut().insert(Context::new(Some(5), None, engine.clock()));
    let tasks = Context::new(Some(1), None, engine.clock());
    tasks.scope(call(&mut governed(&engine, peer.clone()), request)).await.unwrap();
    assert_eq!(header(&peer.seen()[0].headers, "damper-retry"), Some("5"));
}

#[tokio::test(start_paused = true)]
async fn a_context_of_another_engine_keeps_its_deadline() {
    let older = engine(None);
    tokio::time::advance(ms(3_000)).await;
    let (younger, peer) = (engine(None), Peer::new([ok()]));
    let context = Context::new(None, Some(older.clock().now() + ms(500)), older.clock());
    context.scope(call(&mut governed(&younger, peer.clone()), request())).await.unwrap();
    assert_eq!(header(&peer.seen()[0].headers, "grpc-timeout"), Some("500000u"));
}

#[tokio::test(start_paused = true)]
async fn handlers_see_their_context_and_can_take_it_into_tasks() {
    let engine = engine(None);
    let handler = service_fn(|request: Request<Body>| async move {
        let given = request.extensions().get::<Context>().unwrap().clone();
        assert!(given.is_retry());
        assert_eq!(given.time_left(), Some(ms(750)));
        assert_eq!(given.deadline(), Some(tokio::time::Instant::now() + ms(750)));
        assert!(Context::current().is_some());
        assert!(tokio::spawn(async { Context::current() }).await.unwrap().is_none());
        assert!(spawn(async { Context::current() }).await.unwrap().unwrap().is_retry());
        let scoped = tokio::spawn(given.scope(async { Context::current() }));
        assert!(scoped.await.unwrap().unwrap().is_retry());
        Ok::<_, Infallible>(http::Response::new(Body::empty()))
    });
    let request = inbound(&[RETRIED[0], ("grpc-timeout", "750m")]);
    call(&mut server(&engine).layer(handler), request).await.unwrap();
    assert!(Context::current().is_none());
    assert!(engine.serves());
}

#[tokio::test(start_paused = true)]
async fn a_response_body_is_polled_inside_the_context() {
    let engine = engine(None);
    let handler = service_fn(|_: Request<Body>| async {
        let body = Made(Some(|| {
            let inside = Context::current().is_some_and(|context| context.is_retry());
            data(if inside { "inside" } else { "outside" })
        }));
        Ok::<_, Infallible>(http::Response::new(body))
    });
    let answer = call(&mut server(&engine).layer(handler), inbound(RETRIED)).await.unwrap();
    assert_eq!(answer.data, ["inside"]);
}

/// A body of one frame that is created when polled.
struct Made(Option<fn() -> MadeFrame>);

type MadeFrame = Result<http_body::Frame<Bytes>, BoxError>;

impl http_body::Body for Made {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<MadeFrame>> {
        std::task::Poll::Ready(self.0.take().map(|make| make()))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}
