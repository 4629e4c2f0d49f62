//! `hold_unary`: an answer of one message is held back until its trailers say whether it is one.

use damper_tests::peer::{Act, Gate, Peer, Reply, framed};
use tonic::Code;

use super::world::{Sends, World, ms, within};

const CANCEL: u32 = 8;
const HELD: &str = "hold_unary: true, retry: { max_attempts: 3, backoff: { fixed: { delay: 10ms } } }";

#[tokio::test]
async fn a_call_that_fails_after_its_message_is_repeated_however_late_the_trailers_are() {
    for wait in [0, 5, 50] {
        let failed = || {
            let reply = Reply::begin().message("no");
            let reply = if wait > 0 { reply.pause(ms(wait)) } else { reply };
            reply.trailers(&[("grpc-status", "14")])
        };
        let peer = Peer::start([failed(), failed(), Reply::ok("yes")]).await;
        let world = World::new(&peer, HELD).await;
        assert_eq!(world.call("one").await.unwrap().into_inner(), "yes", "after {wait} ms");
        assert_eq!(peer.until_all_are_over().await.len(), 3);
        assert_eq!(world.sends(), Sends { attempts: 3, retries: 2, resends: 0 });
        world.ended(&[("ok_after_retry", 1)]);
    }
}

#[tokio::test]
async fn a_call_that_fails_without_a_message_is_repeated_too() {
    let peer = Peer::start([Reply::begin().trailers(&[("grpc-status", "14")]), Reply::ok("yes")]).await;
    let world = World::new(&peer, HELD).await;
    assert_eq!(world.call("one").await.unwrap().into_inner(), "yes");
    world.ended(&[("ok_after_retry", 1)]);
}

#[tokio::test]
async fn the_last_failure_is_handed_over_whole() {
    let failed = || {
        let trailers = [("grpc-status", "14"), ("grpc-message", "no"), ("x-late", "1")];
        Reply::begin_with(&[("x-early", "1")]).message("half").trailers(&trailers)
    };
    let peer = Peer::start([failed(), failed(), failed()]).await;
    let world = World::new(&peer, HELD).await;
    let answer = world.bare().await.unwrap();
    assert_eq!(answer.headers["x-early"], "1");
    let trailers = answer.trailers.unwrap();
    assert_eq!(
        (&trailers["grpc-status"], &trailers["x-late"]),
        (&"14".parse().unwrap(), &"1".parse().unwrap())
    );
    world.ended(&[("attempts_exhausted", 1)]);
}

#[tokio::test]
async fn a_held_answer_is_the_answer_that_was_sent() {
    let fields = [("x-shelf", "b"), ("x-trace-bin", "AP8KDQ"), ("x-shelf", "a")];
    let mut reply = Reply::begin_with(&fields);
    // In as many frames as it has bytes.
    for byte in framed("yes") {
        reply = reply.then(Act::Data(bytes::Bytes::copy_from_slice(&[byte])));
    }
    let peer = Peer::start([reply.trailers(&[("grpc-status", "0"), ("x-late", "1")])]).await;
    let world = World::new(&peer, HELD).await;
    let answer = world.call("one").await.unwrap();
    assert_eq!(answer.get_ref(), "yes");
    assert_eq!(answer.metadata().get_all("x-shelf").iter().collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!(answer.metadata().get("x-late").unwrap(), "1");
    world.ended(&[("ok", 1)]);
}

#[tokio::test]
async fn an_attempt_reset_after_its_message_is_repeated_where_its_code_is() {
    let fields =
        "hold_unary: true, retry: { max_attempts: 3, codes: { deny: [NOT_FOUND] }, backoff: { none: {} } }";
    for reason in [1, 2, 8, 11, 13] {
        let reset = Reply::begin().message("half").pause(ms(5)).then(Act::Reset(reason));
        let peer = Peer::start([reset, Reply::ok("yes")]).await;
        let world = World::new(&peer, fields).await;
        assert_eq!(world.call("one").await.unwrap().into_inner(), "yes", "{reason}");
        world.ended(&[("ok_after_retry", 1)]);
    }
}

#[tokio::test]
async fn a_connection_lost_after_the_message_is_an_ordinary_failure() {
    let lost = Reply::begin().message("half").pause(ms(5)).then(Act::HangUp);
    let peer = Peer::start([lost, Reply::ok("yes")]).await;
    let world = World::new(&peer, HELD).await;
    assert_eq!(world.call("one").await.unwrap().into_inner(), "yes");
    assert_eq!(peer.seen()[1].header("damper-retry"), Some("1"));
    world.ended(&[("ok_after_retry", 1)]);
}

#[tokio::test]
async fn an_answer_longer_than_what_is_kept_is_handed_over_as_it_comes() {
    let long = "a".repeat(100_000);
    let failed = Reply::begin().message(&long).trailers(&[("grpc-status", "14")]);
    let peer = Peer::start([failed, Reply::begin().message(&long).trailers(&[("grpc-status", "0")])]).await;
    let world = World::new(&peer, HELD).await;
    assert_eq!(world.call("one").await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(peer.seen().len(), 1);
    assert!(world.call("one").await.unwrap().into_inner() == long);
    world.ended(&[("ok", 1), ("committed", 1)]);
}

#[tokio::test]
async fn a_second_message_lets_the_answer_go_before_its_end() {
    let gate = Gate::closed();
    let reply = Reply::begin().message("one").message("two").then(Act::Until(gate.clone()));
    let peer = Peer::start([reply.trailers(&[("grpc-status", "14")]), Reply::ok("again")]).await;
    let world = World::new(&peer, HELD).await;
    let (first, mut rest) = world.begin().await;
    assert_eq!(first, "one");
    assert_eq!(within("the second", rest.message()).await.unwrap().unwrap(), "two");
    gate.open();
    assert_eq!(within("the end", rest.message()).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(peer.seen().len(), 1);
    world.ended(&[("committed", 1)]);
}

#[tokio::test]
async fn an_attempt_that_stalls_after_its_message_is_reset_at_its_limit_and_repeated() {
    let fields = "hold_unary: true, retry: { max_attempts: 3, per_attempt_timeout: 1s, backoff: { none: {} }, \
                  codes: { allow: [UNAVAILABLE, DEADLINE_EXCEEDED] } }";
    let peer = Peer::start([Reply::begin().message("half"), Reply::begin(), Reply::ok("yes")]).await;
    let world = World::new(&peer, fields).await;
    assert_eq!(world.call("one").await.unwrap().into_inner(), "yes");
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen.iter().map(|one| one.reset).collect::<Vec<_>>(), [Some(CANCEL), Some(CANCEL), None]);
    world.ended(&[("ok_after_retry", 1)]);
}

#[tokio::test]
async fn the_deadline_ends_a_held_answer_too() {
    let peer = Peer::start([Reply::begin().message("half")]).await;
    let world = World::new(&peer, &format!("timeout: 2s, {HELD}")).await;
    assert_eq!(world.call("one").await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(peer.until_all_are_over().await[0].reset, Some(CANCEL));
    world.ended(&[("deadline", 1)]);
}

#[tokio::test]
async fn a_call_dropped_while_its_answer_is_held_is_reset() {
    let peer = Peer::start([Reply::begin().message("half"), Reply::ok("again")]).await;
    let world = World::new(&peer, HELD).await;
    let mut call = Box::pin(world.call("one"));
    tokio::select! {
        _ = &mut call => panic!("the answer is held"),
        _ = peer.until("the request", |seen| seen.len() == 1 && seen[0].whole) => drop(call),
    }
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen.iter().map(|one| one.reset).collect::<Vec<_>>(), [Some(CANCEL)]);
    world.ended(&[("cancelled", 1)]);
}

#[tokio::test]
async fn of_two_held_answers_the_first_that_ends_well_wins() {
    let fields = "hold_unary: true, hedge: { delay: { fixed: 30ms } }";
    // The first begins and stalls: held back, so that the hedge still comes and wins.
    let peer = Peer::start([Reply::begin().message("stalled"), Reply::ok("yes")]).await;
    let world = World::new(&peer, fields).await;
    assert_eq!(world.call("one").await.unwrap().into_inner(), "yes");
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen.iter().map(|one| one.reset).collect::<Vec<_>>(), [Some(CANCEL), None]);
    world.ended(&[("ok_by_hedge", 1)]);
}
