//! Peers that say what they must not. The call ends, with one fate, and the process goes on.

use bytes::Bytes;
use damper_tests::peer::raw::{Raw, RawPeer};
use damper_tests::peer::{Act, Gate, Peer, Reply, channel, framed};
use tonic::Code;

use super::world::{THREE, World, within};

/// Retries whatever can be retried.
const ANY: &str = "retry: { max_attempts: 2, codes: { deny: [NOT_FOUND] }, backoff: { none: {} } }";

/// The client's HTTP/2 ends a stream over such headers, and over longer ones the whole connection.
const LONG: usize = 20_000;
const VERY_LONG: usize = 200_000;

#[tokio::test]
async fn headers_that_are_too_long_end_the_attempt() {
    for (length, fate, is_ok) in [(LONG, "not_retryable", false), (VERY_LONG, "ok_after_retry", true)] {
        let long = "a".repeat(length);
        for reply in [
            Reply::trailers_only(&[("grpc-status", "0"), ("grpc-message", &long)]),
            Reply::trailers_only(&[("grpc-status", "5"), ("x-long", &long)]),
            Reply::begin_with(&[("x-long", &long)]).message("yes").trailers(&[("grpc-status", "0")]),
        ] {
            let peer = Peer::start([reply, Reply::ok("fine")]).await;
            let world = World::new(&peer, THREE).await;
            assert_eq!(world.call("one").await.is_ok(), is_ok);
            world.ended(&[(fate, 1)]);
        }
    }
}

#[tokio::test]
async fn trailers_that_are_too_long_end_the_call() {
    let trailers = [("grpc-status", "0"), ("x-long", &"a".repeat(VERY_LONG))];
    let peer = Peer::start([Reply::begin().message("yes").trailers(&trailers), Reply::ok("fine")]).await;
    let world = World::new(&peer, THREE).await;
    world.call("one").await.unwrap_err();
    assert_eq!(world.call("two").await.unwrap().into_inner(), "fine");
    assert_eq!(peer.seen().len(), 2);
    world.ended(&[("ok", 1), ("committed", 1)]);
}

/// tonic itself panics on them when it makes a status of the answer.
#[tokio::test]
async fn details_that_are_not_base64_are_taken_off_and_the_application_gets_its_status() {
    for details in ["%%%", "AQ=ID", "====", "A", "\u{fffd}"] {
        let fields = [("grpc-status", "14"), ("grpc-status-details-bin", details)];
        // Not the same in each answer: the first is repeated and let go, the last is handed over.
        let failed = || Reply::trailers_only(&fields);
        let begun = Reply::begin().message("half").trailers(&fields);
        let peer = Peer::start([failed(), failed(), begun]).await;
        let world = World::new(&peer, ANY).await;
        assert_eq!(world.call("one").await.unwrap_err().code(), Code::Unavailable, "{details}");
        let answer = world.bare().await.unwrap();
        let trailers = answer.trailers.unwrap();
        assert!(trailers["grpc-status"] == "14" && !trailers.contains_key("grpc-status-details-bin"));
        world.ended(&[("attempts_exhausted", 1), ("committed", 1)]);
    }
}

#[tokio::test]
async fn details_that_are_base64_stay_as_they_are() {
    for details in ["AQID", "AQI=", "AQI", ""] {
        let fields = [("grpc-status", "5"), ("grpc-status-details-bin", details)];
        let peer = Peer::start([Reply::trailers_only(&fields)]).await;
        let world = World::new(&peer, ANY).await;
        let answer = world.bare().await.unwrap();
        assert_eq!(answer.headers["grpc-status-details-bin"], details);
    }
}

#[tokio::test]
async fn values_beyond_ascii_are_no_status_and_no_panic() {
    let begin: [(&str, &[u8]); 2] = [(":status", b"200"), ("content-type", b"application/grpc")];
    let odd: [(&str, &[u8]); 5] = [
        ("grpc-status", b"\xff\xfe"),
        ("grpc-message", b"\xc3\x28%f"),
        ("grpc-retry-pushback-ms", b"\x80"),
        ("damper-no-more-retry", b"\xff"),
        ("x-bytes", b"\xff"),
    ];
    let raw = RawPeer::listen().await;
    let world = World::around(channel(raw.address()), THREE).await;
    let serving = async {
        let mut connection = raw.accept().await;
        let stream = connection.request().await;
        connection.headers(stream, &[begin.as_slice(), &odd].concat(), true).await;
        let stream = connection.request().await;
        connection.headers(stream, &begin, false).await;
        connection.headers(stream, &odd, true).await;
        connection
    };
    let calls = async { (world.call("one").await, world.call("two").await) };
    let ((one, two), _connection) = tokio::join!(calls, serving);
    assert_eq!(one.unwrap_err().code(), Code::Unknown);
    assert_eq!(two.unwrap_err().code(), Code::Unknown);
    world.ended(&[("not_retryable", 2)]);
}

#[tokio::test]
async fn a_message_in_a_hundred_thousand_frames_ends_one_way_or_the_other() {
    const SIZE: usize = 100_000;
    let message = framed(&"a".repeat(SIZE));
    let mut reply = Reply::begin();
    for at in 0..message.len() {
        reply = reply.then(Act::Data(message.slice(at..=at)));
    }
    let peer = Peer::start([reply.trailers(&[("grpc-status", "0")]), Reply::ok("fine")]).await;
    let world = World::new(&peer, THREE).await;
    let answered = world.call("one").await;
    match &answered {
        Ok(answer) => {
            assert_eq!(answer.get_ref().len(), SIZE);
            world.ended(&[("ok", 1)]);
        }
        // The client's HTTP/2 defends itself against so many.
        Err(_) => world.ended(&[("committed", 1)]),
    }
}

#[tokio::test]
async fn empty_data_frames_without_end_do_not_hold_the_call_beyond_its_deadline() {
    let mut reply = Reply::begin();
    for _ in 0..5_000 {
        reply = reply.then(Act::Data(Bytes::new()));
    }
    let peer = Peer::start([reply]).await;
    let world = World::new(&peer, "timeout: 300ms, retry: { max_attempts: 3 }").await;
    world.call("one").await.unwrap_err();
    peer.until_all_are_over().await;
    assert!(world.has_ended(1));
}

#[tokio::test]
async fn a_good_status_with_a_broken_body_is_not_sent_for_again() {
    let whole = framed("yes");
    let half = || Act::Data(whole.slice(..whole.len() - 1));
    // A message cut short, then a status that says all is well.
    let cut = Reply::begin().then(half()).trailers(&[("grpc-status", "0")]);
    // A message that no decoder knows.
    let garbage = Reply::begin().then(Act::Data(Bytes::from_static(&[0, 0, 0, 0, 2, 0xff, 0xff])));
    // More bytes than anybody takes.
    let huge = Reply::begin().then(Act::Data(Bytes::from_static(&[0, 255, 255, 255, 255])));
    let ok = [("grpc-status", "0")];
    for reply in [cut, garbage.trailers(&ok), huge.trailers(&ok)] {
        let peer = Peer::start([reply, Reply::ok("again")]).await;
        let world = World::new(&peer, ANY).await;
        world.call("one").await.unwrap_err();
        assert_eq!(peer.seen().len(), 1);
        assert!(world.has_ended(1));
    }
}

#[tokio::test]
async fn a_good_status_in_the_first_headers_and_a_reset_after_it_is_not_sent_for_again() {
    let gate = Gate::closed();
    let reply = Reply::begin_with(&[("grpc-status", "0")]).message("half");
    let reply = reply.then(Act::Until(gate.clone())).then(Act::Reset(2));
    let peer = Peer::start([reply, Reply::ok("again")]).await;
    let world = World::new(&peer, ANY).await;
    let (first, mut rest) = world.begin().await;
    assert_eq!(first, "half");
    world.ended(&[("ok", 1)]);
    gate.open();
    within("the end", rest.message()).await.unwrap_err();
    assert_eq!(peer.seen().len(), 1);
    world.ended(&[("ok", 1)]);
}

#[tokio::test]
async fn a_content_type_that_is_not_grpc_does_not_confuse_the_count() {
    let page = Reply::hang()
        .then(Act::Headers(200, http::HeaderMap::new(), false))
        .then(Act::Data(Bytes::from_static(b"<html>")))
        .then(Act::End);
    let peer = Peer::start([page, Reply::ok("again")]).await;
    let world = World::new(&peer, THREE).await;
    world.call("one").await.unwrap_err();
    assert_eq!(peer.seen().len(), 1);
    assert!(world.has_ended(1));
}

/// Plays one connection by hand once the request came; the call must end in an error.
async fn by_hand(play: impl AsyncFn(&mut Raw, u32)) {
    let raw = RawPeer::listen().await;
    let world = World::around(channel(raw.address()), "retry: { max_attempts: 1 }").await;
    let serving = async {
        let mut connection = raw.accept().await;
        let stream = connection.request().await;
        play(&mut connection, stream).await;
        // Reads on, so that what was written is not lost with the socket.
        while connection.next().await.is_some() {}
        std::future::pending().await
    };
    let ended = tokio::select! {
        ended = world.call("one") => ended,
        never = serving => never,
    };
    ended.expect_err("the peer never answered");
    assert!(world.has_ended(1));
}

#[tokio::test]
async fn frames_that_break_the_protocol_end_the_call() {
    const BEGIN: [(&str, &[u8]); 2] = [(":status", b"200"), ("content-type", b"application/grpc")];
    // Data before headers.
    by_hand(async |connection, stream| connection.data(stream, b"early", false).await).await;
    // A header block that nobody can decode.
    by_hand(async |connection, stream| connection.write(1, 4, stream, &[0xff; 64]).await).await;
    // A frame that is longer than allowed.
    by_hand(async |connection, stream| connection.write(0, 0, stream, &[0; 100_000]).await).await;
    // Trailers without the mark that they end the stream.
    by_hand(async |connection, stream| {
        connection.headers(stream, &BEGIN, false).await;
        connection.headers(stream, &[("grpc-status", b"0")], false).await;
    })
    .await;
    // Not HTTP/2 at all.
    by_hand(async |connection, _| connection.bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n").await).await;
}
