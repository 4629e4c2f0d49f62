//! The settings of a rule, with every range and default, once.
//!
//! A `Policy` is plain data. It enters the engine only inside a [`Rule`](crate::Rule), which checks it, so a
//! policy that decides anything is within the ranges given here. A value out of range is refused with its
//! field path, the value and the bound; it is never clamped or replaced.

use std::time::Duration;

use crate::code::{Code, CodeSet};
use crate::fault::{Bounds, Faults, Millis, Ratio};
use crate::window::WindowShape;

/// `timeout`, `retry.max_duration`, `retry.per_attempt_timeout`.
pub const TIMEOUT: Bounds<Duration> =
    Bounds { min: Duration::from_millis(1), max: Duration::from_secs(3600) };
/// `retry.max_attempts`
pub const MAX_ATTEMPTS: Bounds<u32> = Bounds { min: 1, max: 10 };
/// Every wait of a backoff.
pub const WAIT: Bounds<Duration> = Bounds { min: Duration::ZERO, max: Duration::from_secs(24 * 3600) };
/// `retry.backoff.exponential.multiplier`
pub const MULTIPLIER: Bounds<Ratio> = Bounds { min: Ratio::ONE, max: Ratio::from_bp(100_000) };
/// `jitter_share`
pub const JITTER_SHARE: Bounds<Ratio> = Bounds { min: Ratio::from_bp(1), max: Ratio::ONE };
/// `retry_breaker.ratio`
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
/// `replay_limit_bytes`
pub const REPLAY_LIMIT: Bounds<u32> = Bounds { min: 0, max: 4 << 20 };

/// Request bytes kept per call unless said otherwise: 64 KiB.
pub const DEFAULT_REPLAY_LIMIT: u32 = 64 << 10;

/// What a rule says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Whether anything is done at all. Has no default: it must be said.
    pub mode: Mode,
    /// The whole call with its answer, its retries and waits; cuts a running attempt. None: no limit.
    pub timeout: Option<Duration>,
    /// How failed calls are repeated. None: they are sent once.
    pub retry: Option<Retry>,
    /// None: switched off. On by default.
    pub retry_breaker: Option<RetryBreaker>,
    /// The two flags of the chain, honoured by default.
    pub chain: Chain,
    /// Request bytes kept per call so that it can be sent again; a longer request is sent once.
    pub replay_limit: u32,
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

/// The wait before retry n (n = 1, 2, ...); see [`backoff`](crate::backoff) for the formulas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backoff {
    /// At once.
    None,
    /// The same wait each time.
    Fixed {
        /// The wait.
        delay: Duration,
        /// Its random part.
        jitter: Jitter,
    },
    /// Uniform in [min, max).
    Random {
        /// The shortest wait.
        min: Duration,
        /// No wait is as long as this, unless it equals `min`.
        max: Duration,
    },
    /// min(base x multiplier^(n-1), max).
    Exponential {
        /// The first wait.
        base: Duration,
        /// The growth from wait to wait.
        multiplier: Ratio,
        /// The longest wait.
        max: Duration,
        /// Its random part.
        jitter: Jitter,
    },
}

/// The random part of a wait of length d.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Jitter {
    /// d as it is.
    None,
    /// Uniform in [0, d].
    Full,
    /// d/2 + uniform in [0, d/2].
    Equal,
    /// Uniform in [d x (1 - share), d x (1 + share)].
    PlusMinus(Ratio),
    /// Uniform in [base, 3 x previous wait].
    Decorrelated,
}

/// Gates retries by failures against successes over a sliding window; see [`breaker`](crate::breaker).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RetryBreaker {
    /// Retries stop above this many failures per success.
    pub ratio: Ratio,
    /// The window.
    pub window: WindowShape,
    /// So many failures in the window never stop retries. 0: the bare ratio.
    pub min_failures: u32,
    /// With fewer attempts in the window retries are not stopped. 0: no such minimum.
    pub min_samples: u32,
    /// What counts as a failure. None: [`breaker::FAILURES`](crate::breaker::FAILURES) and what the rule retries.
    pub failure_codes: Option<CodeSet>,
}

/// The two flags of the chain; see [`chain`](crate::chain).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Chain {
    /// Repeat even where the request served is itself a repeat.
    pub ignore_retry_flag: bool,
    /// Repeat even where the answer says that a hop below has given up.
    pub ignore_no_more_retry: bool,
}

impl Policy {
    /// The policy that says no more than its mode.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            timeout: None,
            retry: None,
            retry_breaker: Some(RetryBreaker::default()),
            chain: Chain::default(),
            replay_limit: DEFAULT_REPLAY_LIMIT,
        }
    }

    /// True if calls under this policy are watched by the engine at all.
    #[must_use]
    pub fn governs(&self) -> bool {
        self.mode != Mode::Off
    }

    /// The retry settings, if they allow a second attempt.
    #[must_use]
    pub fn repeats(&self) -> Option<&Retry> {
        self.retry.as_ref().filter(|retry| retry.max_attempts > 1)
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
        REPLAY_LIMIT.check("replay_limit_bytes", self.replay_limit, faults);
    }
}

impl Retry {
    fn check(&self, faults: &mut Faults) {
        MAX_ATTEMPTS.check("retry.max_attempts", self.max_attempts, faults);
        check_timeout("retry.max_duration", self.max_duration, faults);
        check_timeout("retry.per_attempt_timeout", self.per_attempt_timeout, faults);
        if self.codes.is_empty() {
            faults.add("retry.codes", "names no code to retry; leave out `retry` to send calls once");
        }
        if self.codes.contains(Code::Ok) {
            faults.add("retry.codes", "OK is not a failure");
        }
        self.backoff.check(faults);
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            max_duration: None,
            per_attempt_timeout: None,
            codes: CodeSet::of(&[Code::Unavailable]),
            backoff: Backoff::default(),
        }
    }
}

impl Backoff {
    /// The default first wait of an exponential backoff.
    pub const DEFAULT_BASE: Duration = Duration::from_millis(25);
    /// The default ceiling of an exponential backoff.
    pub const DEFAULT_MAX: Duration = Duration::from_millis(250);
    /// The default growth of an exponential backoff.
    pub const DEFAULT_MULTIPLIER: Ratio = Ratio::from_bp(20_000);

    fn check(&self, faults: &mut Faults) {
        match *self {
            Self::None => {}
            Self::Fixed { delay, jitter } => {
                WAIT.check("retry.backoff.fixed.delay", delay, faults);
                jitter.check("retry.backoff.fixed.jitter_share", faults);
            }
            Self::Random { min, max } => {
                WAIT.check("retry.backoff.random.min", min, faults);
                WAIT.check("retry.backoff.random.max", max, faults);
                check_order("retry.backoff.random.max", "min", min, max, faults);
            }
            Self::Exponential { base, multiplier, max, jitter } => {
                WAIT.check("retry.backoff.exponential.base", base, faults);
                MULTIPLIER.check("retry.backoff.exponential.multiplier", multiplier, faults);
                WAIT.check("retry.backoff.exponential.max", max, faults);
                check_order("retry.backoff.exponential.max", "base", base, max, faults);
                jitter.check("retry.backoff.exponential.jitter_share", faults);
            }
        }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::Exponential {
            base: Self::DEFAULT_BASE,
            multiplier: Self::DEFAULT_MULTIPLIER,
            max: Self::DEFAULT_MAX,
            jitter: Jitter::Full,
        }
    }
}

impl Jitter {
    fn check(self, path: &str, faults: &mut Faults) {
        if let Self::PlusMinus(share) = self {
            JITTER_SHARE.check(path, share, faults);
        }
    }
}

impl RetryBreaker {
    fn check(&self, faults: &mut Faults) {
        BREAKER_RATIO.check("retry_breaker.ratio", self.ratio, faults);
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
            ratio: Ratio::from_bp(1000),
            window: WindowShape::default(),
            min_failures: 3,
            min_samples: 0,
            failure_codes: None,
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
        faults.add(path, format!("{} is less than {lesser}, {}", Millis(max), Millis(min)));
    }
}

#[cfg(test)]
mod tests;
