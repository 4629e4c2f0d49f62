//! Many clients that come at once, and that are told to go.

use std::time::{Duration, Instant};

use damper_control_plane::ServerConfig;
use damper_tests::control_plane::ControlPlane;
use damper_tests::etcd::Etcd;
use futures_util::future::join_all;

use crate::world::{PATIENCE, RULE, Raw, all_hear, clients, so, until};

const CLIENTS: usize = 1000;

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_clients_come_at_once_are_known_everywhere_and_leave_in_the_drain_time() {
    let etcd = Etcd::start().await;
    let store = format!("etcd://{}", etcd.endpoint());
    let drain = Duration::from_secs(20);
    let settings = ServerConfig { drain, ..ServerConfig::new(store.parse().expect("a store")) };
    let (a, b) = (ControlPlane::with(settings).await, ControlPlane::on(&store).await);
    all_hear(&[&a, &b]).await;
    a.apply(RULE).await;
    let channels = join_all((0..10).map(|_| a.channel())).await;
    let begun = Instant::now();
    let opening = (0..CLIENTS).map(|n| {
        let channel = channels[n % channels.len()].clone();
        async move { Raw::open(channel, "orders", &format!("orders-{n}")).await }
    });
    let crowd = tokio::time::timeout(PATIENCE, join_all(opening)).await.expect("all are let in");
    println!("{CLIENTS} clients have their rules after {:?}", begun.elapsed());
    until("the other replica knows them all", || async {
        let listed = clients(&b).await;
        let all_have_it = listed.clients.iter().all(|client| client.acknowledged_revision >= 1);
        so(listed.clients.len() == CLIENTS && all_have_it, listed.clients.len())
    })
    .await;
    println!("the other replica knows them after {:?}", begun.elapsed());
    drop(channels);
    let stopped = Instant::now();
    let stopping = tokio::spawn(a.stop());
    let mut goodbyes = Vec::new();
    for client in crowd {
        let said = client.reading.await.expect("it reads");
        goodbyes.push((said, stopped.elapsed()));
    }
    stopping.await.expect("it stops");
    println!("the replica is gone after {:?}", stopped.elapsed());
    let polite = goodbyes.iter().filter(|(said, _)| said.is_some()).count();
    assert_eq!(polite, CLIENTS, "all are told goodbye");
    let last = goodbyes.iter().map(|(_, at)| *at).max().expect("there are some");
    assert!(last >= Duration::from_millis(500), "they are told one after the other: {last:?}");
    until("nobody is left", || async {
        let listed = clients(&b).await;
        so(listed.clients.is_empty() && listed.missing_replicas.is_empty(), listed.clients.len())
    })
    .await;
}
