//! Hits each deadline and each limit once, and checks the answer and the counter.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use damper_control_plane::{Auth, Limits, Rate, ServerConfig};
use damper_proto::v1;
use damper_proto::v1::fleet_client::FleetClient;
use damper_proto::v1::kills_client::KillsClient;
use damper_proto::v1::rules_client::RulesClient;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_types::StatusExt as _;

use crate::certificates::Authority;
use crate::harness::{Running, exchange, shake, soon, start, with_pair};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The head of a HEADERS frame of 64 bytes, and no more.
const HALF_HEADERS: &[u8] = b"\0\0\x40\x01\x04\0\0\0\x01";
const SHORT: Duration = Duration::from_secs(3);

fn impatient(settings: &mut ServerConfig) {
    settings.limits = Limits {
        first_byte_within: SHORT,
        handshake_within: SHORT,
        request_head_within: SHORT,
        idle_connection_after: 3 * SHORT,
        ..Limits::default()
    };
}

fn plain(server: &Running) -> Channel {
    Endpoint::from_shared(format!("http://{}", server.address)).unwrap().connect_lazy()
}

#[tokio::test]
async fn silent_and_half_finished_connections_are_closed() {
    let ours = Authority::new("ours");
    let server = start(|settings| {
        impatient(settings);
        settings.tls = Some(with_pair(&ours.server("localhost")));
    })
    .await;
    let plain = async || TcpStream::connect(server.metrics).await.unwrap();
    let half = [PREFACE, HALF_HEADERS].concat();
    // The answers may be anything; the connections are closed.
    let unfinished = [&b"GET / HTTP/1.1\r\nho"[..], PREFACE, &half, b"\r\n"].into_iter();
    futures_util::future::join_all(unfinished.map(async |sent| exchange(plain().await, sent).await)).await;
    server.hits_that("request_head", |count| count == 4.0).await;
    exchange(plain().await, b"").await.unwrap();
    server.hits_that("first_byte", |count| count == 1.0).await;
    let tls = TcpStream::connect(server.address).await.unwrap();
    let _ = exchange(tls, &[0x16, 3, 1]).await;
    server.hits_that("handshake", |count| count == 1.0).await;
    for protocol in [&b"http/1.1"[..], b"h2"] {
        let shaken = shake(server.address, &ours.trusting(None, protocol), "localhost").await.unwrap();
        let _ = exchange(shaken, b"").await;
    }
    server.hits_that("request_head", |count| count == 6.0).await;
    server.stop().await;
}

#[tokio::test]
async fn idle_connection_and_unfinished_head_time_out() {
    let server = start(impatient).await;
    let kept = async || {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut answer = [0; 16];
        soon(stream.read_exact(&mut answer)).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
        stream
    };
    let _ = exchange(kept().await, b"GET /livez HTTP/1.1\r\nhos").await;
    server.hits_that("request_head", |count| count == 1.0).await;
    exchange(kept().await, b"").await.unwrap();
    server.hits_that("idle_connection", |count| count >= 1.0).await;
    server.stop().await;
}

#[tokio::test]
async fn connections_beyond_a_limit_are_closed() {
    let server = start(|settings| {
        settings.limits.max_connections = 4;
        settings.limits.max_connections_per_identity = 2;
    })
    .await;
    let list = async |channel: &Channel| {
        soon(RulesClient::new(channel.clone()).list_rules(v1::ListRulesRequest::default())).await
    };
    let (one, two, three) = (plain(&server), plain(&server), plain(&server));
    list(&one).await.unwrap();
    list(&two).await.unwrap();
    let refused = list(&three).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    drop(three);
    server.hits_that("connections_per_identity", |count| count == 1.0).await;
    drop(two);
    server.figure_that("damper_connections", |open| open == 2.0).await;
    list(&plain(&server)).await.unwrap();

    server.figure_that("damper_connections", |open| open == 2.0).await;
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    let mut beyond = TcpStream::connect(server.address).await.unwrap();
    let ended = soon(beyond.read(&mut [0])).await;
    assert!(ended.is_err() || ended.is_ok_and(|read| read == 0));
    drop(silent);
    server.hits_that("connections", |count| count >= 1.0).await;
    list(&one).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn reads_and_writes_beyond_their_rate_get_a_retry_delay() {
    let few = |burst| Rate { per_second: NonZeroU32::MIN, burst: NonZeroU32::new(burst).unwrap() };
    let server = start(|settings| {
        settings.limits.reads = few(5);
        settings.limits.writes = few(3);
    })
    .await;
    let mut rules = RulesClient::new(plain(&server));
    let begun = Instant::now();
    let (mut reads, mut writes) = (0, 0);
    let assert_retry_delay = |status: &tonic::Status| {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        let wait = status.get_details_retry_info().unwrap().retry_delay.unwrap();
        assert!(wait <= Duration::from_secs(1), "{wait:?}");
    };
    let refused = loop {
        match soon(rules.list_rules(v1::ListRulesRequest::default())).await {
            Ok(_) => reads += 1,
            Err(status) => break status,
        }
    };
    assert_retry_delay(&refused);
    let refused = loop {
        let answer = soon(rules.delete_rule(v1::DeleteRuleRequest::default())).await.unwrap_err();
        match answer.code() {
            Code::InvalidArgument => writes += 1,
            _ => break answer,
        }
    };
    assert_retry_delay(&refused);
    let more = begun.elapsed().as_secs() + 1;
    assert!((5..=5 + more).contains(&reads), "{reads} reads");
    assert!((3..=3 + more).contains(&writes), "{writes} writes");
    server.hits_that("reads", |count| count >= 1.0).await;
    server.hits_that("writes", |count| count >= 1.0).await;
    server.stop().await;
}

#[tokio::test]
async fn unfinished_unary_call_is_answered_at_its_deadline() {
    let server = start(|settings| settings.unary_deadline = SHORT).await;
    let head = b"POST /damper.v1.Rules/ListRules HTTP/1.1\r\nhost: localhost\r\n\
        content-type: application/grpc-web+proto\r\nconnection: close\r\ncontent-length: 500\r\n\r\n\0";
    let answer = exchange(TcpStream::connect(server.address).await.unwrap(), head).await.unwrap();
    assert!(answer.contains("grpc-status: 4") || answer.contains("grpc-status:4"), "{answer}");
    server.hits_that("unary_deadline", |count| count == 1.0).await;
    server.stop().await;
}

#[tokio::test]
async fn who_is_denied_is_held_to_the_rate_of_their_address() {
    let folder = tempfile::TempDir::new().unwrap();
    let server = start(|settings| {
        settings.auth = damper_control_plane::Auth::Tokens;
        settings.bootstrap_token_file = Some(folder.path().join("first"));
        settings.limits.reads = Rate { per_second: NonZeroU32::MIN, burst: NonZeroU32::new(3).unwrap() };
    })
    .await;
    let mut rules = RulesClient::new(plain(&server));
    let begun = Instant::now();
    let mut denied = 0;
    let refused = loop {
        let status = soon(rules.list_rules(v1::ListRulesRequest::default())).await.unwrap_err();
        match status.code() {
            Code::Unauthenticated => denied += 1,
            _ => break status,
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert!((3..=4 + begun.elapsed().as_secs()).contains(&denied), "{denied}");
    server.hits_that("reads", |count| count >= 1.0).await;
    server.stop().await;
}

#[tokio::test]
async fn connections_without_a_request_are_limited_per_address() {
    let server = start(|settings| settings.limits.max_new_connections_per_address = 3).await;
    let list = async |channel: &Channel| {
        soon(RulesClient::new(channel.clone()).list_rules(v1::ListRulesRequest::default())).await
    };
    let one = plain(&server);
    list(&one).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    let mut beyond = TcpStream::connect(server.address).await.unwrap();
    let ended = soon(beyond.read(&mut [0])).await;
    assert!(ended.is_err() || ended.is_ok_and(|read| read == 0));
    list(&one).await.unwrap();
    drop(silent);
    soon(async { while list(&plain(&server)).await.is_err() {} }).await;
    server.hits_that("new_connections_per_address", |count| count >= 1.0).await;
    server.stop().await;
}

/// Returns a request for the web UI with a flow control window of 0.
fn page_for_a_closed_window() -> Vec<u8> {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0";
    let get = b"\0\0\x0e\x01\x05\0\0\0\x01\x82\x86\x84\x41\x09localhost";
    [&preface[..], get].concat()
}

#[tokio::test]
async fn unread_response_does_not_keep_a_connection() {
    let server = start(|settings| {
        settings.unary_deadline = SHORT;
        settings.limits.request_head_within = SHORT;
    })
    .await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let _ = exchange(stream, &page_for_a_closed_window()).await;
    server.hits_that("unary_deadline", |count| count == 1.0).await;
    server.stop().await;
}

#[tokio::test]
async fn health_checks_count_as_unauthenticated_connections() {
    let folder = tempfile::TempDir::new().unwrap();
    let server = start(|settings| {
        settings.auth = Auth::Tokens;
        settings.bootstrap_token_file = Some(folder.path().join("first"));
        settings.limits.max_new_connections_per_address = 3;
    })
    .await;
    let livez = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let ask = async || {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let _ = stream.write_all(livez).await;
        let read = soon(stream.read(&mut [0; 64])).await;
        read.is_ok_and(|read| read > 0).then_some(stream)
    };
    let token = std::fs::read_to_string(folder.path().join("first")).unwrap();
    let bearer: tonic::metadata::MetadataValue<_> = format!("Bearer {}", token.trim()).parse().unwrap();
    let known = plain(&server);
    let mut request = tonic::Request::new(v1::ListRulesRequest::default());
    request.metadata_mut().insert("authorization", bearer);
    soon(RulesClient::new(known.clone()).list_rules(request)).await.unwrap();
    // The authenticated connection does not count among them.
    let few = [ask().await.unwrap(), ask().await.unwrap(), ask().await.unwrap()];
    assert!(ask().await.is_none());
    drop(few);
    soon(async { while ask().await.is_none() {} }).await;
    server.hits_that("new_connections_per_address", |count| count >= 1.0).await;
    server.stop().await;
}

#[tokio::test]
async fn metrics_port_answers_when_the_other_is_full() {
    let server = start(|settings| settings.limits.max_connections = 4).await;
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    server.figure_that("damper_connections", |open| open >= 4.0).await;
    let probe = TcpStream::connect(server.metrics).await.unwrap();
    let sent = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert!(exchange(probe, sent).await.unwrap().starts_with("HTTP/1.1 200"));
    server.stop().await;
}

#[tokio::test]
async fn open_requests_without_proof_have_a_bound() {
    let server = start(|settings| settings.limits.max_open_requests_per_identity = 8).await;
    let watch = || async {
        let mut health = tonic_health::pb::health_client::HealthClient::new(plain(&server));
        let request = tonic_health::pb::HealthCheckRequest::default();
        soon(health.watch(request)).await.map(tonic::Response::into_inner)
    };
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(watch().await.unwrap());
    }
    assert_eq!(watch().await.unwrap_err().code(), Code::ResourceExhausted);
    server.hits_that("open_requests_per_identity", |count| count == 1.0).await;
    drop(held);
    server.stop().await;
}

#[tokio::test]
async fn kills_have_room_when_all_other_requests_are_open() {
    let server = start(|settings| settings.limits.max_open_requests_per_identity = 8).await;
    let mut fleet = FleetClient::new(plain(&server));
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(soon(fleet.watch(v1::WatchRequest::default())).await.unwrap().into_inner());
    }
    let refused = soon(fleet.list_clients(v1::ListClientsRequest::default())).await;
    assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
    let options = v1::WriteOptions { reason: "storm".to_owned(), ..Default::default() };
    let key = v1::Pattern {
        caller_service: "*".to_owned(),
        caller_cluster: "*".to_owned(),
        callee_service: "stock".to_owned(),
        callee_method: "*".to_owned(),
    };
    let kill = v1::KillRequest { key: Some(key), options: Some(options), ..Default::default() };
    soon(KillsClient::new(plain(&server)).kill(kill)).await.unwrap();
    drop(held);
    server.stop().await;
}
