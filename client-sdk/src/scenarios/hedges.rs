//! Hedges through the layers, on a paused clock: when each is sent, and what happens to the losers.

use damper_core::{Budget, Hedge, HedgeDelay};
use tokio::time::Instant;

use super::peer::{Peer, Reply, ScriptedBody, after, begun, data, ok, trailers, unavailable};
use super::*;

fn hedged(max_hedges: u32) -> Policy {
    let hedge = Hedge { delay: HedgeDelay::Fixed(ms(50)), max_hedges };
    Policy { retry: None, hedge: Some(hedge), ..enforce() }
}

fn mixed() -> Policy {
    Policy { retry: enforce().retry, ..hedged(1) }
}

struct Played {
    answer: Answer,
    took: Duration,
    peer: Peer,
    engine: Arc<Runtime>,
}

impl Played {
    /// Start of each attempt, in milliseconds.
    fn sent_at(&self, began: Instant) -> Vec<u128> {
        self.peer.seen().iter().map(|seen| (seen.at - began).as_millis()).collect()
    }
}

async fn play(policy: Policy, script: impl IntoIterator<Item = Reply>) -> (Played, Instant) {
    let engine = engine(policy);
    let peer = Peer::new(script);
    let began = Instant::now();
    let answer = call(&mut governed(&engine, peer.clone()), request()).await.unwrap();
    (Played { answer, took: began.elapsed(), peer, engine }, began)
}

#[tokio::test(start_paused = true)]
async fn a_slow_attempt_is_overtaken_by_a_hedge_and_dropped() {
    let (played, began) = play(hedged(1), [Reply::Hang, after(20, ok())]).await;
    assert_eq!((played.answer.status(), played.took), ("0", ms(70)));
    assert_eq!(played.sent_at(began), [0, 50]);
    assert!(played.peer.was_hung_up(), "the loser was cancelled");
    ended(&played.engine, &[("ok_by_hedge", 1)]);
}

#[tokio::test(start_paused = true)]
async fn the_first_attempt_may_still_win() {
    let (played, _) = play(hedged(1), [after(60, ok()), Reply::Hang]).await;
    assert_eq!((played.answer.status(), played.took), ("0", ms(60)));
    assert!(played.peer.was_hung_up());
    ended(&played.engine, &[("ok", 1)]);
}

#[tokio::test(start_paused = true)]
async fn hedges_are_the_same_request_and_say_that_they_are_repeats() {
    let (played, _) = play(hedged(2), [Reply::Hang, Reply::Hang, ok()]).await;
    let seen = played.peer.seen();
    let marks: Vec<_> = seen
        .iter()
        .map(|seen| {
            let text = |name| seen.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
            (text("damper-retry"), text("grpc-previous-rpc-attempts"))
        })
        .collect();
    let some = |n: &str| (Some(n.to_owned()), Some(n.to_owned()));
    assert_eq!(marks, [(None, None), some("1"), some("2")]);
    assert!(seen.iter().all(|seen| seen.body == ["hello"]));
}

#[tokio::test(start_paused = true)]
async fn a_failing_hedge_leaves_the_first_attempt_running() {
    let (played, _) = play(hedged(1), [after(200, ok()), unavailable()]).await;
    assert_eq!((played.answer.status(), played.took), ("0", ms(200)));
    ended(&played.engine, &[("ok", 1)]);
}

#[tokio::test(start_paused = true)]
async fn when_all_have_failed_the_application_gets_the_last_answer() {
    let last = peer::trailers_only(&[("grpc-status", "14"), ("grpc-message", "the last")]);
    let (played, _) = play(hedged(1), [after(200, last), unavailable()]).await;
    assert_eq!(played.answer.headers["grpc-message"], "the last");
    ended(&played.engine, &[("attempts_exhausted", 1)]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_begins_wins_although_its_body_is_slow() {
    let body = ScriptedBody::over([data("world"), trailers(&[("grpc-status", "0")])]);
    let (played, _) = play(hedged(1), [Reply::Hang, after(10, begun(body))]).await;
    assert_eq!((played.answer.data.as_slice(), played.took), ([Bytes::from("world")].as_slice(), ms(60)));
    assert!(played.peer.was_hung_up());
    ended(&played.engine, &[("ok_by_hedge", 1)]);
}

#[tokio::test(start_paused = true)]
async fn mixed_retries_what_fails_and_hedges_what_is_slow() {
    let (played, began) = play(mixed(), [after(5, unavailable()), Reply::Hang, after(20, ok())]).await;
    assert_eq!(played.sent_at(began), [0, 15, 65]);
    assert_eq!(played.took, ms(85));
    ended(&played.engine, &[("ok_by_hedge", 1)]);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_drops_every_attempt() {
    let policy = Policy { timeout: Some(ms(120)), ..hedged(1) };
    let (played, _) = play(policy, [Reply::Hang, Reply::Hang]).await;
    assert_eq!((played.answer.status(), played.took), ("4", ms(120)));
    assert!(played.peer.was_hung_up());
    ended(&played.engine, &[("deadline", 1)]);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_call_drops_every_attempt() {
    let engine = engine(hedged(2));
    let peer = Peer::new([Reply::Hang, Reply::Hang, Reply::Hang]);
    let mut service = governed(&engine, peer.clone());
    let dropped = tokio::time::timeout(ms(120), call(&mut service, request())).await;
    assert!(dropped.is_err() && peer.was_hung_up());
    assert_eq!(peer.seen().len(), 3);
    ended(&engine, &[("cancelled", 1)]);
    assert_eq!(engine.memory().in_use(), 0, "the buffer is released");
}

#[tokio::test(start_paused = true)]
async fn a_hedge_beyond_the_budget_is_not_sent() {
    let budget = Some(Budget { min_per_second: 0, ..Budget::default() });
    let (played, _) = play(Policy { budget, ..hedged(1) }, [after(200, ok())]).await;
    assert_eq!(played.took, ms(200));
    ended(&played.engine, &[("ok", 1)]);
}

#[tokio::test(start_paused = true)]
async fn an_open_circuit_answers_at_once_and_sends_nothing() {
    let circuit_breaker = Some(damper_core::CircuitBreaker::default());
    let engine = engine(Policy { circuit_breaker, retry: None, ..enforce() });
    let peer = Peer::new([(); 5].map(|()| unavailable()));
    let mut service = governed(&engine, peer.clone());
    for _ in 0..5 {
        call(&mut service, request()).await.unwrap();
    }
    let answer = call(&mut service, request()).await.unwrap();
    assert!(answer.trailers_only);
    assert_eq!((answer.status(), peer.seen().len()), ("14", 5));
    ended(&engine, &[("circuit_open", 1), ("policy_off", 5)]);
}

#[tokio::test(start_paused = true)]
async fn a_policy_change_during_calls_loses_no_count() {
    let engine = engine(mixed());
    let script = [after(60, unavailable()), after(20, unavailable()), after(20, ok())];
    let peer = Peer::new(script.into_iter().chain([after(20, unavailable()), ok(), ok()]));
    let mut service = governed(&engine, peer.clone());
    let changes = async {
        // While the first attempt is in flight, during the wait, and while a hedge is in flight.
        for policy in [observe(), hedged(2), enforce()] {
            tokio::time::sleep(ms(30)).await;
            engine.apply(table(policy));
            engine.limit_mode(Some(Mode::Off));
            engine.limit_mode(None);
        }
        engine.apply(Table::default());
        engine.apply(table(mixed()));
    };
    let calls = async {
        for _ in 0..3 {
            assert_eq!(call(&mut service, request()).await.unwrap().status(), "0");
        }
    };
    tokio::join!(changes, calls);
    ended(&engine, &[("ok", 1), ("ok_after_retry", 2)]);
    assert_eq!(peer.seen().len(), 6);
}
