//! Servers that end streams politely, and what comes of it: another replica at once, and nobody is hammered.

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
async fn rolling_restarts_send_it_to_the_other_replica_at_once_however_often() {
    let (_damper, mut one, mut other, mut stream) = two().await;
    for restart in 0..20 {
        stream.exchange(7, 1, snapshot(vec![])).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        stream.say(7, 0, goodbye()).await;
        let since = Instant::now();
        stream = other.accept().await;
        // At most 0.5 s, and what a busy machine makes of it while the clock is paced.
        assert!(since.elapsed() < Duration::from_secs(5), "restart {restart}: {:?}", since.elapsed());
        assert_eq!(stream.hello.revision, 7);
        std::mem::swap(&mut one, &mut other);
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_gone_after_its_goodbye_and_comes_back_is_found_every_time() {
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
        // The waits begin anew with each restart, so none of the 2 s or of the time after is a long one.
        assert!(since.elapsed() < Duration::from_secs(10), "restart {restart}: {:?}", since.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_always_says_goodbye_at_once_is_not_hammered() {
    let mut plane = ControlPlane::start().await;
    let _damper = Damper::connect(plane.options()).unwrap();
    let end = Instant::now() + Duration::from_secs(120);
    let mut streams = 0;
    while let Ok(mut stream) = tokio::time::timeout_at(end, plane.accept()).await {
        stream.exchange(7, 1, snapshot(vec![])).await;
        stream.say(7, 0, goodbye()).await;
        streams += 1;
    }
    // Twelve and a few are paid in advance; then the waits come to 0.25, 0.5, 1, 2, 4, 8, 15, 15 ... s on average.
    assert!((10..=45).contains(&streams), "{streams} streams in two minutes");
}

#[tokio::test(start_paused = true)]
async fn a_goodbye_instead_of_rules_sends_it_to_the_other_replica() {
    let (damper, _one, mut other, stream) = two().await;
    // As of a replica that is full, or on its way out.
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
    assert_eq!(ack.revision, 9, "it answers with what it holds");
    behind.exchange(8, 2, delta(vec![], &["a"])).await;
    behind.exchange(8, 3, Kind::Bookmark(v1::Bookmark {})).await;
    assert_eq!((attempts(&damper, "a").await, damper.status().revision), (3, 9));
    behind.exchange(10, 4, delta(vec![], &["a"])).await;
    assert_eq!((attempts(&damper, "a").await, damper.status().revision), (1, 10));
}

#[tokio::test]
async fn a_name_with_several_addresses_is_reached_by_the_one_that_answers() {
    // `localhost` is 127.0.0.1, on most machines ::1 as well, where nobody listens.
    let mut plane = ControlPlane::start().await;
    let url = format!("http://localhost:{}", plane.address.port());
    let _damper = Damper::connect(options([url])).unwrap();
    plane.accept().await;
}

#[tokio::test]
async fn a_name_that_nobody_knows_is_said_and_the_others_are_asked() {
    let mut plane = ControlPlane::start().await;
    let unknown = "http://no-such-host.invalid:7600".to_owned();
    let damper = Damper::connect(options([unknown.clone(), plane.url()])).unwrap();
    plane.accept().await;
    drop(damper);
    let damper = Damper::connect(options([unknown])).unwrap();
    let status = until(&damper, |status| status.last_problem.is_some()).await;
    assert!(status.last_problem.unwrap().contains("no-such-host.invalid can not be looked up"));
}
