//! Settings of a handle.

use std::sync::Arc;
use std::time::Duration;

use damper_core::{
    Budget, CircuitBreaker, Code, CodeSet, Faults, Hedge, Mode, Policy, Ratio, RetryBreaker, Route, Rule,
    Stop,
};

use crate::backoff::Backoff;
use crate::classify::Class;
use crate::handle::Retry;
use crate::handlers::{
    BeforeRetry, ByType, ClassifyBy, Extend, Limit, Listen, NeverIf, RetryAll, RetryIf, RetryIfValue, WaitBy,
    WaitHint, With,
};
use crate::source::{Local, LocalConfig, Source};

/// Codes that handles retry by default: another attempt may succeed. The other codes mean that it fails
/// again, or say nothing about it.
const CODES: CodeSet =
    CodeSet::of(&[Code::Unavailable, Code::DeadlineExceeded, Code::ResourceExhausted, Code::Aborted]);

/// Extra attempts by default: those of Finagle's retry budget. A new handle can retry at once, and an outage
/// of the callee adds a fifth to the attempts.
const BUDGET: Budget = Budget { ratio: Ratio::from_bp(2_000), min_per_second: 10 };

/// Makes a [`Retry`].
#[derive(Clone, Debug)]
#[must_use = "call `build`"]
pub struct Builder<P = ByType> {
    name: Arc<str>,
    settings: Settings,
    handlers: P,
}

/// Settings of a handle, without its predicates and listeners.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    policy: Policy,
    stop: Option<Stop>,
    pub(crate) fails_on_value: bool,
    pub(crate) tags: Vec<(String, String)>,
}

impl Default for Settings {
    fn default() -> Self {
        let retry = damper_core::Retry { codes: CODES, ..damper_core::Retry::default() };
        let (retry, budget) = (Some(retry), Some(BUDGET));
        let policy = Policy { retry, budget, retry_breaker: None, ..Policy::new(Mode::Enforce) };
        Self { policy, stop: None, fails_on_value: false, tags: Vec::new() }
    }
}

impl Settings {
    /// Returns the checked settings, with the state of an earlier route.
    pub(crate) fn config(&self, earlier: Option<&Route>) -> Result<LocalConfig, Faults> {
        let rule = Some(Arc::new(Rule::in_code(self.policy.clone())?));
        let route = earlier.map_or_else(|| Route::new(rule.clone()), |route| route.under(rule.clone()));
        Ok(LocalConfig { route, stop: self.stop.clone() })
    }

    /// Returns the default settings without gates, for calls that share nothing.
    pub(crate) fn without_gates() -> Self {
        let defaults = Self::default();
        Self { policy: Policy { budget: None, ..defaults.policy }, ..defaults }
    }

    fn retry(&mut self) -> &mut damper_core::Retry {
        self.policy.retry.get_or_insert_default()
    }
}

impl Builder {
    pub(crate) fn new(name: Arc<str>) -> Self {
        Self::of(name, Settings::default())
    }

    pub(crate) fn of(name: Arc<str>, settings: Settings) -> Self {
        Self { name, settings, handlers: ByType }
    }
}

impl<P> Builder<P> {
    /// Sets the attempts per call, including the first. Default: 3.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.settings.retry().max_attempts = attempts;
        self
    }

    /// Sets when calls end, in place of [`max_attempts`](Self::max_attempts):
    /// `Stop::AfterAttempts(3).or(Stop::After(..))`, or [`Stop::Never`].
    ///
    /// Gates end calls as well. For a call that must go on until it succeeds, such as the connection at the
    /// start of a process, set `.stop(Stop::Never).budget(None)`.
    pub fn stop(mut self, stop: Stop) -> Self {
        self.settings.retry().max_attempts = u32::MAX;
        self.settings.stop = Some(stop);
        self
    }

    /// Sets the waits before retries. Default: exponential from 25 ms to 250 ms with full jitter.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.settings.retry().backoff = backoff.into_core();
        self
    }

    /// Sets the limit of one attempt; then it is dropped and counts as DEADLINE_EXCEEDED. Such an attempt is
    /// retried whatever the predicates return, since there is no error to ask them about.
    pub fn attempt_timeout(mut self, limit: Duration) -> Self {
        self.settings.retry().per_attempt_timeout = Some(limit);
        self
    }

    /// Sets the limit of the whole call, which ends a running attempt too.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.settings.policy.timeout = Some(limit);
        self
    }

    /// Sets the time from the first attempt after which no retry starts.
    pub fn max_duration(mut self, limit: Duration) -> Self {
        self.settings.retry().max_duration = Some(limit);
        self
    }

    /// Sets the codes that are retried. Default: UNAVAILABLE, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED and
    /// ABORTED. Errors that a predicate retries are UNAVAILABLE, attempts that were cut DEADLINE_EXCEEDED,
    /// and errors that are not retried FAILED_PRECONDITION.
    pub fn codes(mut self, codes: &[Code]) -> Self {
        self.settings.retry().codes = CodeSet::of(codes);
        self
    }

    /// Sets hedging for [`Retry::call_hedged`].
    pub fn hedge(mut self, hedge: Hedge) -> Self {
        self.settings.policy.hedge = Some(hedge);
        self
    }

    /// Sets the retry breaker, by which successes pay for retries. Its credit is empty at the start. Default:
    /// none; for services with many processes and steady traffic.
    pub fn retry_breaker(mut self, breaker: impl Into<Option<RetryBreaker>>) -> Self {
        self.settings.policy.retry_breaker = breaker.into();
        self
    }

    /// Sets the circuit breaker, which rejects calls while too many fail.
    pub fn circuit_breaker(mut self, breaker: CircuitBreaker) -> Self {
        self.settings.policy.circuit_breaker = Some(breaker);
        self
    }

    /// Sets the budget of extra attempts of all calls; `None`: no limit. Default: one for every five calls of
    /// the last 10 s, and ten per second in addition.
    pub fn budget(mut self, budget: impl Into<Option<Budget>>) -> Self {
        self.settings.policy.budget = budget.into();
        self
    }

    /// Sets all settings of the engine at once.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.settings.policy = policy;
        self
    }

    /// Returns an error instead of the last value if the last value was to be retried. Default: the value.
    pub fn fail_on_value(mut self) -> Self {
        self.settings.fails_on_value = true;
        self
    }

    /// Adds a tag to the handle's events.
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.tags.push((key.into(), value.into()));
        self
    }

    /// Checks the settings and returns the handle.
    ///
    /// # Errors
    /// One fault per setting out of range.
    pub fn build(self) -> Result<Retry<P>, Faults> {
        let source = Local::new(self.settings.config(None)?);
        Ok(Retry::new(self.name, self.settings, source, self.handlers))
    }

    pub(crate) fn into_settings(self) -> Settings {
        self.settings
    }

    fn map_handlers<N>(self, map: impl FnOnce(P) -> N) -> Builder<N> {
        let Self { name, settings, handlers } = self;
        Builder { name, settings, handlers: map(handlers) }
    }
}

/// Defines the methods that add predicates and listeners.
macro_rules! handler_methods {
    ($name:ident, $($parameter:ident: $bound:ident)?) => {
        impl<P: Extend $(, $parameter: $bound)?> $name<P $(, $parameter)?> {
            /// Retries every error.
            pub fn retry_all(self) -> $name<With<P::Base, RetryAll> $(, $parameter)?> {
                self.with(RetryAll)
            }

            /// Retries errors for which the predicate returns true. Several predicates are or-ed.
            pub fn retry_if<E, F: Fn(&E) -> bool>(
                self,
                predicate: F,
            ) -> $name<With<P::Base, RetryIf<F>> $(, $parameter)?> {
                self.with(RetryIf(predicate))
            }

            /// Retries values for which the predicate returns true.
            pub fn retry_if_value<T, F: Fn(&T) -> bool>(
                self,
                predicate: F,
            ) -> $name<With<P, RetryIfValue<F>> $(, $parameter)?> {
                self.map_handlers(|inner| With { inner, part: RetryIfValue(predicate) })
            }

            /// Never retries errors for which the predicate returns true, whatever others return.
            pub fn never_if<E, F: Fn(&E) -> bool>(
                self,
                predicate: F,
            ) -> $name<With<P, NeverIf<F>> $(, $parameter)?> {
                self.map_handlers(|inner| With { inner, part: NeverIf(predicate) })
            }

            /// Gives every error a class with its code, in place of predicates.
            pub fn classify<E, F: Fn(&E) -> Class>(
                self,
                classify: F,
            ) -> $name<With<P::Base, ClassifyBy<F>> $(, $parameter)?> {
                self.with(ClassifyBy(classify))
            }

            /// Reads the wait that the callee asked for, such as `Retry-After`. It replaces the backoff. A
            /// wait longer than a minute, or than the time left, ends the call.
            pub fn wait_hint<E, F: Fn(&E) -> Option<Duration>>(
                self,
                hint: F,
            ) -> $name<With<P, WaitHint<F>> $(, $parameter)?> {
                self.map_handlers(|inner| With { inner, part: WaitHint(hint) })
            }

            /// Chooses the wait after attempt n with this outcome, in place of the backoff; `None` keeps it.
            pub fn wait_by<T, E, F: Fn(u32, Result<&T, &E>) -> Option<Duration>>(
                self,
                wait: F,
            ) -> $name<With<P, WaitBy<F>> $(, $parameter)?> {
                self.map_handlers(|inner| With { inner, part: WaitBy(wait) })
            }

            /// Retries a class of errors with a limit of its own: at most `max_attempts` attempts may fail
            /// with such an error. The first limit whose predicate returns true counts.
            pub fn limit<E, F: Fn(&E) -> bool>(
                self,
                max_attempts: u32,
                is_of_class: F,
            ) -> $name<With<P::Base, Limit<F>> $(, $parameter)?> {
                self.with(Limit { is_of_class, max_attempts })
            }

            /// Awaits what `work` returns after attempt n has failed with an error and before the next one.
            /// The backoff passes at the same time. Several run in their order. Blocking and stateful calls
            /// do not run them.
            pub fn before_retry<E, Fut, F: Fn(u32, &E) -> Fut>(
                self,
                work: F,
            ) -> $name<With<P, BeforeRetry<F>> $(, $parameter)?> {
                self.map_handlers(|inner| With { inner, part: BeforeRetry(work) })
            }

            /// Adds a listener.
            pub fn listener<L>(self, listener: L) -> $name<With<P, Listen<L>> $(, $parameter)?> {
                self.map_handlers(|inner| With { inner, part: Listen(listener) })
            }

            fn with<X>(self, part: X) -> $name<With<P::Base, X> $(, $parameter)?> {
                self.map_handlers(|handlers| With { inner: handlers.base(), part })
            }
        }
    };
}

handler_methods!(Builder,);
handler_methods!(Retry, S: Source);
