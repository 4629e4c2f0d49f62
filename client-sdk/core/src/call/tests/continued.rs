//! Tests of calls that begin with a retry, because earlier calls sent the request.

use super::kills::held;
use super::*;
use crate::policy::{Budget, CircuitBreaker, Hedge, HedgeDelay};

const OK: Verdict = Verdict::Success;

fn after(sends_before: u32) -> CallStart {
    CallStart { sends_before, ..start() }
}

fn with_budget(mode: Mode) -> Policy {
    Policy { budget: Some(Budget { ratio: Ratio::from_bp(100), min_per_second: 1 }), ..policy_in(mode) }
}

fn policy_in(mode: Mode) -> Policy {
    Policy { mode, ..policy() }
}

#[track_caller]
fn blocked(route: &Route, fate: Fate, answer: Answer) {
    let before = route.state().counters.attempts();
    let mut call = Call::begin(route, after(2));
    let Step::Finish(finish) = call.next_step(route, CALLS_BEGIN) else { panic!("it is not sent") };
    assert_eq!((finish.ending, finish.answer), (Ending::real(fate), answer));
    assert_eq!(route.state().counters.attempts(), before);
}

#[track_caller]
fn sent(route: &Route) -> SendAttempt {
    let Step::Send(send) = Call::begin(route, after(2)).next_step(route, CALLS_BEGIN) else {
        panic!("it is sent")
    };
    send
}

#[test]
fn continued_call_makes_one_attempt_and_counts_on() {
    let hedging =
        Policy { hedge: Some(Hedge { delay: HedgeDelay::Fixed(ms(1)), max_hedges: 2 }), ..policy() };
    for (policy, verdict, fate) in [
        (policy(), OK, Fate::OkAfterRetry),
        (hedging, OK, Fate::OkAfterRetry),
        (policy(), UNAVAILABLE, Fate::PolicyOff),
        (policy(), Verdict::Unsent, Fate::PolicyOff),
        (policy(), Verdict::Unprocessed, Fate::PolicyOff),
    ] {
        let driven = check(policy, after(4), &[verdict], fate, 1);
        let send = driven.sends[0].1;
        assert_eq!((send.kind, send.flag, send.previous_attempts()), (AttemptKind::Retry, Some(4), 4));
        assert_eq!(driven.finish.answer, Answer::Attempt(5));
        assert!(!driven.finish.marks_context, "the queue may deliver it again");
    }
    let route = route(policy());
    let (last, mut call) = (after(u32::MAX), Call::begin(&route, after(3)));
    call.limit_attempts(5);
    assert_eq!(drive_call(&route, call, CALLS_BEGIN, &[UNAVAILABLE]).sends.len(), 1);
    assert_eq!(drive(&route, last, &[UNAVAILABLE]).sends[0].1.flag, Some(u32::MAX));
    let counters = &route.state().counters;
    assert_eq!((counters.calls(), counters.retries(), counters.attempts()), (2, 2, 2));
}

#[test]
fn flag_of_a_delivery_is_not_added_to_its_sends() {
    for (flag, expected) in [(None, 4), (Some(4), 4), (Some(9), 9)] {
        let start = CallStart { flag, ..after(4) };
        let driven = check(policy(), start, &[OK], Fate::OkAfterRetry, 1);
        assert_eq!(driven.sends[0].1.flag, Some(expected));
    }
}

#[test]
fn kill_of_retries_blocks_a_continued_call() {
    let route_in = |mode| route(policy_in(mode));
    for route in [Route::new(None), route_in(Mode::Off), route_in(Mode::Observe), route_in(Mode::Enforce)] {
        sent(&route);
        for kill in [held(false, 10), held(true, 10)] {
            route.switch().obey(&[kill]);
            blocked(&route, Fate::Killed, Answer::Killed);
        }
        route.switch().obey(&[held(false, 0)]);
        sent(&route);
    }
}

#[test]
fn budget_blocks_a_continued_call_only_in_enforce() {
    for mode in [Mode::Observe, Mode::Enforce] {
        let route = route(with_budget(mode));
        (0..10).for_each(|_| _ = sent(&route));
        match mode {
            Mode::Enforce => blocked(&route, Fate::Budget, Answer::Blocked),
            _ => _ = sent(&route),
        }
    }
}

#[test]
fn open_circuit_or_deadline_blocks_a_continued_call() {
    let settings = CircuitBreaker { min_calls: 1, ..CircuitBreaker::default() };
    let route = route(Policy { circuit_breaker: Some(settings), ..policy() });
    drive(&route, after(1), &[UNAVAILABLE]);
    blocked(&route, Fate::CircuitOpen, Answer::CircuitOpen);
    let late = CallStart { deadline: Some(CALLS_BEGIN), ..after(1) };
    check(policy(), late, &[], Fate::Deadline, 0);
}

#[test]
fn continued_call_neither_asks_nor_moves_the_credit() {
    let breaker = RetryBreaker { mode: BreakerMode::Credit, ..RetryBreaker::default() };
    let route = route(Policy { retry_breaker: Some(breaker), ..policy() });
    let drive_all = |calls, start, verdict| (0..calls).for_each(|_| _ = drive(&route, start, &[verdict; 3]));
    drive_all(1_000, after(1), OK);
    assert!(route.blocks_next_retry(&breaker, CALLS_BEGIN), "successes earn nothing");
    sent(&route);
    drive_all(1_000, start(), OK);
    drive_all(100, after(1), UNAVAILABLE);
    assert!(!route.blocks_next_retry(&breaker, CALLS_BEGIN), "failures cost nothing");
    let retries = || route.state().counters.retries();
    let before = retries();
    drive_all(100, start(), UNAVAILABLE);
    assert!(retries() > before && route.blocks_next_retry(&breaker, CALLS_BEGIN), "retries of calls do");
}
