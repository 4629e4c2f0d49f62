//! What an Envoy with the written routes sends, by kind of failure.
//!
//! One Envoy serves all kinds: each is a callee with routes, a cluster and a peer of its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use damper_foreign::to::{Options, Target};
use damper_tests::hop;
use damper_tests::peer::{Act, Peer, Reply};
use tokio::net::TcpSocket;
use tonic::{Code, Request};

use super::envoy::{Envoy, config};
use super::{rules, written};

const REFUSED_STREAM: u32 = 7;
const INTERNAL_ERROR: u32 = 2;

/// Three attempts if a call fails with UNAVAILABLE.
const UNAVAILABLE: &str = "{ mode: enforce, retry: { max_attempts: 3, backoff: { none: {} } } }";
/// Three attempts if the callee answers INTERNAL.
const INTERNAL: &str =
    "{ mode: enforce, retry: { max_attempts: 3, codes: { allow: [INTERNAL] }, backoff: { none: {} } } }";

fn limited(code: &str) -> String {
    format!(
        "{{ mode: enforce, retry: {{ max_attempts: 3, per_attempt_timeout: 100ms, codes: {{ allow: [{code}] }}, \
         backoff: {{ none: {{}} }} }} }}"
    )
}

/// A kind of failure, under a rule.
struct Kind {
    callee: &'static str,
    policy: String,
    reply: Reply,
    sends: usize,
    code: Code,
}

fn kind(callee: &'static str, policy: &str, reply: Reply, sends: usize, code: Code) -> Kind {
    Kind { callee, policy: policy.to_owned(), reply, sends, code }
}

fn kinds() -> Vec<Kind> {
    let reset = |number| Reply::hang().then(Act::UntilRead).then(Act::Reset(number));
    let lost = Reply::hang().then(Act::UntilRead).then(Act::HangUp);
    let in_trailers = Reply::begin().trailers(&[("grpc-status", "14")]);
    vec![
        kind("in-headers", UNAVAILABLE, Reply::unavailable(), 3, Code::Unavailable),
        kind("in-trailers", UNAVAILABLE, in_trailers, 1, Code::Unavailable),
        kind("refused-stream", UNAVAILABLE, reset(REFUSED_STREAM), 3, Code::Unavailable),
        kind("reset", UNAVAILABLE, reset(INTERNAL_ERROR), 3, Code::Unavailable),
        kind("lost", UNAVAILABLE, lost, 3, Code::Unavailable),
        kind("other-code", UNAVAILABLE, Reply::error(13), 1, Code::Internal),
        kind("internal", INTERNAL, Reply::error(13), 3, Code::Internal),
        kind("internal-reset", INTERNAL, reset(INTERNAL_ERROR), 1, Code::Unavailable),
        kind("slow", &limited("UNAVAILABLE"), Reply::hang(), 3, Code::Unavailable),
        kind("slow-unmatched", &limited("DEADLINE_EXCEEDED"), Reply::hang(), 1, Code::Unavailable),
        kind("timed-out", "{ mode: enforce, timeout: 100ms }", Reply::hang(), 1, Code::Unavailable),
        kind("off", "{ mode: off }", Reply::unavailable(), 1, Code::Unavailable),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_sends_as_the_report_states() {
    // Bound and not listening: connects are refused.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let kinds = kinds();
    let mut peers = BTreeMap::new();
    for kind in &kinds {
        let reply = kind.reply.clone();
        peers.insert(kind.callee, Peer::by(move |_| reply.clone()).await);
    }
    let key = |callee: &str| format!("* * {callee} *");
    let mut keyed: Vec<(String, &str)> =
        kinds.iter().map(|kind| (key(kind.callee), kind.policy.as_str())).collect();
    keyed.push((key("closed"), UNAVAILABLE));
    keyed.push((key("closed-internal"), INTERNAL));
    let keyed: Vec<(&str, &str)> = keyed.iter().map(|(key, policy)| (key.as_str(), *policy)).collect();
    let documents = written(Target::Envoy, &rules(&keyed), &Options::default()).documents;
    let upstream =
        |callee: &str| peers.get(callee).map_or_else(|| closed.local_addr().unwrap(), Peer::address);
    let envoy = Envoy::start(config(&documents, upstream)).await;

    let code = async |callee: &str| {
        let channel = envoy.channel("outbound", callee).await;
        hop::call(channel, Request::new("one".to_owned())).await.unwrap_err().code()
    };
    let mut found = Vec::new();
    let mut expected = Vec::new();
    for kind in &kinds {
        let code = code(kind.callee).await;
        // Envoy can answer before the peer has seen the last one.
        let seen = peers[kind.callee].until(kind.callee, |seen| seen.len() >= kind.sends).await;
        found.push((kind.callee, seen.len(), code));
        expected.push((kind.callee, kind.sends, kind.code));
    }
    for (callee, connects) in [("closed", 3), ("closed-internal", 1)] {
        let code = code(callee).await;
        let failed = envoy.counter(callee, "upstream_cx_connect_fail").await;
        found.push((callee, usize::try_from(failed).unwrap(), code));
        expected.push((callee, connects, Code::Unavailable));
    }
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn filter_keeps_the_retry_flag() {
    let peer = Peer::by(|_| Reply::unavailable()).await;
    let options = Options { chain_flag: true, ..Options::default() };
    let documents = written(Target::Envoy, &rules(&[("* * b *", UNAVAILABLE)]), &options).documents;
    let address: SocketAddr = peer.address();
    let envoy = Envoy::start(config(&documents, |_| address)).await;
    let call = async |listener: &str, fields: &[(&'static str, &str)]| {
        let before = peer.seen().len();
        let mut request = Request::new("one".to_owned());
        for (name, value) in fields {
            request.metadata_mut().insert(*name, value.parse().unwrap());
        }
        hop::call(envoy.channel(listener, "b").await, request).await.unwrap_err();
        peer.seen().split_off(before)
    };

    let first = call("inbound", &[("baggage", "user=1")]).await;
    assert_eq!(first[0].header("baggage"), Some("user=1"), "a first send has no mark");
    let repeated = call("inbound", &[("baggage", "user=1"), ("x-envoy-attempt-count", "2")]).await;
    let baggage = repeated[0].header("baggage").unwrap();
    assert!(baggage.starts_with("damper.retry=1;until=") && baggage.ends_with(",user=1"), "{baggage}");
    let ours = call("inbound", &[("damper-retry", "1")]).await;
    assert!(ours[0].header("baggage").unwrap().starts_with("damper.retry=1;until="), "{ours:?}");

    assert_eq!(call("outbound", &[("baggage", "user=1")]).await.len(), 3);
    let marked = call("outbound", &[("baggage", baggage)]).await;
    assert_eq!(marked.len(), 1, "a call for a repeated request is sent once");
    assert_eq!(marked[0].header("damper-retry"), Some("1"));
    let stale = call("outbound", &[("baggage", "damper.retry=1;until=1000")]).await;
    assert_eq!(stale.len(), 3, "a mark ends");
}
