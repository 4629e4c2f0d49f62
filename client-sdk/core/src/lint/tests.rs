//! Tests that each code fires on its case and not on the nearest valid one, and that all codes are
//! documented.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::fault::{Percent, Ratio};
use crate::gates::repeat_limit::RepeatLimit;
use crate::outcome::code::Code;
use crate::policy::{
    Backoff, BreakerMode, Budget, Chain, Growth, Hedge, HedgeDelay, Increment, Jitter, OverMax, Retry,
    RetryBreaker, Waits,
};
use crate::rules::guard::Ceiling;
use crate::rules::pattern::Pattern;
use crate::time::window::WindowShape;

const READ: &str = "stock.v1.Stock/Get";
const CHANGE: &str = "stock.v1.Stock/Reserve";

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn retried() -> Policy {
    Policy { retry: Some(Retry::default()), ..Policy::new(Mode::Enforce) }
}

fn hedged() -> Policy {
    let delay = HedgeDelay::Percentile { at: Percent::from_hundredths(9_800), min: ms(1), max: ms(400) };
    Policy {
        hedge: Some(Hedge { delay, max_hedges: 1 }),
        budget: Some(Budget::default()),
        ..Policy::new(Mode::Enforce)
    }
}

fn with_retry(adjust: impl FnOnce(&mut Retry)) -> Policy {
    let mut policy = retried();
    adjust(policy.retry.as_mut().unwrap());
    policy
}

fn rule(words: [&str; 4], policy: Policy) -> Rule {
    let [caller, cluster, callee, method] = words;
    Rule::new(Pattern::parse(caller, cluster, callee, method).unwrap(), policy, 1).unwrap()
}

fn found_at(words: [&str; 4], policy: Policy) -> Vec<Finding> {
    findings(&rule(words, policy), &LintContext::default())
}

/// Returns the codes and fields of the findings for one method.
fn found(method: &str, policy: Policy) -> Vec<(&'static str, String)> {
    let found = found_at(["shop", "*", "stock", method], policy);
    found.into_iter().map(|finding| (finding.code, finding.field)).collect()
}

#[track_caller]
fn fires(known: FindingCode, field: &str, method: &str, policy: Policy) {
    let found = found(method, policy);
    assert!(found.contains(&(known.code, format!("policy.{field}"))), "{}: {found:?}", known.code);
}

#[track_caller]
fn silent(method: &str, policy: Policy) {
    assert_eq!(found(method, policy), []);
}

fn waits(waits: Waits) -> Backoff {
    Backoff::Always(waits)
}

fn fixed(delay: Duration) -> Waits {
    Waits::Fixed { delay, jitter: Jitter::Equal }
}

#[test]
fn defaults_have_no_finding() {
    silent(READ, retried());
    silent(READ, hedged());
    silent("*", retried());
    silent("*", Policy { timeout: None, ..Policy::new(Mode::Observe) });
    silent(CHANGE, Policy { mode: Mode::Observe, ..retried() });
    let timed = Policy { timeout: Some(ms(2_000)), ..retried() };
    silent(READ, timed);
}

#[test]
fn rule_that_is_off_has_no_finding() {
    let worst = Policy { retry_breaker: None, timeout: Some(ms(1)), ..retried() };
    assert_ne!(found("*", worst.clone()), []);
    silent("*", Policy { mode: Mode::Off, ..worst });
}

#[test]
fn breaker_off_without_budget_is_found() {
    let off = Policy { retry_breaker: None, ..retried() };
    fires(codes::BREAKER_OFF, "retry_breaker.enabled", READ, off.clone());
    silent(READ, Policy { budget: Some(Budget::default()), ..off.clone() });
    silent(READ, Policy { retry: None, timeout: Some(ms(5)), ..off });
}

fn ratio_mode() -> RetryBreaker {
    RetryBreaker { mode: BreakerMode::Ratio, ..RetryBreaker::default() }
}

#[test]
fn ratio_of_a_half_is_found_and_the_lowest_decides() {
    let breaker = |bp| RetryBreaker { ratio: Ratio::from_bp(bp), ..ratio_mode() };
    let with = |bp| Policy { retry_breaker: Some(breaker(bp)), ..retried() };
    fires(codes::RATIO_BOUNDS_LITTLE, "retry_breaker.ratio", READ, with(5_000));
    silent(READ, with(4_999));
    let budget = |bp| Some(Budget { ratio: Ratio::from_bp(bp), min_per_second: 1 });
    silent(READ, Policy { budget: budget(2_000), ..with(10_000) });
    fires(codes::RATIO_BOUNDS_LITTLE, "budget.ratio", READ, Policy { budget: budget(9_000), ..with(10_000) });
    let credit = RetryBreaker { mode: BreakerMode::Credit, ..breaker(10_000) };
    let credit = Policy { retry_breaker: Some(credit), ..retried() };
    silent(READ, credit.clone());
    fires(codes::RATIO_BOUNDS_LITTLE, "budget.ratio", READ, Policy { budget: budget(5_000), ..credit });
}

#[test]
fn guard_ratio_that_stops_credit_is_found() {
    let breaker = RetryBreaker { max_ratio: Some(Ratio::from_bp(1_000)), ..RetryBreaker::default() };
    let with = |breaker| Policy { retry_breaker: Some(breaker), ..retried() };
    fires(codes::MAX_RATIO_STOPS_CREDIT, "retry_breaker.max_ratio", READ, with(breaker));
    let found = findings(&rule(["shop", "*", "stock", READ], with(breaker)), &LintContext::default());
    assert!(found[0].message.contains("9.09 %"), "{found:?}");
    silent(READ, with(RetryBreaker { mode: BreakerMode::Ratio, ..breaker }));
}

#[test]
fn budget_minimum_is_high_from_100_on() {
    let with = |min_per_second| {
        let budget = Some(Budget { min_per_second, ..Budget::default() });
        Policy { budget, ..retried() }
    };
    fires(codes::BUDGET_MINIMUM_HIGH, "budget.min_per_second", READ, with(100));
    silent(READ, with(99));
}

#[test]
fn minimum_above_the_traffic_is_found() {
    let with = |min_failures, min_samples| {
        let breaker = RetryBreaker { min_failures, min_samples, ..ratio_mode() };
        Policy { retry_breaker: Some(breaker), ..retried() }
    };
    fires(codes::MIN_FAILURES_HIGH, "retry_breaker.min_failures", READ, with(21, 0));
    silent(READ, with(20, 1_000));
    let hedge = hedged().hedge;
    let found = |min_samples| {
        let hedging = Policy { hedge, ..with(3, min_samples) };
        let findings = findings(&rule(["shop", "*", "stock", READ], hedging), &LintContext::default());
        findings.iter().any(|finding| finding.code == codes::MIN_FAILURES_HIGH.code)
    };
    assert_eq!([found(22), found(21)], [true, false]);
    let known = |calls_per_s, policy| {
        let context = LintContext { calls_per_s: Some(calls_per_s) };
        findings(&rule(["shop", "*", "stock", READ], policy), &context).len()
    };
    // 10 s of 2 calls per second and 3 attempts each are 60 attempts.
    assert_eq!([known(2, with(60, 0)), known(2, with(59, 0)), known(2, with(100, 0))], [1, 0, 1]);
    assert_eq!(known(0, with(1, 0)), 0, "the default is for quiet routes");
    let short = WindowShape { buckets: 2, bucket_length: ms(100) };
    let breaker = RetryBreaker { min_failures: 6, window: short, ..ratio_mode() };
    let short = Policy { retry_breaker: Some(breaker), ..retried() };
    assert_eq!([known(11, short.clone()), known(12, short)], [1, 0], "6.6 and 7.2 attempts in 200 ms");
}

#[test]
fn ignored_flags_are_found() {
    let with = |chain| Policy { chain, ..retried() };
    let retry = Chain { ignore_retry_flag: true, ..Chain::default() };
    fires(codes::IGNORES_RETRY_FLAG, "chain.ignore_retry_flag", READ, with(retry));
    let no_more = Chain { ignore_no_more_retry: true, ..Chain::default() };
    fires(codes::IGNORES_NO_MORE_RETRY, "chain.ignore_no_more_retry", READ, with(no_more));
    silent(READ, with(Chain { propagate_baggage: true, ..Chain::default() }));
    silent(READ, Policy { retry: None, ..with(retry) });
}

#[test]
fn rule_for_all_services_is_found_and_for_one_is_not() {
    let codes = |words, policy| found_at(words, policy).iter().map(|found| found.code).collect::<Vec<_>>();
    assert_eq!(codes(["*", "*", "*", "*"], retried()), [codes::RULE_FOR_ALL_CALLERS.code]);
    assert_eq!(codes(["*", "online", "*", READ], hedged()), [codes::RULE_FOR_ALL_CALLERS.code]);
    let observed = Policy { mode: Mode::Observe, ..retried() };
    assert!(codes(["*", "*", "*", "*"], observed).is_empty(), "nothing is retried yet");
    assert!(codes(["*", "*", "stock", "*"], retried()).is_empty());
    assert!(codes(["shop", "*", "*", "*"], retried()).is_empty());
}

#[test]
fn hedges_need_a_percentile_and_a_budget() {
    let hedge = Some(Hedge { delay: HedgeDelay::Fixed(ms(50)), max_hedges: 1 });
    fires(codes::HEDGE_FIXED_DELAY, "hedge.delay.fixed", READ, Policy { hedge, ..hedged() });
    fires(codes::HEDGE_WITHOUT_BUDGET, "budget", READ, Policy { budget: None, ..hedged() });
}

#[test]
fn hedges_leave_the_retry_breaker_room_for_failures() {
    let with = |hundredths, breaker| {
        let at = Percent::from_hundredths(hundredths);
        let delay = HedgeDelay::Percentile { at, min: ms(1), max: ms(400) };
        Policy { hedge: Some(Hedge { delay, max_hedges: 1 }), retry_breaker: breaker, ..hedged() }
    };
    let default = RetryBreaker::default();
    fires(codes::HEDGES_NEAR_BREAKER, "hedge.delay.percentile.at", READ, with(9_500, Some(default)));
    silent(READ, with(9_600, Some(default)));
    silent(READ, with(9_500, Some(RetryBreaker { ratio: Ratio::from_bp(2_000), ..default })));
    silent(READ, with(9_500, None));
}

#[test]
fn backoff_that_varies_has_room_to() {
    let with = |backoff: Waits| with_retry(|retry| retry.backoff = Backoff::Always(backoff));
    let growth = |max| Growth { max: ms(max), over_max: OverMax::Cap, jitter: Jitter::Full };
    let exponential = |bp, max| {
        with(Waits::Exponential { base: ms(100), multiplier: Ratio::from_bp(bp), growth: growth(max) })
    };
    let code = codes::BACKOFF_IS_CONSTANT;
    fires(code, "retry.backoff.exponential", READ, exponential(10_000, 250));
    fires(code, "retry.backoff.exponential", READ, exponential(20_000, 100));
    silent(READ, exponential(20_000, 101));
    let fibonacci = |max| with(Waits::Fibonacci { unit: ms(100), growth: growth(max) });
    fires(code, "retry.backoff.fibonacci", READ, fibonacci(100));
    silent(READ, fibonacci(101));
    let incrementing = |step, max| {
        with(Waits::Incrementing { initial: ms(100), step: Increment::Up(ms(step)), growth: growth(max) })
    };
    fires(code, "retry.backoff.incrementing", READ, incrementing(0, 250));
    fires(code, "retry.backoff.incrementing", READ, incrementing(5, 100));
    silent(READ, incrementing(5, 250));
    let random = |max| with(Waits::Random { min: ms(100), max: ms(max), jitter: Jitter::Full });
    fires(code, "retry.backoff.random", READ, random(100));
    silent(READ, random(101));
    let one_retry = with_retry(|retry| {
        retry.max_attempts = 2;
        retry.backoff = exponential(10_000, 250).retry.unwrap().backoff;
    });
    silent(READ, one_retry);
}

#[test]
fn unnamed_methods_are_retried_only_after_unavailable() {
    let with = |code| with_retry(|retry| retry.codes = CodeSet::of(&[Code::Unavailable, code]));
    for code in [Code::DeadlineExceeded, Code::Internal, Code::Unknown, Code::Aborted, Code::Cancelled] {
        for methods in ["*", "bank.v1.L/*"] {
            fires(codes::UNNAMED_REPEATED, "retry.codes", methods, with(code));
            silent(methods, Policy { call_id: true, ..with(code) });
        }
        silent(READ, with(code));
    }
    silent("bank.v1.L/*", with(Code::ResourceExhausted));
}

#[test]
fn minimum_of_a_short_window_counts_by_the_second() {
    let with = |min_failures, bucket, buckets| {
        let window = WindowShape { buckets, bucket_length: ms(bucket) };
        let breaker = RetryBreaker { min_failures, window, ..ratio_mode() };
        Policy { retry_breaker: Some(breaker), ..retried() }
    };
    fires(codes::MIN_FAILURES_HIGH, "retry_breaker.min_failures", READ, with(20, 100, 2));
    fires(codes::MIN_FAILURES_HIGH, "retry_breaker.min_failures", READ, with(5, 100, 2));
    silent(READ, with(4, 100, 2));
    silent(READ, with(20, 500, 2));
    let found = found_at(["shop", "*", "stock", READ], with(20, 100, 2));
    assert!(found[0].message.ends_with("that is 100 per second"), "{found:?}");
}

#[test]
fn changing_method_needs_call_id_or_unavailable() {
    let with = |codes: &[Code]| with_retry(|retry| retry.codes = CodeSet::of(codes));
    use Code::{Aborted, Cancelled, DeadlineExceeded, Internal, ResourceExhausted, Unavailable, Unknown};
    for code in [DeadlineExceeded, Unknown, Internal, Aborted, Cancelled] {
        fires(codes::NON_IDEMPOTENT_REPEATED, "retry.codes", CHANGE, with(&[Unavailable, code]));
        assert_eq!(found(READ, with(&[Unavailable, code])), []);
        silent(CHANGE, Policy { call_id: true, ..with(&[code]) });
    }
    let only = (codes::CALL_ID_MISSING.code, "policy.call_id".to_owned());
    assert_eq!(found(CHANGE, with(&[Unavailable, ResourceExhausted])), [only]);
    for unclear in ["stock.v1.Stock/Restock", "a.B/SetPrice", "a.B/DeleteItem", "a.B/Process"] {
        fires(codes::UNCLEAR_REPEATED, "retry.codes", unclear, with(&[Unavailable, Unknown]));
        silent(unclear, with(&[Unavailable]));
        silent(unclear, Policy { call_id: true, ..with(&[Unknown]) });
    }
    fires(codes::NON_IDEMPOTENT_HEDGED, "hedge", CHANGE, hedged());
    silent(CHANGE, Policy { call_id: true, ..hedged() });
}

#[test]
fn block_without_extra_attempts_is_the_only_finding() {
    let once = with_retry(|retry| {
        retry.max_attempts = 1;
        retry.per_attempt_timeout = Some(ms(5));
    });
    let listed = |policy| found(READ, policy);
    let expected = (codes::NEVER_REPEATS.code, "policy.retry.max_attempts".to_owned());
    assert_eq!(listed(Policy { retry_breaker: None, ..once.clone() }), std::slice::from_ref(&expected));
    assert_eq!(listed(Policy { hedge: hedged().hedge, ..once }), [expected]);
    silent(READ, with_retry(|retry| retry.max_attempts = 2));
}

#[test]
fn codes_that_never_help_are_named() {
    use Code::{DataLoss, InvalidArgument, NotFound, Unauthenticated, Unavailable};
    let with = |codes| with_retry(|retry| retry.codes = codes);
    fires(codes::CODE_NEVER_HELPS, "retry.codes", READ, with(CodeSet::of(&[Unavailable, NotFound])));
    let deny = with(CodeSet::all_but(CodeSet::of(&[InvalidArgument, NotFound])));
    let listed = found_at(["shop", "*", "stock", READ], deny);
    assert!(listed[0].message.contains("ALREADY_EXISTS, PERMISSION_DENIED"), "{listed:?}");
    assert!(!listed[0].message.contains("NOT_FOUND"), "{listed:?}");
    fires(codes::CODE_NEVER_HELPS, "retry.codes", READ, with(CodeSet::of(&[Unauthenticated])));
    silent(READ, with(CodeSet::of(&[Unavailable, DataLoss, Code::ResourceExhausted])));
}

#[test]
fn attempt_timeout_must_allow_another_attempt() {
    let with = |codes: &[Code], attempt, timeout, max_duration: Option<Duration>| Policy {
        timeout,
        ..with_retry(|retry| {
            retry.codes = CodeSet::of(codes);
            retry.per_attempt_timeout = Some(attempt);
            retry.max_duration = max_duration;
        })
    };
    let both = [Code::Unavailable, Code::DeadlineExceeded];
    let field = "retry.per_attempt_timeout";
    fires(codes::ATTEMPT_TIMEOUT_NOT_RETRIED, field, READ, with(&[Code::Unavailable], ms(100), None, None));
    fires(codes::ATTEMPT_TIMEOUT_USELESS, field, READ, with(&both, ms(1000), Some(ms(1000)), None));
    fires(codes::ATTEMPT_TIMEOUT_USELESS, field, READ, with(&both, ms(1000), None, Some(ms(1000))));
    fires(codes::ATTEMPTS_DO_NOT_FIT, field, READ, with(&both, ms(334), Some(ms(1000)), None));
    silent(READ, with(&both, ms(333), Some(ms(1000)), None));
    silent(READ, with(&both, ms(999), None, Some(ms(1000))));
}

#[test]
fn waits_must_fit_the_time_of_the_call() {
    let with = |wait, timeout, max_duration| Policy {
        timeout,
        ..with_retry(|retry| {
            retry.backoff = waits(fixed(wait));
            retry.max_duration = max_duration;
        })
    };
    // Half of each wait is random: two waits take 1 s at least.
    let field = "retry.backoff";
    fires(codes::WAITS_DO_NOT_FIT, field, READ, with(ms(1000), Some(ms(1000)), None));
    silent(READ, with(ms(1000), Some(ms(1001)), None));
    fires(codes::WAITS_DO_NOT_FIT, field, READ, with(ms(1000), None, Some(ms(999))));
    fires(codes::WAITS_DO_NOT_FIT, field, READ, with(ms(1000), None, Some(ms(1000))));
    silent(READ, with(ms(1000), None, Some(ms(1001))));
    let listed = found_at(["shop", "*", "stock", READ], with(ms(1000), Some(ms(600)), None));
    assert!(
        listed[0].message.starts_with("attempt 3 starts 1s after the first at the earliest"),
        "{listed:?}"
    );
}

#[test]
fn hedge_must_come_before_the_end() {
    let fixed = |delay| Some(Hedge { delay: HedgeDelay::Fixed(delay), max_hedges: 1 });
    let with = |delay, timeout| Policy { hedge: fixed(delay), timeout, ..hedged() };
    let never = (codes::HEDGE_NEVER_SENT.code, "policy.hedge.delay.fixed".to_owned());
    let has = |policy| found(READ, policy).contains(&never);
    assert!(has(with(ms(500), Some(ms(500)))));
    assert!(!has(with(ms(499), Some(ms(500)))));
    let attempt = |attempt| Policy {
        hedge: fixed(ms(500)),
        budget: Some(Budget::default()),
        ..with_retry(|retry| {
            retry.codes = CodeSet::of(&[Code::DeadlineExceeded]);
            retry.per_attempt_timeout = Some(attempt);
        })
    };
    assert!(has(attempt(ms(500))) && !has(attempt(ms(501))));
    let delay = HedgeDelay::Percentile { at: Percent::from_hundredths(9_800), min: ms(50), max: ms(400) };
    let at_percentile =
        |timeout| Policy { hedge: Some(Hedge { delay, max_hedges: 1 }), timeout: Some(timeout), ..hedged() };
    fires(codes::HEDGE_NEVER_SENT, "hedge.delay.percentile.min", READ, at_percentile(ms(50)));
    silent(READ, at_percentile(ms(51)));
}

#[test]
fn hedges_count_as_attempts() {
    let with = |max_hedges, max_attempts| Policy {
        hedge: Some(Hedge { max_hedges, ..hedged().hedge.unwrap() }),
        budget: Some(Budget::default()),
        ..with_retry(|retry| retry.max_attempts = max_attempts)
    };
    fires(codes::HEDGES_EXCEED_ATTEMPTS, "hedge.max_hedges", READ, with(3, 3));
    silent(READ, with(2, 3));
}

#[test]
fn unreachable_by_code_entries_are_found() {
    let with = |codes: Vec<CodeSet>| {
        with_retry(|retry| {
            retry.codes = CodeSet::of(&[Code::Unavailable, Code::ResourceExhausted]);
            let codes = codes.into_iter().map(|set| (set, Waits::default())).collect();
            retry.backoff = Backoff::ByCode { default: Waits::default(), codes };
        })
    };
    let exhausted = CodeSet::of(&[Code::ResourceExhausted]);
    let field = "retry.backoff.by_code.codes[1].codes";
    fires(codes::BY_CODE_REPEATED, field, READ, with(vec![exhausted, exhausted]));
    fires(codes::BY_CODE_NOT_RETRIED, field, READ, with(vec![exhausted, CodeSet::of(&[Code::Aborted])]));
    silent(READ, with(vec![exhausted, CodeSet::of(&[Code::Unavailable])]));
}

#[test]
fn replay_limit_zero_is_found() {
    fires(codes::REPLAY_LIMIT_ZERO, "replay_limit_bytes", READ, Policy { replay_limit: 0, ..retried() });
    silent(READ, Policy { replay_limit: 1, ..retried() });
}

#[test]
fn held_response_with_hedges_is_found() {
    fires(codes::HOLD_WITH_HEDGE, "hold_unary", READ, Policy { hold_unary: true, ..hedged() });
    silent(READ, Policy { hold_unary: true, ..retried() });
}

#[test]
fn waits_need_a_random_part() {
    let with = |backoff| with_retry(|retry| retry.backoff = backoff);
    let plain = Waits::Fixed { delay: ms(50), jitter: Jitter::None };
    let growth = |jitter| Growth { max: ms(250), over_max: OverMax::Cap, jitter };
    let fibonacci = |jitter| Waits::Fibonacci { unit: ms(10), growth: growth(jitter) };
    let code = codes::BACKOFF_WITHOUT_JITTER;
    fires(code, "retry.backoff.fixed", READ, with(waits(plain.clone())));
    fires(code, "retry.backoff.fibonacci", READ, with(waits(fibonacci(Jitter::None))));
    silent(READ, with(waits(fibonacci(Jitter::Full))));
    let random = |max| Waits::Random { min: ms(10), max, jitter: Jitter::None };
    silent(READ, with(waits(random(ms(20)))));
    fires(code, "retry.backoff.random", READ, with(waits(random(ms(10)))));
    fires(code, "retry.backoff.sum.parts[1].fixed", READ, with(Backoff::Sum(vec![plain.clone(); 2])));
    silent(READ, with(Backoff::Sum(vec![plain.clone(), random(ms(20))])));
    let by_code = Backoff::ByCode {
        default: Waits::default(),
        codes: vec![(CodeSet::of(&[Code::Unavailable]), plain)],
    };
    fires(code, "retry.backoff.by_code.codes[0].backoff.fixed", READ, with(by_code));
}

#[test]
fn one_retry_at_once_is_fine_and_several_are_not() {
    let with = |backoff, attempts| {
        with_retry(|retry| {
            retry.backoff = waits(backoff);
            retry.max_attempts = attempts;
        })
    };
    fires(codes::BACKOFF_NONE, "retry.backoff", READ, with(Waits::None, 3));
    let zero = Waits::Fixed { delay: Duration::ZERO, jitter: Jitter::None };
    assert_eq!(found(READ, with(zero, 3)).len(), 1);
    silent(READ, with(Waits::None, 2));
}

#[test]
fn timeouts_on_unnamed_methods_are_found() {
    let timed = Policy { timeout: Some(ms(2_000)), ..Policy::new(Mode::Enforce) };
    fires(codes::TIMEOUT_ON_STREAMS, "timeout", "*", timed.clone());
    fires(codes::TIMEOUT_ON_STREAMS, "timeout", "stock.v1.Stock/*", timed.clone());
    silent(READ, timed);
    let attempt = with_retry(|retry| {
        retry.per_attempt_timeout = Some(ms(5));
        retry.codes = CodeSet::of(&[Code::DeadlineExceeded]);
    });
    fires(codes::TIMEOUT_ON_STREAMS, "retry.per_attempt_timeout", "*", attempt);
}

#[test]
fn long_waits_need_an_end() {
    let with = |wait| with_retry(|retry| retry.backoff = waits(fixed(wait)));
    fires(codes::NO_DEADLINE, "timeout", READ, with(ms(500)));
    silent(READ, with(ms(499)));
    silent(READ, Policy { timeout: Some(ms(5_000)), ..with(ms(500)) });
}

#[test]
fn ceilings_without_effect_are_found() {
    let found = |ceiling| {
        let pattern = Pattern::parse("*", "*", "stock", "*").unwrap();
        let guard = Guard::new(pattern, ceiling, String::new(), 1).unwrap();
        guard_findings(&guard).into_iter().map(|found| (found.code, found.field)).collect::<Vec<_>>()
    };
    let listed = |known: FindingCode, field: &str| vec![(known.code, format!("ceiling.{field}"))];
    let ceiling = Ceiling::default();
    let attempts = |most| Ceiling { max_attempts: Some(most), ..ceiling };
    assert_eq!(found(attempts(10)), listed(codes::CEILING_LIMITS_NOTHING, "max_attempts"));
    assert_eq!(found(attempts(9)), []);
    let least = |least| Ceiling { min_per_attempt_timeout: Some(least), ..ceiling };
    assert_eq!(found(least(ms(1))), listed(codes::CEILING_LIMITS_NOTHING, "min_per_attempt_timeout"));
    assert_eq!(found(least(ms(2))), []);
    let limit = |mode, bp| {
        let limit = RepeatLimit { mode, ratio: Ratio::from_bp(bp), min: 3 };
        Ceiling { repeat_limit: Some(limit), ..ceiling }
    };
    assert_eq!(found(limit(Mode::Off, 1_000)), listed(codes::REPEAT_LIMIT_OFF, "repeat_limit.mode"));
    assert_eq!(found(limit(Mode::Enforce, 5_000)), listed(codes::REPEAT_LIMIT_HIGH, "repeat_limit.ratio"));
    assert_eq!(found(limit(Mode::Observe, 4_999)), []);
}

#[test]
fn guard_cuts_what_exceeds_it_where_both_match() {
    let guard = |callee, owner: &str| {
        let ceiling = Ceiling { max_attempts: Some(2), ..Ceiling::default() };
        Guard::new(Pattern::parse("*", "*", callee, "*").unwrap(), ceiling, owner.to_owned(), 1).unwrap()
    };
    let cut = |guard: &Guard, words, policy| {
        let cuts = cuts(guard, &rule(words, policy));
        cuts.into_iter().map(|found| (found.code, found.field, found.message)).collect::<Vec<_>>()
    };
    let listed = |message: &str| {
        vec![(codes::GUARD_CUTS.code, "policy.retry.max_attempts".to_owned(), message.to_owned())]
    };
    let inside = ["shop", "*", "stock", READ];
    let ceiling = "3 is more than 2, the ceiling of guard \"* * stock *\"";
    assert_eq!(cut(&guard("stock", ""), inside, retried()), listed(&format!("{ceiling}; cut everywhere")));
    let owned = format!("{ceiling} (owner team); cut where both match");
    assert_eq!(cut(&guard("stock", "team"), ["shop", "*", "*", "*"], retried()), listed(&owned));
    assert_eq!(cut(&guard("till", ""), inside, retried()), []);
    assert_eq!(cut(&guard("stock", ""), inside, Policy { mode: Mode::Off, ..retried() }), []);
    assert_eq!(cut(&guard("stock", ""), inside, with_retry(|retry| retry.max_attempts = 2)), []);
}

#[test]
fn most_severe_comes_first() {
    let all = found_at(
        ["shop", "*", "stock", "*"],
        Policy { retry_breaker: None, timeout: Some(ms(50)), replay_limit: 0, ..retried() },
    );
    let severities: Vec<_> = all.iter().map(|found| found.severity).collect();
    assert!(severities.is_sorted_by(|a, b| a >= b) && severities.len() == 3, "{all:?}");
}

#[test]
fn docs_list_exactly_the_codes_with_severity() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/findings.md")).unwrap();
    // Findings of the fleet are not findings about a rule; their codes are in the control plane.
    let (page, _) = page.split_once("\n## What `damper doctor` finds").unwrap();
    let headings: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`')).collect();
    let codes: Vec<&str> = codes::ALL.iter().map(|known| known.code).collect();
    assert_eq!(headings, codes, "docs/findings.md has one heading per code, in the order of the list");
    assert_eq!(codes.iter().collect::<BTreeSet<_>>().len(), codes.len(), "no code twice");
    for FindingCode { code, severity, meaning, remedy } in codes::ALL {
        let section = page.split(&format!("### `{code}`")).nth(1).unwrap();
        let section = section.split("\n### ").next().unwrap();
        // As the command line shows it.
        let severity = if *severity == Severity::Danger { "critical" } else { severity.name() };
        for part in [format!("**{severity}**"), (*meaning).to_owned(), (*remedy).to_owned()] {
            assert!(section.contains(&part), "{code} does not say {part:?}");
        }
        assert!(!meaning.contains('\n') && meaning.ends_with('.') && remedy.ends_with('.'), "{code}");
    }
}
