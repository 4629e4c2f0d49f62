//! Assesses outcomes and observes calls: predicates, hints and listeners, composed without allocation.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use damper_core::Verdict;

use crate::classify::{Class, Retryable};
use crate::events::{AttemptEnded, CallEnded, Listener};

/// Work before a retry.
pub(crate) type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Assessment of one outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assessment {
    pub(crate) class: Class,
    /// A predicate forbids the retry, whatever others say.
    pub(crate) never: bool,
    /// Verdict of a driver, in place of the class.
    pub(crate) verdict: Option<Verdict>,
    /// Wait that the callee asked for, as a pushback.
    pub(crate) hint: Option<Duration>,
    /// Random time after that wait.
    pub(crate) spread: Duration,
    /// Wait that the caller chose instead of the backoff.
    pub(crate) wait: Option<Duration>,
    /// Class of errors with a limit of its own: its place among the limits, and the most attempts.
    pub(crate) limit: Option<(usize, u32)>,
    /// Limits of the parts before, which numbers them.
    limits: usize,
}

impl Assessment {
    /// Returns the assessment of a driver that knows more than a class. `never`: the request must not be made
    /// again.
    #[must_use]
    pub fn of_verdict(verdict: Verdict, never: bool) -> Self {
        let class = if verdict == Verdict::Success { Class::Success } else { Class::TRANSIENT };
        Self { verdict: Some(verdict), never, ..Self::new(class) }
    }

    /// Adds a random time to the wait that the callee asked for.
    #[must_use]
    pub fn spread(self, spread: Duration) -> Self {
        Self { spread, ..self }
    }

    fn new(class: Class) -> Self {
        let spread = Duration::ZERO;
        Self { class, never: false, verdict: None, hint: None, spread, wait: None, limit: None, limits: 0 }
    }
}

/// Assesses outcomes and observes calls. [`Builder`](crate::Builder) and [`Retry`](crate::Retry) compose it.
pub trait Handlers<T, E> {
    /// Assesses the outcome of an attempt.
    fn assess(&self, outcome: Result<&T, &E>, attempt: u32) -> Assessment;

    /// Returns false if the call must not be made.
    fn permits(&self, _name: &str) -> bool {
        true
    }

    /// Called after every attempt.
    fn attempt_ended(&self, _event: &AttemptEnded<'_, T, E>) {}

    /// Returns what to wait for before the next attempt, in addition to the backoff.
    fn before_retry(&self, _attempt: u32, _error: &E) -> Option<BoxFuture> {
        None
    }

    /// Called at the end of every call.
    fn call_ended(&self, _event: &CallEnded<'_>) {}
}

/// Handlers whose type has a name; see [`Retry::boxed`](crate::Retry::boxed).
pub type BoxHandlers<T, E> = Arc<dyn Handlers<T, E> + Send + Sync>;

impl<T, E, P: Handlers<T, E> + ?Sized> Handlers<T, E> for Arc<P> {
    fn assess(&self, outcome: Result<&T, &E>, attempt: u32) -> Assessment {
        (**self).assess(outcome, attempt)
    }

    fn permits(&self, name: &str) -> bool {
        (**self).permits(name)
    }

    fn attempt_ended(&self, event: &AttemptEnded<'_, T, E>) {
        (**self).attempt_ended(event);
    }

    fn before_retry(&self, attempt: u32, error: &E) -> Option<BoxFuture> {
        (**self).before_retry(attempt, error)
    }

    fn call_ended(&self, event: &CallEnded<'_>) {
        (**self).call_ended(event);
    }
}

/// Assesses errors by their type; see [`Retryable`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ByType;

impl<T, E: Retryable> Handlers<T, E> for ByType {
    fn assess(&self, outcome: Result<&T, &E>, _: u32) -> Assessment {
        match outcome {
            Ok(_) => Assessment::new(Class::Success),
            Err(error) => Assessment { hint: error.wait_hint(), ..Assessment::new(error.class()) },
        }
    }
}

/// Retries no error; predicates are added to it.
#[derive(Clone, Copy, Debug)]
pub struct NoError;

impl<T, E> Handlers<T, E> for NoError {
    fn assess(&self, outcome: Result<&T, &E>, _: u32) -> Assessment {
        Assessment::new(if outcome.is_ok() { Class::Success } else { Class::NotRetryable })
    }
}

/// Handlers to which a predicate can be added. The first one replaces the assessment by type.
pub trait Extend {
    /// The handlers without the assessment by type.
    type Base;
    /// Removes the assessment by type.
    fn base(self) -> Self::Base;
}

impl Extend for ByType {
    type Base = NoError;

    fn base(self) -> NoError {
        NoError
    }
}

impl Extend for NoError {
    type Base = Self;

    fn base(self) -> Self {
        self
    }
}

impl<P: Extend, X> Extend for With<P, X> {
    type Base = With<P::Base, X>;

    fn base(self) -> Self::Base {
        With { inner: self.inner.base(), part: self.part }
    }
}

/// Handlers with one part added.
#[derive(Clone, Copy, Debug)]
pub struct With<P, X> {
    pub(crate) inner: P,
    pub(crate) part: X,
}

/// A part of handlers: changes the assessment, or observes.
pub trait Part<T, E> {
    /// Changes the assessment of the parts before.
    fn reassess(&self, before: Assessment, _outcome: Result<&T, &E>, _attempt: u32) -> Assessment {
        before
    }

    /// Returns false if the call must not be made.
    fn permits(&self, _name: &str) -> bool {
        true
    }

    /// Called after every attempt.
    fn attempt_ended(&self, _event: &AttemptEnded<'_, T, E>) {}

    /// Returns what to wait for before the next attempt.
    fn before_retry(&self, _attempt: u32, _error: &E) -> Option<BoxFuture> {
        None
    }

    /// Called at the end of every call.
    fn call_ended(&self, _event: &CallEnded<'_>) {}
}

impl<T, E, P: Handlers<T, E>, X: Part<T, E>> Handlers<T, E> for With<P, X> {
    fn assess(&self, outcome: Result<&T, &E>, attempt: u32) -> Assessment {
        self.part.reassess(self.inner.assess(outcome, attempt), outcome, attempt)
    }

    fn permits(&self, name: &str) -> bool {
        self.inner.permits(name) && self.part.permits(name)
    }

    fn attempt_ended(&self, event: &AttemptEnded<'_, T, E>) {
        self.inner.attempt_ended(event);
        self.part.attempt_ended(event);
    }

    fn before_retry(&self, attempt: u32, error: &E) -> Option<BoxFuture> {
        match (self.inner.before_retry(attempt, error), self.part.before_retry(attempt, error)) {
            (Some(first), Some(then)) => Some(Box::pin(async {
                first.await;
                then.await;
            })),
            (first, then) => first.or(then),
        }
    }

    fn call_ended(&self, event: &CallEnded<'_>) {
        self.inner.call_ended(event);
        self.part.call_ended(event);
    }
}

/// Retries all errors.
#[derive(Clone, Copy, Debug)]
pub struct RetryAll;

impl<T, E> Part<T, E> for RetryAll {
    fn reassess(&self, before: Assessment, _: Result<&T, &E>, _: u32) -> Assessment {
        if before.class == Class::NotRetryable {
            return Assessment { class: Class::TRANSIENT, ..before };
        }
        before
    }
}

/// Retries errors.
#[derive(Clone, Copy, Debug)]
pub struct RetryIf<F>(pub(crate) F);

impl<T, E, F: Fn(&E) -> bool> Part<T, E> for RetryIf<F> {
    fn reassess(&self, before: Assessment, outcome: Result<&T, &E>, _: u32) -> Assessment {
        match outcome {
            Err(error) if before.class == Class::NotRetryable && (self.0)(error) => {
                Assessment { class: Class::TRANSIENT, ..before }
            }
            _ => before,
        }
    }
}

/// Retries values.
#[derive(Clone, Copy, Debug)]
pub struct RetryIfValue<F>(pub(crate) F);

impl<T, E, F: Fn(&T) -> bool> Part<T, E> for RetryIfValue<F> {
    fn reassess(&self, before: Assessment, outcome: Result<&T, &E>, _: u32) -> Assessment {
        match outcome {
            Ok(value) if before.class == Class::Success && (self.0)(value) => {
                Assessment { class: Class::TRANSIENT, ..before }
            }
            _ => before,
        }
    }
}

/// Never retries errors.
#[derive(Clone, Copy, Debug)]
pub struct NeverIf<F>(pub(crate) F);

impl<T, E, F: Fn(&E) -> bool> Part<T, E> for NeverIf<F> {
    fn reassess(&self, before: Assessment, outcome: Result<&T, &E>, _: u32) -> Assessment {
        let never = outcome.is_err_and(|error| (self.0)(error));
        Assessment { never: before.never || never, ..before }
    }
}

/// Gives errors their class.
#[derive(Clone, Copy, Debug)]
pub struct ClassifyBy<F>(pub(crate) F);

impl<T, E, F: Fn(&E) -> Class> Part<T, E> for ClassifyBy<F> {
    fn reassess(&self, before: Assessment, outcome: Result<&T, &E>, _: u32) -> Assessment {
        outcome.map_or_else(|error| Assessment { class: (self.0)(error), ..before }, |_| before)
    }
}

/// Reads the wait that the callee asked for.
#[derive(Clone, Copy, Debug)]
pub struct WaitHint<F>(pub(crate) F);

impl<T, E, F: Fn(&E) -> Option<Duration>> Part<T, E> for WaitHint<F> {
    fn reassess(&self, before: Assessment, outcome: Result<&T, &E>, _: u32) -> Assessment {
        let hint = outcome.err().and_then(|error| (self.0)(error));
        Assessment { hint: hint.or(before.hint), ..before }
    }
}

/// Chooses the wait by attempt and outcome.
#[derive(Clone, Copy, Debug)]
pub struct WaitBy<F>(pub(crate) F);

impl<T, E, F: Fn(u32, Result<&T, &E>) -> Option<Duration>> Part<T, E> for WaitBy<F> {
    fn reassess(&self, before: Assessment, outcome: Result<&T, &E>, attempt: u32) -> Assessment {
        Assessment { wait: (self.0)(attempt, outcome).or(before.wait), ..before }
    }
}

/// Retries a class of errors with a count of its own.
#[derive(Clone, Copy, Debug)]
pub struct Limit<F> {
    pub(crate) is_of_class: F,
    pub(crate) max_attempts: u32,
}

impl<T, E, F: Fn(&E) -> bool> Part<T, E> for Limit<F> {
    fn reassess(&self, before: Assessment, outcome: Result<&T, &E>, _: u32) -> Assessment {
        let (place, before) = (before.limits, Assessment { limits: before.limits + 1, ..before });
        match outcome {
            Err(error) if before.limit.is_none() && (self.is_of_class)(error) => {
                let class = if before.class == Class::NotRetryable { Class::TRANSIENT } else { before.class };
                Assessment { class, limit: Some((place, self.max_attempts)), ..before }
            }
            _ => before,
        }
    }
}

/// Runs asynchronous work before each retry.
#[derive(Clone, Copy, Debug)]
pub struct BeforeRetry<F>(pub(crate) F);

impl<T, E, F, Fut> Part<T, E> for BeforeRetry<F>
where
    F: Fn(u32, &E) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    fn before_retry(&self, attempt: u32, error: &E) -> Option<BoxFuture> {
        Some(Box::pin((self.0)(attempt, error)))
    }
}

/// Passes events to a listener.
#[derive(Clone, Copy, Debug)]
pub struct Listen<L>(pub(crate) L);

impl<T, E, L: Listener<T, E>> Part<T, E> for Listen<L> {
    fn permits(&self, name: &str) -> bool {
        self.0.open(name)
    }

    fn attempt_ended(&self, event: &AttemptEnded<'_, T, E>) {
        self.0.attempt(event);
        match event.outcome {
            Ok(value) if event.is_success => self.0.success(event, value),
            Ok(_) => {}
            Err(error) => self.0.error(event, error),
        }
    }

    fn call_ended(&self, event: &CallEnded<'_>) {
        self.0.close(event);
    }
}
