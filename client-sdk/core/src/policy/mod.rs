//! Settings of a rule, with all ranges and defaults.
//!
//! A `Policy` is plain data. It enters the engine only in a [`Rule`](crate::Rule), which checks it, so the
//! engine only sees settings within the ranges given here. A value out of range is rejected with its path and
//! range, never clamped or replaced.

use std::time::Duration;

use crate::fault::{Bounds, Faults, Millis};
use crate::outcome::code::{Code, CodeSet};
use crate::time::window::WindowShape;

mod backoff;
pub mod feature;
mod gates;
mod hedge;

pub use backoff::{
    Backoff, Growth, Increment, JITTER_SHARE, Jitter, LIST_LENGTH, MULTIPLIER, OverMax, STEP, WAIT, Waits,
};
pub use gates::{
    BREAKER_RATIO, BUCKET_LENGTH, BUCKETS, BUDGET_MIN_PER_SECOND, BUDGET_RATIO, BreakerMode, Budget,
    CIRCUIT_CALLS, CIRCUIT_OPEN_FOR, CIRCUIT_PROBES, CIRCUIT_RATIO, CircuitBreaker, EARN, LATENCY_PERCENTILE,
    MIN_FAILURES, MIN_SAMPLES, RetryBreaker, STOP_MIN_SAMPLES, SUCCESS_RATE, StopWhen,
};
pub use hedge::{HEDGE_DELAY, HEDGE_PERCENTILE, Hedge, HedgeDelay, MAX_HEDGES};

/// `timeout`, `retry.max_duration`, `retry.per_attempt_timeout`.
pub const TIMEOUT: Bounds<Duration> =
    Bounds { min: Duration::from_millis(1), max: Duration::from_secs(3600) };
/// `retry.max_attempts`
pub const MAX_ATTEMPTS: Bounds<u32> = Bounds { min: 1, max: 10 };
/// `retry.max_attempts` of a policy that code sets for its own closures; the largest means no limit.
pub const MAX_ATTEMPTS_IN_CODE: Bounds<u32> = Bounds { min: 1, max: u32::MAX };
/// `replay_limit_bytes`
pub const REPLAY_LIMIT: Bounds<u32> = Bounds { min: 0, max: 4 << 20 };

/// Codes that are retried by default.
pub const RETRYABLE: CodeSet = CodeSet::of(&[Code::Unavailable]);
/// Request bytes kept per call by default: 64 KiB.
pub const DEFAULT_REPLAY_LIMIT: u32 = 64 << 10;

/// The problem of a setting that only rules have, in the policy of a queue.
pub const NOT_OF_QUEUES: &str = "a queue has no such setting; it has mode, retry and stop_when";

/// Settings of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Off, observe or enforce. Required.
    pub mode: Mode,
    /// Limit of the whole call with its response, retries and waits; ends a running attempt. `None`: no
    /// limit.
    pub timeout: Option<Duration>,
    /// Retries of failed calls. `None`: no retries.
    pub retry: Option<Retry>,
    /// Hedges of slow calls. `None`: no hedges.
    pub hedge: Option<Hedge>,
    /// Gates retries and hedges. `None`: off. On by default.
    pub retry_breaker: Option<RetryBreaker>,
    /// Caps extra attempts. `None`: no cap.
    pub budget: Option<Budget>,
    /// Stops retries by latency or success rate. `None`: off.
    pub stop_when: Option<StopWhen>,
    /// Gates whole calls. `None`: off.
    pub circuit_breaker: Option<CircuitBreaker>,
    /// The flags of the chain, honoured by default.
    pub chain: Chain,
    /// Request bytes kept per call for retries; a longer request has one attempt.
    pub replay_limit: u32,
    /// Holds a response of one message until its status is known, so that a call that fails after its message
    /// can still be retried. Needs an exact method.
    pub hold_unary: bool,
    /// All attempts of a call carry the same random `damper-call`, so that handlers can recognise retries.
    pub call_id: bool,
}

/// Mode of a rule; each does more than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Calls pass unchanged.
    Off,
    /// All decisions are made on real traffic and counted; nothing is retried or cut.
    Observe,
    /// Decisions take effect.
    Enforce,
}

/// Retries of failed calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Retry {
    /// Attempts per call, including the first. 1: no retry.
    pub max_attempts: u32,
    /// Time from the first attempt after which no retry starts. `None`: no limit.
    pub max_duration: Option<Duration>,
    /// Limit of one attempt with its whole response; then it fails with DEADLINE_EXCEEDED. `None`: no limit.
    pub per_attempt_timeout: Option<Duration>,
    /// Codes that are retried.
    pub codes: CodeSet,
    /// Wait before each retry.
    pub backoff: Backoff,
}

/// The flags of the chain; see [`chain`](crate::chain).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Chain {
    /// Retries even if the request being served is itself a retry.
    pub ignore_retry_flag: bool,
    /// Retries even if the response carries `damper-no-more-retry`.
    pub ignore_no_more_retry: bool,
    /// Also sends the retry flag as W3C baggage, so that hops with only OpenTelemetry pass it on.
    pub propagate_baggage: bool,
}

impl Policy {
    /// Returns the policy with this mode and defaults.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            timeout: None,
            retry: None,
            hedge: None,
            retry_breaker: Some(RetryBreaker::default()),
            budget: None,
            stop_when: None,
            circuit_breaker: None,
            chain: Chain::default(),
            replay_limit: DEFAULT_REPLAY_LIMIT,
            hold_unary: false,
            call_id: false,
        }
    }

    /// Returns true if the engine handles calls under this policy.
    #[must_use]
    pub fn governs(&self) -> bool {
        self.mode != Mode::Off
    }

    /// Returns the maximum number of attempts per call, including the first and hedges.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        match (&self.retry, &self.hedge) {
            (Some(retry), _) => retry.max_attempts,
            (None, Some(hedge)) => hedge.max_hedges.saturating_add(1),
            (None, None) => 1,
        }
    }

    /// Returns true if the policy allows extra attempts.
    #[must_use]
    pub fn repeats(&self) -> bool {
        self.max_attempts() > 1
    }

    /// Returns the codes after which the call goes on. A policy that only hedges uses the default codes.
    #[must_use]
    pub fn retryable(&self) -> CodeSet {
        match (&self.retry, &self.hedge) {
            (Some(retry), _) => retry.codes,
            (None, Some(_)) => RETRYABLE,
            (None, None) => CodeSet::EMPTY,
        }
    }

    /// Returns the shape of the window for calls under this policy.
    #[must_use]
    pub fn window_shape(&self) -> WindowShape {
        self.retry_breaker.map_or_else(WindowShape::default, |breaker| breaker.window)
    }

    /// Adds a fault for each setting out of range, with its path below the policy.
    pub fn check(&self, faults: &mut Faults) {
        self.check_with(MAX_ATTEMPTS, faults);
    }

    /// As [`check`](Self::check), with other bounds for the attempts.
    pub(crate) fn check_with(&self, max_attempts: Bounds<u32>, faults: &mut Faults) {
        check_timeout("timeout", self.timeout, faults);
        if let Some(retry) = &self.retry {
            retry.check(&RetryBounds { max_attempts, max_duration: TIMEOUT, attempt: TIMEOUT }, faults);
        }
        if let Some(breaker) = &self.retry_breaker {
            breaker.check(faults);
        }
        if let Some(hedge) = &self.hedge {
            hedge.check(faults);
        }
        if let Some(budget) = &self.budget {
            budget.check(faults);
        }
        if let Some(stop_when) = &self.stop_when {
            stop_when.check(faults);
        }
        if let Some(circuit_breaker) = &self.circuit_breaker {
            circuit_breaker.check(faults);
        }
        REPLAY_LIMIT.check("replay_limit_bytes", self.replay_limit, faults);
    }

    /// Checks the policy of a queue, which has a mode, retries and `stop_when`, with the ranges of a queue.
    pub(crate) fn check_of_queue(&self, bounds: &RetryBounds, faults: &mut Faults) {
        let plain = Self::new(self.mode);
        let settings = [
            ("timeout", self.timeout.is_some()),
            ("hedge", self.hedge.is_some()),
            ("retry_breaker", self.retry_breaker.is_some()),
            ("budget", self.budget.is_some()),
            ("circuit_breaker", self.circuit_breaker.is_some()),
            ("chain", self.chain != plain.chain),
            ("replay_limit_bytes", self.replay_limit != plain.replay_limit),
            ("hold_unary", self.hold_unary),
            ("call_id", self.call_id),
        ];
        for (path, _) in settings.iter().filter(|(_, is_set)| *is_set) {
            faults.add(*path, NOT_OF_QUEUES);
        }
        if let Some(retry) = &self.retry {
            retry.check(bounds, faults);
        }
        if let Some(stop_when) = &self.stop_when {
            stop_when.check(faults);
        }
    }
}

/// Ranges of `retry` that differ between rules, code and queues.
pub(crate) struct RetryBounds {
    pub(crate) max_attempts: Bounds<u32>,
    pub(crate) max_duration: Bounds<Duration>,
    pub(crate) attempt: Bounds<Duration>,
}

impl Retry {
    fn check(&self, bounds: &RetryBounds, faults: &mut Faults) {
        bounds.max_attempts.check("retry.max_attempts", self.max_attempts, faults);
        if let Some(max_duration) = self.max_duration {
            bounds.max_duration.check("retry.max_duration", max_duration, faults);
        }
        if let Some(limit) = self.per_attempt_timeout {
            bounds.attempt.check("retry.per_attempt_timeout", limit, faults);
        }
        if self.codes.is_empty() {
            faults.add("retry.codes", "must contain at least one code; to send calls once, remove `retry`");
        }
        if self.codes.contains(Code::Ok) {
            faults.add("retry.codes", "OK is not a failure");
        }
        self.backoff.check("retry.backoff", faults);
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            max_duration: None,
            per_attempt_timeout: None,
            codes: RETRYABLE,
            backoff: Backoff::default(),
        }
    }
}

fn check_timeout(path: &str, timeout: Option<Duration>, faults: &mut Faults) {
    if let Some(timeout) = timeout {
        TIMEOUT.check(path, timeout, faults);
    }
}

fn check_order(path: &str, lesser: &str, min: Duration, max: Duration, faults: &mut Faults) {
    if max < min {
        faults.add(path, format!("must be at least {lesser} ({}), not {}", Millis(min), Millis(max)));
    }
}

#[cfg(test)]
mod tests;
