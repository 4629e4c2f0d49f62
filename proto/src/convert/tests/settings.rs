//! Hedging, budget, `stop_when`, circuit breaker and what belongs to a route: refused by field, value and bound.

use std::time::Duration;

use damper_core::policy::HEDGE_DELAY;
use damper_core::{BreakerMode, Budget, CircuitBreaker, Hedge, HedgeDelay, Percent, StopWhen};

use super::{check, paths, seconds, spoil_breaker, wire_rule};
use crate::v1::{self, hedge_delay::Kind};

fn spoil_hedge(delay: Option<Kind>, max_hedges: u32, expected: &[(&str, &str)]) {
    let delay = Some(v1::HedgeDelay { kind: delay });
    let hedge = v1::Hedge { delay, max_hedges: Some(max_hedges) };
    check(|_, policy| policy.hedge = Some(hedge), expected);
}

fn spoil_percentile(change: impl FnOnce(&mut v1::PercentileDelay), expected: &[(&str, &str)]) {
    let mut percentile = v1::PercentileDelay { at: Some(95.0), min: None, max: None };
    change(&mut percentile);
    spoil_hedge(Some(Kind::Percentile(percentile)), 1, expected);
}

#[test]
fn hedges_are_refused_by_field() {
    const DELAY: &str = "policy.hedge.delay";
    let unsaid = [(DELAY, "required (fixed or percentile)")];
    check(|_, policy| policy.hedge = Some(v1::Hedge::default()), &unsaid);
    spoil_hedge(None, 1, &unsaid);
    spoil_hedge(
        seconds(61, 0).map(Kind::Fixed),
        5,
        &[
            ("policy.hedge.delay.fixed", "must be between 1ms and 60s, not 61s"),
            ("policy.hedge.max_hedges", "must be between 1 and 4, not 5"),
        ],
    );
    spoil_hedge(
        seconds(-1, 0).map(Kind::Fixed),
        0,
        &[
            ("policy.hedge.delay.fixed", "must be between 1ms and 60s, not -1s"),
            ("policy.hedge.max_hedges", "must be between 1 and 4, not 0"),
        ],
    );
}

#[test]
fn percentiles_are_refused_by_field() {
    const AT: &str = "policy.hedge.delay.percentile.at";
    const MIN: &str = "policy.hedge.delay.percentile.min";
    const MAX: &str = "policy.hedge.delay.percentile.max";
    spoil_percentile(|delay| delay.at = None, &[(AT, "required (50 to 99.9)")]);
    for (at, problem) in [
        (49.99, "must be between 50 and 99.9, not 49.99"),
        (99.91, "must be between 50 and 99.9, not 99.91"),
        (95.005, "must be in steps of 0.01 (50 to 99.9), not 95.005"),
        (f64::NAN, "must be between 50 and 99.9, not NaN"),
        (-95.0, "must be between 50 and 99.9, not -95"),
    ] {
        spoil_percentile(|delay| delay.at = Some(at), &[(AT, problem)]);
    }
    spoil_percentile(|delay| delay.min = seconds(70, 0), &[(MIN, "must be between 1ms and 60s, not 70s")]);
    spoil_percentile(
        |delay| (delay.min, delay.max) = (seconds(0, 0), seconds(61, 0)),
        &[(MIN, "must be between 1ms and 60s, not 0ms"), (MAX, "must be between 1ms and 60s, not 61s")],
    );
    spoil_percentile(
        |delay| (delay.min, delay.max) = (seconds(2, 0), seconds(1, 0)),
        &[(MAX, "must be at least min (2s), not 1s")],
    );
}

#[test]
fn the_gates_are_refused_by_field() {
    let budget = v1::Budget { ratio: Some(0.009), min_per_second: Some(1001) };
    check(
        |_, policy| policy.budget = Some(budget),
        &[
            ("policy.budget.ratio", "must be between 0.01 and 1, not 0.009"),
            ("policy.budget.min_per_second", "must be between 0 and 1000, not 1001"),
        ],
    );
    let stop_when = v1::StopWhen {
        latency_above_percentile: Some(0.5),
        success_rate_below: Some(100.001),
        min_samples: Some(0),
    };
    check(
        |_, policy| policy.stop_when = Some(stop_when),
        &[
            ("policy.stop_when.success_rate_below", "must be in steps of 0.01 (0 to 100), not 100.001"),
            ("policy.stop_when.latency_above_percentile", "must be between 1 and 100, not 0.5"),
            ("policy.stop_when.min_samples", "must be between 1 and 1000, not 0"),
        ],
    );
    check(
        |_, policy| policy.stop_when = Some(v1::StopWhen { min_samples: Some(5), ..Default::default() }),
        &[("policy.stop_when", "requires latency_above_percentile or success_rate_below")],
    );
    let circuit_breaker = v1::CircuitBreaker {
        consecutive_failures: Some(0),
        failure_ratio: Some(f64::INFINITY),
        min_calls: Some(1001),
        open_for: seconds(0, 99_000_000),
        probes: Some(101),
        slow_call: seconds(3601, 0),
    };
    check(
        |_, policy| policy.circuit_breaker = Some(circuit_breaker),
        &[
            ("policy.circuit_breaker.failure_ratio", "must be between 0.01 and 1, not inf"),
            ("policy.circuit_breaker.consecutive_failures", "must be between 1 and 1000, not 0"),
            ("policy.circuit_breaker.min_calls", "must be between 1 and 1000, not 1001"),
            ("policy.circuit_breaker.open_for", "must be between 100ms and 1h, not 99ms"),
            ("policy.circuit_breaker.probes", "must be between 1 and 100, not 101"),
            ("policy.circuit_breaker.slow_call", "must be between 1ms and 1h, not 3601s"),
        ],
    );
    spoil_breaker(
        |breaker| breaker.mode = 7,
        &[("policy.retry_breaker.mode", "must be credit or ratio, not 7")],
    );
}

#[test]
fn removed_breaker_mode_reads_as_credit() {
    let mut rule = wire_rule();
    rule.policy.as_mut().unwrap().retry_breaker.as_mut().unwrap().mode = 2;
    let rule = super::super::rule(&rule).unwrap();
    assert_eq!(rule.policy().retry_breaker.unwrap().mode, BreakerMode::Credit);
}

#[test]
fn absent_values_have_the_engines_defaults() {
    let mut rule = wire_rule();
    let policy = rule.policy.as_mut().unwrap();
    let percentile = v1::PercentileDelay { at: Some(99.9), min: None, max: None };
    let delay = Some(v1::HedgeDelay { kind: Some(Kind::Percentile(percentile)) });
    policy.hedge = Some(v1::Hedge { delay, max_hedges: None });
    policy.budget = Some(v1::Budget::default());
    policy.stop_when = Some(v1::StopWhen { success_rate_below: Some(0.0), ..Default::default() });
    policy.circuit_breaker = Some(v1::CircuitBreaker::default());
    policy.retry_breaker.as_mut().unwrap().mode = v1::RetryBreakerMode::Unspecified.into();
    let rule = super::super::rule(&rule).unwrap();
    let policy = rule.policy();
    let at = Percent::from_hundredths(9_990);
    let delay = HedgeDelay::Percentile { at, min: HEDGE_DELAY.min, max: HEDGE_DELAY.max };
    assert_eq!(policy.hedge, Some(Hedge { delay, max_hedges: Hedge::DEFAULT_MAX_HEDGES }));
    assert_eq!(policy.budget, Some(Budget::default()));
    let success_rate_below = Some(Percent::from_hundredths(0));
    assert_eq!(policy.stop_when, Some(StopWhen { success_rate_below, ..StopWhen::default() }));
    assert_eq!(policy.circuit_breaker, Some(CircuitBreaker::default()));
    assert_eq!(policy.retry_breaker.unwrap().mode, BreakerMode::Credit);
    assert_eq!(HEDGE_DELAY.min, Duration::from_millis(1));
}

#[test]
fn hold_unary_needs_an_exact_method() {
    let mut rule = wire_rule();
    rule.key.as_mut().unwrap().callee_method = "inventory.v1.Inventory/*".to_owned();
    let policy = rule.policy.as_mut().unwrap();
    policy.hold_unary = true;
    assert_eq!(
        super::super::rule(&rule).unwrap_err().to_string(),
        "policy.hold_unary: needs an exact callee_method, not inventory.v1.Inventory/*"
    );
    rule.policy.as_mut().unwrap().timeout = seconds(-1, 0);
    let faults = super::super::rule(&rule).unwrap_err();
    assert_eq!(paths(&faults), ["policy.timeout", "policy.hold_unary"]);
    // A method that is no pattern at all is not blamed a second time.
    rule.key.as_mut().unwrap().callee_method = "*/Reserve".to_owned();
    assert_eq!(paths(&super::super::rule(&rule).unwrap_err()), ["key.callee_method", "policy.timeout"]);
}
