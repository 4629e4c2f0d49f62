//! Settings of the gates: retry breaker, budget, `stop_when`, circuit breaker.

use std::time::Duration;

use crate::fault::{Bounds, Faults, Percent, Ratio};
use crate::outcome::code::{Code, CodeSet};
use crate::time::window::WindowShape;

/// `retry_breaker.earn`
pub const EARN: Bounds<Ratio> = Bounds { min: Ratio::from_bp(10), max: Ratio::from_bp(2_000) };
/// `retry_breaker.ratio`, `retry_breaker.max_ratio`
pub const BREAKER_RATIO: Bounds<Ratio> = Bounds { min: Ratio::from_bp(10), max: Ratio::ONE };
/// `retry_breaker.buckets`
pub const BUCKETS: Bounds<u32> = Bounds { min: 2, max: 60 };
/// `retry_breaker.bucket_length`
pub const BUCKET_LENGTH: Bounds<Duration> =
    Bounds { min: Duration::from_millis(100), max: Duration::from_secs(10) };
/// `retry_breaker.min_failures`
pub const MIN_FAILURES: Bounds<u32> = Bounds { min: 0, max: 100 };
/// `retry_breaker.min_samples`
pub const MIN_SAMPLES: Bounds<u32> = Bounds { min: 0, max: 1000 };
/// `budget.ratio`
pub const BUDGET_RATIO: Bounds<Ratio> = Bounds { min: Ratio::from_bp(100), max: Ratio::ONE };
/// `budget.min_per_second`
pub const BUDGET_MIN_PER_SECOND: Bounds<u32> = Bounds { min: 0, max: 1000 };
/// `stop_when.latency_above_percentile`
pub const LATENCY_PERCENTILE: Bounds<Percent> =
    Bounds { min: Percent::from_hundredths(100), max: Percent::from_hundredths(10_000) };
/// `stop_when.success_rate_below`
pub const SUCCESS_RATE: Bounds<Percent> =
    Bounds { min: Percent::from_hundredths(0), max: Percent::from_hundredths(10_000) };
/// `stop_when.min_samples`
pub const STOP_MIN_SAMPLES: Bounds<u32> = Bounds { min: 1, max: 1000 };
/// `circuit_breaker.consecutive_failures`, `circuit_breaker.min_calls`
pub const CIRCUIT_CALLS: Bounds<u32> = Bounds { min: 1, max: 1000 };
/// `circuit_breaker.failure_ratio`
pub const CIRCUIT_RATIO: Bounds<Ratio> = Bounds { min: Ratio::from_bp(100), max: Ratio::ONE };
/// `circuit_breaker.open_for`
pub const CIRCUIT_OPEN_FOR: Bounds<Duration> =
    Bounds { min: Duration::from_millis(100), max: Duration::from_secs(3600) };
/// `circuit_breaker.probes`
pub const CIRCUIT_PROBES: Bounds<u32> = Bounds { min: 1, max: 100 };

/// Gates retries by successes; see [`breaker`](crate::breaker).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RetryBreaker {
    /// Rule by which retries are admitted.
    pub mode: BreakerMode,
    /// Mode credit: the share of a retry that each successful first attempt earns.
    pub earn: Ratio,
    /// Mode ratio: retries are free up to this many failures per success. In both modes hedges stop above it.
    pub ratio: Ratio,
    /// In both modes retries and hedges stop above this many failures per success. `None`: no such limit.
    pub max_ratio: Option<Ratio>,
    /// Shape of the window.
    pub window: WindowShape,
    /// Mode ratio: retries that can be saved for failures above the ratio. In both modes this many failures
    /// per window never stop hedges. 0: the ratio alone.
    pub min_failures: u32,
    /// With fewer attempts in the window the ratio is not used: retries take saved tokens, hedges are sent.
    pub min_samples: u32,
    /// Failure codes, in addition to the codes that the rule retries. `None`:
    /// [`breaker::FAILURES`](crate::breaker::FAILURES).
    pub failure_codes: Option<CodeSet>,
}

/// Rule by which the retry breaker admits retries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BreakerMode {
    /// Successful first attempts pay for retries; a retry that succeeds is free.
    #[default]
    Credit,
    /// Failures against successes in the window.
    Ratio,
}

/// A cap on retries and hedges together, against the calls started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Extra attempts per call started in the window.
    pub ratio: Ratio,
    /// Extra attempts per second in addition, whatever the traffic.
    pub min_per_second: u32,
}

/// Conditions that stop retries, from the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StopWhen {
    /// Stops retries of calls that have taken longer than this percentile of successful attempts.
    pub latency_above_percentile: Option<Percent>,
    /// Stops retries while a smaller share of attempts succeeds.
    pub success_rate_below: Option<Percent>,
    /// Attempts in the window that both conditions need.
    pub min_samples: u32,
}

/// Gates whole calls, first attempts too; see [`circuit`](crate::gates::circuit).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CircuitBreaker {
    /// Failed calls in a row that open it.
    pub consecutive_failures: u32,
    /// Share of failed calls in the window that opens it.
    pub failure_ratio: Ratio,
    /// Calls in the window that the share needs.
    pub min_calls: u32,
    /// Time for which calls are rejected.
    pub open_for: Duration,
    /// Calls admitted afterwards as probes; it closes if all succeed.
    pub probes: u32,
    /// Calls that take longer count as failed. `None`: no limit.
    pub slow_call: Option<Duration>,
}

impl RetryBreaker {
    pub(super) fn check(&self, faults: &mut Faults) {
        EARN.check("retry_breaker.earn", self.earn, faults);
        BREAKER_RATIO.check("retry_breaker.ratio", self.ratio, faults);
        if let Some(ratio) = self.max_ratio {
            BREAKER_RATIO.check("retry_breaker.max_ratio", ratio, faults);
        }
        BUCKETS.check("retry_breaker.buckets", self.window.buckets, faults);
        BUCKET_LENGTH.check("retry_breaker.bucket_length", self.window.bucket_length, faults);
        MIN_FAILURES.check("retry_breaker.min_failures", self.min_failures, faults);
        MIN_SAMPLES.check("retry_breaker.min_samples", self.min_samples, faults);
        if self.failure_codes.is_some_and(|codes| codes.contains(Code::Ok)) {
            faults.add("retry_breaker.failure_codes", "OK is not a failure");
        }
    }
}

impl Default for RetryBreaker {
    fn default() -> Self {
        Self {
            mode: BreakerMode::Credit,
            earn: Ratio::from_bp(200),
            ratio: Ratio::from_bp(1000),
            max_ratio: None,
            window: WindowShape::default(),
            min_failures: 1,
            min_samples: 0,
            failure_codes: None,
        }
    }
}

impl Budget {
    pub(super) fn check(&self, faults: &mut Faults) {
        BUDGET_RATIO.check("budget.ratio", self.ratio, faults);
        BUDGET_MIN_PER_SECOND.check("budget.min_per_second", self.min_per_second, faults);
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self { ratio: Ratio::from_bp(2000), min_per_second: 1 }
    }
}

impl StopWhen {
    pub(super) fn check(&self, faults: &mut Faults) {
        if self.latency_above_percentile.is_none() && self.success_rate_below.is_none() {
            faults.add("stop_when", "requires latency_above_percentile or success_rate_below");
        }
        if let Some(percentile) = self.latency_above_percentile {
            LATENCY_PERCENTILE.check("stop_when.latency_above_percentile", percentile, faults);
        }
        if let Some(rate) = self.success_rate_below {
            SUCCESS_RATE.check("stop_when.success_rate_below", rate, faults);
        }
        STOP_MIN_SAMPLES.check("stop_when.min_samples", self.min_samples, faults);
    }
}

impl Default for StopWhen {
    fn default() -> Self {
        Self { latency_above_percentile: None, success_rate_below: None, min_samples: 20 }
    }
}

impl CircuitBreaker {
    pub(super) fn check(&self, faults: &mut Faults) {
        let at = |field: &str| format!("circuit_breaker.{field}");
        CIRCUIT_CALLS.check(&at("consecutive_failures"), self.consecutive_failures, faults);
        CIRCUIT_RATIO.check(&at("failure_ratio"), self.failure_ratio, faults);
        CIRCUIT_CALLS.check(&at("min_calls"), self.min_calls, faults);
        CIRCUIT_OPEN_FOR.check(&at("open_for"), self.open_for, faults);
        CIRCUIT_PROBES.check(&at("probes"), self.probes, faults);
        super::check_timeout(&at("slow_call"), self.slow_call, faults);
    }
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self {
            consecutive_failures: 5,
            failure_ratio: Ratio::from_bp(5000),
            min_calls: 20,
            open_for: Duration::from_secs(5),
            probes: 3,
            slow_call: None,
        }
    }
}
