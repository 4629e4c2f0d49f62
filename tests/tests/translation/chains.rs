//! Real Envoys in a chain of stock services, with their own retries.

use damper_foreign::to::{Options, Target};
use damper_tests::foreign::{Habit, Language, Process, free_address};
use damper_tests::hop::call;
use damper_tests::peer::{Peer, Reply};
use tokio::task::spawn_blocking;
use tonic::{Code, Request};

use super::envoy::{Envoy, Service, sidecars};
use super::{rules, written};

/// Three attempts on every hop, and no breaker.
const THREE: &str =
    "{ mode: enforce, retry: { max_attempts: 3, backoff: { none: {} } }, retry_breaker: { enabled: false } }";

/// Two services in Go and a last one, which refuses everything, each behind an Envoy with three attempts.
/// Returns the sends on each hop for one request.
async fn sends_of_envoys(chain_flag: bool, host: u8) -> [u64; 3] {
    let keys = [("* * one *", THREE), ("* * two *", THREE), ("* * last *", THREE)];
    let options = Options { chain_flag, ..Options::default() };
    let documents = written(Target::Envoy, &rules(&keys), &options).documents;
    let last = Peer::by(|_| Reply::unavailable()).await;
    let service = |name| Service { name, inbound: free_address(host), own: free_address(host) };
    let services = [service("one"), service("two")];
    let envoy = Envoy::start(sidecars(&documents, &services, last.address())).await;
    let mut processes = Vec::new();
    for (service, callee) in services.iter().zip(["two", "last"]) {
        let (own, callee) = (service.own, envoy.listener(callee).await);
        let start = move || Process::service(Language::Go, own, callee, Habit::Propagates);
        processes.push(spawn_blocking(start).await.expect("it starts"));
    }
    let failed = call(envoy.channel("one", "one").await, Request::new("one".to_owned()))
        .await
        .expect_err("the last refuses everything");
    assert_eq!(failed.code(), Code::Unavailable);
    let sends = [
        envoy.counter("one", "upstream_rq_total").await,
        envoy.counter("two", "upstream_rq_total").await,
        envoy.counter("last", "upstream_rq_total").await,
    ];
    assert_eq!(sends[2], last.seen().len() as u64);
    sends
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_of_three_envoys_multiply() {
    assert_eq!(sends_of_envoys(false, 21).await, [3, 9, 27]);
}

#[tokio::test(flavor = "multi_thread")]
async fn filter_makes_retries_of_three_envoys_add_up() {
    assert_eq!(sends_of_envoys(true, 22).await, [3, 5, 7]);
}
