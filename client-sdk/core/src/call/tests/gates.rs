//! Tests of the gates over time: a fleet of calls in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;
use crate::fault::Percent;
use crate::policy::{BreakerMode, Budget, CircuitBreaker, StopWhen};

/// Random numbers that are the same on each run (xorshift64*, Vigna 2016).
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(super) fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns true once in `among` on average.
    pub(super) fn one_in(&mut self, among: u64) -> bool {
        self.roll().is_multiple_of(among)
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.roll() % 100 < percent
    }
}

/// Open-loop traffic with a rate and a duration; attempts take 10 ms.
struct Traffic {
    per_second: u64,
    seconds: u64,
}

/// Results of the traffic.
#[derive(Debug)]
struct Seen {
    calls: u64,
    sends: u64,
    good: u64,
}

impl Seen {
    fn attempts_per_100_calls(&self) -> u64 {
        (self.sends * 100).div_ceil(self.calls)
    }

    fn success_percent(&self) -> u64 {
        self.good * 100 / self.calls
    }
}

impl Traffic {
    /// `fails` decides for each attempt, by its number and time in ms, if it fails.
    fn over(&self, route: &Route, from: Time, mut fails: impl FnMut(u32, u64, &mut Dice) -> bool) -> Seen {
        let mut dice = Dice::new(self.per_second);
        let counters = &route.state().counters;
        let before = (counters.attempts(), counters.calls());
        let mut good = 0;
        let mut calls: Vec<Call> = Vec::new();
        let mut events = BinaryHeap::new();
        for n in 0..self.per_second * self.seconds {
            let now = from + Duration::from_micros(n * 1_000_000 / self.per_second);
            calls.push(Call::begin(route, CallStart { now, ..start() }));
            events.push(Reverse((now, n, 0_u32)));
        }
        // An event is a call and its attempt that ends then (0: none).
        while let Some(Reverse((now, n, ended))) = events.pop() {
            let call = &mut calls[n as usize];
            if ended > 0 {
                let ms_now = now.since(from).as_millis() as u64;
                let verdict = if fails(ended, ms_now, &mut dice) { UNAVAILABLE } else { Verdict::Success };
                call.attempt_ended(route, ended, verdict, now, dice.roll());
            }
            match call.next_step(route, now) {
                Step::Send(send) => events.push(Reverse((now + ms(10), n, send.attempt))),
                Step::Wait { until } => events.extend(until.map(|until| Reverse((until, n, 0)))),
                Step::Finish(finish) => good += u64::from(finish.ending.fate.is_ok()),
                Step::Cancel { .. } => unreachable!("nothing has a limit"),
            }
        }
        let after = (counters.attempts(), counters.calls());
        Seen { calls: self.per_second * self.seconds, sends: after.0 - before.0, good }
    }
}

fn breaking(mode: BreakerMode) -> Policy {
    Policy {
        retry_breaker: Some(RetryBreaker { mode, ..RetryBreaker::default() }),
        retry: Some(Retry::default()),
        ..policy()
    }
}

fn credit() -> Route {
    route(breaking(BreakerMode::Credit))
}

const LATER: Time = Time::from_micros(1_000_000_000);

#[test]
fn credit_retries_random_failures_where_the_ratio_stops() {
    let traffic = Traffic { per_second: 300, seconds: 120 };
    for (percent, mended) in [(5, 99), (10, 99), (15, 93)] {
        let seen = traffic.over(&credit(), LATER, |_, _, dice| dice.percent(percent));
        assert!(seen.success_percent() >= mended, "{percent} %: {seen:?}");
        assert!(seen.attempts_per_100_calls() <= 100 + percent * 100 / (100 - percent) + 2, "{seen:?}");
    }
    let seen = traffic.over(&route(breaking(BreakerMode::Ratio)), LATER, |_, _, dice| dice.percent(15));
    assert!(seen.success_percent() < 92, "{seen:?}");
}

#[test]
fn outage_costs_one_cap_and_then_nothing() {
    let route = credit();
    Traffic { per_second: 1_000, seconds: 20 }.over(&route, LATER, |_, _, _| false);
    let outage = LATER + ms(20_000);
    let begins = Traffic { per_second: 1_000, seconds: 10 }.over(&route, outage, |_, _, _| true);
    assert!((100..=200).contains(&(begins.sends - begins.calls)), "2 % of a window: {begins:?}");
    let steady = Traffic { per_second: 1_000, seconds: 60 }.over(&route, outage + ms(10_000), |_, _, _| true);
    assert_eq!(steady.sends, steady.calls);
    let healed = outage + ms(70_000);
    let seen = Traffic { per_second: 1_000, seconds: 60 }.over(&route, healed, |_, _, dice| dice.percent(5));
    assert!(seen.success_percent() >= 99, "{seen:?}");
}

#[test]
fn small_caller_has_one_retry_after_ten_successes() {
    let route = credit();
    let from = |second: u64| LATER + ms(second * 1_000);
    let retries = |second: u64, failing: bool| {
        let before = route.state().counters.retries();
        Traffic { per_second: 1, seconds: 10 }.over(&route, from(second), |_, _, _| failing);
        route.state().counters.retries() - before
    };
    assert_eq!([retries(0, true), retries(10, false), retries(20, true), retries(30, true)], [0, 0, 1, 0]);
    assert_eq!([retries(40, false), retries(50, true)], [0, 1]);
}

#[test]
fn all_routes_to_a_callee_share_one_token_while_they_are_small() {
    let first = credit();
    let routes = [(); 50].map(|()| first.sibling(first.rule().cloned()));
    for route in &routes {
        drive(route, start(), &[Verdict::Success]);
    }
    for route in &routes {
        drive(route, start(), &[UNAVAILABLE; 3]);
    }
    let retries: u64 = routes.iter().map(|route| route.state().counters.retries()).sum();
    assert_eq!(retries, 1);
}

#[test]
fn ratio_admits_retries_only_when_an_outage_begins() {
    let route = route(breaking(BreakerMode::Ratio));
    Traffic { per_second: 1_000, seconds: 20 }.over(&route, LATER, |_, _, _| false);
    let outage = LATER + ms(20_000);
    let begins = Traffic { per_second: 1_000, seconds: 20 }.over(&route, outage, |_, _, _| true);
    assert!(begins.sends - begins.calls > 300, "what credit is for: {begins:?}");
    let steady = Traffic { per_second: 1_000, seconds: 20 }.over(&route, outage + ms(20_000), |_, _, _| true);
    assert_eq!(steady.sends, steady.calls);
}

#[test]
fn small_caller_retries_with_saved_tokens_below_the_minima() {
    let route = route(breaking(BreakerMode::Ratio));
    let fate = |verdicts: &[Verdict]| drive(&route, start(), verdicts).finish.ending.fate;
    assert_eq!(fate(&[UNAVAILABLE]), Fate::RetryBreaker, "nothing is saved at the start");
    (0..10).for_each(|_| _ = fate(&[Verdict::Success]));
    assert_eq!(fate(&[UNAVAILABLE, Verdict::Success]), Fate::OkAfterRetry);
    assert_eq!(
        fate(&[UNAVAILABLE, UNAVAILABLE]),
        Fate::RetryBreaker,
        "one that succeeds comes back, one that fails not"
    );
    assert_eq!(fate(&[UNAVAILABLE]), Fate::RetryBreaker);
}

/// Returns a route with one token.
fn with_a_token() -> Route {
    let route = credit();
    (0..10).for_each(|_| _ = drive(&route, start(), &[Verdict::Success]));
    route
}

fn has_a_token(route: &Route) -> bool {
    !route.blocks_next_retry(&RetryBreaker::default(), at(0))
}

#[test]
fn retry_token_is_refunded_unless_the_retry_fails() {
    let after = |verdicts: &[Verdict]| {
        let route = with_a_token();
        drive(&route, start(), verdicts);
        has_a_token(&route)
    };
    assert!(after(&[UNAVAILABLE, Verdict::Success]));
    assert!(after(&[UNAVAILABLE, failed(Code::NotFound)]), "the callee is alive");
    assert!(after(&[UNAVAILABLE, Verdict::Local]), "it was not sent");
    assert!(!after(&[UNAVAILABLE, UNAVAILABLE]));
    assert!(!after(&[UNAVAILABLE, Verdict::TimedOut]));
}

#[test]
fn retry_token_is_refunded_when_the_call_is_dropped_or_killed() {
    let waiting = |route: &Route| {
        let mut call = Call::begin(route, start());
        call.next_step(route, at(0));
        call.attempt_ended(route, 1, UNAVAILABLE, at(10), 0);
        assert!(!has_a_token(route));
        call
    };
    let route = with_a_token();
    waiting(&route).dropped(&route, at(11));
    assert!(has_a_token(&route), "while it waited");

    let mut call = waiting(&route);
    assert!(matches!(call.next_step(&route, at(1_000)), Step::Send(_)));
    call.dropped(&route, at(1_001));
    assert!(has_a_token(&route), "while it was in flight");

    let mut call = waiting(&route);
    route.switch().obey(&[super::kills::held(false, 3_600_000)]);
    assert!(matches!(call.next_step(&route, at(20)), Step::Finish(_)));
    assert!(route.pay(&RetryBreaker::default(), at(20)).is_some(), "when retries were stopped");
}

#[test]
fn expired_call_has_spent_its_retry_token() {
    let route = with_a_token();
    let mut call = Call::begin(&route, CallStart { deadline: Some(at(5_000)), ..start() });
    call.next_step(&route, at(0));
    call.attempt_ended(&route, 1, UNAVAILABLE, at(10), 0);
    assert!(matches!(call.next_step(&route, at(1_000)), Step::Send(_)));
    call.dropped(&route, at(5_000));
    assert!(!has_a_token(&route));
}

#[test]
fn no_budget_for_a_retry_costs_no_credit() {
    let budget = Budget { ratio: Ratio::from_bp(100), min_per_second: 0 };
    let route = route(Policy { budget: Some(budget), ..breaking(BreakerMode::Credit) });
    (0..10).for_each(|_| _ = drive(&route, start(), &[Verdict::Success]));
    assert_eq!(drive(&route, start(), &[UNAVAILABLE]).finish.ending.fate, Fate::Budget);
    assert!(has_a_token(&route));
}

#[test]
fn observed_retry_ends_as_the_next_first_attempt() {
    let observed = Policy { mode: Mode::Observe, ..breaking(BreakerMode::Credit) };
    let route = route(observed);
    let ending = |verdict| drive(&route, start(), &[verdict]).finish.ending.to_string();
    (0..10).for_each(|_| assert_eq!(ending(Verdict::Success), "ok"));
    for _ in 0..5 {
        assert_eq!(ending(UNAVAILABLE), "would_retry");
        assert_eq!(ending(Verdict::Success), "ok");
    }
    assert_eq!([ending(UNAVAILABLE), ending(UNAVAILABLE)], ["would_retry", "would_retry_breaker"]);
    assert_eq!(ending(Verdict::Success), "ok");
    assert_eq!(ending(UNAVAILABLE), "would_retry_breaker", "the next one failed: that retry is lost");
}

#[test]
fn hedges_neither_take_nor_give_credit() {
    let hedge = crate::policy::Hedge { delay: crate::policy::HedgeDelay::Fixed(ms(50)), max_hedges: 1 };
    let route = route(Policy { hedge: Some(hedge), ..breaking(BreakerMode::Credit) });
    (0..10).for_each(|_| _ = drive(&route, start(), &[Verdict::Success]));
    let mut call = Call::begin(&route, start());
    call.next_step(&route, at(0));
    assert!(matches!(
        call.next_step(&route, at(50)),
        Step::Send(SendAttempt { kind: AttemptKind::Hedge, .. })
    ));
    assert!(has_a_token(&route));
    call.attempt_ended(&route, 2, Verdict::Success, at(60), 0);
    assert!(has_a_token(&route));
}

#[test]
fn budget_sets_the_fate_and_is_refunded_for_unsent_attempts() {
    let budget = Budget { ratio: Ratio::from_bp(10_000), min_per_second: 0 };
    let route = route(Policy { budget: Some(budget), ..policy() });
    let mut call = Call::begin(&route, start());
    call.next_step(&route, at(0));
    call.attempt_ended(&route, 1, UNAVAILABLE, at(10), 0);
    assert!(matches!(call.next_step(&route, at(10)), Step::Wait { .. }));
    assert_eq!(route.spending().reserve(&budget, at(10)), None, "one call, one extra attempt");
    assert_eq!(call.dropped(&route, at(20)).unwrap().ending.fate, Fate::Cancelled);
    assert!(route.spending().reserve(&budget, at(20)).is_some());

    let tight = Budget { ratio: Ratio::from_bp(5_000), min_per_second: 0 };
    check(Policy { budget: Some(tight), ..policy() }, start(), &[UNAVAILABLE], Fate::Budget, 1);
}

#[test]
fn breaker_is_checked_before_the_budget_and_spends_nothing() {
    let closed = RetryBreaker { mode: BreakerMode::Ratio, min_failures: 0, ..RetryBreaker::default() };
    let budget = Budget { ratio: Ratio::ONE, min_per_second: 0 };
    let route = route(Policy { budget: Some(budget), retry_breaker: Some(closed), ..policy() });
    assert_eq!(drive(&route, start(), &[UNAVAILABLE]).finish.ending.fate, Fate::RetryBreaker);
    assert!(route.spending().reserve(&budget, at(10)).is_some());
}

#[test]
fn call_slower_than_the_percentile_is_not_repeated() {
    let stop_when =
        StopWhen { latency_above_percentile: Some(Percent::from_hundredths(9_000)), ..StopWhen::default() };
    let slow = |samples: u64, usual_ms: u64| {
        let route = route(Policy { stop_when: Some(stop_when), ..policy() });
        (0..samples).for_each(|_| route.state().record(CALLS_BEGIN, ms(usual_ms)));
        drive(&route, start(), &[UNAVAILABLE, Verdict::Success]).finish.ending.fate
    };
    // The first attempt takes 10 ms.
    assert_eq!(slow(20, 5), Fate::StopWhen);
    assert_eq!(slow(20, 11), Fate::OkAfterRetry);
    assert_eq!(slow(19, 5), Fate::OkAfterRetry, "too few to tell");
}

#[test]
fn no_retry_while_too_few_attempts_succeed() {
    let stop_when =
        StopWhen { success_rate_below: Some(Percent::from_hundredths(5_000)), ..StopWhen::default() };
    let fate = |failures: u64, successes: u64| {
        let route = route(Policy { stop_when: Some(stop_when), ..policy() });
        (1..failures).for_each(|_| route.window().count_failure(CALLS_BEGIN));
        (0..successes).for_each(|_| route.window().count_success(CALLS_BEGIN));
        drive(&route, start(), &[UNAVAILABLE, Verdict::Success]).finish.ending.fate
    };
    assert_eq!(fate(10, 10), Fate::OkAfterRetry, "half is not below half");
    assert_eq!(fate(11, 10), Fate::StopWhen);
    assert_eq!(fate(10, 9), Fate::OkAfterRetry, "nineteen are too few to tell");
}

#[test]
fn open_circuit_fails_calls_at_once_and_probes_close_it() {
    let circuit = CircuitBreaker { probes: 1, ..CircuitBreaker::default() };
    let route = route(Policy { circuit_breaker: Some(circuit), retry: None, ..policy() });
    for _ in 0..5 {
        assert_eq!(drive(&route, start(), &[UNAVAILABLE]).finish.ending.fate, Fate::PolicyOff);
    }
    let refused = drive(&route, start(), &[]);
    assert_eq!((refused.finish.ending.fate, refused.sends.len()), (Fate::CircuitOpen, 0));
    assert_eq!(refused.finish.answer, Answer::CircuitOpen);
    assert!(refused.finish.marks_context);
    let later = CallStart { now: at(5_020), ..start() };
    assert_eq!(drive(&route, later, &[Verdict::Success]).finish.ending.fate, Fate::Ok);
    assert_eq!(drive(&route, later, &[Verdict::Success]).finish.ending.fate, Fate::Ok);
    assert_eq!(route.state().counters.attempts(), 7, "the refused one was not sent");
}

#[test]
fn errors_of_the_caller_do_not_open_the_circuit() {
    let circuit = CircuitBreaker::default();
    let route = route(Policy { circuit_breaker: Some(circuit), ..policy() });
    for _ in 0..40 {
        drive(&route, start(), &[failed(Code::NotFound)]);
    }
    assert_eq!(drive(&route, start(), &[Verdict::Success]).finish.ending.fate, Fate::Ok);
}

#[test]
fn closing_forgets_what_opened_it_also_within_one_bucket() {
    let circuit = CircuitBreaker { consecutive_failures: 1_000, ..CircuitBreaker::default() };
    let window = crate::WindowShape { bucket_length: ms(10_000), ..crate::WindowShape::default() };
    let retry_breaker = Some(RetryBreaker { window, ..RetryBreaker::default() });
    let route = route(Policy { circuit_breaker: Some(circuit), retry_breaker, retry: None, ..policy() });
    let call = |at_ms: u64, verdict| {
        let start = CallStart { now: Time::from_micros(at_ms * 1_000), ..start() };
        drive(&route, start, &[verdict]).finish.ending.fate
    };
    (0..20).for_each(|_| assert_eq!(call(20_000, UNAVAILABLE), Fate::PolicyOff));
    assert_eq!(call(20_100, Verdict::Success), Fate::CircuitOpen);
    (0..8).for_each(|_| assert_eq!(call(25_100, Verdict::Success), Fate::Ok));
    assert_eq!(call(25_200, UNAVAILABLE), Fate::PolicyOff);
    assert_eq!(call(25_300, Verdict::Success), Fate::Ok, "one failure of ten is no reason");
}

#[test]
fn slow_calls_may_open_the_circuit() {
    // Calls take 10 ms.
    for (slow_ms, sixth) in [(9, Fate::CircuitOpen), (10, Fate::Ok)] {
        let circuit = CircuitBreaker { slow_call: Some(ms(slow_ms)), ..CircuitBreaker::default() };
        let route = route(Policy { circuit_breaker: Some(circuit), ..policy() });
        (0..5).for_each(|_| _ = drive(&route, start(), &[Verdict::Success]));
        assert_eq!(drive(&route, start(), &[Verdict::Success]).finish.ending.fate, sixth);
    }
}

#[test]
fn observed_open_circuit_passes_calls_and_counts_would_fates() {
    let circuit = CircuitBreaker::default();
    let route = route(Policy { circuit_breaker: Some(circuit), mode: Mode::Observe, ..policy() });
    (0..5).for_each(|_| _ = drive(&route, start(), &[UNAVAILABLE]));
    let ending = |verdict| drive(&route, start(), &[verdict]).finish.ending.to_string();
    assert_eq!(ending(UNAVAILABLE), "would_circuit_open");
    assert_eq!(ending(Verdict::Success), "ok", "an answered call is ok under any rule");
}

/// Runs calls whose attempts all fail at once, from many threads; returns the number of extra attempts.
fn storm(route: &Route, threads: u64, calls: u64) -> u64 {
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..calls {
                    let _ = drive(route, start(), &[UNAVAILABLE; 10]);
                }
            });
        }
    });
    route.state().counters.retries()
}

#[test]
fn breaker_bound_holds_for_calls_of_many_threads() {
    for (successes, expected) in [(0, 0), (500, 50), (2_000, 200)] {
        let breaker = RetryBreaker { min_failures: 0, mode: BreakerMode::Ratio, ..RetryBreaker::default() };
        let route = route(Policy {
            retry_breaker: Some(breaker),
            retry: Some(Retry { backoff: Backoff::Always(Waits::None), ..Retry::default() }),
            ..policy()
        });
        (0..successes).for_each(|_| route.window().count_success(CALLS_BEGIN));
        let extra = storm(&route, 4, 500);
        assert!(extra <= expected, "{extra} retries, {expected} allowed");
    }
}

#[test]
fn budget_bound_holds_for_retries_and_hedges_of_many_threads() {
    let budget = Budget { ratio: Ratio::from_bp(1_500), min_per_second: 1 };
    for retry_breaker in [None, Some(RetryBreaker::default())] {
        let route = route(Policy { budget: Some(budget), retry_breaker, ..policy() });
        let extra = storm(&route, 4, 500);
        assert!(extra <= 2_000 * 15 / 100 + 10, "{extra} extra attempts of 2000 calls");
    }
}

#[test]
fn fates_sum_to_calls_with_many_threads() {
    let circuit_breaker = Some(CircuitBreaker { open_for: ms(100), ..CircuitBreaker::default() });
    let route = route(Policy { circuit_breaker, budget: Some(Budget::default()), ..policy() });
    storm(&route, 8, 300);
    let counters = &route.state().counters;
    let ended: u64 = Ending::all().map(|ending| counters.ended(ending)).sum();
    assert_eq!((counters.calls(), ended), (2_400, 2_400));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// After any events, two windows later a call is sent and its failure may be retried.
    #[test]
    fn every_state_is_left_by_time_alone(
        course in prop::collection::vec((0_u64..4, 0_u64..3_000), 1..200),
        credit in any::<bool>(),
        budget in any::<bool>(),
        min_failures in 1_u32..4,
    ) {
        let mode = if credit { BreakerMode::Credit } else { BreakerMode::Ratio };
        let route = route(Policy {
            retry_breaker: Some(RetryBreaker { mode, min_failures, ..RetryBreaker::default() }),
            budget: budget.then(Budget::default),
            circuit_breaker: Some(CircuitBreaker::default()),
            stop_when: Some(StopWhen {
                success_rate_below: Some(Percent::from_hundredths(9_000)),
                latency_above_percentile: Some(Percent::from_hundredths(5_000)),
                min_samples: 1,
            }),
            ..policy()
        });
        let mut now = CALLS_BEGIN;
        for (what, wait) in course {
            now = now + ms(wait);
            let start = CallStart { now, ..start() };
            match what {
                0 => _ = drive(&route, start, &[Verdict::Success]),
                1 => _ = drive(&route, start, &[UNAVAILABLE; 3]),
                2 => _ = drive(&route, start, &[failed(Code::NotFound)]),
                _ => {
                    let mut call = Call::begin(&route, start);
                    call.next_step(&route, now);
                    call.dropped(&route, now);
                }
            }
        }
        // Successes close the half-open circuit, raise the success rate, and earn a retry.
        for n in 0..10 {
            let start = CallStart { now: now + ms(25_000 + n), ..start() };
            prop_assert_eq!(drive(&route, start, &[Verdict::Success]).finish.ending.fate, Fate::Ok);
        }
        (0..20).for_each(|_| route.window().count_success(now + ms(25_100)));
        let start = CallStart { now: now + ms(25_100), ..start() };
        let fate = drive(&route, start, &[UNAVAILABLE, Verdict::Success]).finish.ending.fate;
        prop_assert_eq!(fate, Fate::OkAfterRetry);
    }
}
