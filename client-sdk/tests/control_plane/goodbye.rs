//! Streams that end with a goodbye: the client moves to another replica without overloading any.

use std::time::Duration;

use damper_proto::v1;
use damper_proto::v1::server_message::Kind;
use damper_sdk::Damper;
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::callee::attempts;
use crate::server::*;

fn goodbye() -> Kind {
    Kind::Goodbye(v1::Goodbye { reason: "restarting".to_owned() })
}

/// Two replicas, the one with the first stream first.
async fn two() -> (Damper, ControlPlane, ControlPlane, Stream) {
    let (mut one, mut other) = (ControlPlane::start().await, ControlPlane::start().await);
    let damper = Damper::connect(options([one.url(), other.url()])).unwrap();
    let stream = tokio::select! {
        stream = one.accept() => stream,
        stream = other.accept() => {
            std::mem::swap(&mut one, &mut other);
            stream
        }
    };
    (damper, one, other, stream)
}

#[tokio::test(start_paused = true)]
async fn rolling_restarts_move_it_to_the_other_replica_soon() {
    let (_damper, mut one, mut other, mut stream) = two().await;
    for restart in 0..20 {
        stream.exchange(7, 1, snapshot(vec![])).await;
        // At varying intervals.
        tokio::time::sleep(Duration::from_millis(500 * (restart % 10))).await;
        stream.say(7, 0, goodbye()).await;
        let since = Instant::now();
        stream = other.accept().await;
        // At most 4 s, plus delays of a busy machine while the clock is paced.
        assert!(since.elapsed() < Duration::from_secs(9), "restart {restart}: {:?}", since.elapsed());
        assert_eq!(stream.hello.revision, 7);
        std::mem::swap(&mut one, &mut other);
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_restarts_after_a_goodbye_is_found_again() {
    let mut plane = ControlPlane::start().await;
    let address = plane.address;
    let _damper = Damper::connect(plane.options()).unwrap();
    let mut stream = plane.accept().await;
    for restart in 0..8 {
        stream.exchange(7, 1, snapshot(vec![])).await;
        tokio::time::sleep(Duration::from_secs(6)).await;
        stream.say(7, 0, goodbye()).await;
        drop(stream);
        plane.kill().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        plane = ControlPlane::listen(TcpListener::bind(address).await.unwrap());
        let since = Instant::now();
        stream = plane.accept().await;
        // Each restart resets the waits, so none is long.
        assert!(since.elapsed() < Duration::from_secs(10), "restart {restart}: {:?}", since.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_always_sends_goodbye_is_not_overloaded() {
    let mut plane = ControlPlane::start().await;
    let _damper = Damper::connect(plane.options()).unwrap();
    let end = Instant::now() + Duration::from_secs(120);
    let mut streams = 0;
    while let Ok(mut stream) = tokio::time::timeout_at(end, plane.accept()).await {
        stream.exchange(7, 1, snapshot(vec![])).await;
        stream.say(7, 0, goodbye()).await;
        streams += 1;
    }
    // The waits are 0.25, 0.5, 1, 2, 2 ... s on average: about 62 streams.
    assert!((35..=85).contains(&streams), "{streams} streams in two minutes");
}

#[tokio::test(start_paused = true)]
async fn a_goodbye_instead_of_rules_sends_it_to_the_other_replica() {
    let (damper, _one, mut other, stream) = two().await;
    // As from a full or stopping replica.
    stream.say(0, 0, goodbye()).await;
    let mut stream = other.accept().await;
    stream.exchange(7, 1, snapshot(vec![])).await;
    damper.ready(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn a_replica_that_is_behind_does_not_bring_back_old_rules() {
    let (damper, _one, mut other, mut stream) = two().await;
    stream.exchange(9, 1, snapshot(vec![rule("a", 9)])).await;
    stream.say(9, 0, goodbye()).await;
    let mut behind = other.accept().await;
    assert_eq!((behind.hello.epoch.as_str(), behind.hello.revision), ("e", 9));
    let ack = behind.exchange(7, 1, snapshot(vec![])).await;
    assert_eq!(ack.revision, 9, "the ack has the revision held");
    behind.exchange(8, 2, delta(vec![], &["a"])).await;
    behind.exchange(8, 3, Kind::Bookmark(v1::Bookmark {})).await;
    assert_eq!((attempts(&damper, "a").await, damper.status().revision), (3, 9));
    behind.exchange(10, 4, delta(vec![], &["a"])).await;
    assert_eq!((attempts(&damper, "a").await, damper.status().revision), (1, 10));
}

#[tokio::test]
async fn a_name_is_reached_by_the_address_that_responds() {
    // `localhost` is 127.0.0.1, and on most machines also ::1, without a listener.
    let mut plane = ControlPlane::start().await;
    let url = format!("http://localhost:{}", plane.address.port());
    let _damper = Damper::connect(options([url])).unwrap();
    plane.accept().await;
}

#[tokio::test]
async fn an_unknown_name_is_reported_and_others_are_tried() {
    let mut plane = ControlPlane::start().await;
    let unknown = "http://no-such-host.invalid:7600".to_owned();
    let damper = Damper::connect(options([unknown.clone(), plane.url()])).unwrap();
    plane.accept().await;
    drop(damper);
    let damper = Damper::connect(options([unknown])).unwrap();
    let status = until(&damper, |status| status.last_problem.is_some()).await;
    assert!(status.last_problem.unwrap().contains("cannot look up no-such-host.invalid"));
}
