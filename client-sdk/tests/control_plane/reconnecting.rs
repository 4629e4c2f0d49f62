//! Broken streams and reconnecting.

use std::time::Duration;

use damper_proto::v1;
use damper_proto::v1::server_message::Kind;
use damper_sdk::{Damper, Source};
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::callee::attempts;
use crate::server::*;

#[tokio::test]
async fn the_next_hello_names_what_is_held_and_what_is_refused() {
    let mut plane = ControlPlane::start().await;
    let _damper = Damper::connect(plane.options()).unwrap();
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(vec![rule("a", 1), unknown_rule("b", 6)])).await;
    drop(stream);
    let hello = plane.accept().await.hello;
    assert_eq!((hello.epoch.as_str(), hello.revision), ("e", 7));
    assert_eq!(hello.source, i32::from(v1::Source::Live));
    assert_eq!(hello.refused.len(), 1);
    assert_eq!(hello.refused[0].key, Some(pattern("b")));
    assert_eq!(hello.refused[0].revision, 6);
    assert!(hello.refused[0].reason.starts_with("policy.mode: "), "{:?}", hello.refused);
}

#[tokio::test]
async fn calls_continue_when_a_replica_is_killed() {
    let (mut one, mut two) = (ControlPlane::start().await, ControlPlane::start().await);
    let damper = Damper::connect(options([one.url(), two.url()])).unwrap();
    let mut stream = tokio::select! {
        stream = one.accept() => stream,
        stream = two.accept() => {
            std::mem::swap(&mut one, &mut two);
            stream
        }
    };
    stream.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    drop(stream);
    one.kill().await;
    assert_eq!(attempts(&damper, "a").await, 3);
    let mut stream = two.accept().await;
    assert_eq!(stream.hello.revision, 7);
    stream.exchange(8, 1, delta(vec![], &["a"])).await;
    assert_eq!(attempts(&damper, "a").await, 1);
}

#[tokio::test]
async fn a_control_plane_that_comes_back_is_found_again() {
    let mut plane = ControlPlane::start().await;
    let address = plane.address;
    let damper = Damper::connect(plane.options()).unwrap();
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    drop(stream);
    plane.kill().await;
    let status = until(&damper, |status| !status.connected).await;
    assert_eq!((status.source, status.revision), (Source::Live, 7));
    assert_eq!(attempts(&damper, "a").await, 3);
    let mut plane = ControlPlane::listen(TcpListener::bind(address).await.unwrap());
    assert_eq!(plane.accept().await.hello.revision, 7);
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_given_up_after_three_bookmarks_time() {
    let mut plane = ControlPlane::start().await;
    let _damper = Damper::connect(plane.options()).unwrap();
    let mut silent = plane.accept().await;
    silent.exchange(7, 1, snapshot(vec![])).await;
    let since = Instant::now();
    let next = plane.accept().await;
    let waited = since.elapsed();
    assert!((45..47).contains(&waited.as_secs()), "{waited:?}");
    assert_eq!(next.hello.revision, 7);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_keep_a_stream_alive_and_move_its_revision() {
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options()).unwrap();
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(vec![])).await;
    for revision in 8..16 {
        tokio::time::sleep(Duration::from_secs(15)).await;
        stream.say(revision, 0, Kind::Bookmark(v1::Bookmark {})).await;
    }
    let status = until(&damper, |status| status.revision == 15).await;
    assert!(status.connected);
    let another = tokio::time::timeout(Duration::from_secs(10), plane.accept()).await;
    assert!(another.is_err(), "it never left the first stream");
}

#[tokio::test]
async fn after_a_goodbye_it_connects_again_to_the_other_replica() {
    let (mut one, mut two) = (ControlPlane::start().await, ControlPlane::start().await);
    let _damper = Damper::connect(options([one.url(), two.url()])).unwrap();
    let (mut stream, other) = tokio::select! {
        stream = one.accept() => (stream, &mut two),
        stream = two.accept() => (stream, &mut one),
    };
    stream.exchange(7, 1, snapshot(vec![])).await;
    stream.say(7, 0, Kind::Goodbye(v1::Goodbye { reason: "shutting down".to_owned() })).await;
    assert_eq!(other.accept().await.hello.revision, 7);
    while let Some(last) = stream.hear().await {
        assert!(matches!(last, v1::client_message::Kind::Report(_)), "{last:?}");
    }
}

#[tokio::test]
async fn a_delta_out_of_step_leads_to_a_new_stream() {
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options()).unwrap();
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    stream.say_in("other", 9, 2, delta(vec![], &["a"])).await;
    let next = plane.accept().await;
    assert_eq!((next.hello.epoch.as_str(), next.hello.revision), ("e", 7));
    assert_eq!(attempts(&damper, "a").await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_drops_every_stream_is_not_hammered() {
    let mut plane = ControlPlane::start().await;
    let _damper = Damper::connect(plane.options()).unwrap();
    let end = Instant::now() + Duration::from_secs(120);
    let mut streams = 0;
    while let Ok(stream) = tokio::time::timeout_at(end, plane.accept()).await {
        stream.say(7, 0, snapshot(vec![])).await;
        drop(stream);
        streams += 1;
    }
    // The waits are 0.25, 0.5, 1, 2, 2 ... s on average if rules arrive before the end.
    assert!((5..=85).contains(&streams), "{streams} streams in two minutes");
}
