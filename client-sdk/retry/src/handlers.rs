//! Judges outcomes and observes calls: predicates, hints and listeners, composed without allocation.

use std::time::Duration;

use crate::classify::{Class, Retryable};
use crate::events::{AttemptEnded, CallEnded, Listener};

/// Limits by class of errors that one handle can have.
pub(crate) const MAX_LIMITS: usize = 8;

/// Judgement of one outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    pub(crate) class: Class,
    /// A predicate forbids the retry, whatever others say.
    pub(crate) never: bool,
    /// Wait that the callee asked for, as a pushback.
    pub(crate) hint: Option<Duration>,
    /// Wait that the caller chose instead of the backoff.
    pub(crate) wait: Option<Duration>,
    /// Class of errors with a limit of its own: its place among the limits, and the most attempts.
    pub(crate) limit: Option<(usize, u32)>,
}

impl Judgement {
    fn new(class: Class) -> Self {
        Self { class, never: false, hint: None, wait: None, limit: None }
    }
}

/// Judges outcomes and observes calls. [`Builder`](crate::Builder) and [`Retry`](crate::Retry) compose it.
pub trait Handlers<T, E> {
    /// Judges the outcome of an attempt.
    fn judge(&self, outcome: Result<&T, &E>, attempt: u32) -> Judgement;

    /// Returns false if the call must not be made.
    fn permits(&self, _name: &str) -> bool {
        true
    }

    /// Called after every attempt.
    fn attempt_ended(&self, _event: &AttemptEnded<'_, T, E>) {}

    /// Called at the end of every call.
    fn call_ended(&self, _event: &CallEnded<'_>) {}
}

/// Judges errors by their type; see [`Retryable`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ByType;

impl<T, E: Retryable> Handlers<T, E> for ByType {
    fn judge(&self, outcome: Result<&T, &E>, _: u32) -> Judgement {
        match outcome {
            Ok(_) => Judgement::new(Class::Success),
            Err(error) => Judgement { hint: error.wait_hint(), ..Judgement::new(error.class()) },
        }
    }
}

/// Judges every error in the same way.
#[derive(Clone, Copy, Debug)]
pub struct EveryError(pub(crate) Class);

impl<T, E> Handlers<T, E> for EveryError {
    fn judge(&self, outcome: Result<&T, &E>, _: u32) -> Judgement {
        Judgement::new(if outcome.is_ok() { Class::Success } else { self.0 })
    }
}

/// Handlers to which a predicate can be added. The first one replaces the judgement by type.
pub trait Extend {
    /// What the predicate is added to.
    type Base;
    /// Returns what the predicate is added to.
    fn base(self) -> Self::Base;
}

impl Extend for ByType {
    type Base = EveryError;

    fn base(self) -> EveryError {
        EveryError(Class::NotRetryable)
    }
}

impl Extend for EveryError {
    type Base = Self;

    fn base(self) -> Self {
        self
    }
}

impl<P, X> Extend for With<P, X> {
    type Base = Self;

    fn base(self) -> Self {
        self
    }
}

/// Handlers with one part added.
#[derive(Clone, Copy, Debug)]
pub struct With<P, X> {
    pub(crate) inner: P,
    pub(crate) part: X,
}

/// A part of handlers: changes the judgement, or observes.
pub trait Part<T, E> {
    /// Changes the judgement of the parts before.
    fn rejudge(&self, before: Judgement, _outcome: Result<&T, &E>, _attempt: u32) -> Judgement {
        before
    }

    /// Returns false if the call must not be made.
    fn permits(&self, _name: &str) -> bool {
        true
    }

    /// Called after every attempt.
    fn attempt_ended(&self, _event: &AttemptEnded<'_, T, E>) {}

    /// Called at the end of every call.
    fn call_ended(&self, _event: &CallEnded<'_>) {}
}

impl<T, E, P: Handlers<T, E>, X: Part<T, E>> Handlers<T, E> for With<P, X> {
    fn judge(&self, outcome: Result<&T, &E>, attempt: u32) -> Judgement {
        self.part.rejudge(self.inner.judge(outcome, attempt), outcome, attempt)
    }

    fn permits(&self, name: &str) -> bool {
        self.inner.permits(name) && self.part.permits(name)
    }

    fn attempt_ended(&self, event: &AttemptEnded<'_, T, E>) {
        self.inner.attempt_ended(event);
        self.part.attempt_ended(event);
    }

    fn call_ended(&self, event: &CallEnded<'_>) {
        self.inner.call_ended(event);
        self.part.call_ended(event);
    }
}

/// Retries errors.
#[derive(Clone, Copy, Debug)]
pub struct RetryIf<F>(pub(crate) F);

impl<T, E, F: Fn(&E) -> bool> Part<T, E> for RetryIf<F> {
    fn rejudge(&self, before: Judgement, outcome: Result<&T, &E>, _: u32) -> Judgement {
        match outcome {
            Err(error) if before.class == Class::NotRetryable && (self.0)(error) => {
                Judgement { class: Class::TRANSIENT, ..before }
            }
            _ => before,
        }
    }
}

/// Retries values.
#[derive(Clone, Copy, Debug)]
pub struct RetryIfValue<F>(pub(crate) F);

impl<T, E, F: Fn(&T) -> bool> Part<T, E> for RetryIfValue<F> {
    fn rejudge(&self, before: Judgement, outcome: Result<&T, &E>, _: u32) -> Judgement {
        match outcome {
            Ok(value) if before.class == Class::Success && (self.0)(value) => {
                Judgement { class: Class::TRANSIENT, ..before }
            }
            _ => before,
        }
    }
}

/// Never retries errors.
#[derive(Clone, Copy, Debug)]
pub struct NeverIf<F>(pub(crate) F);

impl<T, E, F: Fn(&E) -> bool> Part<T, E> for NeverIf<F> {
    fn rejudge(&self, before: Judgement, outcome: Result<&T, &E>, _: u32) -> Judgement {
        let never = outcome.is_err_and(|error| (self.0)(error));
        Judgement { never: before.never || never, ..before }
    }
}

/// Gives errors their class.
#[derive(Clone, Copy, Debug)]
pub struct ClassifyBy<F>(pub(crate) F);

impl<T, E, F: Fn(&E) -> Class> Part<T, E> for ClassifyBy<F> {
    fn rejudge(&self, before: Judgement, outcome: Result<&T, &E>, _: u32) -> Judgement {
        outcome.map_or_else(|error| Judgement { class: (self.0)(error), ..before }, |_| before)
    }
}

/// Reads the wait that the callee asked for.
#[derive(Clone, Copy, Debug)]
pub struct WaitHint<F>(pub(crate) F);

impl<T, E, F: Fn(&E) -> Option<Duration>> Part<T, E> for WaitHint<F> {
    fn rejudge(&self, before: Judgement, outcome: Result<&T, &E>, _: u32) -> Judgement {
        let hint = outcome.err().and_then(|error| (self.0)(error));
        Judgement { hint: hint.or(before.hint), ..before }
    }
}

/// Chooses the wait by attempt and outcome.
#[derive(Clone, Copy, Debug)]
pub struct WaitBy<F>(pub(crate) F);

impl<T, E, F: Fn(u32, Result<&T, &E>) -> Option<Duration>> Part<T, E> for WaitBy<F> {
    fn rejudge(&self, before: Judgement, outcome: Result<&T, &E>, attempt: u32) -> Judgement {
        Judgement { wait: (self.0)(attempt, outcome).or(before.wait), ..before }
    }
}

/// Retries a class of errors with a count of its own.
#[derive(Clone, Copy, Debug)]
pub struct Limit<F> {
    pub(crate) is_of_class: F,
    pub(crate) place: usize,
    pub(crate) max_attempts: u32,
}

impl<T, E, F: Fn(&E) -> bool> Part<T, E> for Limit<F> {
    fn rejudge(&self, before: Judgement, outcome: Result<&T, &E>, _: u32) -> Judgement {
        match outcome {
            Err(error) if before.limit.is_none() && (self.is_of_class)(error) => {
                let class = if before.class == Class::NotRetryable { Class::TRANSIENT } else { before.class };
                Judgement { class, limit: Some((self.place, self.max_attempts)), ..before }
            }
            _ => before,
        }
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
