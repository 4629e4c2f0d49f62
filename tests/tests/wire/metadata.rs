//! What the application said about a call reaches the server alike on every attempt.

use damper_tests::peer::{Peer, Reply, Seen};
use http::{HeaderName, HeaderValue};
use tonic::codec::CompressionEncoding;
use tonic::metadata::{AsciiMetadataValue, BinaryMetadataValue};
use tonic::{Request, Response};

use super::world::{THREE, World, path, within};

/// What tells attempts apart.
const OURS: [&str; 3] = ["damper-retry", "grpc-previous-rpc-attempts", "grpc-timeout"];

fn rich() -> Request<String> {
    let mut request = Request::new("one".to_owned());
    let metadata = request.metadata_mut();
    metadata.append("x-tag", AsciiMetadataValue::from_static("b"));
    metadata.append_bin("x-trace-bin", BinaryMetadataValue::from_bytes(&[0, 255, 10, 13]));
    metadata.append("x-tag", AsciiMetadataValue::from_static("a"));
    metadata.append("x-alone", AsciiMetadataValue::from_static(""));
    metadata.append_bin("x-trace-bin", BinaryMetadataValue::from_bytes(&[]));
    metadata.append("x-tag", AsciiMetadataValue::from_static("b"));
    metadata.append("authorization", AsciiMetadataValue::from_static("Bearer secret"));
    request
}

/// All headers but ours, in the order in which they came.
fn theirs(request: &Seen) -> Vec<(HeaderName, HeaderValue)> {
    let all = request.headers.iter().filter(|(name, _)| !OURS.contains(&name.as_str()));
    all.map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[tokio::test]
async fn every_attempt_carries_what_the_application_said() {
    let peer =
        Peer::start([Reply::unavailable(), Reply::reset(7), Reply::unavailable(), Reply::ok("yes")]).await;
    let world = World::new(&peer, &format!("timeout: 10s, {THREE}")).await;
    world.send(rich()).await.unwrap();
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen.len(), 4);
    for request in &seen {
        let tags: Vec<_> = request.headers.get_all("x-tag").iter().collect();
        assert_eq!(tags, ["b", "a", "b"]);
        let traces: Vec<_> = request.headers.get_all("x-trace-bin").iter().collect();
        assert_eq!(traces, ["AP8KDQ", ""]);
        assert_eq!(theirs(request), theirs(&seen[0]));
        assert_eq!((&request.path, &request.authority), (&seen[0].path, &seen[0].authority));
        assert_eq!(request.body, seen[0].body);
    }
}

#[tokio::test]
async fn the_first_attempt_has_the_headers_that_plain_tonic_sends() {
    let peer = Peer::by(|_| Reply::ok("yes")).await;
    let world = World::new(&peer, THREE).await;
    within("a plain call", damper_tests::hop::call(peer.channel(), rich())).await.unwrap();
    world.send(rich()).await.unwrap();
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen[0].headers, seen[1].headers);
    assert_eq!(theirs(&seen[0]), theirs(&seen[1]));
    assert_eq!(seen[0].body, seen[1].body);
}

#[tokio::test]
async fn an_authority_of_ones_own_is_sent_on_every_attempt() {
    let peer = Peer::start([Reply::unavailable(), Reply::ok("yes")]).await;
    let world = World::new(&peer, THREE).await;
    let origin = http::Uri::from_static("http://stock.example:443");
    let mut grpc = tonic::client::Grpc::with_origin(world.channel.clone(), origin);
    grpc.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<String, String>::default();
    let answer: Response<String> = grpc.unary(rich(), path(), codec).await.unwrap();
    assert_eq!(answer.into_inner(), "yes");
    let authorities: Vec<_> = peer.seen().into_iter().map(|request| request.authority).collect();
    // What tonic makes of the origin is its own business, but it is the same each time.
    assert_eq!(authorities[0], authorities[1]);
}

#[tokio::test]
async fn a_compressed_request_says_so_on_every_attempt_and_has_the_same_bytes() {
    let peer = Peer::start([Reply::unavailable(), Reply::ok("yes")]).await;
    let world = World::new(&peer, THREE).await;
    let mut grpc = tonic::client::Grpc::new(world.channel.clone())
        .send_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Gzip);
    grpc.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<String, String>::default();
    let request = Request::new("a".repeat(1_000));
    let answer: Response<String> = grpc.unary(request, path(), codec).await.unwrap();
    assert_eq!(answer.into_inner(), "yes");
    let seen = peer.until_all_are_over().await;
    for request in &seen {
        assert_eq!(request.header("grpc-encoding"), Some("gzip"));
        assert!(request.header("grpc-accept-encoding").is_some_and(|accepted| accepted.contains("gzip")));
        assert_eq!(request.body[0], 1, "the compressed flag");
        assert!(request.body.len() < 200, "compressed");
    }
    assert_eq!(seen[0].body, seen[1].body);
    assert_eq!(theirs(&seen[0]), theirs(&seen[1]));
}

#[tokio::test]
async fn what_the_server_said_reaches_the_application_unchanged() {
    let fields = [("x-shelf", "b"), ("x-trace-bin", "AP8KDQ"), ("x-shelf", "a")];
    let reply = Reply::begin_with(&fields).message("yes").trailers(&[("grpc-status", "0"), ("x-late", "1")]);
    let peer = Peer::start([Reply::unavailable(), reply]).await;
    let world = World::new(&peer, THREE).await;
    let answer = world.call("one").await.unwrap();
    let shelves: Vec<_> = answer.metadata().get_all("x-shelf").iter().collect();
    assert_eq!(shelves, ["b", "a"]);
    assert_eq!(
        answer.metadata().get_bin("x-trace-bin").unwrap().to_bytes().unwrap().as_ref(),
        [0, 255, 10, 13]
    );
    assert_eq!(answer.metadata().get("x-late").unwrap(), "1");
}

#[tokio::test]
async fn an_error_keeps_its_message_details_and_metadata() {
    let fields = [
        ("grpc-status", "9"),
        ("grpc-message", "r%C3%B6d"),
        ("grpc-status-details-bin", "AQID"),
        ("x-shelf", "b"),
        ("x-shelf", "a"),
        ("damper-no-more-retry", "1"),
        ("grpc-retry-pushback-ms", "-1"),
        ("x-envoy-ratelimited", "true"),
    ];
    for reply in [Reply::trailers_only(&fields), Reply::begin().trailers(&fields)] {
        let peer = Peer::start([reply]).await;
        let world = World::new(&peer, THREE).await;
        let error = world.call("one").await.unwrap_err();
        assert_eq!((error.message(), error.details()), ("röd", [1, 2, 3].as_slice()));
        let shelves: Vec<_> = error.metadata().get_all("x-shelf").iter().collect();
        assert_eq!(shelves, ["b", "a"]);
        for gone in ["damper-no-more-retry", "grpc-retry-pushback-ms", "x-envoy-ratelimited"] {
            assert!(!error.metadata().contains_key(gone), "{gone} spoke to this hop only");
        }
        world.ended(&[("not_retryable", 1)]);
    }
}

#[tokio::test]
async fn a_call_id_is_equal_on_every_attempt_and_different_for_every_call() {
    let peer = Peer::by(|_| Reply::unavailable()).await;
    let world = World::new(&peer, &format!("call_id: true, {THREE}")).await;
    for _ in 0..2 {
        world.call("one").await.unwrap_err();
    }
    let seen = peer.until_all_are_over().await;
    let ids: Vec<_> = seen.iter().map(|request| request.header("damper-call").expect("an id")).collect();
    assert!(
        ids.iter().all(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())),
        "{ids:?}"
    );
    assert!(ids[..3].iter().all(|id| *id == ids[0]) && ids[3..].iter().all(|id| *id == ids[3]), "{ids:?}");
    assert_ne!(ids[0], ids[3]);
}
