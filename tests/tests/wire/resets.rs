//! Streams and connections that end before their answer: RST_STREAM, GOAWAY, and no word at all.

use damper_tests::peer::raw::{Raw, RawPeer};
use damper_tests::peer::{Act, Gate, Peer, Reply, channel, framed};
use tonic::Code;

use super::world::{Sends, THREE, World, ms, within};

const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;

/// Long enough to tell a wait from none.
const SLOW: &str = "retry: { max_attempts: 3, backoff: { fixed: { delay: 400ms } } }";

#[tokio::test]
async fn a_refused_stream_is_resent_at_once_and_looks_like_a_first_send() {
    let peer = Peer::start([Reply::reset(REFUSED_STREAM), Reply::ok("yes")]).await;
    // A wait would outlast the call's 20 s.
    let fields = "retry: { max_attempts: 3, backoff: { fixed: { delay: 10m } } }";
    let world = World::new(&peer, fields).await;
    assert_eq!(world.call("one").await.unwrap().into_inner(), "yes");
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen[0].headers, seen[1].headers);
    assert_eq!(seen[1].header("damper-retry"), None);
    assert_eq!(world.sends(), Sends { attempts: 2, retries: 0, resends: 1 });
    world.ended(&[("ok", 1)]);
}

#[tokio::test]
async fn a_stream_refused_twice_is_an_ordinary_failure_the_second_time() {
    let refused = || Reply::reset(REFUSED_STREAM);
    let peer = Peer::start([refused(), refused(), Reply::ok("yes")]).await;
    let world = World::new(&peer, SLOW).await;
    assert_eq!(world.call("one").await.unwrap().into_inner(), "yes");
    let seen = peer.until_all_are_over().await;
    let flags: Vec<_> = seen.iter().map(|request| request.header("damper-retry")).collect();
    assert_eq!(flags, [None, None, Some("1")]);
    assert!(seen[2].arrived - seen[1].arrived >= ms(400), "after the wait");
    assert_eq!(world.sends(), Sends { attempts: 3, retries: 1, resends: 1 });
    world.ended(&[("ok_after_retry", 1)]);
}

#[tokio::test]
async fn a_stream_refused_every_time_ends_with_the_attempts_of_the_rule_and_one_resend() {
    let peer = Peer::by(|_| Reply::reset(REFUSED_STREAM)).await;
    let world = World::new(&peer, THREE).await;
    assert_eq!(world.call("one").await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(peer.seen().len(), 4);
    assert_eq!(world.sends(), Sends { attempts: 4, retries: 2, resends: 1 });
    world.ended(&[("attempts_exhausted", 1)]);
}

/// The codes of HTTP/2 as gRPC reads them, and one that nobody has defined.
const RESETS: [(u32, Code); 14] = [
    (0, Code::Internal),
    (1, Code::Internal),
    (2, Code::Internal),
    (3, Code::Internal),
    (4, Code::Internal),
    (5, Code::Internal),
    (6, Code::Internal),
    (CANCEL, Code::Cancelled),
    (9, Code::Internal),
    (10, Code::Internal),
    (11, Code::ResourceExhausted),
    (12, Code::PermissionDenied),
    (13, Code::Unknown),
    (0xbeef, Code::Unknown),
];

#[tokio::test]
async fn a_reset_before_the_answer_is_a_failure_with_the_code_that_grpc_gives_it() {
    for (reason, code) in RESETS {
        let peer = Peer::start([Reply::hang().then(Act::UntilRead).then(Act::Reset(reason))]).await;
        let world = World::new(&peer, THREE).await;
        world.call("one").await.unwrap_err();
        assert_eq!(peer.seen().len(), 1, "{reason}");
        assert_eq!(world.attempts_ended_with(code), 1, "{reason} is {code:?}");
        world.ended(&[("not_retryable", 1)]);
    }
}

#[tokio::test]
async fn a_reset_is_retried_where_its_code_is() {
    let fields = "retry: { max_attempts: 3, codes: { deny: [NOT_FOUND] }, backoff: { none: {} } }";
    for (reason, _) in RESETS {
        let reset = Reply::hang().then(Act::UntilRead).then(Act::Reset(reason));
        let peer = Peer::start([reset, Reply::ok("yes")]).await;
        let world = World::new(&peer, fields).await;
        assert_eq!(world.call("one").await.unwrap().into_inner(), "yes", "{reason}");
        assert_eq!(world.sends(), Sends { attempts: 2, retries: 1, resends: 0 }, "{reason}");
        world.ended(&[("ok_after_retry", 1)]);
    }
}

#[tokio::test]
async fn a_reset_after_the_answer_began_is_never_repeated() {
    let fields = "retry: { max_attempts: 3, codes: { deny: [NOT_FOUND] }, backoff: { none: {} } }";
    for reason in (0..=13).chain([0xbeef]) {
        let gate = Gate::closed();
        let reset = Reply::begin().message("half").then(Act::Until(gate.clone())).then(Act::Reset(reason));
        let peer = Peer::start([reset, Reply::ok("again")]).await;
        let world = World::new(&peer, fields).await;
        let (first, mut rest) = world.begin().await;
        assert_eq!(first, "half");
        gate.open();
        within("the end", rest.message()).await.unwrap_err();
        assert_eq!(peer.seen().len(), 1, "{reason}");
        world.ended(&[("committed", 1)]);
    }
}

#[tokio::test]
async fn a_connection_lost_before_the_answer_is_an_ordinary_failure() {
    let lost = Reply::hang().then(Act::UntilRead).then(Act::HangUp);
    let peer = Peer::start([lost, Reply::ok("yes")]).await;
    let world = World::new(&peer, THREE).await;
    assert_eq!(world.call("one").await.unwrap().into_inner(), "yes");
    let seen = peer.seen();
    assert_eq!((seen[1].connection, seen[1].header("damper-retry")), (1, Some("1")));
    assert_eq!(seen[0].body, seen[1].body);
    assert_eq!(world.sends(), Sends { attempts: 2, retries: 1, resends: 0 });
    world.ended(&[("ok_after_retry", 1)]);
}

#[tokio::test]
async fn a_connection_lost_after_the_answer_began_is_not_repeated() {
    let gate = Gate::closed();
    let lost = Reply::begin().message("half").then(Act::Until(gate.clone())).then(Act::HangUp);
    let peer = Peer::start([lost, Reply::ok("again")]).await;
    let world = World::new(&peer, THREE).await;
    let (first, mut rest) = world.begin().await;
    assert_eq!(first, "half");
    gate.open();
    within("the end", rest.message()).await.unwrap_err();
    assert_eq!(peer.seen().len(), 1);
    world.ended(&[("committed", 1)]);
}

#[tokio::test]
async fn several_calls_on_a_lost_connection_are_each_retried_by_themselves() {
    let gate = Gate::closed();
    let lost = gate.clone();
    let peer = Peer::by(move |place| match place {
        0 => Reply::hang().then(Act::Until(lost.clone())).then(Act::HangUp),
        1..10 => Reply::hang(),
        _ => Reply::ok("yes"),
    })
    .await;
    let world = World::new(&peer, THREE).await;
    let calls = futures_util::future::join_all((0..10).map(|_| world.call("one")));
    let loss = async {
        peer.until("ten requests", |seen| seen.len() == 10 && seen.iter().all(|request| request.whole)).await;
        gate.open();
    };
    let (answers, ()) = tokio::join!(calls, loss);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(world.sends(), Sends { attempts: 20, retries: 10, resends: 0 });
    world.ended(&[("ok_after_retry", 10)]);
}

#[tokio::test]
async fn a_goaway_that_leaves_the_stream_out_makes_it_resent_as_a_first_send() {
    let raw = RawPeer::listen().await;
    let world = World::around(channel(raw.address()), SLOW).await;
    let serving = async {
        let mut first = raw.accept().await;
        first.request().await;
        first.go_away(0, 0).await;
        let second = answering(&raw).await;
        (first, second)
    };
    let (answered, _connections) = tokio::join!(world.call("one"), serving);
    assert_eq!(answered.unwrap().into_inner(), "yes");
    assert_eq!(world.sends(), Sends { attempts: 2, retries: 0, resends: 1 });
    world.ended(&[("ok", 1)]);
}

/// The next connection, whose first request is answered.
async fn answering(raw: &RawPeer) -> Raw {
    let mut connection = raw.accept().await;
    let stream = connection.request().await;
    answer(&mut connection, stream).await;
    connection
}

/// `yes`, as a whole answer.
async fn answer(connection: &mut Raw, stream: u32) {
    let begin: [(&str, &[u8]); 2] = [(":status", b"200"), ("content-type", b"application/grpc")];
    connection.headers(stream, &begin, false).await;
    connection.data(stream, &framed("yes"), false).await;
    connection.headers(stream, &[("grpc-status", b"0")], true).await;
}

/// No code of a lost connection may be retried, so each call that the server never saw is saved by resends alone.
#[tokio::test]
async fn a_goaway_that_leaves_many_streams_out_loses_none_of_them() {
    const CALLS: usize = 100;
    let raw = RawPeer::listen().await;
    let only_resends = "retry: { max_attempts: 2, codes: { allow: [ABORTED] }, backoff: { none: {} } }";
    let world = World::around(channel(raw.address()), only_resends).await;
    let calls = futures_util::future::join_all((0..CALLS).map(|_| world.call("one")));
    let serving = async {
        let mut first = raw.accept().await;
        let mut streams = Vec::new();
        for _ in 0..CALLS {
            streams.push(first.request().await);
        }
        first.go_away(streams[CALLS / 2 - 1], 0).await;
        for stream in &streams[..CALLS / 2] {
            answer(&mut first, *stream).await;
        }
        let mut second = raw.accept().await;
        loop {
            let stream = second.request().await;
            answer(&mut second, stream).await;
        }
    };
    let answers = tokio::select! {
        answers = calls => answers,
        () = serving => unreachable!("it serves on"),
    };
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), CALLS);
    world.ended(&[("ok", CALLS as u64)]);
    assert_eq!(world.attempts_ended_with(Code::Unavailable), 0, "the callee has failed nothing");
}

#[tokio::test]
async fn a_goaway_with_an_error_that_leaves_the_stream_out_makes_it_resent_too() {
    // ENHANCE_YOUR_CALM, as proxies say it to clients that ping too often.
    for code in [2, 11] {
        let raw = RawPeer::listen().await;
        let world = World::around(channel(raw.address()), SLOW).await;
        let serving = async {
            let mut first = raw.accept().await;
            first.request().await;
            first.go_away(0, code).await;
            let second = answering(&raw).await;
            (first, second)
        };
        let (answered, _connections) = tokio::join!(world.call("one"), serving);
        answered.unwrap();
        assert_eq!(world.sends(), Sends { attempts: 2, retries: 0, resends: 1 }, "{code}");
        world.ended(&[("ok", 1)]);
    }
}

#[tokio::test]
async fn a_goaway_that_includes_the_stream_lets_it_end_and_the_next_call_goes_elsewhere() {
    let raw = RawPeer::listen().await;
    let world = World::around(channel(raw.address()), THREE).await;
    let serving = async {
        let mut first = raw.accept().await;
        let stream = first.request().await;
        first.go_away(stream, 0).await;
        answer(&mut first, stream).await;
        let second = answering(&raw).await;
        (first, second)
    };
    let calls = async {
        world.call("one").await.unwrap();
        world.call("two").await.unwrap();
    };
    let ((), _connections) = tokio::join!(calls, serving);
    assert_eq!(world.sends(), Sends { attempts: 2, retries: 0, resends: 0 });
    world.ended(&[("ok", 2)]);
}

#[tokio::test]
async fn a_goaway_between_two_streams_resends_only_the_one_above_it() {
    let raw = RawPeer::listen().await;
    let world = World::around(channel(raw.address()), SLOW).await;
    let serving = async {
        let mut first = raw.accept().await;
        let kept = first.request().await;
        first.request().await;
        first.go_away(kept, 0).await;
        answer(&mut first, kept).await;
        let second = answering(&raw).await;
        (first, second)
    };
    let calls = async { tokio::join!(world.call("one"), world.call("two")) };
    let ((one, two), _connections) = tokio::join!(calls, serving);
    one.unwrap();
    two.unwrap();
    assert_eq!(world.sends(), Sends { attempts: 3, retries: 0, resends: 1 });
    world.ended(&[("ok", 2)]);
}

#[tokio::test]
async fn a_goaway_that_includes_the_stream_and_then_no_answer_is_an_ordinary_failure() {
    let raw = RawPeer::listen().await;
    let world = World::around(channel(raw.address()), THREE).await;
    let serving = async {
        let mut first = raw.accept().await;
        let stream = first.request().await;
        first.go_away(stream, 0).await;
        drop(first);
        answering(&raw).await
    };
    let (answered, _connection) = tokio::join!(world.call("one"), serving);
    answered.unwrap();
    assert_eq!(world.sends(), Sends { attempts: 2, retries: 1, resends: 0 });
    world.ended(&[("ok_after_retry", 1)]);
}
