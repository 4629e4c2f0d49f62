//! Retries at the server layer: their sender, which are served, the response to rejected ones, and what
//! handlers see.

use damper_core::chain::Repeater;
use damper_core::guard::Ceiling;
use damper_core::{Guard, Ratio, RepeatLimit};
use http::HeaderValue;

use super::peer::{Peer, ok};
use super::*;
use crate::background::clock;
use crate::{Context, ServerLayer};

type Marks = &'static [(&'static str, &'static str)];

const FIRST: Marks = &[];
const OURS: Marks = &[("damper-retry", "1"), ("grpc-previous-rpc-attempts", "1")];
const GRPC: Marks = &[("grpc-previous-rpc-attempts", "1")];
const ENVOY: Marks = &[("x-envoy-attempt-count", "2")];
const PASSED_ON: Marks = &[("damper-retry", "1")];

/// The runtime of a service that serves this number of retries, or a tenth of its first attempts.
fn limited(mode: Mode, min: u32) -> Arc<Runtime> {
    let limit = RepeatLimit { mode, ratio: Ratio::from_bp(1000), min };
    let ceiling = Ceiling { repeat_limit: Some(limit), ..Ceiling::default() };
    let pattern = Pattern::parse("*", "*", "orders", "*").unwrap();
    let mut table = table(enforce());
    table.insert_guard(Arc::new(Guard::new(pattern, ceiling, String::new(), 1).unwrap()));
    let engine = Runtime::new("orders", "default");
    engine.apply(table);
    engine
}

fn server(engine: &Arc<Runtime>) -> ServerLayer {
    ServerLayer::new(Arc::clone(engine))
}

/// A handler that always succeeds.
fn handler() -> Peer {
    Peer::new((0..100).map(|_| ok()))
}

fn marked(marks: Marks) -> Request<Body> {
    let mut request = request();
    for (name, value) in marks {
        request.headers_mut().append(*name, HeaderValue::from_static(value));
    }
    request
}

/// Sends concurrent requests and returns how many were served.
async fn served(layer: &ServerLayer, count: u32, marks: Marks) -> u32 {
    let mut service = layer.layer(handler());
    let mut served = 0;
    for _ in 0..count {
        let answer = call(&mut service, marked(marks)).await.unwrap();
        served += u32::from(answer.status() == "0");
    }
    served
}

/// First attempts, retries by sender, rejected, would have been rejected: of every method.
fn counted(engine: &Runtime) -> Vec<(String, u64, [u64; 3], u64, u64)> {
    let mut all = Vec::new();
    engine.methods().for_each(|method, served| {
        let repeats = Repeater::ALL.map(|by| served.repeats(by));
        all.push((method.to_owned(), served.first_sends(), repeats, served.shed(), served.would_be_shed()));
    });
    all.sort();
    all
}

#[tokio::test(start_paused = true)]
async fn only_retries_beyond_the_limit_are_rejected() {
    let engine = limited(Mode::Enforce, 3);
    let layer = server(&engine);
    assert_eq!(served(&layer, 2, OURS).await, 2);
    assert_eq!(served(&layer, 2, GRPC).await, 1);
    assert_eq!(served(&layer, 2, ENVOY).await, 0);
    assert_eq!(served(&layer, 50, FIRST).await, 50);
    assert_eq!(served(&layer, 10, PASSED_ON).await, 10, "a first attempt on this hop");
    assert_eq!(served(&layer, 10, OURS).await, 3, "6 of 60 in all");
    let method = "inventory.v1.Inventory/Reserve".to_owned();
    assert_eq!(counted(&engine), [(method, 60, [12, 2, 2], 10, 0)]);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(served(&layer, 5, OURS).await, 3, "nothing latches");
}

#[tokio::test(start_paused = true)]
async fn a_rejected_retry_runs_no_handler_and_gets_the_flag() {
    let engine = limited(Mode::Enforce, 0);
    let handler = handler();
    let mut service = server(&engine).layer(handler.clone());
    let answer = call(&mut service, marked(OURS)).await.unwrap();
    assert_eq!(handler.seen().len(), 0);
    assert!(answer.trailers_only);
    assert_eq!((answer.data.len(), answer.trailers.is_none()), (0, true));
    let mut headers: Vec<_> = answer.headers.iter().map(|(name, _)| name.as_str()).collect();
    headers.sort_unstable();
    let expected =
        ["content-type", "damper-no-more-retry", "grpc-message", "grpc-retry-pushback-ms", "grpc-status"];
    assert_eq!(headers, expected);
    assert_eq!(answer.status(), "14");
    assert_eq!(answer.headers["content-type"], "application/grpc");
    assert_eq!(answer.headers["damper-no-more-retry"], "1");
    assert_eq!(answer.headers["grpc-retry-pushback-ms"], "-1");
    let message = answer.headers["grpc-message"].to_str().unwrap();
    assert!(message.starts_with("repeat limit: ") && !message.contains('%'), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_speaks_envoys_words_and_the_requests_kind_of_grpc() {
    let mut service = server(&limited(Mode::Enforce, 0)).layer(handler());
    let mut request = marked(ENVOY);
    let web = HeaderValue::from_static("application/grpc-web+proto");
    request.headers_mut().insert("content-type", web.clone());
    let answer = call(&mut service, request).await.unwrap();
    assert_eq!(answer.headers["x-envoy-ratelimited"], "true");
    assert_eq!(answer.headers["content-type"], web);
}

#[tokio::test(start_paused = true)]
async fn an_observed_limit_serves_all_and_counts_what_it_would_refuse() {
    let engine = limited(Mode::Observe, 3);
    assert_eq!(served(&server(&engine), 8, OURS).await, 8);
    assert_eq!(counted(&engine), [("inventory.v1.Inventory/Reserve".to_owned(), 0, [8, 0, 0], 0, 5)]);
    let enforced = limited(Mode::Enforce, 3);
    enforced.limit_mode(Some(Mode::Observe));
    assert_eq!(served(&server(&enforced), 8, OURS).await, 8, "a local override reduces limits too");
}

#[tokio::test(start_paused = true)]
async fn first_attempts_and_retries_are_counted_without_a_guard() {
    let engine = engine(None);
    for (count, marks) in [(3, FIRST), (2, OURS), (4, GRPC), (1, ENVOY), (2, PASSED_ON)] {
        assert_eq!(served(&server(&engine), count, marks).await, count);
    }
    assert_eq!(counted(&engine), [("inventory.v1.Inventory/Reserve".to_owned(), 5, [2, 4, 1], 0, 0)]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_a_repeat_at_the_edge() {
    let engine = limited(Mode::Enforce, 0);
    let layer = server(&engine).edge();
    for marks in [OURS, GRPC, ENVOY, PASSED_ON] {
        assert_eq!(served(&layer, 5, marks).await, 5);
    }
    assert_eq!(counted(&engine), [("inventory.v1.Inventory/Reserve".to_owned(), 20, [0, 0, 0], 0, 0)]);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_retry_of_damper_is_the_last_attempt() {
    let engine = limited(Mode::Enforce, 0);
    let down = Peer::new([peer::unavailable(), peer::unavailable()]);
    let mut client = governed(&engine, server(&engine).layer(down.clone()));
    let answer = call(&mut client, request()).await.unwrap();
    assert_eq!((answer.status(), down.seen().len()), ("14", 1));
    assert_eq!(counted(&engine), [("inventory.v1.Inventory/Reserve".to_owned(), 1, [1, 0, 0], 1, 0)]);
    ended(&engine, &[("chain_no_more_retry", 1)]);
}

fn with_baggage(value: &str) -> Request<Body> {
    let mut request = request();
    request.headers_mut().append("baggage", HeaderValue::from_static("tenant=7"));
    request.headers_mut().append("baggage", HeaderValue::from_str(value).unwrap());
    request
}

#[tokio::test(start_paused = true)]
async fn a_flag_in_baggage_marks_a_retry_until_it_expires() {
    let (soon, long_ago) = (clock::unix_ms() + 5_000, clock::unix_ms() - 3_600_000);
    for (until, flag) in [(soon, Some("2")), (long_ago, None)] {
        let (engine, below) = (engine(enforce()), Peer::new([ok()]));
        let client = governed(&engine, below.clone());
        let handler = tower::service_fn(move |_: Request<Body>| {
            let mut client = client.clone();
            async move { tower_service::Service::call(&mut client, request()).await }
        });
        let mut service = server(&engine).layer(handler);
        let request = with_baggage(&format!("user=a, damper.retry=2;until={until}"));
        call(&mut service, request).await.unwrap();
        let seen = &below.seen()[0];
        assert_eq!(seen.headers.get("damper-retry").map(|value| value.to_str().unwrap()), flag);
        assert_eq!(counted(&engine)[0].1, 1, "baggage comes from further up: a first attempt on this hop");
    }
}

#[tokio::test(start_paused = true)]
async fn the_edge_takes_our_member_out_of_baggage_and_leaves_the_rest() {
    let engine = engine(None);
    let value = format!("user=a;p=1, damper.retry=2;until={} ,plan=b", clock::unix_ms() + 5_000);
    for (layer, repeated, expected) in [
        (server(&engine), true, vec!["tenant=7", &value]),
        (server(&engine).edge(), false, vec!["tenant=7", "user=a;p=1,plan=b"]),
    ] {
        let handler = handler();
        call(&mut layer.layer(handler.clone()), with_baggage(&value)).await.unwrap();
        let seen = &handler.seen()[0];
        assert_eq!(seen.headers.get_all("baggage").iter().collect::<Vec<_>>(), expected);
        assert_eq!(seen.extensions.get::<Context>().unwrap().is_retry(), repeated);
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_sees_the_retry_flag_and_the_time_left() {
    let engine = engine(None);
    for (marks, repeated) in [(FIRST, false), (OURS, true), (GRPC, true), (ENVOY, true), (PASSED_ON, true)] {
        let handler = handler();
        let mut request = marked(marks);
        request.headers_mut().insert("grpc-timeout", HeaderValue::from_static("5S"));
        call(&mut server(&engine).layer(handler.clone()), request).await.unwrap();
        let context = handler.seen()[0].extensions.get::<Context>().cloned().unwrap();
        assert_eq!((context.is_retry(), context.time_left()), (repeated, Some(ms(5_000))));
        tokio::time::advance(ms(1_500)).await;
        assert_eq!(context.time_left(), Some(ms(3_500)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_flag_in_baggage_crosses_a_hop_that_forwards_it() {
    let chain = damper_core::Chain { propagate_baggage: true, ..damper_core::Chain::default() };
    let engine = engine(Policy { chain, ..enforce() });
    let peer = Peer::new([peer::unavailable(), ok()]);
    let mut request = request();
    request.headers_mut().append("baggage", HeaderValue::from_static("tenant=7"));
    call(&mut governed(&engine, peer.clone()), request).await.unwrap();
    let [first, second] = &peer.seen()[..] else { panic!("one retry") };
    assert_eq!(first.headers.get_all("baggage").iter().collect::<Vec<_>>(), ["tenant=7"]);
    let baggage = second.headers["baggage"].to_str().unwrap();
    assert!(baggage.starts_with("damper.retry=1;until=") && baggage.ends_with(",tenant=7"), "{baggage}");

    let handler = handler();
    let mut passed_on = super::request();
    passed_on.headers_mut().append("baggage", HeaderValue::from_str(baggage).unwrap());
    call(&mut server(&engine).layer(handler.clone()), passed_on).await.unwrap();
    assert!(handler.seen()[0].extensions.get::<Context>().unwrap().is_retry());
}

#[tokio::test(start_paused = true)]
async fn the_flag_never_leaves_the_trusted_services() {
    let chain = damper_core::Chain { propagate_baggage: true, ..damper_core::Chain::default() };
    let engine = engine(Policy { chain, ..enforce() });
    let peer = Peer::new([peer::unavailable(), ok()]);
    let mut service = layer(&engine).external().layer(peer.clone());
    call(&mut service, with_baggage("damper.retry=2;until=9999999999999,plan=b")).await.unwrap();
    assert_eq!(peer.seen().len(), 2);
    for seen in peer.seen() {
        assert_eq!(seen.headers.get("damper-retry"), None);
        assert_eq!(seen.headers.get_all("baggage").iter().collect::<Vec<_>>(), ["tenant=7", "plan=b"]);
    }
}
