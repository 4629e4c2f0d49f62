//! How a call failed.

use std::fmt;
use std::time::Duration;

use damper_core::{Ending, Fate};

/// Failure of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error<E> {
    /// The last attempt failed with an error.
    Failed(Failed<E>),
    /// There is no error of the body: the call was not made, or its time expired.
    NotAnswered(NotAnswered),
}

/// The end of a call whose last attempt returned an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed<E> {
    /// The error of the last attempt.
    pub last: E,
    /// How the call ended: why no further attempt was made.
    pub ending: Ending,
    /// Attempts made.
    pub attempts: u32,
    /// Time of the whole call.
    pub elapsed: Duration,
}

/// The end of a call without an error of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAnswered {
    /// Why there is no answer.
    pub reason: Reason,
    /// Attempts made.
    pub attempts: u32,
    /// Time of the whole call.
    pub elapsed: Duration,
}

/// Reason for a call without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The engine ended the call: a deadline, an open circuit breaker, a kill switch; or, with
    /// [`Builder::fail_on_value`](crate::Builder::fail_on_value), the last value was not accepted.
    Ended(Ending),
    /// A listener did not permit the call.
    NotPermitted,
    /// Cancelled by the future given to [`Retry::call_until`](crate::Retry::call_until).
    Cancelled,
    /// Stateful retry: no attempt of the key is left, for this reason. The body did not run.
    KeyEnded(Ending),
    /// Stateful retry: the store is full, and the key is new.
    StoreFull,
}

#[cfg(feature = "tower")]
impl<E> Failed<E> {
    /// The service was not ready, so no attempt was made.
    pub(crate) fn not_ready(last: E) -> Self {
        Self { last, ending: Ending::real(Fate::NotRetryable), attempts: 0, elapsed: Duration::ZERO }
    }
}

impl<E> Error<E> {
    /// Returns the error of the last attempt.
    pub fn last(&self) -> Option<&E> {
        match self {
            Self::Failed(failed) => Some(&failed.last),
            Self::NotAnswered(_) => None,
        }
    }

    /// Returns the error of the last attempt, or makes one.
    pub fn into_last(self, make: impl FnOnce(NotAnswered) -> E) -> E {
        match self {
            Self::Failed(failed) => failed.last,
            Self::NotAnswered(not_answered) => make(not_answered),
        }
    }

    /// Returns how the call ended; `None` if the engine did not end it.
    pub fn fate(&self) -> Option<Fate> {
        self.ending().map(|ending| ending.fate)
    }

    /// As [`fate`](Self::fate), with the difference between `enforce` and `observe`.
    pub fn ending(&self) -> Option<Ending> {
        match self {
            Self::Failed(failed) => Some(failed.ending),
            Self::NotAnswered(not_answered) => not_answered.ending(),
        }
    }

    /// Stateful retry: returns true if no attempt of the key is left, so that the body did not run. The key
    /// is forgotten: recover now, for example with a dead-letter queue.
    pub fn is_recovery(&self) -> bool {
        matches!(self, Self::NotAnswered(NotAnswered { reason: Reason::KeyEnded(_), .. }))
    }

    /// Returns the attempts made.
    pub fn attempts(&self) -> u32 {
        match self {
            Self::Failed(failed) => failed.attempts,
            Self::NotAnswered(not_answered) => not_answered.attempts,
        }
    }

    /// Returns the time of the whole call.
    pub fn elapsed(&self) -> Duration {
        match self {
            Self::Failed(failed) => failed.elapsed,
            Self::NotAnswered(not_answered) => not_answered.elapsed,
        }
    }
}

impl NotAnswered {
    /// The end of a call that was not made.
    pub(crate) fn unmade(reason: Reason) -> Self {
        Self { reason, attempts: 0, elapsed: Duration::ZERO }
    }

    /// Returns how the call ended; `None` if the engine did not end it.
    #[must_use]
    pub fn fate(&self) -> Option<Fate> {
        self.ending().map(|ending| ending.fate)
    }

    fn ending(&self) -> Option<Ending> {
        match self.reason {
            Reason::Ended(ending) | Reason::KeyEnded(ending) => Some(ending),
            Reason::NotPermitted | Reason::Cancelled | Reason::StoreFull => None,
        }
    }
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(Failed { last, ending, attempts, elapsed }) => {
                write!(f, "{last} ({ending}, {})", Effort(*attempts, *elapsed))
            }
            Self::NotAnswered(not_answered) => not_answered.fmt(f),
        }
    }
}

impl fmt::Display for NotAnswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let effort = Effort(self.attempts, self.elapsed);
        match self.reason {
            Reason::Ended(ending) => write!(f, "no answer: {ending} ({effort})"),
            Reason::KeyEnded(ending) => write!(f, "no attempt is left: {ending} ({effort})"),
            Reason::NotPermitted => f.write_str("not permitted by a listener"),
            Reason::Cancelled => write!(f, "cancelled ({effort})"),
            Reason::StoreFull => f.write_str("the store of stateful retries is full"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Error<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(failed) => Some(&failed.last),
            Self::NotAnswered(_) => None,
        }
    }
}

impl std::error::Error for NotAnswered {}

/// Attempts and time as text.
struct Effort(u32, Duration);

impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(attempts, elapsed) = *self;
        let noun = if attempts == 1 { "attempt" } else { "attempts" };
        write!(f, "{attempts} {noun} in {elapsed:.1?}")
    }
}
