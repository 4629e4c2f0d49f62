//! Real Envoys in a chain: with their own retries between stock services, and between two hops of Damper.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use damper_foreign::to::{Options, Target};
use damper_sdk::{Damper, Options as DamperOptions};
use damper_tests::control_plane::ControlPlane;
use damper_tests::foreign::{Habit, Language, Process, free_address, free_addresses};
use damper_tests::hop::{Hop, call};
use damper_tests::peer::{Peer, Reply};
use tokio::task::spawn_blocking;
use tonic::{Code, Request, Status};

use super::envoy::{Envoy, Service, sidecars};
use super::{rules, written};

const READY: Duration = Duration::from_secs(60);
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
    let [in_one, one, in_two, two] = free_addresses(host);
    let service = |name, inbound, own| Service { name, inbound, own };
    let services = [service("one", in_one, one), service("two", in_two, two)];
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

async fn damper(control_plane: &ControlPlane, service: &str) -> Damper {
    let damper =
        Damper::connect(DamperOptions::new([control_plane.url()]).service(service)).expect("valid options");
    damper.ready(READY).await.expect("rules arrive");
    damper
}

/// A control plane with three attempts on every hop of Damper.
async fn control_plane() -> ControlPlane {
    let control_plane = ControlPlane::start().await;
    let key = "{ caller_service: '*', caller_cluster: '*', callee_service: '*', callee_method: '*' }";
    control_plane.apply(&format!("kind: Rule\nkey: {key}\npolicy: {THREE}\n")).await;
    control_plane
}

/// An Envoy in front of the service `mid`, whose rule it has.
async fn envoy_before(mid: SocketAddr, policy: &str) -> Envoy {
    let documents = written(Target::Envoy, &rules(&[("* * mid *", policy)]), &Options::default()).documents;
    Envoy::start(sidecars(&documents, &[], mid)).await
}

/// Sends a request to `mid` through an Envoy, by a caller with the SDK.
async fn refused(control_plane: &ControlPlane, envoy: &Envoy) {
    let damper = damper(control_plane, "front").await;
    let channel = damper.client_layer("mid").expect("a valid name").layer(envoy.channel("mid", "mid").await);
    let failed = call(channel, Request::new("one".to_owned())).await.expect_err("it is refused");
    assert_eq!(failed.code(), Code::Unavailable);
}

/// The service between is in Go, with a proxy. Its final error stops Envoy's attempts and the caller's.
#[tokio::test(flavor = "multi_thread")]
async fn flag_upwards_passes_an_envoy_and_stops_it() {
    let control_plane = control_plane().await;
    let bottom = Peer::by(|_| Reply::unavailable()).await;
    let (own, folder) = (free_address(23), tempfile::tempdir().unwrap());
    let config = format!(
        "service: mid\ninbound: {{ listen: '127.0.0.1:0', to: '{own}' }}\nadmin: 127.0.0.1:0\n\
         outbound: [{{ callee: bottom, listen: '127.0.0.1:0', to: '{}' }}]\n",
        bottom.address()
    );
    let (url, place) = (control_plane.url().to_owned(), folder.path().to_owned());
    let started = spawn_blocking(move || {
        let (proxy, addresses) = Process::proxy(&url, &config, &place);
        let service = Process::service(Language::Go, own, addresses.outbound(), Habit::Propagates);
        ([proxy, service], addresses)
    });
    let (_processes, addresses) = started.await.unwrap();
    let envoy = envoy_before(addresses.inbound(), THREE).await;
    control_plane.acknowledged_by(&["mid"]).await;
    refused(&control_plane, &envoy).await;
    assert_eq!(bottom.seen().len(), 3, "the attempts of the last hop alone");
    assert_eq!(envoy.counter("mid", "upstream_rq_total").await, 1);
}

/// The service between refuses the first request itself, so that the caller repeats it.
#[tokio::test(flavor = "multi_thread")]
async fn flag_downwards_passes_an_envoy() {
    let control_plane = control_plane().await;
    let bottom = Peer::by(|_| Reply::unavailable()).await;
    let damper = damper(&control_plane, "mid").await;
    let channel = damper.client_layer("bottom").unwrap().layer(bottom.channel());
    let requests = AtomicUsize::new(0);
    let mid = Hop::serve(Some(damper.server_layer()), move |request: Request<String>| {
        let (channel, is_first) = (channel.clone(), requests.fetch_add(1, Ordering::SeqCst) == 0);
        async move {
            if is_first {
                return Err(Status::unavailable("busy"));
            }
            call(channel, Request::new(request.into_inner())).await
        }
    })
    .await;
    let envoy = envoy_before(mid.address(), "{ mode: off }").await;
    refused(&control_plane, &envoy).await;
    // Without the flag the second request would have made three attempts, and a third one none.
    assert_eq!((mid.handled(), bottom.seen().len()), (3, 2));
    assert!(bottom.seen().iter().all(|request| request.header("damper-retry").is_some()));
}
