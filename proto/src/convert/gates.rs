//! Settings of the other gates: budget, `stop_when`, circuit breaker.

use damper_core::policy::{
    BUDGET_RATIO, CIRCUIT_OPEN_FOR, CIRCUIT_RATIO, LATENCY_PERCENTILE, SUCCESS_RATE, TIMEOUT,
};
use damper_core::{Budget, CircuitBreaker, Faults, StopWhen};

use super::amount;
use crate::v1;

/// Reads the limit of retries and hedges.
pub(super) fn budget(wire: &v1::Budget, faults: &mut Faults) -> Budget {
    let v1::Budget { ratio, min_per_second } = wire;
    let default = Budget::default();
    Budget {
        ratio: amount::ratio("ratio", *ratio, BUDGET_RATIO, faults).unwrap_or(default.ratio),
        min_per_second: min_per_second.unwrap_or(default.min_per_second),
    }
}

/// Reads the further conditions that stop retries.
pub(super) fn stop_when(wire: &v1::StopWhen, faults: &mut Faults) -> StopWhen {
    let v1::StopWhen { latency_above_percentile: percentile, success_rate_below: rate, min_samples } = wire;
    StopWhen {
        latency_above_percentile: amount::percent(
            "latency_above_percentile",
            *percentile,
            LATENCY_PERCENTILE,
            faults,
        ),
        success_rate_below: amount::percent("success_rate_below", *rate, SUCCESS_RATE, faults),
        min_samples: min_samples.unwrap_or(StopWhen::default().min_samples),
    }
}

/// Reads the gate of whole calls.
pub(super) fn circuit_breaker(wire: &v1::CircuitBreaker, faults: &mut Faults) -> CircuitBreaker {
    let v1::CircuitBreaker { consecutive_failures, failure_ratio, min_calls, open_for, probes, slow_call } =
        wire;
    let default = CircuitBreaker::default();
    CircuitBreaker {
        consecutive_failures: consecutive_failures.unwrap_or(default.consecutive_failures),
        failure_ratio: amount::ratio("failure_ratio", *failure_ratio, CIRCUIT_RATIO, faults)
            .unwrap_or(default.failure_ratio),
        min_calls: min_calls.unwrap_or(default.min_calls),
        open_for: amount::duration("open_for", open_for.as_ref(), CIRCUIT_OPEN_FOR, faults)
            .unwrap_or(default.open_for),
        probes: probes.unwrap_or(default.probes),
        slow_call: amount::duration("slow_call", slow_call.as_ref(), TIMEOUT, faults),
    }
}

impl From<&Budget> for v1::Budget {
    fn from(budget: &Budget) -> Self {
        let Budget { ratio, min_per_second } = *budget;
        Self { ratio: Some(amount::ratio_to_wire(ratio)), min_per_second: Some(min_per_second) }
    }
}

impl From<&StopWhen> for v1::StopWhen {
    fn from(stop_when: &StopWhen) -> Self {
        let StopWhen { latency_above_percentile, success_rate_below, min_samples } = *stop_when;
        Self {
            latency_above_percentile: latency_above_percentile.map(amount::percent_to_wire),
            success_rate_below: success_rate_below.map(amount::percent_to_wire),
            min_samples: Some(min_samples),
        }
    }
}

impl From<&CircuitBreaker> for v1::CircuitBreaker {
    fn from(breaker: &CircuitBreaker) -> Self {
        let CircuitBreaker { consecutive_failures, failure_ratio, min_calls, open_for, probes, slow_call } =
            *breaker;
        Self {
            consecutive_failures: Some(consecutive_failures),
            failure_ratio: Some(amount::ratio_to_wire(failure_ratio)),
            min_calls: Some(min_calls),
            open_for: Some(amount::to_wire(open_for)),
            probes: Some(probes),
            slow_call: slow_call.map(amount::to_wire),
        }
    }
}
