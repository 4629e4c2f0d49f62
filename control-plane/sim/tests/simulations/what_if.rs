//! What a change of a policy is said to do.

use damper_core::{Code, Mode, Policy, Ratio, Retry, RetryBreaker};
use damper_sim::{Change, Downstream, Measured, Prediction, what_if};

use crate::harness::ms;

fn measured(error_bp: u32) -> Measured {
    Measured {
        calls_milli_per_second: 100_000,
        processes: 4,
        failures: vec![(Code::Unavailable, Ratio::from_bp(error_bp))],
        p50: ms(5),
        p99: ms(60),
    }
}

fn rule(breaker: bool) -> Policy {
    Policy {
        retry: Some(Retry::default()),
        retry_breaker: breaker.then(RetryBreaker::default),
        ..Policy::new(Mode::Enforce)
    }
}

fn asked(after: &Policy, measured: Measured, downstream: Downstream) -> Prediction {
    what_if(&Change { before: None, after: Some(after), measured }, downstream).unwrap()
}

fn success_gain(Prediction { before, after }: &Prediction) -> f64 {
    after.success_rate - before.success_rate
}

/// Attempts per second that a change adds, at the 100 calls per second that are measured.
fn extra_attempts(Prediction { before, after }: &Prediction) -> f64 {
    (after.attempts_per_call - before.attempts_per_call) * 100.0
}

#[test]
fn retries_of_rare_failures_gain_successes_for_hardly_any_load() {
    let found = asked(&rule(true), measured(200), Downstream::AsMeasured);
    assert!((found.before.success_rate - 0.98).abs() < 0.01, "{found:?}");
    assert!(found.after.success_rate > 0.999, "{found:?}");
    assert!((success_gain(&found) - 0.02).abs() < 0.01, "{found:?}");
    assert!((extra_attempts(&found) - 2.0).abs() < 1.0, "{found:?}");
    assert_eq!((found.before.worst_case, found.after.worst_case), (1, 3));
}

#[test]
fn breaker_decides_the_cost_of_an_outage() {
    let without = asked(&rule(false), measured(0), Downstream::TotalOutage);
    let with = asked(&rule(true), measured(0), Downstream::TotalOutage);
    assert!((without.after.attempts_per_call - 3.0).abs() < 0.02, "{without:?}");
    assert!(with.after.attempts_per_call < 1.2, "{with:?}");
    assert_eq!((with.after.success_rate, success_gain(&with)), (0.0, 0.0));
    assert!((extra_attempts(&without) - 200.0).abs() < 2.0);
}

#[test]
fn a_tenth_failing_is_above_the_ratio_and_credit_mends_it() {
    let credit = asked(&rule(true), measured(0), Downstream::TenthFailing);
    let mut ratio = rule(true);
    ratio.retry_breaker.as_mut().unwrap().mode = damper_core::BreakerMode::Ratio;
    let ratio = asked(&ratio, measured(0), Downstream::TenthFailing);
    assert!((ratio.before.success_rate - 0.9).abs() < 0.02);
    assert!(credit.after.success_rate > ratio.after.success_rate + 0.01, "{ratio:?} {credit:?}");
}

#[test]
fn tenth_failing_keeps_higher_measured_failures() {
    let as_measured = asked(&rule(true), measured(3_000), Downstream::AsMeasured);
    let tenth = asked(&rule(true), measured(3_000), Downstream::TenthFailing);
    assert_eq!((as_measured.before, as_measured.after), (tenth.before, tenth.after));
    assert!((tenth.before.success_rate - 0.7).abs() < 0.02, "{tenth:?}");
}

#[test]
fn non_retryable_failures_cost_nothing_in_an_outage() {
    let refused = vec![(Code::NotFound, Ratio::from_bp(3_000)), (Code::Aborted, Ratio::from_bp(1_000))];
    let measured = Measured { failures: refused, ..measured(0) };
    let found = asked(&rule(true), measured.clone(), Downstream::AsMeasured);
    assert!((found.after.success_rate - 0.6).abs() < 0.02, "{found:?}");
    assert_eq!((found.after.attempts_per_call, success_gain(&found)), (1.0, 0.0));
    let found = asked(&rule(false), measured, Downstream::TenthFailing);
    assert!((found.before.success_rate - 0.54).abs() < 0.02, "six tenths of what is answered: {found:?}");
    assert!(success_gain(&found) > 0.04, "{found:?}");
}

#[test]
fn latencies_cover_the_state_only() {
    let found = asked(&rule(false), measured(0), Downstream::TotalOutage);
    assert_eq!((found.before.p99_us, found.after.p50_us), (0, 0), "nothing succeeds: {found:?}");
    let found = asked(&rule(false), measured(0), Downstream::TenthFailing);
    assert!(found.after.p50_us > 4_000 && found.after.p99_us >= found.before.p99_us, "{found:?}");
}

#[test]
fn a_route_of_any_size_is_answered() {
    for (calls, processes) in [(1, 1), (300, 1_000), (1_000_000_000, 1), (1_000_000_000, 1_000_000)] {
        let measured = Measured { calls_milli_per_second: calls, processes, ..measured(500) };
        let found = asked(&rule(true), measured, Downstream::TotalOutage);
        assert!(found.after.attempts_per_call >= 1.0, "{calls}/{processes}: {found:?}");
    }
}

#[test]
fn many_small_processes_differ_from_one_busy_process() {
    let of = |processes| {
        let measured = Measured { processes, ..measured(0) };
        asked(&rule(true), measured, Downstream::TotalOutage).after.attempts_per_call
    };
    assert!(of(1_000) > of(1) + 0.2, "each has saved a retry");
}

#[test]
fn the_same_question_has_the_same_answer() {
    let ask = || asked(&rule(true), measured(700), Downstream::TenthFailing);
    assert_eq!(ask(), ask());
}

#[test]
fn values_out_of_range_are_rejected_by_path() {
    let mut after = rule(true);
    after.retry.as_mut().unwrap().max_attempts = 0;
    let measured = Measured { calls_milli_per_second: 0, p99: ms(1), ..measured(10_001) };
    let change = Change { before: None, after: Some(&after), measured };
    let faults = what_if(&change, Downstream::AsMeasured).unwrap_err();
    let paths: Vec<_> = faults.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(
        paths,
        ["measured.calls_milli_per_second", "measured.failures", "measured.p99", "after.retry.max_attempts"]
    );
}
