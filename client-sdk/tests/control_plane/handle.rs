//! Connecting, several handles in a process, and the end.

use std::time::Duration;

use damper_sdk::{Damper, Options, Source};
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::callee::attempts;
use crate::server::*;

#[tokio::test(start_paused = true)]
async fn connect_returns_at_once_and_calls_work_without_a_server() {
    pace_the_clock();
    // The system accepts the connections, but no process reads from them.
    let hole = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", hole.local_addr().unwrap());
    let begun = Instant::now();
    let damper = Damper::connect(options([url])).unwrap();
    assert_eq!(attempts(&damper, "a").await, 1);
    assert_eq!(begun.elapsed(), Duration::ZERO);
    let not_ready = damper.ready(Duration::from_secs(30)).await.unwrap_err();
    assert!((30..32).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(not_ready.status.source, Source::BuiltIn);
    assert!(not_ready.to_string().contains("the control plane did not answer within 10s"), "{not_ready}");
}

#[tokio::test(start_paused = true)]
async fn an_unresponsive_replica_does_not_block_the_others() {
    let hole = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut plane = ControlPlane::start().await;
    let url = format!("http://{}", hole.local_addr().unwrap());
    let damper = Damper::connect(options([url, plane.url()])).unwrap();
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(vec![])).await;
    damper.ready(Duration::ZERO).await.unwrap();
}

#[test]
fn without_a_runtime_and_with_bad_options_all_faults_are_named() {
    let options = Options::new(["nonsense"]).environment(|_| None);
    let faults = Damper::connect(options).unwrap_err();
    let paths: Vec<_> = faults.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(paths, ["endpoints[0]", "service", "runtime"]);
}

#[tokio::test]
async fn a_callee_with_an_impossible_name_is_refused() {
    let plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options()).unwrap();
    let faults = damper.client_layer("two words").unwrap_err();
    assert!(faults.to_string().starts_with("callee_service: "), "{faults}");
}

#[tokio::test]
async fn two_services_in_one_process_have_their_own_rules() {
    let mut plane = ControlPlane::start().await;
    let orders = Damper::connect(plane.options()).unwrap();
    let mut to_orders = plane.accept().await;
    let stock = Damper::connect(plane.options().service("stock")).unwrap();
    let mut to_stock = plane.accept().await;
    assert_eq!(to_orders.hello.identity.as_ref().unwrap().service, "orders");
    assert_eq!(to_stock.hello.identity.as_ref().unwrap().service, "stock");
    to_orders.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    to_stock.exchange(7, 1, snapshot(vec![])).await;
    assert_eq!((attempts(&orders, "a").await, attempts(&stock, "a").await), (3, 1));
}

#[tokio::test]
async fn dropping_the_last_clone_ends_the_stream_alone() {
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options()).unwrap();
    let clone = damper.clone();
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    drop(damper);
    stream.exchange(8, 2, delta(vec![rule("b", 8)], &[])).await;
    assert_eq!(attempts(&clone, "b").await, 3);
    drop(clone);
    while stream.hear().await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn shutdown_takes_a_bounded_time() {
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options()).unwrap();
    // Open, but this server never closes its half.
    let _stream = plane.accept().await;
    let begun = Instant::now();
    damper.shutdown().await;
    assert!(begun.elapsed() <= Duration::from_secs(2), "{:?}", begun.elapsed());
    damper.shutdown().await;
    let away = Damper::connect(options(["http://127.0.0.1:1".to_owned()])).unwrap();
    let begun = Instant::now();
    away.shutdown().await;
    assert!(begun.elapsed() <= Duration::from_secs(2), "{:?}", begun.elapsed());
}
