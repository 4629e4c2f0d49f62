//! Requests from untrusted clients at the edge, and requests that are not gRPC.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use damper_core::chain::Repeater;
use damper_core::guard::Ceiling;
use damper_core::policy::CircuitBreaker;
use damper_core::{Guard, MAX_ROUTES, OTHER_METHOD, Ratio, RepeatLimit, RetryBreaker};
use http::{Method, StatusCode};
use tower::service_fn;

use super::peer::{Peer, ScriptedBody, ok, trailers_only, unavailable};
use super::*;
use crate::ServerLayer;

/// A callee that responds after 10 ms; about every 250th call fails at once.
fn callee()
-> impl Service<Request<Body>, Response = Response<ScriptedBody>, Error = BoxError, Future: Send> + Clone {
    let calls = Arc::new(AtomicU64::new(0));
    service_fn(move |_: Request<Body>| {
        let fails = calls.fetch_add(1, Ordering::Relaxed) % 251 == 250;
        async move {
            if !fails {
                tokio::time::sleep(ms(10)).await;
            }
            let peer::Reply::With(answer) = (if fails { unavailable() } else { ok() }) else {
                unreachable!()
            };
            Ok::<_, BoxError>(answer)
        }
    })
}

/// For a minute an untrusted client sends calls with 1 to 8 ms of time through an edge, next to other
/// callers.
#[tokio::test(start_paused = true)]
async fn short_deadlines_of_a_client_do_not_affect_others() {
    let policy = Policy {
        circuit_breaker: Some(CircuitBreaker::default()),
        retry_breaker: Some(RetryBreaker::default()),
        ..enforce()
    };
    let engine = engine(policy);
    let client = governed(&engine, callee());
    let handler = service_fn(move |_: Request<Body>| {
        let mut client = client.clone();
        async move { call(&mut client, request()).await.map(|answer| trailers_of(&answer)) }
    });
    let edge = ServerLayer::new(Arc::clone(&engine)).edge().layer(handler);
    let began = tokio::time::Instant::now();
    let mut refused = 0;
    while began.elapsed() < Duration::from_secs(60) {
        let strangers = (0..20_u64).map(|n| {
            let mut edge = edge.clone();
            let mut short = request();
            short.headers_mut().insert("grpc-timeout", format!("{}m", 1 + n % 8).parse().unwrap());
            async move { call(&mut edge, short).await.map(|_| ()) }
        });
        let others = (0..5).map(|_| {
            let mut edge = edge.clone();
            async move { call(&mut edge, request()).await }
        });
        let (_, answers) =
            tokio::join!(futures_util::future::join_all(strangers), futures_util::future::join_all(others));
        refused += answers.iter().filter(|answer| answer.as_ref().unwrap().status() != "0").count();
    }
    let endings = endings(&engine);
    assert_eq!(refused, 0, "{endings:?}");
    let count = |fate: &str| endings.iter().find(|(name, _)| name == fate).map_or(0, |(_, count)| *count);
    assert_eq!((count("circuit_open"), count("retry_breaker")), (0, 0), "{endings:?}");
    assert!(count("deadline") > 50_000 && count("ok_after_retry") > 20, "{endings:?}");
}

fn trailers_of(answer: &Answer) -> Response<ScriptedBody> {
    let mut response = Response::new(ScriptedBody::over([]));
    response.headers_mut().insert("grpc-status", answer.status().parse().unwrap());
    response
}

/// A runtime of `orders` that serves one retry of `a.B/M`.
fn limited() -> Arc<Runtime> {
    let limit = RepeatLimit { mode: Mode::Enforce, ratio: Ratio::from_bp(10), min: 1 };
    let ceiling = Ceiling { repeat_limit: Some(limit), ..Ceiling::default() };
    let mut table = Table::default();
    for method in ["a.B/M", "a.B/*"] {
        let pattern = Pattern::parse("*", "*", "orders", method).unwrap();
        table.insert_guard(Arc::new(Guard::new(pattern, ceiling, String::new(), 1).unwrap()));
    }
    let engine = Runtime::new("orders", "default");
    engine.apply(table);
    engine
}

fn to(method: &Method, path: &str, content_type: &str) -> Request<Body> {
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    request.body(Body::empty()).unwrap()
}

/// Returns how many of 20 retries of a method are served.
async fn repeats_served(engine: &Arc<Runtime>, path: &str) -> usize {
    let mut service = ServerLayer::new(Arc::clone(engine)).layer(Peer::new((0..20).map(|_| ok())));
    let mut served = 0;
    for _ in 0..20 {
        let mut repeat = to(&Method::POST, path, "application/grpc");
        repeat.headers_mut().insert("grpc-previous-rpc-attempts", "1".parse().unwrap());
        served += usize::from(call(&mut service, repeat).await.unwrap().status() == "0");
    }
    served
}

fn methods(engine: &Runtime) -> Vec<(String, u64)> {
    let mut methods = Vec::new();
    engine.methods().for_each(|name, served| {
        let repeats: u64 = Repeater::ALL.into_iter().map(|by| served.repeats(by)).sum();
        methods.push((name.to_owned(), served.first_sends() + repeats));
    });
    methods.sort();
    methods
}

#[tokio::test]
async fn what_is_not_grpc_is_no_method_and_is_never_refused() {
    let engine = limited();
    let page = service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
    let mut service = ServerLayer::new(Arc::clone(&engine)).layer(page);
    for id in 0..2 * MAX_ROUTES {
        let mut request = to(&Method::GET, &format!("/users/{id}"), "application/json");
        request.headers_mut().insert("x-envoy-attempt-count", "9".parse().unwrap());
        assert_eq!(service.call(request).await.unwrap().status(), StatusCode::OK);
        let request = to(&Method::POST, &format!("/users/{id}"), "application/json");
        let answer = service.call(request).await.unwrap();
        assert!(!answer.headers().contains_key("grpc-status"));
    }
    assert_eq!(methods(&engine), []);
    assert_eq!(repeats_served(&engine, "/a.B/M").await, 1);
}

#[tokio::test]
async fn names_that_a_stranger_makes_up_take_no_place() {
    let engine = limited();
    // An unknown method, and the responses of a layer in front of the methods to any name.
    let answers = ["12", "16", "7", ""];
    let count = AtomicUsize::new(0);
    let none = service_fn(|_: Request<Body>| {
        let status = answers[count.fetch_add(1, Ordering::Relaxed) % answers.len()];
        async move {
            let fields = [("grpc-status", status)];
            let peer::Reply::With(mut answer) = trailers_only(&fields[..usize::from(!status.is_empty())])
            else {
                unreachable!()
            };
            if status.is_empty() {
                *answer.status_mut() = StatusCode::UNAUTHORIZED;
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let mut service = ServerLayer::new(Arc::clone(&engine)).layer(none);
    for id in 0..2 * MAX_ROUTES {
        service.call(to(&Method::POST, &format!("/x.Y/m{id}"), "application/grpc")).await.unwrap();
    }
    assert_eq!(methods(&engine), [(OTHER_METHOD.to_owned(), 2 * MAX_ROUTES as u64)]);
    assert_eq!(repeats_served(&engine, "/a.B/M").await, 1, "its own limit applies");
    assert_eq!(repeats_served(&engine, "/a.B/N").await, 1, "its first request counts too");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_a_stranger_chose_ends_at_the_edge() {
    let engine = engine(None);
    for (edge, expected) in [(true, None), (false, Some("0123456789abcdef0123456789abcdef"))] {
        let (peer, layer) = (Peer::new([ok()]), ServerLayer::new(Arc::clone(&engine)));
        let layer = if edge { layer.edge() } else { layer };
        let mut request = request();
        let key = "0123456789abcdef0123456789abcdef".parse().unwrap();
        request.headers_mut().insert("damper-call", key);
        call(&mut layer.layer(peer.clone()), request).await.unwrap();
        let seen = peer.seen();
        assert_eq!(seen[0].headers.get("damper-call").map(|key| key.to_str().unwrap()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn previous_attempts_of_the_application_are_removed() {
    for policy in [None, Some(enforce())] {
        let (engine, peer) = (engine(policy), Peer::new([ok()]));
        let mut copied = request();
        copied.headers_mut().insert("grpc-previous-rpc-attempts", "5".parse().unwrap());
        call(&mut governed(&engine, peer.clone()), copied).await.unwrap();
        assert!(!peer.seen()[0].headers.contains_key("grpc-previous-rpc-attempts"));
    }
}
