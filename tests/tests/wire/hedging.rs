//! Attempts beside one another: what the peer sees of the winner and of those that lost.

use std::time::Instant;

use damper_tests::peer::{Act, Gate, Peer, Reply, Seen, framed};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use super::world::{Sends, World, ms, path, within};

const CANCEL: u32 = 8;

/// One hedge after 60 ms.
const HEDGED: &str = "hedge: { delay: { fixed: 60ms } }";
/// Three attempts, hedged or retried.
const MIXED: &str = "hedge: { delay: { fixed: 1s }, max_hedges: 2 }, \
                     retry: { max_attempts: 3, backoff: { fixed: { delay: 10ms } } }";

fn resets(seen: &[Seen]) -> Vec<Option<u32>> {
    seen.iter().map(|request| request.reset).collect()
}

fn flags(seen: &[Seen]) -> Vec<Option<&str>> {
    seen.iter().map(|request| request.header("damper-retry")).collect()
}

#[tokio::test]
async fn a_slow_attempt_is_overtaken_by_a_hedge_and_reset() {
    let peer = Peer::start([Reply::hang(), Reply::ok("yes")]).await;
    let world = World::new(&peer, HEDGED).await;
    let started = Instant::now();
    assert_eq!(world.call("one").await.unwrap().into_inner(), "yes");
    let seen = peer.until_all_are_over().await;
    // From the call on: the first request may have been long on its way.
    let hedged = seen[1].arrived - started;
    assert!(hedged >= ms(60), "{hedged:?}");
    assert_eq!(resets(&seen), [Some(CANCEL), None]);
    assert_eq!(flags(&seen), [None, Some("1")]);
    assert_eq!(seen[1].header("grpc-previous-rpc-attempts"), Some("1"));
    assert_eq!(seen[0].body, seen[1].body);
    assert_eq!((world.sends().attempts, world.hedges()), (2, 1));
    world.ended(&[("ok_by_hedge", 1)]);
}

#[tokio::test]
async fn the_first_attempt_may_still_win_and_the_hedge_is_reset() {
    let gate = Gate::closed();
    let first = Reply::hang().then(Act::Until(gate.clone()));
    let first = first.then(Act::Headers(200, http::HeaderMap::new(), false)).message("first");
    let peer = Peer::start([first.trailers(&[("grpc-status", "0")]), Reply::hang()]).await;
    let world = World::new(&peer, HEDGED).await;
    let hedge = async {
        peer.until("the hedge", |seen| seen.len() == 2).await;
        gate.open();
    };
    let (answer, ()) = tokio::join!(world.call("one"), hedge);
    assert_eq!(answer.unwrap().into_inner(), "first");
    assert_eq!(resets(&peer.until_all_are_over().await), [None, Some(CANCEL)]);
    assert_eq!(world.hedges(), 1);
    world.ended(&[("ok", 1)]);
}

#[tokio::test]
async fn an_answer_within_the_delay_needs_no_hedge() {
    let peer = Peer::start([Reply::ok("yes"), Reply::ok("again")]).await;
    let world = World::new(&peer, "hedge: { delay: { fixed: 10s } }").await;
    world.call("one").await.unwrap();
    assert_eq!(peer.until_all_are_over().await.len(), 1);
    world.ended(&[("ok", 1)]);
}

#[tokio::test]
async fn an_answer_that_began_is_not_hedged_however_slow_its_body_is() {
    let slow = Reply::begin().pause(ms(2_000)).message("slow").trailers(&[("grpc-status", "0")]);
    let peer = Peer::start([slow, Reply::ok("again")]).await;
    let world = World::new(&peer, "hedge: { delay: { fixed: 1s } }").await;
    assert_eq!(world.call("one").await.unwrap().into_inner(), "slow");
    assert_eq!(peer.until_all_are_over().await.len(), 1);
    world.ended(&[("ok", 1)]);
}

#[tokio::test]
async fn an_answer_that_begins_wins_at_once_and_the_others_are_reset_before_it_ends() {
    let gate = Gate::closed();
    let begun = Reply::begin().message("half").then(Act::Until(gate.clone()));
    let peer = Peer::start([Reply::hang(), begun.message("rest").trailers(&[("grpc-status", "0")])]).await;
    let world = World::new(&peer, HEDGED).await;
    let (first, mut rest) = world.begin().await;
    assert_eq!(first, "half");
    let seen = peer.until("the loser is reset", |seen| seen[0].over).await;
    assert_eq!(resets(&seen), [Some(CANCEL), None]);
    gate.open();
    assert_eq!(within("the rest", rest.message()).await.unwrap().unwrap(), "rest");
    assert!(within("the end", rest.message()).await.unwrap().is_none());
    world.ended(&[("ok_by_hedge", 1)]);
}

#[tokio::test]
async fn a_failure_does_not_end_a_call_that_another_attempt_can_still_win() {
    let gate = Gate::closed();
    let slow = Reply::hang().then(Act::Until(gate.clone()));
    let slow = slow.then(Act::Headers(200, http::HeaderMap::new(), false)).message("slow");
    let peer = Peer::start([slow.trailers(&[("grpc-status", "0")]), Reply::unavailable()]).await;
    let world = World::new(&peer, HEDGED).await;
    let hedge = async {
        peer.until("the hedge failed", |seen| seen.len() == 2 && seen[1].over).await;
        gate.open();
    };
    let (answer, ()) = tokio::join!(world.call("one"), hedge);
    assert_eq!(answer.unwrap().into_inner(), "slow");
    assert_eq!(peer.seen().len(), 2);
    world.ended(&[("ok", 1)]);
}

#[tokio::test]
async fn a_code_that_is_not_retried_ends_the_call_and_resets_what_is_under_way() {
    let peer = Peer::start([Reply::hang(), Reply::error(5)]).await;
    let world = World::new(&peer, HEDGED).await;
    assert_eq!(world.call("one").await.unwrap_err().code(), Code::NotFound);
    assert_eq!(resets(&peer.until_all_are_over().await), [Some(CANCEL), None]);
    world.ended(&[("not_retryable", 1)]);
}

#[tokio::test]
async fn a_failure_while_another_attempt_is_under_way_brings_the_next_hedge_forward() {
    let fields = "hedge: { delay: { fixed: 2s }, max_hedges: 2 }";
    let peer = Peer::start([Reply::hang(), Reply::unavailable(), Reply::ok("yes")]).await;
    let world = World::new(&peer, fields).await;
    assert_eq!(world.call("one").await.unwrap().into_inner(), "yes");
    let seen = peer.until_all_are_over().await;
    assert_eq!(resets(&seen), [Some(CANCEL), None, None]);
    assert_eq!(flags(&seen), [None, Some("1"), Some("2")]);
    assert!(seen[2].arrived - seen[1].arrived < ms(2_000), "without the delay");
    world.ended(&[("ok_by_hedge", 1)]);
}

#[tokio::test]
async fn when_every_attempt_failed_the_application_gets_the_last_error() {
    let failed = |message| Reply::trailers_only(&[("grpc-status", "14"), ("grpc-message", message)]);
    let gate = Gate::closed();
    let first = Reply::hang().then(Act::Until(gate.clone())).then(Act::Reset(7));
    let peer = Peer::start([first, failed("hedge"), failed("resent")]).await;
    let world = World::new(&peer, HEDGED).await;
    let hedge = async {
        peer.until("the hedge failed", |seen| seen.len() == 2 && seen[1].over).await;
        gate.open();
    };
    let (answer, ()) = tokio::join!(world.call("one"), hedge);
    // The first was refused, so that it was sent once more and failed as well.
    let error = answer.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unavailable, "resent"));
    assert_eq!(world.sends().resends, 1);
    world.ended(&[("attempts_exhausted", 1)]);
}

#[tokio::test]
async fn the_deadline_resets_every_attempt() {
    let fields = "timeout: 2s, hedge: { delay: { fixed: 20ms }, max_hedges: 4 }";
    let peer = Peer::by(|_| Reply::hang()).await;
    let world = World::new(&peer, fields).await;
    let started = Instant::now();
    assert_eq!(world.call("one").await.unwrap_err().code(), Code::DeadlineExceeded);
    assert!(started.elapsed() >= ms(1_995));
    let seen = peer.until_all_are_over().await;
    assert_eq!(resets(&seen), [Some(CANCEL); 5]);
    let mut told = seen.iter().map(|request| {
        let value = request.header("grpc-timeout").unwrap().strip_suffix('u').unwrap();
        value.parse::<u64>().unwrap()
    });
    assert!(told.by_ref().is_sorted_by(|earlier, later| earlier > later && *later > 0));
    world.ended(&[("deadline", 1)]);
}

#[tokio::test]
async fn a_call_dropped_with_several_attempts_under_way_resets_them_all() {
    let peer = Peer::by(|_| Reply::hang()).await;
    let world = World::new(&peer, "hedge: { delay: { fixed: 10ms }, max_hedges: 4 }").await;
    let mut call = Box::pin(world.call("one"));
    tokio::select! {
        _ = &mut call => panic!("nobody answers"),
        _ = peer.until("five requests", |seen| seen.len() == 5 && seen.iter().all(|one| one.whole)) => drop(call),
    }
    assert_eq!(resets(&peer.until_all_are_over().await), [Some(CANCEL); 5]);
    world.ended(&[("cancelled", 1)]);
}

#[tokio::test]
async fn a_connection_lost_under_several_attempts_leaves_one_fate() {
    let gate = Gate::closed();
    let lost = gate.clone();
    let peer = Peer::by(move |place| match place {
        0 => Reply::hang(),
        1 => Reply::hang().then(Act::Until(lost.clone())).then(Act::HangUp),
        _ => Reply::ok("yes"),
    })
    .await;
    let world = World::new(&peer, MIXED).await;
    let loss = async {
        peer.until("the hedge", |seen| seen.len() == 2).await;
        gate.open();
    };
    let (answer, ()) = tokio::join!(world.call("one"), loss);
    assert_eq!(answer.unwrap().into_inner(), "yes");
    let seen = peer.until_all_are_over().await;
    assert_eq!(seen.len(), 3);
    assert_eq!(world.sends().attempts, 3);
    assert!(world.has_ended(1), "{:?}", world.fates());
}

#[tokio::test]
async fn mixed_mode_retries_what_fails_and_hedges_what_is_slow() {
    let peer = Peer::start([Reply::unavailable(), Reply::hang(), Reply::ok("yes")]).await;
    let world = World::new(&peer, MIXED).await;
    let started = Instant::now();
    assert_eq!(world.call("one").await.unwrap().into_inner(), "yes");
    let seen = peer.until_all_are_over().await;
    assert_eq!(resets(&seen), [None, Some(CANCEL), None]);
    assert_eq!(flags(&seen), [None, Some("1"), Some("2")]);
    assert!(seen[2].arrived - started >= ms(10 + 1_000), "the wait, then the delay");
    assert_eq!(world.sends().attempts, 3);
    world.ended(&[("ok_by_hedge", 1)]);
}

#[tokio::test]
async fn hedges_and_retries_together_keep_to_the_attempts_of_the_rule() {
    let peer = Peer::by(|_| Reply::hang()).await;
    let fields = "timeout: 2s, hedge: { delay: { fixed: 10ms }, max_hedges: 4 }, retry: { max_attempts: 3 }";
    let world = World::new(&peer, fields).await;
    world.call("one").await.unwrap_err();
    assert_eq!(peer.until_all_are_over().await.len(), 3);
    world.ended(&[("deadline", 1)]);
}

#[tokio::test]
async fn a_request_that_is_not_kept_is_not_hedged() {
    let gate = Gate::closed();
    let late =
        Reply::hang().then(Act::Until(gate.clone())).then(Act::Headers(200, http::HeaderMap::new(), false));
    let peer = Peer::start([late.message("yes").trailers(&[("grpc-status", "0")]), Reply::ok("again")]).await;
    let world = World::new(&peer, "hedge: { delay: { fixed: 5ms } }").await;
    let (send, receive) = mpsc::channel::<String>(1);
    let mut grpc = world.grpc().await;
    let codec = ProstCodec::<String, String>::default();
    let calling = grpc.client_streaming(Request::new(ReceiverStream::new(receive)), path(), codec);
    let serving = async {
        send.send("one".to_owned()).await.unwrap();
        // Many times the delay of a hedge, by the clock that the hedge would go by.
        tokio::time::sleep(ms(100)).await;
        gate.open();
        drop(send);
    };
    let (answer, ()) = tokio::join!(within("the answer", calling), serving);
    assert_eq!(answer.unwrap().into_inner(), "yes");
    let seen = peer.until_all_are_over().await;
    assert_eq!((seen.len(), seen[0].body.as_slice()), (1, framed("one").as_ref()));
    assert_eq!(world.sends(), Sends { attempts: 1, retries: 0, resends: 0 });
    world.ended(&[("ok", 1)]);
}

#[tokio::test]
async fn a_large_answer_of_the_winner_arrives_whole() {
    let large = "a".repeat(3 << 20);
    let peer = Peer::start([Reply::hang(), Reply::ok(&large)]).await;
    let world = World::new(&peer, HEDGED).await;
    assert!(world.call("one").await.unwrap().into_inner() == large);
    assert_eq!(resets(&peer.until_all_are_over().await), [Some(CANCEL), None]);
    world.ended(&[("ok_by_hedge", 1)]);
}

#[tokio::test]
async fn a_pushback_that_forbids_retries_forbids_further_hedges_too() {
    let stop = Reply::trailers_only(&[("grpc-status", "14"), ("grpc-retry-pushback-ms", "-1")]);
    let gate = Gate::closed();
    let slow =
        Reply::hang().then(Act::Until(gate.clone())).then(Act::Headers(200, http::HeaderMap::new(), false));
    let peer =
        Peer::start([slow.message("slow").trailers(&[("grpc-status", "0")]), stop, Reply::ok("again")]).await;
    let world = World::new(&peer, "hedge: { delay: { fixed: 500ms }, max_hedges: 4 }").await;
    let serving = async {
        peer.until("the pushback", |seen| seen.len() == 2 && seen[1].over).await;
        // Several times the delay of the next hedge, by the clock that it would go by.
        tokio::time::sleep(ms(1_500)).await;
        gate.open();
    };
    let (answer, ()) = tokio::join!(world.call("one"), serving);
    assert_eq!(answer.unwrap().into_inner(), "slow", "an attempt under way may still win");
    assert_eq!(peer.until_all_are_over().await.len(), 2);
    world.ended(&[("ok", 1)]);
}
