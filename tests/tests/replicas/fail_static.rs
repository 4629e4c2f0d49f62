//! etcd is emptied under a running fleet, or goes away: nothing is taken from any client until an operator
//! decides, or it is back.

use std::time::Duration;

use damper_proto::v1;
use damper_sdk::{Damper, Options};
use damper_tests::control_plane::ControlPlane;
use damper_tests::etcd::Etcd;
use damper_tests::hop::{Hop, call};
use tonic::{Code, Request};

use crate::world::{PATIENCE, RULE, all_hear, clients, replicas, so, until};

/// A rule, and a guard below what it allows: narrower, as otherwise the rule would be refused.
const QUOTE: &str = "kind: Rule
key: { caller_service: '*', caller_cluster: '*', callee_service: quote, callee_method: '*' }
policy: { mode: enforce, retry: { max_attempts: 3, backoff: { none: {} } }, retry_breaker: { enabled: false } }
";
const GUARD: &str = "kind: Guard
key: { caller_service: '*', caller_cluster: '*', callee_service: quote, callee_method: test.Hop/Call }
ceiling: { max_attempts: 2 }
";
const SERVICES: usize = 20;

/// Two replicas, twenty clients, two rules, a guard and a kill; then etcd has none of it.
struct World {
    etcd: Etcd,
    replicas: [ControlPlane; 2],
    services: Vec<Damper>,
    stock: Hop,
    /// Fails.
    quote: Hop,
}

fn options(reason: &str) -> Option<v1::WriteOptions> {
    Some(v1::WriteOptions { reason: reason.to_owned(), ..v1::WriteOptions::default() })
}

fn pattern(callee: &str) -> v1::Pattern {
    let [any, callee_service] = ["*", callee].map(str::to_owned);
    let [caller_service, caller_cluster, callee_method] = [any.clone(), any.clone(), any];
    v1::Pattern { caller_service, caller_cluster, callee_service, callee_method }
}

async fn kill(of: &ControlPlane, callee: &str) -> v1::KillSwitch {
    let request = v1::KillRequest {
        key: Some(pattern(callee)),
        calls: true,
        options: options("an incident"),
        ..Default::default()
    };
    of.kills().kill(request).await.expect("a kill can be set").into_inner().kill.expect("it is answered")
}

async fn kills(of: &ControlPlane) -> Vec<v1::KillSwitch> {
    of.kills().list_kills(v1::ListKillsRequest::default()).await.expect("kills are listed").into_inner().kills
}

/// The codes of what doctor finds.
async fn doctor(of: &ControlPlane) -> Vec<String> {
    let found = of.fleet().diagnose(v1::DiagnoseRequest::default()).await.expect("a diagnosis").into_inner();
    found.findings.into_iter().map(|finding| finding.code).collect()
}

async fn own(of: &ControlPlane) -> v1::Replica {
    replicas(of).await.into_iter().find(|one| one.self_).expect("it knows itself")
}

/// Waits until every client is at this revision of the store, and none is held.
async fn all_are_at(of: &ControlPlane, revision: u64) {
    until("all clients are at the revision", || async {
        let listed = clients(of).await.clients;
        let arrived = |client: &v1::Client| !client.held && client.acknowledged_revision >= revision;
        so(listed.len() == SERVICES && listed.iter().all(arrived), listed)
    })
    .await;
}

impl World {
    async fn start() -> Self {
        let etcd = Etcd::start().await;
        let store = format!("etcd://{}", etcd.endpoint());
        let replicas = [ControlPlane::on(&store).await, ControlPlane::on(&store).await];
        all_hear(&[&replicas[0], &replicas[1]]).await;
        replicas[0].apply(&format!("{RULE}---\n{QUOTE}---\n{GUARD}")).await;
        let killed = kill(&replicas[0], "stock").await;
        let stock =
            Hop::serve(None, |request| async { Ok(tonic::Response::new(request.into_inner())) }).await;
        let quote = Hop::serve(None, |_| async { Err(tonic::Status::unavailable("it fails")) }).await;
        let mut services = Vec::new();
        for number in 0..SERVICES {
            let url = replicas[number % 2].url();
            let service = Options::new([url]).service(format!("service-{number}"));
            let damper = Damper::connect(service).expect("good options");
            damper.ready(PATIENCE).await.expect("rules arrive");
            services.push(damper);
        }
        all_are_at(&replicas[1], killed.revision).await;
        Self { etcd, replicas, services, stock, quote }
    }

    /// Empties etcd, and waits until both replicas report it as a danger.
    async fn empty(&self) {
        let everything = etcd_client::DeleteOptions::new().with_prefix();
        self.etcd.client().await.delete("/damper/", Some(everything)).await.expect("it is emptied");
        for replica in &self.replicas {
            let noticed = until("doctor reports it", || async {
                let found = doctor(replica).await;
                so(found.iter().any(|code| code == "store_unaccepted"), found)
            });
            tokio::time::timeout(Duration::from_secs(10), noticed).await.expect("within 10 s");
        }
    }

    /// For each client its rules, its kills, and the attempts of a failing call of quote: 3 by the rule, 2 of
    /// them left by the guard, 1 without either.
    async fn held(&self) -> Vec<(usize, usize, u64)> {
        let mut all = Vec::new();
        for damper in &self.services {
            let before = self.quote.handled();
            let layer = damper.client_layer("quote").expect("a good name");
            let answer = call(self.quote.governed_channel(&layer).await, Request::new(String::new())).await;
            assert_eq!(answer.expect_err("it fails").code(), Code::Unavailable);
            let status = damper.status();
            all.push((status.rules, status.kills, self.quote.handled() - before));
        }
        all
    }

    /// Starts a replica over the emptied store: it learns from the others that there was more.
    async fn third(&self) -> ControlPlane {
        let third = ControlPlane::on(&format!("etcd://{}", self.etcd.endpoint())).await;
        until("doctor reports it", || async {
            let found = doctor(&third).await;
            so(found.iter().any(|code| code == "store_unaccepted"), found)
        })
        .await;
        let refused =
            third.write(options("r").expect("options"), damper_tests::control_plane::puts(RULE)).await;
        assert_eq!(refused.expect_err("nothing is written").code(), Code::Unavailable);
        let refused =
            third.write(options("r").expect("options"), damper_tests::control_plane::puts(GUARD)).await;
        assert_eq!(refused.expect_err("nothing is written").code(), Code::Unavailable);
        assert!(kill(&third, "price").await.unstored);
        let found = own(&third).await.unaccepted_store.expect("it is not accepted");
        let request = v1::AcceptStoreRequest {
            found_epoch: found.epoch,
            found_revision: found.revision,
            refill: true,
            options: options("etcd was emptied"),
        };
        let refused = third.history().accept_store(request).await.expect_err("its memory is empty");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        third
    }

    /// Whether the clients refuse calls of stock, as the kill wants.
    async fn is_stock_killed(&self) -> Vec<bool> {
        self.is_killed("stock").await
    }

    /// Which clients refuse calls of a callee.
    async fn is_killed(&self, callee: &str) -> Vec<bool> {
        let mut killed = Vec::new();
        for damper in &self.services {
            let layer = damper.client_layer(callee).expect("a good name");
            let channel = self.stock.governed_channel(&layer).await;
            let answer = call(channel, Request::new(String::new())).await;
            killed.push(answer.is_err_and(|status| status.code() == Code::Unavailable));
        }
        killed
    }

    async fn stop(self) {
        drop(self.services);
        let [one, other] = self.replicas;
        tokio::join!(one.stop(), other.stop());
    }
}

async fn accept(of: &ControlPlane, refill: bool) -> v1::AcceptStoreResponse {
    let found = own(of).await.unaccepted_store.expect("there is something to accept");
    assert_eq!((found.entries, found.known_entries), (0, 5), "two rules, a guard, two kills: {found:?}");
    let request = v1::AcceptStoreRequest {
        found_epoch: found.epoch,
        found_revision: found.revision,
        refill,
        options: options("etcd was emptied"),
    };
    of.history().accept_store(request).await.expect("it is accepted").into_inner()
}

#[tokio::test(flavor = "multi_thread")]
async fn emptied_etcd_takes_nothing_and_is_refilled() {
    let world = World::start().await;
    let [one, other] = &world.replicas;
    assert_eq!(world.is_stock_killed().await, [true; SERVICES]);
    assert_eq!(world.held().await, [(2, 1, 2); SERVICES]);
    world.empty().await;
    assert_eq!(world.is_stock_killed().await, [true; SERVICES], "no client lost the kill");
    assert_eq!(world.held().await, [(2, 1, 2); SERVICES], "nor a rule or the guard");
    for replica in &world.replicas {
        let rules = replica.rules().list_rules(v1::ListRulesRequest::default()).await.expect("rules");
        assert_eq!((rules.into_inner().rules.len(), kills(replica).await.len()), (2, 1));
    }
    let refused = one.write(options("r").expect("options"), damper_tests::control_plane::puts(RULE)).await;
    assert_eq!(refused.expect_err("nothing is written").code(), Code::Unavailable);
    // A kill goes out from memory, through both replicas.
    assert!(kill(one, "cart").await.unstored);
    until("the other replica has it", || async {
        let listed = kills(other).await;
        so(listed.iter().filter(|kill| kill.unstored).count() == 1 && listed.len() == 2, listed)
    })
    .await;
    let third = world.third().await;
    let accepted = accept(other, true).await;
    assert_eq!(accepted.entries, 5);
    all_are_at(one, accepted.revision).await;
    assert_eq!(world.is_stock_killed().await, [true; SERVICES]);
    for replica in [one, other, &third] {
        until("every kill is stored", || async {
            let listed = kills(replica).await;
            so(listed.len() == 3 && listed.iter().all(|kill| !kill.unstored), listed)
        })
        .await;
        assert!(own(replica).await.unaccepted_store.is_none());
        let rules = replica.rules().list_rules(v1::ListRulesRequest::default()).await.expect("rules");
        assert_eq!(rules.into_inner().rules.len(), 2);
    }
    until("every client has all three kills", || async {
        let held = world.held().await;
        so(held == [(2, 3, 2); SERVICES], held)
    })
    .await;
    all_hear(&[one, other, &third]).await;
    third.stop().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn emptied_etcd_is_the_truth_once_it_is_accepted() {
    let world = World::start().await;
    let [one, other] = &world.replicas;
    world.empty().await;
    assert!(kill(one, "cart").await.unstored);
    let accepted = accept(one, false).await;
    assert_eq!(accepted.entries, 1, "the kill that was set meanwhile");
    all_are_at(other, accepted.revision).await;
    until("only that kill is there, and stored", || async {
        let listed = kills(other).await;
        so(listed.len() == 1 && !listed[0].unstored, listed)
    })
    .await;
    assert_eq!(world.is_stock_killed().await, [false; SERVICES]);
    assert_eq!(world.held().await, [(0, 1, 1); SERVICES], "no rule, and no guard is needed");
    let revision = one.apply(RULE).await;
    all_are_at(other, revision).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_are_held_while_etcd_is_away() {
    let mut world = World::start().await;
    world.etcd.kill();
    let [one, other] = &world.replicas;
    for replica in &world.replicas {
        until("doctor reports it", || async {
            let found = doctor(replica).await;
            so(found.iter().any(|code| code == "store_stale"), found)
        })
        .await;
        assert!(own(replica).await.unaccepted_store.is_none(), "it is no other store");
    }
    // Set through one, ended through the other.
    assert!(kill(one, "cart").await.unstored && kill(one, "price").await.unstored);
    until("the other replica has both", || async {
        let listed = kills(other).await;
        so(listed.iter().filter(|kill| kill.unstored).count() == 2 && listed.len() == 3, listed)
    })
    .await;
    let request =
        v1::UnkillRequest { key: Some(pattern("price")), options: options("over"), ..Default::default() };
    other.kills().unkill(request).await.expect("its end is held too");
    until("every client has one of them and what it had before", || async {
        let killed =
            [world.is_killed("cart").await, world.is_killed("price").await, world.is_stock_killed().await];
        so(killed == [[true; SERVICES], [false; SERVICES], [true; SERVICES]], killed)
    })
    .await;
    let refused = one.write(options("r").expect("options"), damper_tests::control_plane::puts(RULE)).await;
    assert_eq!(refused.expect_err("nothing is written").code(), Code::Unavailable);
    world.etcd.restart().await;
    let [one, other] = &world.replicas;
    for replica in [one, other] {
        until("every kill is stored", || async {
            let listed = kills(replica).await;
            let callee = |kill: &v1::KillSwitch| kill.key.clone().unwrap_or_default().callee_service;
            let mut callees: Vec<String> = listed.iter().map(callee).collect();
            callees.sort();
            so(callees == ["cart", "stock"] && listed.iter().all(|kill| !kill.unstored), listed)
        })
        .await;
    }
    assert_eq!(world.is_killed("cart").await, [true; SERVICES]);
    world.stop().await;
}
