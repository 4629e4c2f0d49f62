//! Fates: exactly one per call.
//!
//! Fates are counted per route. They are a metric label and shown to operators, so their names are fixed. In
//! observe mode a failed call has the fate it would have had, prefixed `would_`.

use std::fmt;

/// How a call ended; the first that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Fate {
    /// The first attempt succeeded.
    Ok,
    /// A retry succeeded.
    OkAfterRetry,
    /// A hedge succeeded first.
    OkByHedge,
    /// The rule does not retry the code.
    NotRetryable,
    /// All attempts that the rule allows were made.
    AttemptsExhausted,
    /// The retry breaker was open.
    RetryBreaker,
    /// The budget of extra attempts was used up.
    Budget,
    /// No time was left, or too little for a retry to finish.
    Deadline,
    /// `retry.max_duration` had expired, or would have after the wait.
    MaxDuration,
    /// The server asked not to retry, or to wait too long.
    Pushback,
    /// The request being served is itself a retry: the layer above retries.
    ChainRetryFlag,
    /// A hop below retried and gave up.
    ChainNoMoreRetry,
    /// `stop_when`: the call had taken too long, or too few calls succeeded.
    StopWhen,
    /// The circuit breaker was open, so nothing was sent.
    CircuitOpen,
    /// The request was too long to keep, or not complete when it was sent.
    NotReplayable,
    /// The response had begun before the failure.
    Committed,
    /// No rule, or a rule or an option of the call that allows one attempt.
    PolicyOff,
    /// The application dropped the call.
    Cancelled,
    /// A later call makes the retry (stateful retry); in observe mode a retry would have been sent.
    Retry,
    /// A kill switch blocked the retry, or rejected the call before anything was sent.
    Killed,
}

impl Fate {
    /// All fates.
    pub const ALL: [Self; 20] = [
        Self::Ok,
        Self::OkAfterRetry,
        Self::OkByHedge,
        Self::NotRetryable,
        Self::AttemptsExhausted,
        Self::RetryBreaker,
        Self::Budget,
        Self::Deadline,
        Self::MaxDuration,
        Self::Pushback,
        Self::ChainRetryFlag,
        Self::ChainNoMoreRetry,
        Self::StopWhen,
        Self::CircuitOpen,
        Self::NotReplayable,
        Self::Committed,
        Self::PolicyOff,
        Self::Cancelled,
        Self::Retry,
        Self::Killed,
    ];

    /// Returns the name in metrics, on the command line and in the documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::OkAfterRetry => "ok_after_retry",
            Self::OkByHedge => "ok_by_hedge",
            Self::NotRetryable => "not_retryable",
            Self::AttemptsExhausted => "attempts_exhausted",
            Self::RetryBreaker => "retry_breaker",
            Self::Budget => "budget",
            Self::Deadline => "deadline",
            Self::MaxDuration => "max_duration",
            Self::Pushback => "pushback",
            Self::ChainRetryFlag => "chain_retry_flag",
            Self::ChainNoMoreRetry => "chain_no_more_retry",
            Self::StopWhen => "stop_when",
            Self::CircuitOpen => "circuit_open",
            Self::NotReplayable => "not_replayable",
            Self::Committed => "committed",
            Self::PolicyOff => "policy_off",
            Self::Cancelled => "cancelled",
            Self::Retry => "retry",
            Self::Killed => "killed",
        }
    }

    /// Returns true if the call succeeded.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        matches!(self, Self::Ok | Self::OkAfterRetry | Self::OkByHedge)
    }

    /// Returns true if the call failed and the application did not cancel it.
    #[must_use]
    pub const fn is_final_failure(self) -> bool {
        !self.is_ok() && !matches!(self, Self::Cancelled)
    }

    /// Returns true if layers above must not retry a request that made a call with this fate: the useful
    /// retries were made here, or were blocked for a reason that applies above too.
    #[must_use]
    pub const fn stops_layers_above(self) -> bool {
        matches!(
            self,
            Self::AttemptsExhausted
                | Self::RetryBreaker
                | Self::Budget
                | Self::Deadline
                | Self::MaxDuration
                | Self::Pushback
                | Self::StopWhen
                | Self::CircuitOpen
                | Self::Killed
        )
    }
}

/// A call's fate, real or in observe mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ending {
    /// How the call ended.
    pub fate: Fate,
    /// True in observe mode: the fate the call would have had.
    pub would: bool,
}

impl Ending {
    /// Returns the real ending with this fate.
    #[must_use]
    pub const fn real(fate: Fate) -> Self {
        Self { fate, would: false }
    }

    /// Returns the ending with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let real = name.strip_prefix("would_");
        let fate = Fate::ALL.into_iter().find(|fate| fate.name() == real.unwrap_or(name))?;
        Some(Self { fate, would: real.is_some() })
    }

    /// Returns all endings.
    pub fn all() -> impl Iterator<Item = Self> {
        [false, true].into_iter().flat_map(|would| Fate::ALL.map(|fate| Self { fate, would }))
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.would { "would_" } else { "" })?;
        f.write_str(self.fate.name())
    }
}
