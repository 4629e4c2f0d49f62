//! How calls end: exactly one fate per call.
//!
//! Fates are counted per route, are the metric's label and what operators read, so their names are fixed.
//! In observe mode a failed call has the fate it would have had, marked `would_`.

use std::fmt;

/// How a call ended; the first that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Fate {
    /// The first attempt was answered.
    Ok,
    /// A later attempt was answered.
    OkAfterRetry,
    /// A hedge was answered first.
    OkByHedge,
    /// The code may not be retried.
    NotRetryable,
    /// Every attempt the rule allows was made.
    AttemptsExhausted,
    /// The retry breaker was open.
    RetryBreaker,
    /// The budget of extra attempts was used up.
    Budget,
    /// No time was left, or too little for a retry to finish.
    Deadline,
    /// `retry.max_duration` was over, or would have been after the wait.
    MaxDuration,
    /// The server asked not to retry, or to wait too long.
    Pushback,
    /// The request served is itself a repeat: the layer above is the one retrying.
    ChainRetryFlag,
    /// A hop below has retried and given up.
    ChainNoMoreRetry,
    /// `stop_when`: the call had taken too long, or too few calls succeed.
    StopWhen,
    /// The circuit breaker was open: nothing was sent.
    CircuitOpen,
    /// The request was too long or not complete when it was sent.
    NotReplayable,
    /// The answer had begun when the failure came.
    Committed,
    /// No rule, or one that sends calls once.
    PolicyOff,
    /// The application dropped the call.
    Cancelled,
    /// Observe mode only: a retry would have been sent.
    Retry,
    /// A kill switch stops what is repeated, or refused the call: then nothing was sent.
    Killed,
}

impl Fate {
    /// Every fate.
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

    /// Its name in metrics, on the command line and in the documents.
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

    /// True if the application got an answer.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        matches!(self, Self::Ok | Self::OkAfterRetry | Self::OkByHedge)
    }

    /// True if the application was left with an error, of its own making or not, and did not give up itself.
    #[must_use]
    pub const fn is_final_failure(self) -> bool {
        !self.is_ok() && !matches!(self, Self::Cancelled)
    }

    /// True if a request in whose service a call ended so must not be repeated by the layers above: the
    /// retries that could help have been made here, or were held back for a reason that holds above too.
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

/// A call's fate, and whether it is real or what would have been (observe mode).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ending {
    /// How the call ended.
    pub fate: Fate,
    /// Observe mode: what would have been.
    pub would: bool,
}

impl Ending {
    /// A fate that a call really had.
    #[must_use]
    pub const fn real(fate: Fate) -> Self {
        Self { fate, would: false }
    }

    /// Every ending there is.
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
