//! The balanced channel with real servers, on the real clock.
#![allow(clippy::unwrap_used, reason = "test helpers, which clippy does not recognize")]

#[path = "control_plane/certificates.rs"]
#[allow(dead_code, reason = "shared with the tests of the control plane's TLS")]
mod certificates;
#[path = "balanced/connections.rs"]
mod connections;
#[path = "balanced/instance.rs"]
mod instance;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use damper_sdk::balance::{Target, Targets};
use damper_sdk::{Balanced, ClientService, Damper, balanced};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::discover::Change;

use self::certificates::{Authority, Files};
use self::instance::{Behaviour, Instance};

const PATIENCE: Duration = Duration::from_secs(20);

async fn instances(count: usize) -> Vec<Instance> {
    let mut instances = Vec::new();
    for _ in 0..count {
        instances.push(Instance::start().await);
    }
    instances
}

fn at(instances: &[Instance]) -> Targets {
    Targets::new("http://stock").at(instances.iter().map(|instance| instance.address))
}

fn plain(targets: impl Into<Targets>) -> HealthClient<Balanced> {
    HealthClient::new(balanced(targets).unwrap())
}

/// A rule with three attempts, none of them limited by a budget.
fn governed(targets: impl Into<Targets>) -> HealthClient<ClientService<Balanced>> {
    let rule = r#"
        kind: Rule
        key: { caller_service: "*", caller_cluster: "*", callee_service: "*", callee_method: "*" }
        policy:
          mode: enforce
          retry: { max_attempts: 3, per_attempt_timeout: 10s, backoff: { fixed: { delay: 1ms } } }
          retry_breaker: { mode: ratio, ratio: 1.0, min_failures: 100 }
    "#;
    let damper = Damper::fixed("shop", rule).unwrap();
    HealthClient::new(damper.client_layer("stock").unwrap().layer(balanced(targets).unwrap()))
}

/// Makes a call.
trait Call {
    async fn call(&mut self) -> Result<(), Status>;
}

impl<S> Call for HealthClient<S>
where
    S: tonic::client::GrpcService<tonic::body::Body> + Send,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <S::ResponseBody as http_body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    S::Future: Send,
{
    async fn call(&mut self) -> Result<(), Status> {
        let answer = timeout(PATIENCE, self.check(HealthCheckRequest::default()));
        answer.await.expect("the call ends").map(|_| ())
    }
}

/// Makes calls until each instance has served one, so that all are connected.
async fn until_all_serve(client: &mut impl Call, instances: &[Instance]) {
    let all_serve = async {
        while instances.iter().any(|instance| instance.calls() == 0) {
            client.call().await.unwrap();
        }
    };
    timeout(PATIENCE, all_serve).await.expect("all serve");
}

#[tokio::test]
async fn calls_are_spread_over_all_endpoints() {
    let instances = instances(3).await;
    let mut client = plain(at(&instances));
    until_all_serve(&mut client, &instances).await;
    let before: Vec<_> = instances.iter().map(Instance::calls).collect();
    for _ in 0..300 {
        client.call().await.unwrap();
    }
    for (instance, before) in instances.iter().zip(before) {
        let calls = instance.calls() - before;
        assert!((60..140).contains(&calls), "{calls}");
    }
}

#[tokio::test]
async fn a_name_is_looked_up_and_requests_name_the_target() {
    let instance = Instance::start().await;
    let mut client = plain(format!("http://localhost:{}", instance.address.port()));
    client.call().await.unwrap();
    assert_eq!(instance.calls(), 1);
}

#[tokio::test]
async fn a_retry_goes_to_an_endpoint_that_the_call_has_not_tried() {
    let instances = instances(3).await;
    let mut client = governed(at(&instances));
    until_all_serve(&mut client, &instances).await;
    // The breaker allows as many failures as successes.
    for _ in 0..100 {
        client.call().await.unwrap();
    }
    instances[0].behave(Behaviour::Refuse);
    instances[1].behave(Behaviour::Refuse);
    for _ in 0..50 {
        client.call().await.unwrap();
    }
}

#[tokio::test]
async fn a_hedge_goes_to_another_endpoint() {
    let instances = instances(2).await;
    let rule = r#"
        kind: Rule
        key: { caller_service: "*", caller_cluster: "*", callee_service: "*", callee_method: "*" }
        policy: { mode: enforce, hedge: { delay: { fixed: 1ms }, max_hedges: 1 }, retry_breaker: { mode: ratio, ratio: 1.0, min_failures: 100 } }
    "#;
    let damper = Damper::fixed("shop", rule).unwrap();
    let channel = balanced(at(&instances)).unwrap();
    let mut client = HealthClient::new(damper.client_layer("stock").unwrap().layer(channel));
    until_all_serve(&mut client, &instances).await;
    for _ in 0..40 {
        client.call().await.unwrap();
    }
    instances[0].behave(Behaviour::Silent);
    for _ in 0..20 {
        client.call().await.unwrap();
    }
}

#[tokio::test]
async fn an_endpoint_that_fails_alone_is_ejected() {
    let instances = instances(3).await;
    let mut client = plain(at(&instances));
    until_all_serve(&mut client, &instances).await;
    for _ in 0..60 {
        client.call().await.unwrap();
    }
    instances[0].behave(Behaviour::Refuse);
    let before = instances[0].calls();
    let mut failed = 0;
    for _ in 0..200 {
        failed += u32::from(client.call().await.is_err());
    }
    assert_eq!((failed, instances[0].calls() - before), (5, 5), "five in a row, and then none");
}

#[tokio::test]
async fn an_endpoint_that_does_not_answer_in_time_is_ejected() {
    let instances = instances(2).await;
    let mut client = plain(at(&instances));
    until_all_serve(&mut client, &instances).await;
    for _ in 0..40 {
        client.call().await.unwrap();
    }
    instances[0].behave(Behaviour::Silent);
    let ejected = async {
        loop {
            let calls = (0..20).map(|_| {
                let mut client = client.clone();
                tokio::spawn(async move {
                    let mut request = Request::new(HealthCheckRequest::default());
                    request.set_timeout(Duration::from_secs(1));
                    client.check(request).await.is_err()
                })
            });
            let calls: Vec<_> = calls.collect();
            let mut late = 0;
            for call in calls {
                late += u32::from(call.await.unwrap());
            }
            if late == 0 {
                return;
            }
        }
    };
    timeout(PATIENCE, ejected).await.expect("no more requests are sent there");
}

/// A rolling restart: each instance is stopped and serves again before the next one stops. The engine retries
/// a request in flight at a GOAWAY at once and without a budget.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_of_all_endpoints_fails_no_call() {
    let mut instances = instances(3).await;
    let mut client = governed(at(&instances));
    until_all_serve(&mut client, &instances).await;
    let (is_over, failed, made) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    let state = Arc::new((is_over, failed, made));
    let load = (0..8).map(|_| {
        let (mut client, state) = (client.clone(), Arc::clone(&state));
        tokio::spawn(async move {
            while !state.0.load(Ordering::SeqCst) {
                state.2.fetch_add(1, Ordering::SeqCst);
                if let Err(status) = client.call().await {
                    eprintln!("{status:?}");
                    state.1.fetch_add(1, Ordering::SeqCst);
                }
            }
        })
    });
    let load: Vec<_> = load.collect();
    for instance in &mut instances {
        timeout(PATIENCE, instance.stop()).await.expect("it stops");
        instance.start_again().await;
        timeout(PATIENCE, instance.next_call()).await.expect("the instance serves again");
    }
    state.0.store(true, Ordering::SeqCst);
    for task in load {
        task.await.unwrap();
    }
    assert_eq!(state.1.load(Ordering::SeqCst), 0, "of {} calls", state.2.load(Ordering::SeqCst));
}

/// A proxy whose connections break when it is dropped.
struct Breakable {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Breakable {
    async fn before(instance: &Instance) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, behind) = (listener.local_addr().unwrap(), instance.address);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                connections.spawn(async move {
                    let mut server = tokio::net::TcpStream::connect(behind).await.unwrap();
                    _ = tokio::io::copy_bidirectional(&mut stream, &mut server).await;
                });
            }
        });
        Self { address, task }
    }
}

impl Drop for Breakable {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Many concurrent calls end when their connections break.
#[tokio::test(flavor = "multi_thread")]
async fn no_call_hangs_when_connections_break() {
    let instances = instances(2).await;
    for _ in 0..20 {
        let breakable = [Breakable::before(&instances[0]).await, Breakable::before(&instances[1]).await];
        let addresses = breakable.each_ref().map(|breakable| breakable.address);
        let mut client = plain(Targets::new("http://stock").at(addresses));
        client.call().await.unwrap();
        let calls = (0..200).map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.call().await })
        });
        let calls: Vec<_> = calls.collect();
        drop(breakable);
        for call in calls {
            _ = call.await.unwrap();
        }
    }
}

/// An endpoint that breaks every connection after a request is ejected, and no other one.
#[tokio::test]
async fn an_endpoint_whose_connections_break_is_ejected() {
    let instance = Instance::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let bad = listener.local_addr().unwrap();
    let taken = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&taken);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut connection) = h2::server::handshake(stream).await else { continue };
            if let Some(Ok(_)) = connection.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    let mut client = plain(Targets::new("http://stock").at([instance.address, bad]));
    let ejected = async {
        while taken.load(Ordering::SeqCst) < 5 {
            _ = client.call().await;
        }
    };
    timeout(PATIENCE, ejected).await.unwrap();
    for _ in 0..200 {
        _ = client.call().await;
    }
    // Each connection is one failure, also one that was found broken before it accepted a request.
    assert!(taken.load(Ordering::SeqCst) <= 12, "{}", taken.load(Ordering::SeqCst));
}

/// A call survives the drop of its channel, as with `oneshot`.
#[tokio::test]
async fn a_request_is_answered_though_its_channel_is_dropped() {
    let instance = Instance::start().await;
    let mut client = plain(Targets::new("http://stock").at([instance.address]));
    let answer = {
        let call = async move { client.check(HealthCheckRequest::default()).await };
        timeout(PATIENCE, call).await
    };
    answer.expect("it is answered").unwrap();
    let channel = balanced(Targets::new("http://stock").at([instance.address])).unwrap();
    let request = http::Request::post("http://stock/grpc.health.v1.Health/Check");
    let request =
        request.header("content-type", "application/grpc").body(tonic::body::Body::empty()).unwrap();
    let answer = timeout(PATIENCE, tower::ServiceExt::oneshot(channel, request)).await;
    assert!(answer.expect("it is answered").is_ok());
}

#[test]
fn requests_fail_when_the_runtime_of_the_channel_has_ended() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let channel = first.block_on(async { balanced("http://no-such-host.invalid").unwrap() });
    drop(first);
    let status = runtime().block_on(HealthClient::new(channel).call()).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("runtime"), "{status:?}");
}

#[tokio::test]
async fn requests_fail_when_nothing_was_ever_discovered() {
    type Changes = Vec<Result<Change<u32, SocketAddr>, String>>;
    for changes in [Changes::new(), vec![Err("the registry is away".to_owned())]] {
        let mut client = plain(Targets::new("http://stock").discover(tokio_stream::iter(changes)));
        assert_eq!(client.call().await.unwrap_err().message(), "no endpoint is known");
    }
}

#[tokio::test]
async fn requests_wait_until_the_first_endpoint_is_known() {
    let (tell, changes) = mpsc::unbounded_channel::<Result<Change<u32, SocketAddr>, String>>();
    let mut client = plain(Targets::new("http://stock").discover(UnboundedReceiverStream::new(changes)));
    let mut call = Box::pin(client.call());
    assert!(std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending())).await);
    let instance = Instance::start().await;
    tell.send(Ok(Change::Insert(0, instance.address))).unwrap();
    call.await.unwrap();
}

#[tokio::test]
async fn requests_fail_at_once_when_no_endpoint_could_be_connected() {
    let unused = |_| std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let [first, second] = [1, 2].map(unused);
    for (targets, message) in [
        (vec![first], "the endpoint is not connected"),
        (vec![first, second], "none of 2 endpoints is connected"),
    ] {
        let status = plain(Targets::new("http://stock").at(targets)).call().await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unavailable, message));
    }
    let status = plain("http://no-such-host.invalid").call().await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "no endpoint is known"));
}

#[tokio::test]
async fn near_endpoints_are_preferred() {
    let instances = instances(3).await;
    let zones = ["b", "a", "b"];
    let targets =
        instances.iter().zip(zones).map(|(instance, zone)| Target::from(instance.address).zone(zone));
    let mut client = plain(Targets::new("http://stock").at(targets).zone("a"));
    // It may be the last connected one.
    timeout(PATIENCE, async {
        while instances[1].calls() == 0 {
            client.call().await.unwrap();
        }
    })
    .await
    .unwrap();
    let before: Vec<_> = instances.iter().map(Instance::calls).collect();
    for _ in 0..30 {
        client.call().await.unwrap();
    }
    let calls: Vec<_> =
        instances.iter().zip(before).map(|(instance, before)| instance.calls() - before).collect();
    assert_eq!(calls, [0, 30, 0]);
}

#[tokio::test]
async fn endpoints_come_and_go_by_discovery_and_the_last_are_kept() {
    let mut instances = instances(2).await;
    let (tell, changes) = mpsc::unbounded_channel::<Result<Change<u32, SocketAddr>, String>>();
    let discover = UnboundedReceiverStream::new(changes);
    let mut client = plain(Targets::new("http://stock").discover(discover));
    tell.send(Ok(Change::Insert(0, instances[0].address))).unwrap();
    client.call().await.unwrap();
    let mut stream = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    stream.next().await.unwrap().unwrap();

    tell.send(Ok(Change::Insert(1, instances[1].address))).unwrap();
    tell.send(Ok(Change::Remove(0))).unwrap();
    tell.send(Err("the registry is away".to_owned())).unwrap();
    timeout(PATIENCE, async {
        while instances[1].calls() == 0 {
            client.call().await.unwrap();
        }
    })
    .await
    .unwrap();
    let before = instances[0].calls();
    while timeout(Duration::from_millis(100), stream.next()).await.is_ok() {}
    // A removed endpoint gets no more requests and completes those in flight.
    let mut direct = plain(at(&instances[..1]));
    direct.call().await.unwrap();
    stream.next().await.unwrap().unwrap();
    assert_eq!(instances[0].calls(), before + 1);
    drop((stream, direct));
    timeout(PATIENCE, instances[0].stop()).await.expect("its connections are closed");

    tell.send(Ok(Change::Remove(1))).unwrap();
    drop(tell);
    for _ in 0..5 {
        client.call().await.unwrap();
    }
}

#[tokio::test]
async fn connections_end_with_the_last_handle() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let channel = balanced(Targets::new("http://stock").at([listener.local_addr().unwrap()])).unwrap();
    let (stream, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    let mut connection = h2::server::handshake(stream).await.unwrap();
    drop(channel.clone());
    drop(channel);
    let ended = timeout(PATIENCE, async { while let Some(Ok(_)) = connection.accept().await {} });
    ended.await.expect("the connection ends");
}

#[tokio::test]
async fn certificates_are_for_the_target_and_not_for_the_address() {
    let (authority, files) = (Authority::new(), Files::new());
    let instance = Instance::start_with(Some(authority.server())).await;
    let ca = files.write("ca.pem", &authority.pem);
    let targets = || Targets::new("https://stock.shop").at([instance.address]).ca_file(&ca);
    plain(targets().server_name("127.0.0.1")).call().await.unwrap();
    let status = plain(targets()).call().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "no certificate for that name");
    let stranger = files.write("stranger.pem", &Authority::new().pem);
    let untrusted = Targets::new("https://127.0.0.1").at([instance.address]).ca_file(stranger);
    assert_eq!(plain(untrusted).call().await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn all_invalid_targets_are_reported_together() {
    let table = [
        (Targets::new("stock:1"), "target: \"stock:1\" must begin"),
        (
            Targets::new("http://stock").at(["10.0.0.1:1", "10.0.0.1", "a b:1"]),
            "at[1]: \"10.0.0.1\" is not host:port",
        ),
        (
            Targets::new("http://stock").at(["10.0.0.1:1", "10.0.0.1", "a b:1"]),
            "at[2]: \"a b:1\" is not host:port",
        ),
        (Targets::new("http://stock").at(Vec::<Target>::new()), "at: 0 endpoints; must be 1 to 1000"),
        (Targets::new("https://stock").server_name("a b"), "server_name"),
        (
            Targets::new("http://stock").stream_window(65_535),
            "stream_window: 65535; must be 65536 to 67108864",
        ),
    ];
    for (targets, problem) in table {
        let faults = balanced(targets).unwrap_err().to_string();
        assert!(faults.contains(problem), "{faults}");
    }
}

#[test]
fn a_runtime_is_needed() {
    let faults = balanced("http://stock").unwrap_err().to_string();
    assert!(faults.contains("runtime: required"), "{faults}");
}
