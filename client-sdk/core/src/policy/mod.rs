//! The settings of a rule, with every range and default, once.
//!
//! A `Policy` is plain data. It enters the engine only inside a [`Rule`](crate::Rule), which checks it, so a
//! policy that decides anything is within the ranges given here. A value out of range is refused with its
//! field path, the value and the bound; it is never clamped or replaced.

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
/// `replay_limit_bytes`
pub const REPLAY_LIMIT: Bounds<u32> = Bounds { min: 0, max: 4 << 20 };

/// The codes that are retried unless said otherwise.
pub const RETRYABLE: CodeSet = CodeSet::of(&[Code::Unavailable]);
/// Request bytes kept per call unless said otherwise: 64 KiB.
pub const DEFAULT_REPLAY_LIMIT: u32 = 64 << 10;

/// What a rule says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Whether anything is done at all. Required.
    pub mode: Mode,
    /// The whole call with its answer, its retries and waits; cuts a running attempt. None: no limit.
    pub timeout: Option<Duration>,
    /// How failed calls are repeated. None: they are not.
    pub retry: Option<Retry>,
    /// How calls that take long are sent once more beside. None: they are not.
    pub hedge: Option<Hedge>,
    /// None: switched off. On by default.
    pub retry_breaker: Option<RetryBreaker>,
    /// None: extra attempts are not capped.
    pub budget: Option<Budget>,
    /// None: neither latency nor success rate stops retries.
    pub stop_when: Option<StopWhen>,
    /// Gates whole calls. None: switched off.
    pub circuit_breaker: Option<CircuitBreaker>,
    /// The two flags of the chain, honoured by default.
    pub chain: Chain,
    /// Request bytes kept per call so that it can be sent again; a longer request is sent once.
    pub replay_limit: u32,
    /// An answer of one message is held back until its status is known, so that a call that fails after its
    /// message can still be repeated. Needs an exact method.
    pub hold_unary: bool,
    /// Every attempt of a call carries the same random `damper-call`: a key for handlers to tell repeats by.
    pub call_id: bool,
}

/// Whether a rule acts; each does more than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Calls pass untouched.
    Off,
    /// Every decision is made on real traffic and counted; nothing is repeated or cut.
    Observe,
    /// Decisions are carried out.
    Enforce,
}

/// How failed calls are repeated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Retry {
    /// Attempts per call, the first send included. 1 sends once.
    pub max_attempts: u32,
    /// From the first send; only stops further attempts. None: no limit.
    pub max_duration: Option<Duration>,
    /// One attempt with its whole answer; then it ends as DEADLINE_EXCEEDED. None: no limit.
    pub per_attempt_timeout: Option<Duration>,
    /// The codes that may be retried.
    pub codes: CodeSet,
    /// The wait before each retry.
    pub backoff: Backoff,
}

/// The two flags of the chain; see [`chain`](crate::chain).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Chain {
    /// Repeat even where the request served is itself a repeat.
    pub ignore_retry_flag: bool,
    /// Repeat even where the answer says that a hop below has given up.
    pub ignore_no_more_retry: bool,
    /// Send the flag down as W3C baggage too, so that hops which only speak OpenTelemetry pass it on.
    pub propagate_baggage: bool,
}

impl Policy {
    /// The policy that says no more than its mode.
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

    /// True if calls under this policy are watched by the engine at all.
    #[must_use]
    pub fn governs(&self) -> bool {
        self.mode != Mode::Off
    }

    /// Attempts per call at most, the first send included; hedges count too.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        match (&self.retry, &self.hedge) {
            (Some(retry), _) => retry.max_attempts,
            (None, Some(hedge)) => hedge.max_hedges.saturating_add(1),
            (None, None) => 1,
        }
    }

    /// True if a call may be sent more than once.
    #[must_use]
    pub fn repeats(&self) -> bool {
        self.max_attempts() > 1
    }

    /// The codes after which a call may be sent again. A policy that only hedges goes on after those that are
    /// retried unless said otherwise.
    #[must_use]
    pub fn retryable(&self) -> CodeSet {
        match (&self.retry, &self.hedge) {
            (Some(retry), _) => retry.codes,
            (None, Some(_)) => RETRYABLE,
            (None, None) => CodeSet::EMPTY,
        }
    }

    /// The shape of the window that calls under this policy are counted in.
    #[must_use]
    pub fn window_shape(&self) -> WindowShape {
        self.retry_breaker.map_or_else(WindowShape::default, |breaker| breaker.window)
    }

    /// Notes every setting that is out of range, by its path below the policy.
    pub fn check(&self, faults: &mut Faults) {
        check_timeout("timeout", self.timeout, faults);
        if let Some(retry) = &self.retry {
            retry.check(faults);
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
}

impl Retry {
    fn check(&self, faults: &mut Faults) {
        MAX_ATTEMPTS.check("retry.max_attempts", self.max_attempts, faults);
        check_timeout("retry.max_duration", self.max_duration, faults);
        check_timeout("retry.per_attempt_timeout", self.per_attempt_timeout, faults);
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
