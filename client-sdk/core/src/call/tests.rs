//! Tests of all checks in their order, with a small script: events of a call and the expected steps.
//! `hedging` and `gates` (gates over time) have files of their own.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::fault::Ratio;
use crate::outcome::classify::{Failure, Pushback};
use crate::outcome::code::{Code, CodeSet};
use crate::policy::{Backoff, BreakerMode, Chain, Growth, Jitter, OverMax, Retry, RetryBreaker, Waits};
use crate::rules::pattern::Pattern;
use crate::rules::table::Rule;

mod arriving;
mod blame;
mod continued;
mod gates;
mod hedging;
mod hints;
mod kills;
mod timeline;

const CALLS_BEGIN: Time = Time::from_micros(1_000_000);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at(millis: u64) -> Time {
    CALLS_BEGIN + ms(millis)
}

/// Three attempts, 100 ms apart, no gate.
fn policy() -> Policy {
    Policy {
        retry: Some(Retry {
            backoff: Backoff::Always(Waits::Fixed { delay: ms(100), jitter: Jitter::None }),
            ..Retry::default()
        }),
        retry_breaker: None,
        ..Policy::new(Mode::Enforce)
    }
}

fn with_retry(change: impl FnOnce(&mut Retry)) -> Policy {
    let mut policy = policy();
    change(policy.retry.as_mut().unwrap());
    policy
}

fn route(policy: Policy) -> Route {
    let pattern = Pattern::parse("*", "*", "*", "*").unwrap();
    Route::new(Some(Arc::new(Rule::new(pattern, policy, 1).unwrap())))
}

fn start() -> CallStart {
    CallStart { now: CALLS_BEGIN, deadline: None, flag: None, replayable: true, sends_before: 0 }
}

fn failed(code: Code) -> Verdict {
    Verdict::Failure(Failure::new(code))
}

const UNAVAILABLE: Verdict = Verdict::Failure(Failure::new(Code::Unavailable));

/// Drives a call: each attempt takes 10 ms and ends with the next verdict; waits run to their end.
struct Driven {
    sends: Vec<(u64, SendAttempt)>,
    finish: Finish,
}

fn drive(route: &Route, start: CallStart, verdicts: &[Verdict]) -> Driven {
    drive_call(route, Call::begin(route, start), start.now, verdicts)
}

fn drive_call(route: &Route, mut call: Call, began: Time, verdicts: &[Verdict]) -> Driven {
    let mut now = began;
    let mut sends = Vec::new();
    let mut verdicts = verdicts.iter();
    for _ in 0..100 {
        match call.next_step(route, now) {
            Step::Send(send) => {
                sends.push((now.since(began).as_millis() as u64, send));
                let Step::Wait { until } = call.next_step(route, now) else { panic!("nothing to wait for") };
                match verdicts.next() {
                    Some(verdict) => {
                        now = now + ms(10);
                        call.attempt_ended(route, send.attempt, *verdict, now, 0);
                    }
                    None => now = until.expect("an attempt that never ends has a limit"),
                }
            }
            Step::Wait { until } => now = until.expect("a wait between attempts has an end"),
            Step::Cancel { attempt } => call.attempt_timed_out(route, attempt, now, 0),
            Step::Finish(finish) => return Driven { sends, finish },
        }
    }
    panic!("the call does not end");
}

#[track_caller]
fn check(policy: Policy, start: CallStart, verdicts: &[Verdict], fate: Fate, sends: usize) -> Driven {
    let route = route(policy);
    let driven = drive(&route, start, verdicts);
    assert_eq!((driven.finish.ending, driven.sends.len()), (Ending::real(fate), sends));
    let ended: u64 = Ending::all().map(|ending| route.state().counters.ended(ending)).sum();
    assert_eq!((route.state().counters.calls(), ended), (1, 1), "one fate per call");
    driven
}

#[test]
fn response_ends_the_call() {
    check(policy(), start(), &[Verdict::Success], Fate::Ok, 1);
    let driven = check(policy(), start(), &[UNAVAILABLE, Verdict::Success], Fate::OkAfterRetry, 2);
    assert_eq!(driven.finish.answer, Answer::Attempt(2));
    assert!(!driven.finish.marks_context);
    assert_eq!(driven.sends[1].0, 110, "100 ms after the first attempt ended at 10 ms");
}

#[test]
fn retries_carry_flag_and_number_and_first_attempts_do_not() {
    let driven = check(policy(), start(), &[UNAVAILABLE; 3], Fate::AttemptsExhausted, 3);
    let marks: Vec<_> = driven.sends.iter().map(|(_, send)| (send.flag, send.previous_attempts())).collect();
    assert_eq!(marks, [(None, 0), (Some(1), 1), (Some(2), 2)]);
    assert!(driven.finish.marks_context, "layers above must not retry it");
}

#[test]
fn non_retryable_code_ends_the_call() {
    let driven = check(policy(), start(), &[failed(Code::NotFound)], Fate::NotRetryable, 1);
    assert!(!driven.finish.marks_context);
}

#[test]
fn rule_without_retries_has_the_fate_policy_off() {
    check(with_retry(|retry| retry.max_attempts = 1), start(), &[UNAVAILABLE], Fate::PolicyOff, 1);
    check(Policy { retry: None, ..policy() }, start(), &[failed(Code::NotFound)], Fate::PolicyOff, 1);
    check(Policy { mode: Mode::Off, ..policy() }, start(), &[UNAVAILABLE], Fate::PolicyOff, 1);
}

#[test]
fn application_reduces_the_attempts_of_a_rule() {
    for (limit, fate, attempts) in
        [(1, Fate::PolicyOff, 1), (2, Fate::AttemptsExhausted, 2), (9, Fate::AttemptsExhausted, 3)]
    {
        let route = route(policy());
        let mut call = Call::begin(&route, start());
        call.limit_attempts(limit);
        let driven = drive_call(&route, call, start().now, &[UNAVAILABLE; 3]);
        assert_eq!((driven.finish.ending, driven.sends.len()), (Ending::real(fate), attempts));
        assert_eq!(driven.finish.marks_context, limit > 1, "layers above retry it");
    }
}

#[test]
fn flag_from_below_stops_and_marks_the_context() {
    let flagged = Failure { no_more_retry: true, ..Failure::new(Code::Unavailable) };
    let driven = check(policy(), start(), &[Verdict::Failure(flagged)], Fate::ChainNoMoreRetry, 1);
    assert!(driven.finish.marks_context);
    let flagged = Failure { no_more_retry: true, ..Failure::new(Code::NotFound) };
    let driven = check(policy(), start(), &[Verdict::Failure(flagged)], Fate::NotRetryable, 1);
    assert!(driven.finish.marks_context, "it names the fate for retryable codes only, but always marks");
}

#[test]
fn ignoring_the_flag_ignores_only_the_pushback_sent_with_it() {
    let ignoring = Policy { chain: Chain { ignore_no_more_retry: true, ..Chain::default() }, ..policy() };
    let flagged =
        Failure { no_more_retry: true, pushback: Some(Pushback::Stop), ..Failure::new(Code::Unavailable) };
    check(ignoring.clone(), start(), &[Verdict::Failure(flagged), Verdict::Success], Fate::OkAfterRetry, 2);
    let stopped = Failure { no_more_retry: false, ..flagged };
    check(ignoring, start(), &[Verdict::Failure(stopped)], Fate::Pushback, 1);
}

#[test]
fn pushback_is_waited_exactly_and_restarts_the_sequence() {
    let policy = with_retry(|retry| {
        retry.max_attempts = 5;
        retry.backoff = Backoff::Always(Waits::Exponential {
            base: ms(10),
            multiplier: Ratio::from_bp(20_000),
            growth: Growth { max: ms(1000), over_max: OverMax::Cap, jitter: Jitter::None },
        });
    });
    let pushed = Failure { pushback: Some(Pushback::After(ms(333))), ..Failure::new(Code::Unavailable) };
    let verdicts = [UNAVAILABLE, UNAVAILABLE, Verdict::Failure(pushed), UNAVAILABLE, Verdict::Success];
    let driven = check(policy, start(), &verdicts, Fate::OkAfterRetry, 5);
    let gaps: Vec<_> = driven.sends.windows(2).map(|pair| pair[1].0 - pair[0].0 - 10).collect();
    assert_eq!(gaps, [10, 20, 333, 10]);
}

#[test]
fn pushback_beyond_a_minute_or_the_time_left_stops_at_once() {
    let pushed = |wait| {
        Verdict::Failure(Failure { pushback: Some(Pushback::After(wait)), ..Failure::new(Code::Unavailable) })
    };
    check(policy(), start(), &[pushed(ms(60_001))], Fate::Pushback, 1);
    check(policy(), start(), &[pushed(ms(60_000)), Verdict::Success], Fate::OkAfterRetry, 2);
    let limited = CallStart { deadline: Some(at(1000)), ..start() };
    check(policy(), limited, &[pushed(ms(990))], Fate::Pushback, 1);
    check(policy(), limited, &[pushed(ms(900)), Verdict::Success], Fate::OkAfterRetry, 2);
    // Applied for retryable codes only.
    let other = Failure { pushback: Some(Pushback::After(ms(1))), ..Failure::new(Code::NotFound) };
    check(policy(), start(), &[Verdict::Failure(other)], Fate::NotRetryable, 1);
}

#[test]
fn calls_within_a_retry_are_sent_once_and_pass_the_flag_on() {
    let inside = CallStart { flag: Some(2), ..start() };
    let driven = check(policy(), inside, &[UNAVAILABLE], Fate::ChainRetryFlag, 1);
    assert_eq!(driven.sends[0].1.flag, Some(2));
    assert!(!driven.finish.marks_context, "the layer above is the one retrying");
    let ignoring = Policy { chain: Chain { ignore_retry_flag: true, ..Chain::default() }, ..policy() };
    let driven = check(ignoring, inside, &[UNAVAILABLE; 3], Fate::AttemptsExhausted, 3);
    assert_eq!(driven.sends[2].1.flag, Some(4));
}

#[test]
fn committed_or_not_replayable_call_is_not_retried() {
    check(policy(), CallStart { replayable: false, ..start() }, &[UNAVAILABLE], Fate::NotReplayable, 1);
    let route = route(policy());
    let mut call = Call::begin(&route, start());
    call.next_step(&route, at(0));
    call.attempt_committed(&route, 1, || at(5));
    call.attempt_ended(&route, 1, UNAVAILABLE, at(10), 0);
    let Step::Finish(finish) = call.next_step(&route, at(10)) else { panic!("not finished") };
    assert_eq!(finish.ending.fate, Fate::Committed);
}

#[test]
fn retry_that_would_exceed_max_duration_is_not_sent() {
    let limited = |max| with_retry(|retry| retry.max_duration = Some(ms(max)));
    check(limited(110), start(), &[UNAVAILABLE], Fate::MaxDuration, 1);
    check(limited(111), start(), &[UNAVAILABLE, UNAVAILABLE], Fate::MaxDuration, 2);
}

#[test]
fn retry_that_could_not_finish_in_time_is_not_sent() {
    let limited = |deadline| CallStart { deadline: Some(at(deadline)), ..start() };
    check(policy(), limited(110), &[UNAVAILABLE], Fate::Deadline, 1);
    check(policy(), limited(111), &[UNAVAILABLE, Verdict::Success], Fate::OkAfterRetry, 2);

    let route = route(policy());
    for _ in 0..20 {
        route.state().record(CALLS_BEGIN, ms(80));
    }
    assert_eq!(drive(&route, limited(180), &[UNAVAILABLE]).finish.ending.fate, Fate::Deadline);
    let driven = drive(&route, limited(200), &[UNAVAILABLE, Verdict::Success]);
    assert_eq!(driven.finish.ending.fate, Fate::OkAfterRetry, "100 ms wait and a median of 80 ms fit in 190");
}

#[test]
fn attempt_is_sent_with_the_time_left_or_its_own_limit() {
    let policy = with_retry(|retry| retry.per_attempt_timeout = Some(ms(400)));
    let limited = CallStart { deadline: Some(at(500)), ..start() };
    let driven = check(policy, limited, &[UNAVAILABLE, UNAVAILABLE, Verdict::Success], Fate::OkAfterRetry, 3);
    let limits: Vec<_> = driven.sends.iter().map(|(_, send)| send.limit.unwrap()).collect();
    assert_eq!(limits, [ms(400), ms(390), ms(280)]);
}

#[test]
fn attempt_past_its_limit_is_cancelled_and_retried() {
    let policy = with_retry(|retry| {
        retry.per_attempt_timeout = Some(ms(50));
        retry.codes = CodeSet::of(&[Code::DeadlineExceeded]);
    });
    let driven = check(policy, start(), &[], Fate::AttemptsExhausted, 3);
    assert_eq!(driven.finish.answer, Answer::TimedOut);
    let sent_at: Vec<_> = driven.sends.iter().map(|(at, _)| *at).collect();
    assert_eq!(sent_at, [0, 150, 300]);
}

#[test]
fn earliest_deadline_applies() {
    let deadline = |timeout: Option<u64>, inherited: Option<u64>| {
        let route = route(Policy { timeout: timeout.map(ms), ..policy() });
        Call::begin(&route, CallStart { deadline: inherited.map(at), ..start() }).deadline()
    };
    assert_eq!(deadline(None, None), None);
    assert_eq!(deadline(Some(300), None), Some(at(300)));
    assert_eq!(deadline(Some(300), Some(200)), Some(at(200)));
    assert_eq!(deadline(Some(300), Some(400)), Some(at(300)));
}

#[test]
fn call_ends_at_its_deadline() {
    let policy = Policy { timeout: Some(ms(300)), ..policy() };
    let driven = check(policy, start(), &[], Fate::Deadline, 1);
    assert_eq!(driven.finish.answer, Answer::TimedOut);
    assert!(driven.finish.marks_context);
}

#[test]
fn call_without_time_left_is_not_sent() {
    let late = CallStart { deadline: Some(CALLS_BEGIN), ..start() };
    let route = route(policy());
    let driven = drive(&route, late, &[]);
    assert_eq!((driven.finish.ending.fate, driven.sends.len()), (Fate::Deadline, 0));
    assert_eq!(route.state().counters.attempts(), 0);
}

#[test]
fn cancellation_at_the_limit_is_a_timeout() {
    let policy = with_retry(|retry| {
        retry.per_attempt_timeout = Some(ms(12));
        retry.codes = CodeSet::of(&[Code::DeadlineExceeded]);
    });
    // Attempts end after 10 ms: within the grace of 5 ms.
    let cancelled = failed(Code::Cancelled);
    let driven = check(policy, start(), &[cancelled, Verdict::Success], Fate::OkAfterRetry, 2);
    assert_eq!(driven.sends.len(), 2);
    let policy = with_retry(|retry| retry.per_attempt_timeout = Some(ms(12)));
    let driven = check(policy, start(), &[cancelled], Fate::NotRetryable, 1);
    assert_eq!(driven.finish.answer, Answer::TimedOut);
    let policy = with_retry(|retry| retry.per_attempt_timeout = Some(ms(16)));
    let driven = check(policy, start(), &[cancelled], Fate::NotRetryable, 1);
    assert_eq!(driven.finish.answer, Answer::Attempt(1));
}

#[test]
fn dropped_call_is_cancelled_before_and_timed_out_at_deadline() {
    let limited = CallStart { deadline: Some(at(100)), ..start() };
    let dropped_at = |millis| {
        let route = route(policy());
        let mut call = Call::begin(&route, limited);
        call.next_step(&route, at(0));
        let finish = call.dropped(&route, at(millis)).unwrap();
        assert_eq!(call.dropped(&route, at(millis)), None, "it ends once");
        (finish.ending.fate, route.window().counts(at(millis)).failures)
    };
    assert_eq!(dropped_at(94), (Fate::Cancelled, 0));
    assert_eq!(dropped_at(95), (Fate::Deadline, 0), "too short to say anything of the callee");
}

#[test]
fn unprocessed_request_is_resent_once_uncounted() {
    let unseen = Verdict::Unprocessed;
    let route = route(policy());
    let driven = drive(&route, start(), &[unseen, Verdict::Success]);
    assert_eq!(driven.finish.ending.fate, Fate::Ok, "a transparent resend is no retry");
    let sends: Vec<_> = driven.sends.iter().map(|(at, send)| (*at, send.attempt, send.flag)).collect();
    assert_eq!(sends, [(0, 1, None), (10, 1, None)], "at once and unmarked");
    let counters = &route.state().counters;
    assert_eq!((counters.attempts(), counters.retries(), counters.transparent_resends()), (2, 0, 1));
    assert_eq!(route.window().counts(at(20)).failures, 0);
    // The second time it is an ordinary failure, with backoff.
    check(policy(), start(), &[unseen, unseen, Verdict::Success], Fate::OkAfterRetry, 3);
    check(Policy { retry: None, ..policy() }, start(), &[unseen], Fate::PolicyOff, 1);
    check(policy(), CallStart { replayable: false, ..start() }, &[unseen], Fate::NotReplayable, 1);
}

#[test]
fn retry_breaker_is_checked_after_the_failure_is_counted() {
    let bare = RetryBreaker { mode: BreakerMode::Ratio, min_failures: 0, ..RetryBreaker::default() };
    let guarded = Policy { retry_breaker: Some(bare), ..policy() };
    let admitted = |failures: u64, successes: u64| {
        let route = route(guarded.clone());
        (0..failures - 1).for_each(|_| route.window().count_failure(CALLS_BEGIN));
        (0..successes).for_each(|_| route.window().count_success(CALLS_BEGIN));
        drive(&route, start(), &[UNAVAILABLE, Verdict::Success]).finish.ending.fate == Fate::OkAfterRetry
    };
    assert!(admitted(90, 910), "this call's own failure is the 90th");
    assert!(!admitted(91, 909));
}

#[test]
fn blocked_retry_takes_nothing_and_checks_keep_their_order() {
    let flagged =
        Failure { no_more_retry: true, pushback: Some(Pushback::Stop), ..Failure::new(Code::Unavailable) };
    let inside = CallStart { flag: Some(1), replayable: false, ..start() };
    let one_left = with_retry(|retry| {
        retry.max_attempts = 2;
        retry.max_duration = Some(ms(1));
    });
    check(one_left.clone(), inside, &[Verdict::Failure(flagged)], Fate::ChainNoMoreRetry, 1);
    let stop = Failure { no_more_retry: false, ..flagged };
    check(one_left.clone(), inside, &[Verdict::Failure(stop)], Fate::Pushback, 1);
    check(one_left.clone(), inside, &[UNAVAILABLE], Fate::ChainRetryFlag, 1);
    let outside = CallStart { flag: None, ..inside };
    check(one_left.clone(), outside, &[UNAVAILABLE], Fate::NotReplayable, 1);
    let closed = Policy {
        retry_breaker: Some(RetryBreaker { min_failures: 0, ..RetryBreaker::default() }),
        ..one_left
    };
    check(closed.clone(), start(), &[UNAVAILABLE], Fate::MaxDuration, 1);
    let mut open_ended = closed;
    open_ended.retry.as_mut().unwrap().max_duration = None;
    check(open_ended, start(), &[UNAVAILABLE], Fate::RetryBreaker, 1);
}

#[test]
fn observe_mode_makes_the_same_checks_and_does_nothing() {
    let observing = |mut policy: Policy, start: CallStart, verdict: Verdict| {
        policy.mode = Mode::Observe;
        policy.timeout = Some(ms(1_000));
        let route = route(policy);
        let driven = drive(&route, start, &[verdict]);
        assert_eq!(driven.sends.len(), 1);
        assert_eq!(
            driven.sends[0].1,
            SendAttempt { attempt: 1, kind: AttemptKind::First, limit: None, flag: start.flag }
        );
        assert!(!driven.finish.marks_context || matches!(verdict, Verdict::Failure(f) if f.no_more_retry));
        driven.finish.ending.to_string()
    };
    assert_eq!(observing(policy(), start(), Verdict::Success), "ok");
    assert_eq!(observing(policy(), start(), UNAVAILABLE), "would_retry");
    assert_eq!(observing(policy(), start(), failed(Code::NotFound)), "would_not_retryable");
    let inside = CallStart { flag: Some(1), ..start() };
    assert_eq!(observing(policy(), inside, UNAVAILABLE), "would_chain_retry_flag");
    let closed = Policy {
        retry_breaker: Some(RetryBreaker { min_failures: 0, ..RetryBreaker::default() }),
        ..policy()
    };
    assert_eq!(observing(closed, start(), UNAVAILABLE), "would_retry_breaker");
}

#[test]
fn observe_mode_decides_by_timeouts_and_cuts_nothing() {
    // Attempts end after 10 ms.
    let observing = |change: fn(&mut Policy), verdict| {
        let mut policy = Policy { mode: Mode::Observe, ..policy() };
        change(&mut policy);
        let route = route(policy);
        let driven = drive(&route, start(), &[verdict]);
        assert_eq!(driven.sends[0].1.limit, None, "no limit is sent to the server");
        assert_eq!(driven.finish.answer, Answer::Attempt(1));
        driven.finish.ending.to_string()
    };
    assert_eq!(observing(|policy| policy.timeout = Some(ms(9)), UNAVAILABLE), "would_deadline");
    assert_eq!(observing(|policy| policy.timeout = Some(ms(50)), UNAVAILABLE), "would_deadline");
    assert_eq!(observing(|policy| policy.timeout = Some(ms(200)), UNAVAILABLE), "would_retry");
    assert_eq!(observing(|policy| policy.timeout = Some(ms(9)), Verdict::Success), "ok");
    let short = |policy: &mut Policy| policy.retry.as_mut().unwrap().per_attempt_timeout = Some(ms(9));
    assert_eq!(observing(short, UNAVAILABLE), "would_not_retryable", "it would have timed out");
    let long = |policy: &mut Policy| policy.retry.as_mut().unwrap().per_attempt_timeout = Some(ms(11));
    assert_eq!(observing(long, UNAVAILABLE), "would_retry");
}

#[test]
fn without_a_rule_the_chain_still_passes_through() {
    let route = Route::new(None);
    let inside = CallStart { flag: Some(3), deadline: Some(at(500)), ..start() };
    let flagged = Failure { no_more_retry: true, ..Failure::new(Code::Unavailable) };
    let driven = drive(&route, inside, &[Verdict::Failure(flagged)]);
    assert_eq!(
        driven.sends,
        [(0, SendAttempt { attempt: 1, kind: AttemptKind::First, limit: Some(ms(500)), flag: Some(3) })]
    );
    assert_eq!(driven.finish.ending, Ending::real(Fate::PolicyOff));
    assert_eq!(driven.finish.answer, Answer::Attempt(1));
    assert!(driven.finish.marks_context);
}

#[test]
fn policy_change_keeps_counts_unless_the_window_shape_changes() {
    let before = route(policy());
    before.window().count_failure(CALLS_BEGIN);
    before.state().counters.count_call();
    let other = with_retry(|retry| retry.max_attempts = 5);
    let after = before.under(Some(Arc::clone(route(other).rule().unwrap())));
    assert_eq!(after.window().counts(CALLS_BEGIN).failures, 1);
    let reshaped = Policy {
        retry_breaker: Some(RetryBreaker {
            window: crate::WindowShape { buckets: 5, ..crate::WindowShape::default() },
            ..RetryBreaker::default()
        }),
        ..policy()
    };
    let after = after.under(Some(Arc::clone(route(reshaped).rule().unwrap())));
    assert_eq!(after.window().counts(CALLS_BEGIN).failures, 0);
    assert_eq!(after.state().counters.calls(), 1, "counters outlive every rule");
}

proptest! {
    #[test]
    fn any_sequence_of_events_ends_each_call_with_one_fate(
        verdicts in proptest::collection::vec((0_u32..18, any::<bool>(), 0_u64..70_000), 0..12),
        max_attempts in 1_u32..=10,
        deadline_ms in proptest::option::of(0_u64..2_000),
        flag in proptest::option::of(any::<u32>()),
        replayable in any::<bool>(),
        mode in 0_usize..3,
        kill in proptest::option::of((any::<bool>(), 0_u64..500)),
    ) {
        let mut policy = with_retry(|retry| {
            retry.max_attempts = max_attempts;
            retry.codes = CodeSet::all_but(CodeSet::EMPTY);
            retry.per_attempt_timeout = Some(ms(50));
        });
        policy.mode = [Mode::Off, Mode::Observe, Mode::Enforce][mode];
        let observing = mode < 2;
        let route = route(policy);
        let mut verdicts: Vec<_> = verdicts.into_iter().map(|(code, no_more_retry, wait)| {
            match Code::from_number(code) {
                None => Verdict::Unprocessed,
                Some(Code::Ok) => Verdict::Success,
                Some(code) => Verdict::Failure(Failure {
                    code,
                    no_more_retry,
                    pushback: (wait % 3 == 0).then_some(Pushback::After(ms(wait))),
                }),
            }
        }).collect();
        if observing {
            verdicts.push(Verdict::Success);
        }
        let deadline = deadline_ms.map(at);
        let held = kill.map(|(calls, until)| kills::held(calls, until));
        route.switch().obey(&held);
        let driven = drive(&route, CallStart { deadline, flag, replayable, ..start() }, &verdicts);
        let counters = &route.state().counters;
        let ended: u64 = Ending::all().map(|ending| counters.ended(ending)).sum();
        prop_assert_eq!((counters.calls(), ended), (1, 1));
        prop_assert_eq!(counters.attempts(), driven.sends.len() as u64);
        prop_assert!(driven.sends.len() <= max_attempts as usize + 1);
        prop_assert!(!observing || driven.sends.len() <= 1);
        let refused = kill.is_some_and(|(calls, until)| calls && until > 0);
        prop_assert_eq!(driven.finish.answer == Answer::Killed, refused);
        prop_assert!(!refused || driven.sends.is_empty());
        let repeats = driven.sends.iter().filter(|(_, send)| send.kind == AttemptKind::Retry);
        let until = kill.map_or(0, |(_, until)| until);
        prop_assert!(repeats.into_iter().all(|(sent, _)| *sent >= until));
    }
}
