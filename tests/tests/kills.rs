//! The kill switch from the operator's request to the services, on every store: real control planes, real SDKs, real
//! sockets.
//!
//! Times are measured and printed. What is asserted of them leaves a busy machine room; how fast it is on a quiet one
//! is for whoever reads the numbers.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use std::time::{Duration, Instant, SystemTime};

use damper_proto::v1::kills_client::KillsClient;
use damper_proto::v1::{self, object_key};
use damper_sdk::{ClientService, Damper, Ending, Fate, Options};
use damper_tests::control_plane::ControlPlane;
use damper_tests::etcd::Etcd;
use damper_tests::hop::{Hop, call};
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

const PATIENCE: Duration = Duration::from_secs(60);
/// With a wait far longer than any test: a call that ends was ended.
const RULE: &str = "kind: Rule
key: { caller_service: '*', caller_cluster: '*', callee_service: stock, callee_method: '*' }
policy: { mode: enforce, retry: { max_attempts: 2, backoff: { fixed: { delay: 10m } } },
          retry_breaker: { enabled: false } }
";

/// A service with Damper that calls `stock`.
struct Service {
    damper: Damper,
    stock: ClientService<Channel>,
}

impl Service {
    async fn start(urls: &[&str], stock: &Channel) -> Self {
        let damper = Damper::connect(Options::new(urls.iter().copied()).service("orders")).unwrap();
        let stock = damper.client_layer("stock").unwrap().layer(stock.clone());
        Self { damper, stock }
    }

    /// A call in the background.
    fn begin(&self) -> JoinHandle<Status> {
        let channel = self.stock.clone();
        tokio::spawn(async move { call(channel, Request::new(String::new())).await.unwrap_err() })
    }

    /// How many calls have ended so.
    fn ended(&self, fate: Fate) -> u64 {
        let mut count = 0;
        self.damper.for_each_route(|_, _, counters| count += counters.ended(Ending::real(fate)));
        count
    }

    async fn killed(&self, kills: usize) {
        within(PATIENCE, "the service learns of the kills", || self.damper.status().kills == kills).await;
    }
}

/// A callee that always fails.
async fn failing() -> (Hop, Channel) {
    let hop = Hop::serve(None, |_| async { Err(Status::unavailable("out of stock")) }).await;
    let channel = hop.channel().await;
    (hop, channel)
}

async fn within(limit: Duration, what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn kills(server: &ControlPlane) -> KillsClient<Channel> {
    KillsClient::new(server.channel().await)
}

fn of_stock() -> Option<v1::Pattern> {
    let [any, stock] = ["*", "stock"].map(str::to_owned);
    Some(v1::Pattern {
        caller_service: any.clone(),
        caller_cluster: any.clone(),
        callee_service: stock,
        callee_method: any,
    })
}

fn kill(calls: bool, seconds: i64) -> v1::KillRequest {
    let options =
        v1::WriteOptions { reason: "INC-7".to_owned(), author: "ann".to_owned(), ..Default::default() };
    v1::KillRequest {
        key: of_stock(),
        calls,
        time_to_live: Some(prost_types::Duration { seconds, nanos: 0 }),
        options: Some(options),
        ..Default::default()
    }
}

/// The last message about the delivery of a revision.
async fn delivered(server: &ControlPlane, revision: u64) -> v1::Convergence {
    let within = Some(prost_types::Duration { seconds: 60, nanos: 0 });
    let request = v1::WatchConvergenceRequest { revision, share: None, within };
    let mut stream = server.fleet().watch_convergence(request).await.unwrap().into_inner();
    let mut last = None;
    while let Some(state) = stream.message().await.unwrap() {
        last = Some(state);
    }
    last.unwrap()
}

/// One replica takes the kill, another one serves the service; both may be the same.
async fn a_kill_ends_what_waits(asked: &ControlPlane, serving: &ControlPlane) {
    asked.apply(RULE).await;
    let (hop, stock) = failing().await;
    let service = Service::start(&[serving.url()], &stock).await;
    service.damper.ready(PATIENCE).await.unwrap();
    within(PATIENCE, "the rule arrives", || service.damper.status().rules == 1).await;
    let waiting = service.begin();
    within(PATIENCE, "the first attempt", || hop.handled() == 1).await;

    let begun = Instant::now();
    let set = kills(asked).await.kill(kill(false, 3600)).await.unwrap().into_inner();
    let status = tokio::time::timeout(PATIENCE, waiting).await.expect("the call ends").unwrap();
    println!("a call waiting for a retry ended {:?} after the kill was asked for", begun.elapsed());
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unavailable, "out of stock"),
        "the callee's own answer"
    );
    assert_eq!((hop.handled(), service.ended(Fate::Killed)), (1, 1));
    let proof = delivered(serving, set.revision).await;
    assert_eq!((proof.done, proof.affected, proof.acknowledged), (true, 1, 1), "{proof:?}");

    // Nothing is retried while it lasts; with `calls` nothing is sent either.
    service.begin().await.unwrap();
    assert_eq!((hop.handled(), service.ended(Fate::Killed)), (2, 2));
    let calls = kills(asked).await.kill(kill(true, 3600)).await.unwrap().into_inner();
    delivered(serving, calls.revision).await;
    let refused = service.begin().await.unwrap();
    assert!(refused.message().contains("INC-7"), "whoever meets it reads why: {refused:?}");
    assert_eq!(hop.handled(), 2);

    // A service that comes now gets it too.
    let late = Service::start(&[serving.url()], &stock).await;
    late.killed(1).await;
    let request = v1::UnkillRequest { key: of_stock(), ..Default::default() };
    let ended = kills(asked).await.unkill(request).await.unwrap().into_inner().revision;
    delivered(serving, ended).await;
    for service in [&service, &late] {
        service.killed(0).await;
    }
    let waits = service.begin();
    within(PATIENCE, "an attempt after the kill", || hop.handled() == 3).await;
    assert!(!waits.is_finished(), "it waits for its retry as before");
    waits.abort();
}

/// What the store keeps is read by the next server.
async fn the_history_tells_of_it(server: &ControlPlane) {
    let changes =
        server.history().list_changes(v1::ListChangesRequest::default()).await.unwrap().into_inner();
    let of_kills = changes.changes.iter().filter(|change| {
        let key = change.objects[0].key.as_ref().and_then(|key| key.kind.as_ref());
        matches!(key, Some(object_key::Kind::Kill(_)))
    });
    let told: Vec<(u64, &str)> = of_kills.map(|change| (change.revision, change.reason.as_str())).collect();
    assert_eq!(told, [(4, ""), (3, "INC-7"), (2, "INC-7")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_ends_waiting_calls_at_once_on_sled() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("sled:{}", folder.path().join("store").display());
    let server = ControlPlane::on(&place).await;
    a_kill_ends_what_waits(&server, &server).await;
    server.stop().await;
    let server = ControlPlane::on(&place).await;
    the_history_tells_of_it(&server).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_ends_waiting_calls_at_once_on_etcd_through_another_replica() {
    let etcd = Etcd::start().await;
    let place = format!("etcd://{}", etcd.endpoint());
    let (one, two) = (ControlPlane::on(&place).await, ControlPlane::on(&place).await);
    a_kill_ends_what_waits(&one, &two).await;
    // Each replica clears away what is over; once is enough.
    let short = kills(&one).await.kill(kill(false, 1)).await.unwrap().into_inner();
    let cleared = v1::ListKillsRequest { min_revision: short.revision + 1 };
    for replica in [&one, &two] {
        let listed = kills(replica).await.list_kills(cleared).await.unwrap().into_inner();
        assert_eq!(listed.kills, []);
    }
    // A second clearing would be a change between the first and the next.
    let next = kills(&two).await.kill(kill(false, 60)).await.unwrap().into_inner();
    assert_eq!(next.revision, short.revision + 2, "it was cleared away once");
    for replica in [one, two] {
        replica.stop().await;
    }
    let server = ControlPlane::on(&place).await;
    let last = server.history().list_changes(v1::ListChangesRequest::default()).await.unwrap().into_inner();
    assert_eq!((last.changes[1].author.as_str(), last.changes[1].reason.as_str()), ("damper", "expired"));
    server.stop().await;
}

const CLIENTS: usize = 1_000;
const SHARE: f64 = 0.99;

/// A thousand processes' worth of SDKs, each with one call waiting for its retry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_reaches_a_thousand_clients_and_is_over_in_time_also_without_the_control_plane() {
    let server = ControlPlane::start().await;
    server.apply(RULE).await;
    let (hop, stock) = failing().await;
    let mut services = Vec::with_capacity(CLIENTS);
    let begun = Instant::now();
    for _ in 0..CLIENTS {
        services.push(Service::start(&[server.url()], &stock).await);
    }
    let has_rule = |service: &Service| service.damper.status().rules == 1;
    within(PATIENCE, "all clients have the rule", || services.iter().all(has_rule)).await;
    println!("{CLIENTS} clients connected within {:?}", begun.elapsed());
    let waiting: Vec<JoinHandle<Status>> = services.iter().map(Service::begin).collect();
    within(PATIENCE, "all calls were sent once", || hop.handled() == CLIENTS as u64).await;

    let effective = reaches_all(&server, &services, waiting).await;
    assert_eq!(hop.handled(), CLIENTS as u64, "nothing was sent again");
    let late = is_over_in_time(server, &services, &hop).await;
    println!("kill switch: {CLIENTS} clients, {effective}; over on disconnected clients {late:?} late");
}

/// Says how soon it was effective.
async fn reaches_all(
    server: &ControlPlane,
    services: &[Service],
    waiting: Vec<JoinHandle<Status>>,
) -> String {
    let mut operator = kills(server).await;
    let ends = waiting.into_iter().map(|call| {
        tokio::spawn(async move {
            call.await.unwrap();
            Instant::now()
        })
    });
    let ends: Vec<JoinHandle<Instant>> = ends.collect();
    let begun = Instant::now();
    let set = operator.kill(kill(false, 3600)).await.unwrap().into_inner();
    let proof = delivered(server, set.revision).await;
    let ends = tokio::time::timeout(PATIENCE, futures_util::future::join_all(ends)).await;
    let ends = ends.expect("every waiting call ends").into_iter().map(Result::unwrap);
    let mut effective: Vec<Duration> = ends.map(|end| end - begun).collect();
    effective.sort();
    let at = |share: f64| effective[((CLIENTS as f64 * share).ceil() as usize).clamp(1, CLIENTS) - 1];
    assert_eq!((proof.affected, proof.acknowledged), (CLIENTS as u32, CLIENTS as u32), "{proof:?}");
    assert!(services.iter().all(|service| service.ended(Fate::Killed) == 1));
    format!("effective p50 {:?} p99 {:?} max {:?}", at(0.5), at(SHARE), at(1.0))
}

/// The server is gone before the kill's time is: every client ends it by itself, not before and not much after.
/// Says how late it was over at the last.
async fn is_over_in_time(server: ControlPlane, services: &[Service], hop: &Hop) -> Duration {
    const SECONDS: i64 = 30;
    let set = kills(&server).await.kill(kill(true, SECONDS)).await.unwrap().into_inner();
    delivered(&server, set.revision).await;
    server.stop().await;
    let expires_at = SystemTime::try_from(set.kill.unwrap().expires_at.unwrap()).unwrap();
    let connected = || services.iter().filter(|service| service.damper.status().connected).count();
    within(PATIENCE, "all clients have lost the control plane", || connected() == 0).await;
    let mut over: Vec<Option<SystemTime>> = vec![None; services.len()];
    let begun = Instant::now();
    while over.iter().any(Option::is_none) {
        assert!(begun.elapsed() < PATIENCE, "the kill is over everywhere");
        for (service, over) in services.iter().zip(&mut over).filter(|(_, over)| over.is_none()) {
            if service.damper.status().kills == 0 {
                *over = Some(SystemTime::now());
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let early = |at: &SystemTime| expires_at.duration_since(*at).unwrap_or_default();
    let late = |at: &SystemTime| at.duration_since(expires_at).unwrap_or_default();
    let over: Vec<SystemTime> = over.into_iter().flatten().collect();
    let (early, late) = (over.iter().map(early).max().unwrap(), over.iter().map(late).max().unwrap());
    assert!(early < Duration::from_secs(1), "{early:?} early");
    // Calls are sent again, and wait for their retry again: they do not end.
    let before = hop.handled();
    let calls: Vec<JoinHandle<Status>> = services.iter().map(Service::begin).collect();
    within(PATIENCE, "every client sends again", || hop.handled() == before + services.len() as u64).await;
    assert!(calls.iter().all(|call| !call.is_finished()), "what fails is to be repeated");
    calls.iter().for_each(JoinHandle::abort);
    late
}
