//! Every replica answers for the whole fleet, or says of whom it does not know.

use std::time::{Duration, Instant};

use damper_control_plane::ServerConfig;
use damper_proto::v1;
use damper_sdk::{Damper, Options};
use damper_tests::binary::Served;
use damper_tests::control_plane::ControlPlane;
use damper_tests::etcd::Etcd;
use damper_tests::hop::{Hop, call};
use tonic::Request;

use crate::proxy::Proxy;
use crate::world::{PATIENCE, RULE, Raw, all_hear, clients, convergence, id, replicas, routes, so, until};

#[tokio::test(flavor = "multi_thread")]
async fn either_replica_tells_of_the_clients_and_routes_of_both() {
    let etcd = Etcd::start().await;
    let store = format!("etcd://{}", etcd.endpoint());
    let (a, b) = (ControlPlane::on(&store).await, ControlPlane::on(&store).await);
    all_hear(&[&a, &b]).await;
    a.apply(RULE).await;
    let stock = Hop::serve(None, |request| async { Ok(tonic::Response::new(request.into_inner())) }).await;
    let mut services = Vec::new();
    for (name, url) in [("orders", a.url()), ("cart", b.url())] {
        let damper = Damper::connect(Options::new([url]).service(name)).expect("good options");
        damper.ready(PATIENCE).await.expect("rules arrive");
        let channel = stock.governed_channel(&damper.client_layer("stock").expect("a good name")).await;
        for _ in 0..100 {
            call(channel.clone(), Request::new(String::new())).await.expect("stock answers");
        }
        services.push(damper);
    }
    let (id_a, id_b) = (id(&a).await, id(&b).await);
    for one in [&a, &b] {
        let listed = until("both services are listed", || async {
            let listed = clients(one).await;
            so(listed.clients.len() == 2, listed)
        })
        .await;
        let at: Vec<_> = listed.clients.iter().map(|client| client.replica.as_str()).collect();
        assert_eq!(at, [id_b.as_str(), id_a.as_str()], "cart, then orders");
        assert!(listed.missing_replicas.is_empty());
        until("all calls of both services are told", || async {
            let told = routes(one).await;
            let calls: Vec<_> = told.routes.iter().map(|route| (route.total_calls, route.clients)).collect();
            so(calls == [(100, 1), (100, 1)], told)
        })
        .await;
        let chain =
            one.fleet().get_chain(v1::GetChainRequest::default()).await.expect("a chain").into_inner();
        assert_eq!(chain.edges.len(), 2, "{chain:?}");
        let known = replicas(one).await;
        assert_eq!(known.iter().map(|replica| replica.clients).collect::<Vec<_>>(), [1, 1], "{known:?}");
    }
    let mut watch =
        a.fleet().watch(v1::WatchRequest::default()).await.expect("it can be watched").into_inner();
    let first = watch.message().await.expect("a message").expect("one");
    assert_eq!((first.connected_clients, first.missing_replicas.len()), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_at_one_replica_is_read_and_proven_delivered_at_the_other() {
    let etcd = Etcd::start().await;
    let store = format!("etcd://{}", etcd.endpoint());
    let (a, b) = (ControlPlane::on(&store).await, ControlPlane::on(&store).await);
    all_hear(&[&a, &b]).await;
    let client = Raw::open(b.channel().await, "orders", "orders-1").await;
    until("the client is known at the other replica", || async {
        let listed = clients(&a).await;
        so(listed.clients.len() == 1, listed)
    })
    .await;
    for attempts in [2, 3, 4, 5, 6, 7, 8] {
        let revision = a.apply(&RULE.replace("max_attempts: 3", &format!("max_attempts: {attempts}"))).await;
        let request = v1::ListRulesRequest { min_revision: revision, ..Default::default() };
        let listed = b.rules().list_rules(request).await.expect("rules are listed").into_inner();
        assert!(listed.revision >= revision);
        let retry = listed.rules[0].policy.as_ref().and_then(|policy| policy.retry.as_ref());
        assert_eq!(retry.and_then(|retry| retry.max_attempts), Some(attempts));
        let begun = Instant::now();
        let told = convergence(&a, revision, PATIENCE).await;
        assert!(told.done && told.affected == 1 && told.acknowledged == 1, "{told:?}");
        println!("revision {revision} delivered through the other replica in {:?}", begun.elapsed());
    }
    client.leave();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_moves_back_and_forth_is_counted_once() {
    let etcd = Etcd::start().await;
    let store = format!("etcd://{}", etcd.endpoint());
    let both = [ControlPlane::on(&store).await, ControlPlane::on(&store).await];
    all_hear(&[&both[0], &both[1]]).await;
    let mut before: Option<Raw> = None;
    for turn in 0..8_u64 {
        let at = &both[turn as usize % 2];
        let client = Raw::open(at.channel().await, "orders", "orders-1").await;
        // The stream that it had is still open, and a report is still under way on it.
        if let Some(before) = before.take() {
            before.report(turn * 100 + 50).await;
            client.report(turn * 100 + 100).await;
            before.leave();
        } else {
            client.report(100).await;
        }
        let here = id(at).await;
        for one in &both {
            until("it is counted once, with all its calls", || async {
                let (listed, told) = (clients(one).await, routes(one).await);
                let calls: u64 = told.routes.iter().map(|route| route.total_calls).sum();
                assert!(calls <= turn * 100 + 100, "counted twice: {told:?}");
                let is_once = listed.clients.len() == 1 && listed.clients[0].replica == here;
                so(is_once && calls == turn * 100 + 100, (listed, calls))
            })
            .await;
        }
        before = Some(client);
    }
    let found = both[0].fleet().diagnose(v1::DiagnoseRequest::default()).await.expect("a diagnosis");
    let codes: Vec<_> = found.into_inner().findings.into_iter().map(|finding| finding.code).collect();
    assert!(!codes.iter().any(|code| code == "duplicate_instance"), "{codes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_can_not_be_followed_is_named_until_it_is_heard_again() {
    let etcd = Etcd::start().await;
    let store = format!("etcd://{}", etcd.endpoint());
    let way = Proxy::start().await;
    let url = format!("http://{}", way.address());
    let settings =
        ServerConfig { advertise: Some(url), ..ServerConfig::new(store.parse().expect("a store")) };
    let (a, b) = (ControlPlane::with(settings).await, ControlPlane::on(&store).await);
    way.lead_to(a.url());
    all_hear(&[&a, &b]).await;
    let client = Raw::open(a.channel().await, "orders", "orders-1").await;
    until("the client is known at the other replica", || async {
        let listed = clients(&b).await;
        so(listed.clients.len() == 1, listed)
    })
    .await;
    way.cut();
    let missing = [id(&a).await];
    until("its clients are said to be missing", || async {
        let listed = clients(&b).await;
        so(listed.clients.is_empty() && listed.missing_replicas == missing, listed)
    })
    .await;
    assert_eq!(routes(&b).await.missing_replicas, missing);
    let revision = b.apply(RULE).await;
    let told = convergence(&b, revision, Duration::from_millis(500)).await;
    assert!(!told.done && told.timed_out && told.missing_replicas == missing, "{told:?}");
    let found = b.fleet().diagnose(v1::DiagnoseRequest::default()).await.expect("a diagnosis").into_inner();
    let unreachable = found.findings.iter().find(|finding| finding.code == "replica_unreachable");
    assert_eq!(unreachable.expect("it is found").subject, missing[0]);
    // The other way is open: the one that is not heard still hears.
    let told = convergence(&a, revision, PATIENCE).await;
    assert!(told.done && told.acknowledged == 1, "{told:?}");
    way.lead_to(a.url());
    let told = convergence(&b, revision, PATIENCE).await;
    assert!(told.done && told.acknowledged == 1 && told.missing_replicas.is_empty(), "{told:?}");
    client.leave();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clients_of_a_killed_replica_move_and_it_is_forgotten() {
    let etcd = Etcd::start().await;
    let store = format!("etcd://{}", etcd.endpoint());
    let b = ControlPlane::on(&store).await;
    let mut a = Served::start(&store);
    until("it is heard", || async {
        let known = replicas(&b).await;
        so(known.len() == 2 && known.iter().all(|one| one.problem.is_empty()), known)
    })
    .await;
    let services: Vec<Damper> = (0..4)
        .map(|n| {
            let options =
                Options::new([a.url(), b.url()]).service("orders").instance_id(format!("orders-{n}"));
            Damper::connect(options).expect("good options")
        })
        .collect();
    for service in &services {
        service.ready(PATIENCE).await.expect("rules arrive");
    }
    let revision = b.apply(RULE).await;
    a.kill();
    let killed = Instant::now();
    until("it is missing, or forgotten already", || async {
        let (listed, known) = (clients(&b).await, replicas(&b).await);
        so(listed.missing_replicas.len() == 1 || known.len() == 1, known)
    })
    .await;
    println!("missing {:?} after it was killed", killed.elapsed());
    until("its clients have come to the other replica", || async {
        let listed = clients(&b).await;
        so(listed.clients.len() == 4, listed)
    })
    .await;
    println!("its clients are back {:?} after it was killed", killed.elapsed());
    let told = convergence(&b, revision, PATIENCE).await;
    assert!(told.done && told.affected == 4, "{told:?}");
    assert!(clients(&b).await.missing_replicas.is_empty() && replicas(&b).await.len() == 1);
    println!("forgotten {:?} after it was killed", killed.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_store_makes_no_replica_forget_another() {
    let mut etcd = Etcd::start().await;
    let store = format!("etcd://{}", etcd.endpoint());
    let (a, b) = (ControlPlane::on(&store).await, ControlPlane::on(&store).await);
    all_hear(&[&a, &b]).await;
    let client = Raw::open(a.channel().await, "orders", "orders-1").await;
    until("the client is known at the other replica", || async {
        let listed = clients(&b).await;
        so(listed.clients.len() == 1, listed)
    })
    .await;
    etcd.kill();
    let begun = Instant::now();
    // Longer than any lease.
    while begun.elapsed() < Duration::from_secs(12) {
        for one in [&a, &b] {
            let listed = clients(one).await;
            assert!(listed.clients.len() == 1 && listed.missing_replicas.is_empty(), "{listed:?}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    etcd.restart().await;
    let revision = until("writes go through again", || async {
        let options = v1::WriteOptions { author: "test".to_owned(), ..Default::default() };
        let written = a.write(options, damper_tests::control_plane::puts(RULE)).await;
        written.map(|written| written.revision).map_err(|status| status.to_string())
    })
    .await;
    let told = convergence(&b, revision, PATIENCE).await;
    assert!(told.done && told.acknowledged == 1, "{told:?}");
    assert_eq!(replicas(&b).await.len(), 2);
    client.leave();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_somebody_removed_is_put_back_so_that_a_newcomer_knows_of_the_others() {
    let etcd = Etcd::start().await;
    let store = format!("etcd://{}", etcd.endpoint());
    let (a, b) = (ControlPlane::on(&store).await, ControlPlane::on(&store).await);
    all_hear(&[&a, &b]).await;
    let client = Raw::open(a.channel().await, "orders", "orders-1").await;
    let mut keys = etcd.client().await;
    let below = || Some(etcd_client::GetOptions::new().with_prefix());
    let removed = keys
        .delete("/damper/replicas/", Some(etcd_client::DeleteOptions::new().with_prefix()))
        .await
        .expect("keys are removed");
    assert_eq!(removed.deleted(), 2);
    let begun = Instant::now();
    until("the keys are back", || {
        let mut keys = keys.clone();
        async move {
            let found = keys.get("/damper/replicas/", below()).await.expect("keys are read");
            so(found.count() == 2, found.count())
        }
    })
    .await;
    println!("the keys are back after {:?}", begun.elapsed());
    let c = ControlPlane::on(&store).await;
    // From its first answer on it says of whom it does not know yet.
    assert_eq!(replicas(&c).await.len(), 3);
    all_hear(&[&a, &b, &c]).await;
    let listed = clients(&c).await;
    assert!(listed.clients.len() == 1 && listed.missing_replicas.is_empty(), "{listed:?}");
    client.leave();
}
