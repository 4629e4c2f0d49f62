//! A proxy that is killed (SIGKILL) while calls are in flight, and started again.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use damper_sdk::balance::Targets;
use damper_sdk::{Balanced, ClientService, Damper, Options, balanced};
use damper_tests::control_plane::ControlPlane;
use damper_tests::foreign::free_address;
use damper_tests::hop::{Hop, call};
use damper_tests::peer::channel;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::{Code, Request, Response};

use crate::{NOWHERE, PATIENCE, Proxy, ended};

/// Calls in flight in each direction when the proxy is killed.
const HELD: usize = 20;
/// Calls at a time of the caller with the SDK.
const WORKERS: usize = 16;
/// Calls that an instance must serve before it counts as in use.
const USED: usize = 50;
const RULE: &str = "kind: Rule
key: { caller_service: '*', caller_cluster: '*', callee_service: stock, callee_method: '*' }
policy: { mode: enforce, retry: { max_attempts: 3, backoff: { none: {} } }, retry_breaker: { enabled: false } }
";

/// A service without Damper that holds its requests while the test wants that.
struct Instance {
    hop: Hop,
    holds: Arc<AtomicBool>,
    /// Has an entry for each request that is held.
    held: mpsc::UnboundedReceiver<()>,
    served: mpsc::UnboundedReceiver<()>,
}

impl Instance {
    async fn start() -> Self {
        let holds = Arc::<AtomicBool>::default();
        let ((hold, held), (serve, served)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let now = Arc::clone(&holds);
        let hop = Hop::serve(None, move |request: Request<String>| {
            let is_held = now.load(Ordering::SeqCst);
            // The test no longer counts.
            _ = if is_held { &hold } else { &serve }.send(());
            async move {
                match is_held {
                    true => pending().await,
                    false => Ok(Response::new(request.into_inner())),
                }
            }
        });
        Self { hop: hop.await, holds, held, served }
    }

    fn hold(&self, holds: bool) {
        self.holds.store(holds, Ordering::SeqCst);
    }
}

async fn take(what: &str, arrivals: &mut mpsc::UnboundedReceiver<()>, count: usize) {
    for number in 0..count {
        let arrived = timeout(PATIENCE, arrivals.recv()).await;
        arrived.unwrap_or_else(|_| panic!("{number} of {count} {what}")).expect("the service runs");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_in_flight_end_with_their_proxy_and_it_serves_again() {
    let mut service = Instance::start().await;
    let address = service.hop.address();
    let inbound = free_address(40).to_string();
    let mut proxy = Proxy::start(NOWHERE, &inbound, address, address);
    let callers = channel(proxy.addresses.inbound());
    service.hold(true);
    let both = [callers.clone(), channel(proxy.addresses.outbound())];
    let mut calls = JoinSet::new();
    for channel in both.iter().flat_map(|channel| std::iter::repeat_n(channel, HELD)) {
        calls.spawn(ended(channel.clone(), "held"));
    }
    take("requests arrive", &mut service.held, calls.len()).await;
    proxy.process.kill();
    for end in calls.join_all().await {
        let code = end.expect_err("the proxy is gone").code();
        // UNKNOWN is what tonic makes of a connection that breaks.
        assert!(matches!(code, Code::Unavailable | Code::Unknown), "{code:?}");
    }
    service.hold(false);
    let refused = ended(channel(proxy.addresses.inbound()), "refused").await.expect_err("nothing listens");
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(ended(service.hop.channel().await, "direct").await.expect("the service runs"), "direct");
    let again = Proxy::start(NOWHERE, &inbound, address, address);
    assert_eq!(ended(callers, "again").await.expect("it listens"), "again");
    assert_eq!(ended(channel(again.addresses.outbound()), "calls").await.expect("it listens"), "calls");
}

/// A caller with Damper that calls without end, until it is stopped.
struct Load {
    _damper: Damper,
    stops: Arc<AtomicBool>,
    workers: JoinSet<()>,
}

impl Load {
    async fn start(control_plane: &ControlPlane, instances: [&Proxy; 2]) -> Self {
        let options = Options::new([control_plane.url()]).service("front").environment(|_| None);
        let damper = Damper::connect(options).expect("good options");
        damper.ready(PATIENCE).await.expect("rules arrive");
        let targets = Targets::new("http://stock").at(instances.map(|proxy| proxy.addresses.inbound()));
        let layer = damper.client_layer("stock").expect("a good name");
        let channel = layer.layer(balanced(targets).expect("good targets"));
        let stops = Arc::<AtomicBool>::default();
        let workers = (0..WORKERS).map(|_| worker(channel.clone(), Arc::clone(&stops))).collect();
        Self { _damper: damper, stops, workers }
    }

    /// Stops after the calls in flight; fails if one was lost.
    async fn stop(mut self) {
        self.stops.store(true, Ordering::SeqCst);
        while let Some(ended) = self.workers.join_next().await {
            ended.expect("no call is lost");
        }
    }
}

async fn worker(channel: ClientService<Balanced>, stops: Arc<AtomicBool>) {
    while !stops.load(Ordering::SeqCst) {
        let ended = timeout(PATIENCE, call(channel.clone(), Request::new("one".to_owned()))).await;
        ended.expect("the call ends").expect("another instance can serve it");
    }
}

/// Two instances of a service, each behind its proxy. The calls that the killed one holds are served by the
/// other one, and so are those that follow.
#[tokio::test(flavor = "multi_thread")]
async fn balanced_caller_loses_no_call_with_a_proxy() {
    let control_plane = ControlPlane::start().await;
    control_plane.apply(RULE).await;
    let (mut one, mut other) = (Instance::start().await, Instance::start().await);
    let inbound = free_address(41).to_string();
    let start = |listen: &str, instance: &Instance| {
        Proxy::start(control_plane.url(), listen, instance.hop.address(), instance.hop.address())
    };
    let mut killed = start(&inbound, &one);
    let stays = start(crate::ANY_PORT, &other);
    let load = Load::start(&control_plane, [&killed, &stays]).await;
    take("calls at one", &mut one.served, USED).await;
    take("calls at the other", &mut other.served, USED).await;

    one.hold(true);
    take("requests are held", &mut one.held, WORKERS / 4).await;
    killed.process.kill();
    while one.served.try_recv().is_ok() || other.served.try_recv().is_ok() {}
    take("calls at the other alone", &mut other.served, USED).await;

    one.hold(false);
    let _again = start(&inbound, &one);
    take("calls at one that is back", &mut one.served, USED).await;
    load.stop().await;
}
