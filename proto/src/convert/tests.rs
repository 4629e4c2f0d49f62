use damper_core::{Code, CodeSet, Fate, Faults, Mode, Pattern, Percent, Policy, Ratio, Retry, Rule};
use proptest::prelude::*;

use self::any::{any_guard, any_policy, any_queue};
use crate::v1;

pub(crate) mod any;
mod backoffs;
mod guards;
mod kills;
mod queues;
mod settings;

fn paths(faults: &Faults) -> Vec<&str> {
    faults.iter().map(|fault| fault.path.as_str()).collect()
}

fn wire_rule() -> v1::Rule {
    let pattern = Pattern::parse("checkout", "*", "inventory", "inventory.v1.Inventory/Reserve").unwrap();
    let policy = Policy { retry: Some(Retry::default()), ..Policy::new(Mode::Observe) };
    (&Rule::new(pattern, policy, 7).unwrap()).into()
}

fn seconds(seconds: i64, nanos: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos })
}

/// Spoils a good rule and expects these faults, all of them, in this order.
fn check(spoil: impl FnOnce(&mut v1::Rule, &mut v1::Policy), expected: &[(&str, &str)]) {
    let mut rule = wire_rule();
    let mut policy = rule.policy.take().unwrap();
    spoil(&mut rule, &mut policy);
    rule.policy = Some(policy);
    let faults = super::rule(&rule).unwrap_err();
    let found: Vec<(&str, &str)> = faults.iter().map(|f| (f.path.as_str(), f.problem.as_str())).collect();
    assert_eq!(found, expected);
}

fn spoil_retry(change: impl FnOnce(&mut v1::Retry), expected: &[(&str, &str)]) {
    check(|_, policy| change(policy.retry.as_mut().unwrap()), expected);
}

fn spoil_exponential(change: impl FnOnce(&mut v1::ExponentialBackoff), expected: &[(&str, &str)]) {
    spoil_retry(
        |retry| {
            let mut backoff = v1::ExponentialBackoff::default();
            change(&mut backoff);
            retry.backoff = Some(v1::Backoff { kind: Some(v1::backoff::Kind::Exponential(backoff)) });
        },
        expected,
    );
}

fn spoil_breaker(change: impl FnOnce(&mut v1::RetryBreaker), expected: &[(&str, &str)]) {
    check(|_, policy| change(policy.retry_breaker.as_mut().unwrap()), expected);
}

#[test]
fn absent_or_unknown_mode_is_refused() {
    check(|_, policy| policy.mode = 0, &[("policy.mode", "required (off, observe or enforce)")]);
    check(|_, policy| policy.mode = 9, &[("policy.mode", "must be off, observe or enforce, not 9")]);
}

#[test]
fn absent_parts_of_a_rule_are_named() {
    let faults = super::rule(&v1::Rule::default()).unwrap_err();
    assert_eq!(faults.to_string(), "key: required; policy: required");
}

#[test]
fn durations_that_are_none_are_refused_with_value_and_range() {
    check(
        |_, policy| policy.timeout = seconds(-2, 0),
        &[("policy.timeout", "must be between 1ms and 1h, not -2s")],
    );
    check(
        |_, policy| policy.timeout = seconds(0, -1_000_000),
        &[("policy.timeout", "must be between 1ms and 1h, not -1ms")],
    );
    check(
        |_, policy| policy.timeout = seconds(5, -3),
        &[("policy.timeout", "5 seconds with -3 nanos is not a duration; 1ms to 1h")],
    );
    check(
        |_, policy| policy.timeout = seconds(0, i32::MIN),
        &[("policy.timeout", "0 seconds with -2147483648 nanos is not a duration; 1ms to 1h")],
    );
    check(
        |_, policy| policy.timeout = seconds(1, 1_500),
        &[("policy.timeout", "must be in steps of 1us (1ms to 1h), not 1000001500ns")],
    );
    check(
        |_, policy| policy.timeout = seconds(3600, 1000),
        &[("policy.timeout", "must be between 1ms and 1h, not 3600000001us")],
    );
    check(
        |_, policy| policy.timeout = seconds(i64::MIN, 0),
        &[("policy.timeout", "must be between 1ms and 1h, not -9223372036854775808s")],
    );
}

#[test]
fn numbers_that_are_none_are_refused_with_value_and_range() {
    for (value, problem) in [
        (f64::NAN, "must be between 0.001 and 1, not NaN"),
        (f64::INFINITY, "must be between 0.001 and 1, not inf"),
        (f64::NEG_INFINITY, "must be between 0.001 and 1, not -inf"),
        (-0.5, "must be between 0.001 and 1, not -0.5"),
        (-0.00001, "must be between 0.001 and 1, not -1e-5"),
        (1e300, "must be between 0.001 and 1, not 1e300"),
        (1.5, "must be between 0.001 and 1, not 1.5"),
        (0.0, "must be between 0.001 and 1, not 0"),
        (0.00015, "must be in steps of 0.0001 (0.001 to 1), not 0.00015"),
        (0.1 + 0.2, "must be in steps of 0.0001 (0.001 to 1), not 0.30000000000000004"),
    ] {
        spoil_breaker(|breaker| breaker.ratio = Some(value), &[("policy.retry_breaker.ratio", problem)]);
    }
}

#[test]
fn ranges_are_the_engines() {
    spoil_retry(
        |retry| retry.max_attempts = Some(0),
        &[("policy.retry.max_attempts", "must be between 1 and 10, not 0")],
    );
    spoil_retry(
        |retry| retry.max_attempts = Some(u32::MAX),
        &[("policy.retry.max_attempts", "must be between 1 and 10, not 4294967295")],
    );
    check(
        |_, policy| policy.replay_limit_bytes = Some(4_194_305),
        &[("policy.replay_limit_bytes", "must be between 0 and 4194304, not 4194305")],
    );
}

#[test]
fn codes_are_refused_by_their_place_in_the_list() {
    let list = |codes: &[i32]| v1::CodeList { codes: codes.to_vec() };
    spoil_retry(
        |retry| retry.codes = Some(v1::Codes { kind: Some(v1::codes::Kind::Allow(list(&[14, 99, 0]))) }),
        &[
            ("policy.retry.codes.allow[1]", "must be a gRPC status code, not 99"),
            ("policy.retry.codes.allow[2]", "OK is not a failure"),
        ],
    );
    spoil_retry(
        |retry| retry.codes = Some(v1::Codes { kind: Some(v1::codes::Kind::Deny(list(&[-1]))) }),
        &[("policy.retry.codes.deny[0]", "must be a gRPC status code, not -1")],
    );
    spoil_retry(
        |retry| retry.codes = Some(v1::Codes { kind: None }),
        &[("policy.retry.codes", "required (allow or deny)")],
    );
    spoil_retry(
        |retry| retry.codes = Some(v1::Codes { kind: Some(v1::codes::Kind::Allow(list(&[]))) }),
        &[("policy.retry.codes", "must contain at least one code; to send calls once, remove `retry`")],
    );
    spoil_breaker(
        |breaker| breaker.failure_codes = Some(list(&[0])),
        &[("policy.retry_breaker.failure_codes[0]", "OK is not a failure")],
    );
}

#[test]
fn a_code_may_be_named_twice() {
    let mut rule = wire_rule();
    let retry = rule.policy.as_mut().unwrap().retry.as_mut().unwrap();
    retry.codes =
        Some(v1::Codes { kind: Some(v1::codes::Kind::Allow(v1::CodeList { codes: vec![14, 4, 14] })) });
    let retry = super::rule(&rule).unwrap().policy().retry.clone().unwrap();
    assert_eq!(retry.codes, CodeSet::of(&[Code::DeadlineExceeded, Code::Unavailable]));
}

#[test]
fn jitter_share_goes_with_plus_minus_and_only_with_it() {
    const SHARE: &str = "policy.retry.backoff.exponential.jitter_share";
    let plus_minus = v1::Jitter::PlusMinus.into();
    spoil_exponential(
        |backoff| backoff.jitter_share = Some(0.5),
        &[(SHARE, "applies only with jitter: plus_minus")],
    );
    spoil_exponential(
        |backoff| backoff.jitter = plus_minus,
        &[(SHARE, "required with jitter plus_minus (0.0001 to 1)")],
    );
    spoil_exponential(
        |backoff| (backoff.jitter, backoff.jitter_share) = (plus_minus, Some(f64::NAN)),
        &[(SHARE, "must be between 0.0001 and 1, not NaN")],
    );
    spoil_exponential(
        |backoff| backoff.jitter = 77,
        &[(
            "policy.retry.backoff.exponential.jitter",
            "must be none, full, equal, plus_minus or decorrelated, not 77",
        )],
    );
}

#[test]
fn a_fault_of_one_setting_is_not_blamed_on_another() {
    const BACKOFF: &str = "policy.retry.backoff.exponential";
    let base = format!("{BACKOFF}.base");
    let max = format!("{BACKOFF}.max");
    spoil_exponential(
        |backoff| backoff.base = seconds(48 * 3600, 0),
        &[(&base, "must be between 0ms and 24h, not 2d")],
    );
    spoil_exponential(
        |backoff| (backoff.base, backoff.max) = (seconds(-1, 0), seconds(0, 1_000_000)),
        &[(&base, "must be between 0ms and 24h, not -1s")],
    );
    spoil_exponential(
        |backoff| (backoff.base, backoff.max) = (seconds(2, 0), seconds(-1, 0)),
        &[(&max, "must be between 0ms and 24h, not -1s")],
    );
    spoil_exponential(
        |backoff| (backoff.base, backoff.max) = (seconds(2, 0), seconds(1, 0)),
        &[(&max, "must be at least base (2s), not 1s")],
    );
}

#[test]
fn a_breaker_that_is_off_is_checked_all_the_same() {
    spoil_breaker(
        |breaker| (breaker.enabled, breaker.buckets) = (Some(false), Some(1)),
        &[("policy.retry_breaker.buckets", "must be between 2 and 60, not 1")],
    );
    let mut rule = wire_rule();
    rule.policy.as_mut().unwrap().retry_breaker.as_mut().unwrap().enabled = Some(false);
    assert_eq!(super::rule(&rule).unwrap().policy().retry_breaker, None);
}

#[test]
fn all_faults_come_out_at_once() {
    let mut rule = wire_rule();
    let key = rule.key.as_mut().unwrap();
    (key.caller_service, key.callee_method) = (String::new(), "*/Reserve".to_owned());
    let policy = rule.policy.as_mut().unwrap();
    (policy.mode, policy.timeout) = (0, seconds(-1, 0));
    policy.retry.as_mut().unwrap().max_attempts = Some(11);
    policy.retry_breaker.as_mut().unwrap().ratio = Some(f64::NAN);
    let faults = super::rule(&rule).unwrap_err();
    assert_eq!(
        paths(&faults),
        [
            "key.caller_service",
            "key.callee_method",
            "policy.mode",
            "policy.timeout",
            "policy.retry_breaker.ratio",
            "policy.retry.max_attempts",
        ]
    );
}

#[test]
fn method_patterns_need_their_service() {
    for method in ["/Reserve", "*/Reserve", "/*", "Reserve", "a/b/c", ""] {
        let mut rule = wire_rule();
        rule.key.as_mut().unwrap().callee_method = method.to_owned();
        assert_eq!(paths(&super::rule(&rule).unwrap_err()), ["key.callee_method"], "{method:?}");
    }
}

#[test]
fn a_name_of_a_mebibyte_is_refused_in_a_short_line() {
    let mut rule = wire_rule();
    rule.key.as_mut().unwrap().callee_service = "x".repeat(1 << 20);
    let faults = super::rule(&rule).unwrap_err();
    assert_eq!(paths(&faults), ["key.callee_service"]);
    assert!(faults.to_string().len() < 200, "{faults}");
}

#[test]
fn a_policy_with_only_its_mode_has_the_engines_defaults() {
    let wire = v1::Policy { mode: v1::Mode::Enforce.into(), ..v1::Policy::default() };
    assert_eq!(super::policy(&wire).unwrap(), Policy::new(Mode::Enforce));
    let wire = v1::Policy { retry: Some(v1::Retry::default()), ..wire };
    assert_eq!(super::policy(&wire).unwrap().retry, Some(Retry::default()));
}

#[test]
fn a_distributed_rule_is_read_like_any_other() {
    let v1::Rule { key, policy, revision, .. } = wire_rule();
    let kind = policy.map(v1::distributed_rule::Kind::Policy);
    let sent = v1::DistributedRule { key: key.clone(), revision, kind };
    assert_eq!(super::distributed_rule(&sent).unwrap(), super::rule(&wire_rule()).unwrap());

    let kind = Some(v1::distributed_rule::Kind::NeedsFeature("hedge".to_owned()));
    let withheld = v1::DistributedRule { key: key.clone(), revision, kind };
    assert_eq!(paths(&super::distributed_rule(&withheld).unwrap_err()), ["needs_feature"]);

    let empty = v1::DistributedRule { key, revision, kind: None };
    assert_eq!(paths(&super::distributed_rule(&empty).unwrap_err()), ["policy"]);
}

#[test]
fn codes_and_fates_come_back_as_they_went() {
    for code in Code::ALL {
        assert_eq!(Code::from(v1::Code::from(code)), code);
        assert_eq!(i32::from(v1::Code::from(code)), code.number().cast_signed());
    }
    for fate in Fate::ALL {
        let wire = v1::Fate::from(fate);
        assert_eq!(Fate::try_from(wire), Ok(fate));
        assert_eq!(wire.as_str_name().strip_prefix("FATE_").unwrap().to_lowercase(), fate.name());
    }
    assert_eq!(Fate::try_from(v1::Fate::Unspecified), Err(super::UnspecifiedFate));
}

proptest! {
    #[test]
    fn every_policy_comes_back_as_it_went(policy in any_policy()) {
        prop_assert_eq!(super::policy(&v1::Policy::from(&policy)), Ok(policy));
    }

    #[test]
    fn every_guard_comes_back_as_it_went(guard in any_guard()) {
        prop_assert_eq!(super::guard(&v1::Guard::from(&guard)), Ok(guard.clone()));
        let sent = super::distributed_guard(&v1::DistributedGuard::from(&guard)).unwrap();
        prop_assert_eq!((sent.pattern(), sent.ceiling()), (guard.pattern(), guard.ceiling()));
        prop_assert_eq!((sent.revision(), sent.owner()), (guard.revision(), ""));
        let ceiling = super::ceiling(&v1::Ceiling::from(guard.ceiling()), guard.pattern());
        prop_assert_eq!(ceiling.as_ref(), Ok(guard.ceiling()));
    }

    #[test]
    fn every_queue_comes_back_as_it_went(queue in any_queue()) {
        prop_assert_eq!(super::queue(&v1::Queue::from(&queue)), Ok(queue));
    }

    #[test]
    fn every_percentage_comes_back_as_it_went(hundredths: u32) {
        let percent = Percent::from_hundredths(hundredths);
        let wire = super::amount::percent_to_wire(percent);
        let mut faults = Faults::none();
        let all = damper_core::fault::Bounds {
            min: Percent::from_hundredths(0),
            max: Percent::from_hundredths(u32::MAX),
        };
        prop_assert_eq!(super::amount::percent("percent", Some(wire), all, &mut faults), Some(percent));
    }

    #[test]
    fn every_ratio_comes_back_as_it_went(bp: u32) {
        let wire = super::amount::ratio_to_wire(Ratio::from_bp(bp));
        let mut faults = Faults::none();
        let all = damper_core::fault::Bounds { min: Ratio::from_bp(0), max: Ratio::from_bp(u32::MAX) };
        prop_assert_eq!(super::amount::ratio("ratio", Some(wire), all, &mut faults), Some(Ratio::from_bp(bp)));
    }

    #[test]
    fn no_message_makes_reading_panic(seconds: i64, nanos: i32, number: f64, code: i32, n: u32) {
        let duration = Some(prost_types::Duration { seconds, nanos });
        let mut rule = wire_rule();
        let policy = rule.policy.as_mut().unwrap();
        (policy.mode, policy.timeout) = (code, duration);
        policy.retry = Some(v1::Retry {
            max_attempts: Some(n),
            max_duration: duration,
            per_attempt_timeout: duration,
            codes: Some(v1::Codes { kind: Some(v1::codes::Kind::Deny(v1::CodeList { codes: vec![code] })) }),
            backoff: Some(v1::Backoff { kind: Some(v1::backoff::Kind::Exponential(v1::ExponentialBackoff {
                base: duration,
                multiplier: Some(number),
                max: duration,
                jitter: code,
                jitter_share: Some(number),
                over_max: code,
            }))}),
        });
        policy.hedge = Some(v1::Hedge {
            delay: Some(v1::HedgeDelay { kind: Some(v1::hedge_delay::Kind::Percentile(v1::PercentileDelay {
                at: Some(number),
                min: duration,
                max: duration,
            }))}),
            max_hedges: Some(n),
        });
        policy.budget = Some(v1::Budget { ratio: Some(number), min_per_second: Some(n) });
        policy.stop_when = Some(v1::StopWhen {
            latency_above_percentile: Some(number),
            success_rate_below: Some(number),
            min_samples: Some(n),
        });
        if let Ok(rule) = super::rule(&rule) {
            prop_assert_eq!(rule.policy().timeout.map(|t| t.as_secs()), Some(seconds.unsigned_abs()));
        }
    }

    #[test]
    fn no_backoff_makes_reading_panic(seconds: i64, nanos: i32, number: f64, code: i32) {
        let duration = Some(prost_types::Duration { seconds, nanos });
        let wrap = |kind| v1::Backoff { kind: Some(kind) };
        let incrementing = wrap(v1::backoff::Kind::Incrementing(v1::IncrementingBackoff {
            initial: duration,
            step: duration,
            max: duration,
            jitter: code,
            jitter_share: Some(number),
            over_max: code,
        }));
        let fibonacci = wrap(v1::backoff::Kind::Fibonacci(v1::FibonacciBackoff {
            unit: duration,
            max: duration,
            jitter: code,
            jitter_share: Some(number),
            over_max: code,
        }));
        let custom = wrap(v1::backoff::Kind::Custom(v1::CustomBackoff {
            delays: duration.into_iter().collect(),
            jitter: code,
            jitter_share: Some(number),
        }));
        let by_code = wrap(v1::backoff::Kind::ByCode(Box::new(v1::ByCodeBackoff {
            default: Some(Box::new(incrementing.clone())),
            codes: vec![v1::CodeBackoff { codes: vec![code], backoff: Some(fibonacci.clone()) }],
        })));
        let sum = wrap(v1::backoff::Kind::Sum(v1::SumBackoff { parts: vec![incrementing, fibonacci, custom] }));
        for wire in [by_code, sum] {
            let mut rule = wire_rule();
            rule.policy.as_mut().unwrap().retry.as_mut().unwrap().backoff = Some(wire);
            let read = super::rule(&rule);
            prop_assert!(read.is_ok() || !read.unwrap_err().is_empty());
        }
    }
}
