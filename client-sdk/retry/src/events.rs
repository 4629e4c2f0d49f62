//! Events of calls: listeners, a stream, and four counters.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use damper_core::{Code, Counters, Ending, Fate};

/// Events that the stream keeps for a slow receiver.
pub(crate) const EVENTS: usize = 256;

/// An attempt that has ended.
#[derive(Clone, Copy, Debug)]
pub struct AttemptEnded<'a, T, E> {
    /// Name of the handle.
    pub name: &'a str,
    /// 1, 2, ...
    pub attempt: u32,
    /// Time since the start of the call.
    pub elapsed: Duration,
    /// Returned value or error.
    pub outcome: Result<&'a T, &'a E>,
    /// False for an error, and for a value that is retried.
    pub is_success: bool,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug)]
pub struct CallEnded<'a> {
    /// Name of the handle.
    pub name: &'a str,
    /// Attempts made.
    pub attempts: u32,
    /// Time of the whole call.
    pub elapsed: Duration,
    /// How the call ended.
    pub ending: Ending,
}

/// Observes the calls of a handle. All methods do nothing unless implemented. If the future of a call is
/// dropped, nothing is called.
pub trait Listener<T, E> {
    /// Before the first attempt. Returning false forbids the call.
    fn open(&self, _name: &str) -> bool {
        true
    }

    /// After every attempt, successful or not.
    fn attempt(&self, _event: &AttemptEnded<'_, T, E>) {}

    /// After the successful attempt.
    fn success(&self, _event: &AttemptEnded<'_, T, E>, _value: &T) {}

    /// After an attempt that returned an error.
    fn error(&self, _event: &AttemptEnded<'_, T, E>, _error: &E) {}

    /// At the end of the call, also if it was not permitted.
    fn close(&self, _event: &CallEnded<'_>) {}
}

/// Logs failed attempts and failed calls with `tracing`, target `damper_retry`.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogRetries;

impl<T, E: fmt::Debug> Listener<T, E> for LogRetries {
    fn error(&self, event: &AttemptEnded<'_, T, E>, error: &E) {
        let AttemptEnded { name, attempt, elapsed, .. } = event;
        tracing::debug!(name, attempt, ?elapsed, ?error, "attempt failed");
    }

    fn close(&self, event: &CallEnded<'_>) {
        let CallEnded { name, attempts, elapsed, ending } = event;
        if !ending.fate.is_ok() {
            tracing::warn!(name, attempts, ?elapsed, fate = %ending, "call failed");
        }
    }
}

/// An event of [`Retry::events`](crate::Retry::events).
#[derive(Clone, Debug)]
pub struct Event {
    /// Name of the handle.
    pub name: Arc<str>,
    /// Tags of the handle.
    pub tags: Arc<[(String, String)]>,
    /// Time since the start of the call.
    pub elapsed: Duration,
    /// What happened.
    pub kind: EventKind,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// An attempt ended with this code; OK if it succeeded.
    Attempt {
        /// 1, 2, ...
        attempt: u32,
        /// The code that it counts as.
        code: Code,
    },
    /// The call ended.
    Ended {
        /// Attempts made.
        attempts: u32,
        /// How it ended.
        ending: Ending,
    },
}

/// Counts of calls since the handle was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Calls that succeeded at the first attempt.
    pub succeeded_without_retry: u64,
    /// Calls that succeeded after a retry or by a hedge.
    pub succeeded_with_retry: u64,
    /// Calls that failed although all attempts were made.
    pub failed_with_retry: u64,
    /// Calls that failed for another reason.
    pub failed_without_retry: u64,
    /// Calls that were dropped or stopped.
    pub cancelled: u64,
    /// Attempts of all calls.
    pub attempts: u64,
}

impl Stats {
    pub(crate) fn of(counters: &Counters) -> Self {
        let count = |fates: &[Fate]| fates.iter().map(|fate| counters.ended(Ending::real(*fate))).sum();
        let succeeded_without_retry = count(&[Fate::Ok]);
        let succeeded_with_retry = count(&[Fate::OkAfterRetry, Fate::OkByHedge]);
        let failed_with_retry = count(&[Fate::AttemptsExhausted]);
        let ended: u64 = Ending::all().map(|ending| counters.ended(ending)).sum();
        let cancelled = count(&[Fate::Cancelled]);
        let others = succeeded_without_retry + succeeded_with_retry + failed_with_retry + cancelled;
        Self {
            succeeded_without_retry,
            succeeded_with_retry,
            failed_with_retry,
            failed_without_retry: ended.saturating_sub(others),
            cancelled,
            attempts: counters.attempts(),
        }
    }
}
