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
fn range_ends_are_accepted_and_values_beyond_are_faults() {
    let check = |attempts: u32, expected: &[&str]| {
        assert_eq!(faults(|policy| retry(policy).max_attempts = attempts), expected);
    };
    check(1, &[]);
    check(10, &[]);
    check(0, &["retry.max_attempts: must be between 1 and 10, not 0"]);
    check(11, &["retry.max_attempts: must be between 1 and 10, not 11"]);

    let check = |timeout_us: u64, expected: &[&str]| {
        assert_eq!(faults(|policy| policy.timeout = Some(Duration::from_micros(timeout_us))), expected);
    };
    check(1_000, &[]);
    check(3_600_000_000, &[]);
    check(999, &["timeout: must be between 1ms and 1h, not 999us"]);
    check(3_600_000_001, &["timeout: must be between 1ms and 1h, not 3600000001us"]);

    let check = |bp: u32, expected: &[&str]| {
        let breaker = RetryBreaker { ratio: Ratio::from_bp(bp), ..RetryBreaker::default() };
        assert_eq!(faults(|policy| policy.retry_breaker = Some(breaker)), expected);
    };
    check(10, &[]);
    check(10_000, &[]);
    check(9, &["retry_breaker.ratio: must be between 0.001 and 1, not 0.0009"]);
    check(10_001, &["retry_breaker.ratio: must be between 0.001 and 1, not 1.0001"]);
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
        "timeout: must be between 1ms and 1h, not 0ms",
        "retry.max_attempts: must be between 1 and 10, not 99",
        "retry.codes: must contain at least one code; to send calls once, remove `retry`",
        "retry.backoff.random.max: must be at least min (2s), not 1s",
        "retry_breaker.buckets: must be between 2 and 60, not 1",
        "retry_breaker.bucket_length: must be between 100ms and 10s, not 11s",
        "retry_breaker.min_failures: must be between 0 and 100, not 101",
        "retry_breaker.min_samples: must be between 0 and 1000, not 1001",
        "retry_breaker.failure_codes: OK is not a failure",
        "replay_limit_bytes: must be between 0 and 4194304, not 5242880",
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
        "retry.backoff.exponential.jitter_share: must be between 0.0001 and 1, not 1.0001",
        "retry.backoff.exponential.base: must be between 0ms and 24h, not 25h",
        "retry.backoff.exponential.multiplier: must be between 1 and 10, not 0.9999",
        "retry.backoff.exponential.max: must be at least base (25h), not 1s",
    ];
    assert_eq!(found, expected);
}
