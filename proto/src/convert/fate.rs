//! Fates in reports: the enums of the wire and the engine.

use damper_core::Fate;

use crate::v1;

/// A report without a fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the field `fate` (the outcome of the call) is required")]
pub struct UnspecifiedFate;

impl From<Fate> for v1::Fate {
    fn from(fate: Fate) -> Self {
        match fate {
            Fate::Ok => Self::Ok,
            Fate::OkAfterRetry => Self::OkAfterRetry,
            Fate::OkByHedge => Self::OkByHedge,
            Fate::NotRetryable => Self::NotRetryable,
            Fate::AttemptsExhausted => Self::AttemptsExhausted,
            Fate::RetryBreaker => Self::RetryBreaker,
            Fate::Budget => Self::Budget,
            Fate::Deadline => Self::Deadline,
            Fate::MaxDuration => Self::MaxDuration,
            Fate::Pushback => Self::Pushback,
            Fate::ChainRetryFlag => Self::ChainRetryFlag,
            Fate::ChainNoMoreRetry => Self::ChainNoMoreRetry,
            Fate::StopWhen => Self::StopWhen,
            Fate::CircuitOpen => Self::CircuitOpen,
            Fate::NotReplayable => Self::NotReplayable,
            Fate::Committed => Self::Committed,
            Fate::PolicyOff => Self::PolicyOff,
            Fate::Cancelled => Self::Cancelled,
            Fate::Retry => Self::Retry,
            Fate::Killed => Self::Killed,
        }
    }
}

impl TryFrom<v1::Fate> for Fate {
    type Error = UnspecifiedFate;

    fn try_from(fate: v1::Fate) -> Result<Self, UnspecifiedFate> {
        Ok(match fate {
            v1::Fate::Unspecified => return Err(UnspecifiedFate),
            v1::Fate::Ok => Self::Ok,
            v1::Fate::OkAfterRetry => Self::OkAfterRetry,
            v1::Fate::OkByHedge => Self::OkByHedge,
            v1::Fate::NotRetryable => Self::NotRetryable,
            v1::Fate::AttemptsExhausted => Self::AttemptsExhausted,
            v1::Fate::RetryBreaker => Self::RetryBreaker,
            v1::Fate::Budget => Self::Budget,
            v1::Fate::Deadline => Self::Deadline,
            v1::Fate::MaxDuration => Self::MaxDuration,
            v1::Fate::Pushback => Self::Pushback,
            v1::Fate::ChainRetryFlag => Self::ChainRetryFlag,
            v1::Fate::ChainNoMoreRetry => Self::ChainNoMoreRetry,
            v1::Fate::StopWhen => Self::StopWhen,
            v1::Fate::CircuitOpen => Self::CircuitOpen,
            v1::Fate::NotReplayable => Self::NotReplayable,
            v1::Fate::Committed => Self::Committed,
            v1::Fate::PolicyOff => Self::PolicyOff,
            v1::Fate::Cancelled => Self::Cancelled,
            v1::Fate::Retry => Self::Retry,
            v1::Fate::Killed => Self::Killed,
        })
    }
}
