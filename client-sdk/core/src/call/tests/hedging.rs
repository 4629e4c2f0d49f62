//! Tests of hedges together with retries, by the millisecond.

use super::timeline::{Goes, Timeline, play};
use super::*;
use crate::fault::Percent;
use crate::policy::{BreakerMode, Budget, Hedge, HedgeDelay};
use crate::time::window::Counts;

use AttemptKind::{First, Hedge as Hedged, Resend, Retry as Retried};
use Goes::{Begins, Ends, Never};

const OK: Verdict = Verdict::Success;

fn hedge(delay: u64, max_hedges: u32) -> Option<Hedge> {
    Some(Hedge { delay: HedgeDelay::Fixed(ms(delay)), max_hedges })
}

/// Hedges after 50 ms, no retries.
fn hedged(max_hedges: u32) -> Policy {
    Policy { retry: None, hedge: hedge(50, max_hedges), ..policy() }
}

/// Hedges after 50 ms, retries after 100 ms, `attempts` in all.
fn mixed(attempts: u32, max_hedges: u32) -> Policy {
    Policy { hedge: hedge(50, max_hedges), ..with_retry(|retry| retry.max_attempts = attempts) }
}

#[track_caller]
fn check(
    policy: Policy,
    script: &[Goes],
    sends: &[(u64, AttemptKind)],
    cancelled: &[(u64, u32)],
    end: (u64, &str),
) -> Timeline {
    let route = route(policy);
    let timeline = play(&route, start(), script);
    assert_eq!(timeline.sends, sends);
    assert_eq!(timeline.cancelled, cancelled);
    assert_eq!((timeline.ended, timeline.fate()), end);
    let counters = &route.state().counters;
    let ended: u64 = Ending::all().map(|ending| counters.ended(ending)).sum();
    assert_eq!((counters.calls(), ended), (1, 1), "one fate per call");
    assert_eq!(counters.attempts(), sends.len() as u64);
    timeline
}

#[test]
fn answer_within_the_delay_needs_no_hedge() {
    check(hedged(1), &[Ends(50, OK)], &[(0, First)], &[], (50, "ok"));
}

#[test]
fn call_that_may_not_be_hedged_waits_only_for_its_response() {
    let waits = |start: CallStart| {
        let route = route(hedged(1));
        let mut call = Call::begin(&route, start);
        assert!(matches!(call.next_step(&route, at(0)), Step::Send(_)));
        call.next_step(&route, at(0))
    };
    assert_eq!(waits(start()), Step::Wait { until: Some(at(50)) });
    assert_eq!(waits(CallStart { flag: Some(1), ..start() }), Step::Wait { until: None });
    assert_eq!(waits(CallStart { replayable: false, ..start() }), Step::Wait { until: None });
}

#[test]
fn first_success_wins_and_the_others_are_cancelled_at_once() {
    let sends = [(0, First), (50, Hedged)];
    check(hedged(1), &[Ends(200, OK), Ends(20, OK)], &sends, &[(70, 1)], (70, "ok_by_hedge"));
    check(hedged(1), &[Ends(60, OK), Ends(20, OK)], &sends, &[(60, 2)], (60, "ok"));
}

#[test]
fn hedges_follow_at_the_same_delay_until_they_are_used_up() {
    let sends = [(0, First), (50, Hedged), (100, Hedged), (150, Hedged)];
    let script = [Never, Never, Never, Ends(30, OK)];
    let timeline = check(hedged(3), &script, &sends, &[(180, 1), (180, 2), (180, 3)], (180, "ok_by_hedge"));
    assert_eq!(timeline.flags, [None, Some(1), Some(2), Some(3)], "hedges carry the flag");
}

#[test]
fn failure_does_not_end_a_call_with_another_attempt_in_flight() {
    let sends = [(0, First), (50, Hedged)];
    let failing = Ends(10, UNAVAILABLE);
    check(hedged(1), &[Ends(100, OK), failing], &sends, &[], (100, "ok"));
    check(hedged(1), &[Ends(60, UNAVAILABLE), Ends(100, OK)], &sends, &[], (150, "ok_by_hedge"));
    check(
        hedged(1),
        &[Ends(60, UNAVAILABLE), Ends(100, UNAVAILABLE)],
        &sends,
        &[],
        (150, "attempts_exhausted"),
    );
}

#[test]
fn non_retryable_code_ends_a_call_despite_attempts_in_flight() {
    let fatal = Ends(10, failed(Code::PermissionDenied));
    check(hedged(1), &[Never, fatal], &[(0, First), (50, Hedged)], &[(60, 1)], (60, "not_retryable"));
}

#[test]
fn retryable_failure_brings_the_next_hedge_forward() {
    let sends = [(0, First), (50, Hedged), (60, Hedged)];
    let script = [Never, Ends(10, UNAVAILABLE), Ends(10, OK)];
    check(hedged(2), &script, &sends, &[(70, 1)], (70, "ok_by_hedge"));
}

#[test]
fn failure_sends_a_hedge_at_once_if_only_hedging_is_set() {
    let script = [Ends(10, UNAVAILABLE), Ends(5, UNAVAILABLE), Ends(5, OK)];
    let sends = [(0, First), (10, Hedged), (15, Hedged)];
    check(hedged(2), &script, &sends, &[], (20, "ok_by_hedge"));
    check(hedged(1), &script, &sends[..2], &[], (15, "attempts_exhausted"));
    check(hedged(2), &[Ends(10, failed(Code::NotFound))], &sends[..1], &[], (10, "not_retryable"));
}

#[test]
fn fast_failures_are_retried_and_slow_attempts_hedged() {
    let sends = [(0, First), (110, Retried), (160, Hedged)];
    let script = [Ends(10, UNAVAILABLE), Never, Ends(20, OK)];
    check(mixed(3, 1), &script, &sends, &[(180, 2)], (180, "ok_by_hedge"));
    // The hedge is used up: after all attempts failed, the call retries.
    let sends = [(0, First), (50, Hedged), (170, Retried)];
    let script = [Ends(70, UNAVAILABLE), Ends(20, UNAVAILABLE), Ends(5, OK)];
    check(mixed(3, 1), &script, &sends, &[], (175, "ok_after_retry"));
    // The same if they do not fail at once.
    let script = [Ends(60, UNAVAILABLE), Ends(20, UNAVAILABLE), Ends(5, OK)];
    check(mixed(3, 1), &script, &sends, &[], (175, "ok_after_retry"));
}

#[test]
fn hedges_count_towards_the_attempts_where_both_are_set() {
    let sends = [(0, First), (50, Hedged)];
    check(mixed(2, 4), &[Never, Ends(70, OK)], &sends, &[(120, 1)], (120, "ok_by_hedge"));
    check(mixed(1, 4), &[Ends(70, OK)], &[(0, First)], &[], (70, "ok"));
}

#[test]
fn answer_that_begins_wins_and_the_others_are_cancelled() {
    let sends = [(0, First), (50, Hedged)];
    check(hedged(1), &[Never, Begins(10)], &sends, &[(60, 1)], (70, "ok_by_hedge"));
}

#[test]
fn pushback_delays_the_next_hedge_and_stop_ends_hedging() {
    let pushed =
        |pushback| Verdict::Failure(Failure { pushback: Some(pushback), ..Failure::new(Code::Unavailable) });
    let sends = [(0, First), (50, Hedged), (90, Hedged)];
    let later = Ends(10, pushed(Pushback::After(ms(30))));
    check(hedged(2), &[Never, later, Ends(5, OK)], &sends, &[(95, 1)], (95, "ok_by_hedge"));
    let stop = Ends(10, pushed(Pushback::Stop));
    check(hedged(3), &[Ends(300, OK), stop], &sends[..2], &[], (300, "ok"));
    let both = [Ends(300, UNAVAILABLE), stop];
    check(hedged(3), &both, &sends[..2], &[], (300, "pushback"));
}

#[test]
fn non_retryable_code_ends_a_call_without_attempts_left() {
    let fatal = Ends(40, failed(Code::PermissionDenied));
    let sends = [(0, First), (50, Hedged), (100, Hedged)];
    // The first failure exhausts the attempts; the second is fatal.
    let script = [Ends(120, UNAVAILABLE), Ends(90, failed(Code::PermissionDenied)), Ends(900, OK)];
    check(hedged(2), &script, &sends, &[(140, 3)], (140, "not_retryable"));
    check(hedged(2), &[Never, Never, fatal], &sends, &[(140, 1), (140, 2)], (140, "not_retryable"));
}

#[test]
fn retry_rejected_by_the_callee_does_not_end_the_call() {
    let mut policy = mixed(4, 2);
    policy.retry.as_mut().unwrap().codes = CodeSet::of(&[Code::Aborted]);
    let shed =
        Failure { no_more_retry: true, pushback: Some(Pushback::Stop), ..Failure::new(Code::Unavailable) };
    let shed = Ends(5, Verdict::Failure(shed));
    let sends = [(0, First), (50, Hedged)];
    check(policy.clone(), &[Ends(800, OK), shed], &sends, &[], (800, "ok"));
    check(policy, &[Ends(800, UNAVAILABLE), shed], &sends, &[], (800, "not_retryable"));
}

#[test]
fn nothing_is_sent_before_the_time_that_a_server_asked_for() {
    let pushed = Failure { pushback: Some(Pushback::After(ms(500))), ..Failure::new(Code::Unavailable) };
    let pushed = Ends(10, Verdict::Failure(pushed));
    let script = [Ends(300, UNAVAILABLE), pushed, Ends(5, OK)];
    let next = |kind| [(0, First), (50, Hedged), (560, kind)];
    check(hedged(2), &script, &next(Hedged), &[], (565, "ok_by_hedge"));
    check(mixed(4, 2), &script, &next(Retried), &[], (565, "ok_after_retry"));
    check(mixed(4, 1), &script, &next(Retried), &[], (565, "ok_after_retry"));
}

#[test]
fn expired_pushback_does_not_replace_the_backoff() {
    let pushed = Failure { pushback: Some(Pushback::After(ms(20))), ..Failure::new(Code::Unavailable) };
    let script = [Ends(300, UNAVAILABLE), Ends(10, Verdict::Failure(pushed)), Ends(5, OK)];
    let sends = [(0, First), (50, Hedged), (400, Retried)];
    check(mixed(4, 1), &script, &sends, &[], (405, "ok_after_retry"));
}

#[test]
fn blocked_hedge_is_checked_again_after_the_same_delay() {
    let breaker = RetryBreaker { min_failures: 0, ..RetryBreaker::default() };
    let route = route(Policy { retry_breaker: Some(breaker), ..hedged(1) });
    let mut call = Call::begin(&route, start());
    call.next_step(&route, at(0));
    assert_eq!(call.next_step(&route, at(50)), Step::Wait { until: Some(at(100)) });
    (0..10).for_each(|_| route.window().count_success(at(60)));
    assert!(matches!(call.next_step(&route, at(100)), Step::Send(send) if send.kind == Hedged));
}

#[test]
fn late_response_before_the_cut_counts_as_received() {
    let mut policy = policy();
    policy.retry.as_mut().unwrap().per_attempt_timeout = Some(ms(80));
    let route = route(policy);
    let mut call = Call::begin(&route, start());
    call.next_step(&route, at(0));
    call.attempt_ended(&route, 1, UNAVAILABLE, at(81), 0);
    assert_eq!(call.next_step(&route, at(81)), Step::Wait { until: Some(at(181)) });
}

#[test]
fn first_reason_to_stop_sets_the_fate() {
    let flagged = Failure { no_more_retry: true, ..Failure::new(Code::Unavailable) };
    let script = [Ends(300, UNAVAILABLE), Ends(10, Verdict::Failure(flagged))];
    let timeline = check(hedged(3), &script, &[(0, First), (50, Hedged)], &[], (300, "chain_no_more_retry"));
    assert!(timeline.finish.unwrap().marks_context);
}

#[test]
fn deadline_ends_all_attempts() {
    let policy = Policy { timeout: Some(ms(120)), ..hedged(1) };
    let cancelled = [(120, 1), (120, 2)];
    check(policy, &[Never, Never], &[(0, First), (50, Hedged)], &cancelled, (120, "deadline"));
}

#[test]
fn attempt_that_runs_out_of_time_leaves_the_others_running() {
    let mut policy = mixed(3, 1);
    let retry = policy.retry.as_mut().unwrap();
    retry.per_attempt_timeout = Some(ms(80));
    retry.codes = CodeSet::of(&[Code::DeadlineExceeded, Code::Unavailable]);
    let sends = [(0, First), (50, Hedged)];
    check(policy, &[Never, Ends(60, OK)], &sends, &[(80, 1)], (110, "ok_by_hedge"));
}

#[test]
fn blocked_hedge_is_not_sent_and_the_call_continues() {
    let sends = [(0, First)];
    let refused = |change: fn(&mut Policy)| {
        let mut policy = hedged(1);
        change(&mut policy);
        check(policy, &[Ends(300, OK)], &sends, &[], (300, "ok"));
    };
    refused(|policy| {
        policy.retry_breaker = Some(RetryBreaker { min_failures: 0, ..RetryBreaker::default() })
    });
    refused(|policy| policy.budget = Some(Budget { min_per_second: 0, ..Budget::default() }));
}

#[test]
fn retried_or_not_replayable_requests_are_not_hedged() {
    for start in [CallStart { flag: Some(1), ..start() }, CallStart { replayable: false, ..start() }] {
        let timeline = play(&route(hedged(2)), start, &[Ends(300, OK)]);
        assert_eq!((timeline.sends.len(), timeline.fate()), (1, "ok"));
    }
}

#[test]
fn overtaken_attempt_counts_once_as_a_failure() {
    let breaker = RetryBreaker { min_failures: 1, ..RetryBreaker::default() };
    let counts = |script: &[Goes]| {
        let route = route(Policy { retry_breaker: Some(breaker), ..hedged(1) });
        play(&route, start(), script);
        route.window().counts(at(400))
    };
    assert_eq!(counts(&[Ends(200, OK), Ends(20, OK)]), Counts { failures: 1, successes: 1 });
    assert_eq!(counts(&[Ends(60, OK), Ends(20, OK)]), Counts { failures: 1, successes: 0 });
    assert_eq!(counts(&[Ends(60, UNAVAILABLE), Ends(20, OK)]), Counts { failures: 1, successes: 1 });
}

#[test]
fn blocked_hedge_leaves_the_attempt_to_count_by_its_end() {
    let breaker = RetryBreaker { min_failures: 0, ..RetryBreaker::default() };
    let route = route(Policy { retry_breaker: Some(breaker), ..hedged(1) });
    play(&route, start(), &[Ends(60, OK)]);
    assert_eq!(route.window().counts(at(400)), Counts { failures: 0, successes: 1 });
}

#[test]
fn unprocessed_request_is_resent_while_others_are_in_flight() {
    let sends = [(0, First), (50, Hedged), (60, Resend)];
    let script = [Never, Ends(10, Verdict::Unprocessed), Ends(10, OK)];
    check(hedged(1), &script, &sends, &[(70, 1)], (70, "ok_by_hedge"));
}

#[test]
fn observing_counts_the_hedges_that_would_have_been_sent() {
    for (took, expected) in [(49, 0), (50, 1)] {
        let route = route(Policy { mode: Mode::Observe, ..hedged(1) });
        let timeline = play(&route, start(), &[Ends(took, OK)]);
        assert_eq!((timeline.sends.len(), timeline.fate()), (1, "ok"));
        assert_eq!(route.state().counters.would_hedges(), expected);
    }
}

/// Ten minutes at 100 calls per second. 30 % of the attempts take 500 ms, the others 10 to 50 ms. Each slow
/// one loses against a hedge. Without them the 60th percentile would be 34 ms, with them it is 44 ms.
#[test]
fn percentile_delay_does_not_drift() {
    let at = Percent::from_hundredths(6_000);
    let delay = HedgeDelay::Percentile { at, min: ms(1), max: ms(60_000) };
    let route = route(Policy { hedge: Some(Hedge { delay, max_hedges: 1 }), ..hedged(1) });
    let mut dice = gates::Dice::new(7);
    let mut delays = Vec::new();
    for call in 0..60_000_u64 {
        let now = Time::from_micros(call * 10_000);
        let mut goes = || match dice.roll() % 100 {
            0..30 => Ends(500, OK),
            roll => Ends(10 + (roll - 30) * 40 / 69, OK),
        };
        let script = [goes(), goes()];
        play(&route, CallStart { now, ..start() }, &script);
        if call % 1_000 == 0 {
            delays.extend(route.hedge_delay(delay, now));
        }
    }
    assert!(route.state().counters.hedges() > 10_000);
    assert!(delays.len() >= 58, "known from the second window on");
    assert!(delays.iter().all(|delay| (ms(40)..ms(52)).contains(delay)), "{delays:?}");
}

/// Ten minutes at 100 calls per second, 5 % of whose attempts take 200 ms instead of 10 ms.
#[test]
fn hedges_by_a_percentile_stay_within_the_budget() {
    let mut policy = hedged(1);
    let delay = HedgeDelay::Percentile { at: Percent::from_hundredths(9_500), min: ms(1), max: ms(60_000) };
    policy.hedge = Some(Hedge { delay, max_hedges: 1 });
    policy.budget = Some(Budget { ratio: Ratio::from_bp(1_000), min_per_second: 0 });
    let route = route(policy);
    let mut dice = gates::Dice::new(7);
    for call in 0..60_000_u64 {
        let now = Time::from_micros(call * 10_000);
        let mut goes = || if dice.one_in(20) { Ends(200, OK) } else { Ends(10, OK) };
        let script = [goes(), goes()];
        play(&route, CallStart { now, ..start() }, &script);
    }
    let counters = &route.state().counters;
    assert!(counters.hedges() > 1_000, "{} hedges", counters.hedges());
    assert!(counters.hedges() <= 60_000 / 10, "{} hedges", counters.hedges());
}

/// Returns a route that hedges by the 95th percentile, not before 50 ms, whose attempts took 10 ms in the
/// window before `at(10_000)`.
fn by_percentile() -> (Route, HedgeDelay) {
    let delay = HedgeDelay::Percentile { at: Percent::from_hundredths(9_500), min: ms(50), max: ms(60_000) };
    let mut policy = mixed(3, 1);
    policy.hedge = Some(Hedge { delay, max_hedges: 1 });
    policy.retry.as_mut().unwrap().per_attempt_timeout = Some(ms(90));
    let route = route(policy);
    (0..100).for_each(|_| route.state().record(CALLS_BEGIN, ms(10)));
    (route, delay)
}

/// Returns the delay after a window with 90 attempts of 10 ms and ten calls that play `script`.
fn delay_after(script: &[Goes], expected: &str) -> Duration {
    let (route, delay) = by_percentile();
    let now = at(10_000);
    (0..90).for_each(|_| route.state().record(now, ms(10)));
    for _ in 0..10 {
        let timeline = play(&route, CallStart { now, ..start() }, script);
        assert_eq!(timeline.fate(), expected);
    }
    route.hedge_delay(delay, at(20_000)).unwrap()
}

#[test]
fn overtaken_attempt_is_recorded_with_its_wait_at_least() {
    let near = |delay: Duration, took: u64| {
        assert!(delay >= ms(took) && delay <= ms(took + took / 8 + 1), "{delay:?}, not {took} ms");
    };
    near(delay_after(&[Ends(10, OK)], "ok"), 50);
    // Lost, failed, expired.
    near(delay_after(&[Never, Ends(20, OK)], "ok_by_hedge"), 70);
    near(delay_after(&[Ends(80, UNAVAILABLE), Ends(35, OK)], "ok_by_hedge"), 80);
    near(delay_after(&[Never, Ends(60, failed(Code::NotFound))], "not_retryable"), 90);
    // Hedges are not recorded, whether they lose, win or fail.
    near(delay_after(&[Ends(75, OK), Never], "ok"), 75);
    near(delay_after(&[Ends(55, OK), Ends(2, UNAVAILABLE)], "ok"), 55);
}

#[test]
fn streams_are_measured_until_the_response_begins() {
    let (route, delay) = by_percentile();
    for _ in 0..100 {
        let mut call = Call::begin(&route, CallStart { now: at(10_000), ..start() });
        assert!(matches!(call.next_step(&route, at(10_000)), Step::Send(_)));
        call.attempt_committed(&route, 1, || at(10_055));
        call.attempt_ended(&route, 1, OK, at(15_000), 0);
    }
    let delay = route.hedge_delay(delay, at(20_000)).unwrap();
    assert!(delay < ms(60), "the stream took 5 s: {delay:?}");
    let observed = self::route(Policy { mode: Mode::Observe, ..hedged(1) });
    let mut call = Call::begin(&observed, start());
    call.next_step(&observed, at(0));
    call.attempt_committed(&observed, 1, || at(40));
    call.attempt_ended(&observed, 1, OK, at(9_000), 0);
    assert_eq!(observed.state().counters.would_hedges(), 0);
}

#[test]
fn too_few_samples_mean_no_hedge() {
    let delay = HedgeDelay::Percentile { at: Percent::from_hundredths(9_900), min: ms(1), max: ms(60_000) };
    let route = route(Policy { hedge: Some(Hedge { delay, max_hedges: 1 }), ..hedged(1) });
    for _ in 0..99 {
        route.state().record(CALLS_BEGIN, ms(10));
    }
    let later = CALLS_BEGIN + ms(10_000);
    assert_eq!(route.hedge_delay(delay, later), None, "one above the 99th needs a hundred");
    let route = route.under(route.rule().cloned());
    route.state().record(CALLS_BEGIN, ms(10));
    assert_eq!(route.hedge_delay(delay, later), None, "late values of an ended window are not counted");
    for _ in 0..100 {
        route.state().record(later, ms(10));
    }
    let delay = route.hedge_delay(delay, later + ms(10_000)).unwrap();
    assert!(delay >= ms(10) && delay < ms(12), "{delay:?}");
}

proptest! {
    #[test]
    fn hedged_calls_end_with_one_fate_and_count_each_attempt(
        script in proptest::collection::vec((0_u32..20, 1_u64..300, any::<bool>(), any::<bool>()), 0..14),
        max_attempts in 1_u32..=10,
        max_hedges in 1_u32..=4,
        delay in 1_u64..100,
        timeout in 1_u64..2_000,
        credit in any::<bool>(),
        retries in any::<bool>(),
        budget in any::<bool>(),
    ) {
        let mut policy = if retries { mixed(max_attempts, max_hedges) } else { hedged(max_hedges) };
        policy.hedge = hedge(delay, max_hedges);
        policy.timeout = Some(ms(timeout));
        policy.budget = budget.then(Budget::default);
        let mode = if credit { BreakerMode::Credit } else { BreakerMode::Ratio };
        policy.retry_breaker = Some(RetryBreaker { mode, min_failures: 2, ..RetryBreaker::default() });
        let script: Vec<_> = script.into_iter().map(|(code, after, begins, flag)| match Code::from_number(code) {
            _ if begins && code < 3 => Begins(after),
            None if code == 17 => Ends(after, Verdict::Unprocessed),
            None => Never,
            Some(Code::Ok) => Ends(after, OK),
            Some(code) => {
                let code = if code.number() % 2 == 0 { Code::Unavailable } else { code };
                Ends(after, Verdict::Failure(Failure { no_more_retry: flag, ..Failure::new(code) }))
            }
        }).collect();
        let most = policy.max_attempts() as usize;
        let route = route(policy);
        let timeline = play(&route, start(), &script);
        let counters = &route.state().counters;
        let ended: u64 = Ending::all().map(|ending| counters.ended(ending)).sum();
        prop_assert_eq!((counters.calls(), ended), (1, 1));
        prop_assert_eq!(counters.attempts(), timeline.sends.len() as u64);
        let repeats = timeline.sends.iter().filter(|(_, kind)| matches!(kind, First | Retried | Hedged)).count();
        prop_assert!(repeats <= most, "{repeats} of {most}");
        prop_assert!(counters.hedges() <= u64::from(max_hedges));
        prop_assert!(timeline.ended <= timeout.max(1));
    }
}
