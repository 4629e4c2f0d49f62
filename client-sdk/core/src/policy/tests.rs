use super::*;
use crate::fault::{Fault, Ratio};

fn faults(change: impl FnOnce(&mut Policy)) -> Vec<String> {
    let mut policy = Policy { retry: Some(Retry::default()), ..Policy::new(Mode::Enforce) };
    change(&mut policy);
    let mut faults = Faults::none();
    policy.check(&mut faults);
    faults.iter().map(Fault::to_string).collect()
}

fn retry(policy: &mut Policy) -> &mut Retry {
    policy.retry.as_mut().unwrap()
}

#[test]
fn defaults_are_within_every_range() {
    assert_eq!(faults(|_| {}), Vec::<String>::new());
}

#[test]
fn the_ends_of_a_range_are_accepted_and_what_lies_beyond_is_named_with_its_bound() {
    let check = |attempts: u32, expected: &[&str]| {
        assert_eq!(faults(|policy| retry(policy).max_attempts = attempts), expected);
    };
    check(1, &[]);
    check(10, &[]);
    check(0, &["retry.max_attempts: 0 is not in 1 to 10"]);
    check(11, &["retry.max_attempts: 11 is not in 1 to 10"]);

    let check = |timeout_us: u64, expected: &[&str]| {
        assert_eq!(faults(|policy| policy.timeout = Some(Duration::from_micros(timeout_us))), expected);
    };
    check(1_000, &[]);
    check(3_600_000_000, &[]);
    check(999, &["timeout: 999us is not in 1ms to 1h"]);
    check(3_600_000_001, &["timeout: 3600000001us is not in 1ms to 1h"]);

    let check = |bp: u32, expected: &[&str]| {
        let breaker = RetryBreaker { ratio: Ratio::from_bp(bp), ..RetryBreaker::default() };
        assert_eq!(faults(|policy| policy.retry_breaker = Some(breaker)), expected);
    };
    check(10, &[]);
    check(10_000, &[]);
    check(9, &["retry_breaker.ratio: 0.0009 is not in 0.001 to 1"]);
    check(10_001, &["retry_breaker.ratio: 1.0001 is not in 0.001 to 1"]);
}

#[test]
fn every_fault_is_reported_at_once() {
    let found = faults(|policy| {
        policy.timeout = Some(Duration::ZERO);
        policy.replay_limit = 5 << 20;
        let retry = retry(policy);
        retry.max_attempts = 99;
        retry.codes = CodeSet::EMPTY;
        let (min, max) = (Duration::from_secs(2), Duration::from_secs(1));
        retry.backoff = Backoff::Always(Waits::Random { min, max, jitter: Jitter::None });
        policy.retry_breaker = Some(RetryBreaker {
            window: WindowShape { buckets: 1, bucket_length: Duration::from_secs(11) },
            min_failures: 101,
            min_samples: 1001,
            failure_codes: Some(CodeSet::of(&[Code::Ok])),
            ..RetryBreaker::default()
        });
    });
    let expected = [
        "timeout: 0ms is not in 1ms to 1h",
        "retry.max_attempts: 99 is not in 1 to 10",
        "retry.codes: names no code to retry; leave out `retry` to send calls once",
        "retry.backoff.random.max: 1s is less than min, 2s",
        "retry_breaker.buckets: 1 is not in 2 to 60",
        "retry_breaker.bucket_length: 11s is not in 100ms to 10s",
        "retry_breaker.min_failures: 101 is not in 0 to 100",
        "retry_breaker.min_samples: 1001 is not in 0 to 1000",
        "retry_breaker.failure_codes: OK is not a failure",
        "replay_limit_bytes: 5242880 is not in 0 to 4194304",
    ];
    assert_eq!(found, expected);
}

#[test]
fn backoffs_are_checked_part_by_part() {
    let found = faults(|policy| {
        retry(policy).backoff = Backoff::Always(Waits::Exponential {
            base: Duration::from_secs(90_000),
            multiplier: Ratio::from_bp(9_999),
            growth: Growth {
                max: Duration::from_secs(1),
                over_max: OverMax::Cap,
                jitter: Jitter::PlusMinus(Ratio::from_bp(10_001)),
            },
        });
    });
    let expected = [
        "retry.backoff.exponential.jitter_share: 1.0001 is not in 0.0001 to 1",
        "retry.backoff.exponential.base: 25h is not in 0ms to 24h",
        "retry.backoff.exponential.multiplier: 0.9999 is not in 1 to 10",
        "retry.backoff.exponential.max: 1s is less than base, 25h",
    ];
    assert_eq!(found, expected);
}
