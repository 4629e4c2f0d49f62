//! Tests of which failures count against the callee.

use super::timeline::{Goes, play};
use super::*;
use crate::outcome::classify::TransportFault;
use crate::policy::{CircuitBreaker, Hedge, HedgeDelay};
use crate::time::window::Counts;

use super::gates::Dice;
use Goes::{Ends, Never};

fn with_circuit() -> Policy {
    Policy { circuit_breaker: Some(CircuitBreaker::default()), ..policy() }
}

fn hedged(max_hedges: u32) -> Policy {
    let hedge = Hedge { delay: HedgeDelay::Fixed(ms(50)), max_hedges };
    Policy { retry: None, hedge: Some(hedge), retry_breaker: Some(RetryBreaker::default()), ..policy() }
}

/// Runs a call with a deadline from outside, whose attempt is answered after `takes` ms unless it is cut
/// before.
fn limited(route: &Route, now: Time, deadline: Duration, takes: u64) -> Finish {
    let start = CallStart { now, deadline: Some(now + deadline), ..start() };
    play(route, start, &[Ends(takes, Verdict::Success)]).finish.unwrap()
}

#[test]
fn attempt_that_a_timer_ended_is_a_failure() {
    let route = route(with_circuit());
    for _ in 0..40 {
        drive(&route, start(), &[TransportFault::TimedOut.verdict()]);
    }
    assert_eq!(route.window().counts(at(10)).successes, 0);
    assert_eq!(drive(&route, start(), &[]).finish.ending.fate, Fate::CircuitOpen);
}

#[test]
fn cancellation_by_the_callee_is_a_failure() {
    let route = route(policy());
    drive(&route, start(), &[failed(Code::Cancelled)]);
    assert_eq!(route.window().counts(at(10)), Counts { failures: 1, successes: 0 });
}

#[test]
fn timer_that_ends_one_attempt_leaves_the_hedge_running() {
    let script = [Ends(60, TransportFault::TimedOut.verdict()), Ends(30, Verdict::Success)];
    let timeline = play(&route(hedged(1)), start(), &script);
    assert_eq!((timeline.ended, timeline.fate()), (80, "ok_by_hedge"));
    let mut policy = Policy { hedge: hedged(1).hedge, ..policy() };
    policy.retry.as_mut().unwrap().per_attempt_timeout = Some(ms(60));
    let timeline = play(&route(policy), start(), &[Never, Ends(30, Verdict::Success)]);
    assert_eq!((timeline.ended, timeline.fate()), (80, "ok_by_hedge"), "the rule's own limit likewise");
}

#[test]
fn timer_retries_as_deadline_exceeded_and_keeps_its_answer() {
    let timed_out = TransportFault::TimedOut.verdict();
    let policy = with_retry(|retry| retry.codes = CodeSet::of(&[Code::DeadlineExceeded]));
    check(policy, start(), &[timed_out, Verdict::Success], Fate::OkAfterRetry, 2);
    let driven = check(super::policy(), start(), &[timed_out], Fate::NotRetryable, 1);
    assert_eq!(driven.finish.answer, Answer::Attempt(1), "a timer of the application's own");
    let policy = with_retry(|retry| retry.per_attempt_timeout = Some(ms(11)));
    let driven = check(policy, start(), &[timed_out], Fate::NotRetryable, 1);
    assert_eq!(driven.finish.answer, Answer::TimedOut, "at the rule's limit");
}

#[test]
fn unsent_request_is_resent_and_not_counted() {
    let sent_after = |unsent: usize| {
        let route = route(with_circuit());
        let mut verdicts = vec![Verdict::Unsent; unsent];
        verdicts.push(Verdict::Success);
        let driven = drive(&route, start(), &verdicts);
        let counts = route.window().counts(at(500));
        (driven.finish.ending.fate, driven.sends.len(), driven.sends.last().unwrap().1.attempt, counts)
    };
    let good = Counts { failures: 0, successes: 1 };
    assert_eq!(sent_after(4), (Fate::Ok, 5, 1, good));
    assert_eq!(sent_after(5).0, Fate::OkAfterRetry, "then it is retried, with backoff");
    let unseen = [Verdict::Unprocessed, Verdict::Unsent, Verdict::Unsent, Verdict::Success];
    check(policy(), start(), &unseen, Fate::Ok, 4);
    let route = route(Policy { retry: None, ..with_circuit() });
    (0..40).for_each(|_| _ = drive(&route, start(), &[Verdict::Unsent]));
    assert_eq!(
        drive(&route, start(), &[Verdict::Success]).finish.ending.fate,
        Fate::Ok,
        "the callee did nothing"
    );
}

#[test]
fn locally_rejected_attempt_is_not_counted() {
    let route = route(with_circuit());
    for _ in 0..40 {
        assert_eq!(drive(&route, start(), &[Verdict::Local]).finish.ending.fate, Fate::NotRetryable);
    }
    assert_eq!(route.window().counts(at(10)), Counts::default());
    assert_eq!(drive(&route, start(), &[Verdict::Success]).finish.ending.fate, Fate::Ok);
    let policy = with_retry(|retry| retry.codes = CodeSet::of(&[Code::ResourceExhausted]));
    check(policy, start(), &[Verdict::Local, Verdict::Success], Fate::OkAfterRetry, 2);
}

#[test]
fn short_deadlines_from_outside_open_no_circuit() {
    let route = route(with_circuit());
    for _ in 0..40 {
        drive(&route, CallStart { deadline: Some(at(2)), ..start() }, &[]);
    }
    assert_eq!(route.window().counts(at(2)), Counts::default());
    let later = CallStart { now: at(100), ..start() };
    assert_eq!(drive(&route, later, &[Verdict::Success]).finish.ending.fate, Fate::Ok);
}

#[test]
fn rule_s_own_short_limits_count_as_failures() {
    let route = route(Policy { timeout: Some(ms(2)), ..with_circuit() });
    for _ in 0..5 {
        drive(&route, CallStart { deadline: Some(at(900)), ..start() }, &[]);
    }
    assert_eq!(drive(&route, start(), &[]).finish.ending.fate, Fate::CircuitOpen);
}

#[test]
fn deadline_from_outside_counts_once_it_is_usual() {
    let route = route(with_circuit());
    (0..100).for_each(|_| _ = limited(&route, CALLS_BEGIN, ms(500), 100));
    let failures = |deadline| {
        let before = route.window().counts(at(900)).failures;
        limited(&route, at(100), ms(deadline), 10_000);
        route.window().counts(at(900)).failures - before
    };
    assert_eq!((failures(80), failures(120)), (0, 1));
}

#[test]
fn outage_is_seen_by_deadlines_that_were_usual_before() {
    let route = route(with_circuit());
    (0..100).for_each(|_| _ = limited(&route, CALLS_BEGIN, ms(200), 100));
    // Long after the latencies have expired, the callee still does not respond.
    for second in 1..60 {
        limited(&route, at(second * 1_000), ms(200), 10_000);
    }
    assert_eq!(limited(&route, at(60_000), ms(200), 10_000).ending.fate, Fate::CircuitOpen);
}

#[test]
fn without_known_latencies_a_second_is_long_enough() {
    let failures = |deadline| {
        let route = route(policy());
        limited(&route, CALLS_BEGIN, ms(deadline), 10_000);
        route.window().counts(at(deadline)).failures
    };
    assert_eq!((failures(990), failures(1_000)), (0, 1));
}

/// A quarter of the responses take 100 ms, the others 1 ms. Another caller sets deadlines of 2 to 30 ms and
/// calls a hundred times as often, for a minute.
#[test]
fn flood_of_short_deadlines_does_not_affect_other_calls() {
    let route = route(Policy { retry_breaker: Some(RetryBreaker::default()), ..with_circuit() });
    let mut dice = Dice::new(11);
    let takes = |dice: &mut Dice| if dice.one_in(4) { 100 } else { 1 };
    (0..100).for_each(|_| _ = limited(&route, CALLS_BEGIN, ms(1_000), takes(&mut dice)));
    for millis in (0..60_000).step_by(100) {
        let now = at(1_000 + millis);
        for n in 0..100 {
            let finish = limited(&route, now + ms(n), ms(2 + n % 29), takes(&mut dice));
            assert!(finish.ending.fate != Fate::CircuitOpen, "{millis} ms");
        }
        let script = [Ends(1, UNAVAILABLE), Ends(takes(&mut dice), Verdict::Success)];
        let script = if millis % 2_000 == 0 { &script[..] } else { &script[1..] };
        let others = CallStart { now, deadline: Some(now + ms(1_000)), ..start() };
        assert!(play(&route, others, script).finish.unwrap().ending.fate.is_ok(), "{millis} ms");
    }
}

#[test]
fn hedge_delays_do_not_follow_short_deadlines() {
    let route = route(policy());
    (0..100).for_each(|_| route.state().record(CALLS_BEGIN, ms(100)));
    (0..1_000).for_each(|n| _ = limited(&route, at(100), ms(2), n % 4));
    let median = route.state().recent().unwrap().median(at(100), 20).unwrap();
    assert!(median > ms(90), "{median:?}");
}

#[test]
fn call_that_is_dropped_at_once_was_not_ended_by_its_deadline() {
    let route = route(policy());
    let mut call = Call::begin(&route, CallStart { deadline: Some(at(5)), ..start() });
    call.next_step(&route, at(0));
    assert_eq!(call.dropped(&route, at(1)).unwrap().ending.fate, Fate::Cancelled);
}

#[test]
fn rechecked_hedges_stay_within_the_bound() {
    let route = route(hedged(2));
    (0..10_000).for_each(|_| route.window().count_success(at(50)));
    let mut calls: Vec<_> = (0..1_000).map(|_| Call::begin(&route, start())).collect();
    let hedges = |calls: &mut Vec<Call>, now| {
        let before = route.state().counters.hedges();
        calls.iter_mut().for_each(|call| while matches!(call.next_step(&route, now), Step::Send(_)) {});
        route.state().counters.hedges() - before
    };
    assert_eq!((hedges(&mut calls, at(0)), hedges(&mut calls, at(50))), (0, 1_000));
    // The first hedges fail, which is too much for a second. The first attempts hang.
    calls.iter_mut().for_each(|call| call.attempt_ended(&route, 2, UNAVAILABLE, at(60), 0));
    assert_eq!(hedges(&mut calls, at(60)), 0);
    assert_eq!(hedges(&mut calls, at(11_060)), 1, "the window has forgotten all that failed before");
}

#[test]
fn retry_after_an_overtaken_attempt_stays_within_the_bound() {
    let breaker = RetryBreaker { mode: BreakerMode::Ratio, ..RetryBreaker::default() };
    let policy = Policy { retry_breaker: Some(breaker), ..hedged(1) };
    let route = route(Policy { retry: with_retry(|retry| retry.max_attempts = 3).retry, ..policy });
    (0..10_000).for_each(|_| route.window().count_success(at(50)));
    let mut calls: Vec<_> = (0..500).map(|_| Call::begin(&route, start())).collect();
    for call in &mut calls {
        assert!(matches!(call.next_step(&route, at(0)), Step::Send(_)));
        assert!(matches!(call.next_step(&route, at(50)), Step::Send(_)));
        call.attempt_ended(&route, 2, UNAVAILABLE, at(51), 0);
    }
    (0..30).for_each(|_| route.window().count_success(at(20_000)));
    for call in &mut calls {
        call.attempt_ended(&route, 1, UNAVAILABLE, at(20_000), 0);
    }
    let retried = calls.iter().filter(|call| call.is_between_attempts()).count();
    assert_eq!(retried, 3);
}
