//! Settings of one call that its application chooses.

use std::time::Duration;

use crate::time::Time;

/// Settings of one call, chosen by the application.
///
/// They only reduce what the rule allows, or add a fact that only the caller knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOptions {
    max_attempts: u32,
    timeout: Option<Duration>,
    is_idempotent: bool,
    is_repeat: bool,
}

impl CallOptions {
    /// Returns options that change nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { max_attempts: u32::MAX, timeout: None, is_idempotent: false, is_repeat: false }
    }

    /// Sends the call once: no retries, no hedges. If it fails its fate is `policy_off`, and layers above may
    /// retry.
    #[must_use]
    pub const fn no_retries(self) -> Self {
        self.max_attempts(1)
    }

    /// Declares that the caller makes a failed call again, by a retry policy or loop of its own. It is sent
    /// once. A gRPC call then counts as an outer loop.
    #[must_use]
    pub const fn repeated_by_caller(self) -> Self {
        Self { is_repeat: true, ..self.no_retries() }
    }

    /// Limits the attempts of the call, the first one included. A larger number than the rule's has no
    /// effect; 1 (or 0) is [`no_retries`](Self::no_retries).
    #[must_use]
    pub const fn max_attempts(self, max_attempts: u32) -> Self {
        Self { max_attempts, ..self }
    }

    /// Limits the time of the call with all its attempts. An earlier deadline stays. As any deadline from
    /// outside the rule, it ends the call only under a rule in `enforce`; otherwise it is only passed on.
    #[must_use]
    pub const fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Declares that the request may be processed more than once. An HTTP request with any method may then be
    /// retried. No effect on other calls: their rule declares it.
    #[must_use]
    pub const fn idempotent(self) -> Self {
        Self { is_idempotent: true, ..self }
    }

    /// Returns the limit of attempts.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.max_attempts
    }

    /// Returns true if the call may have more than one attempt.
    #[must_use]
    pub const fn allow_repeats(&self) -> bool {
        self.max_attempts > 1
    }

    /// Returns the deadline of a call that begins at `now`.
    #[must_use]
    pub fn deadline(&self, now: Time) -> Option<Time> {
        self.timeout.map(|timeout| now + timeout)
    }

    /// Returns true if the caller makes a failed call again.
    #[must_use]
    pub const fn is_repeated_by_caller(&self) -> bool {
        self.is_repeat
    }

    /// Returns true if the request may be processed more than once.
    #[must_use]
    pub const fn is_idempotent(&self) -> bool {
        self.is_idempotent
    }
}

impl Default for CallOptions {
    fn default() -> Self {
        Self::new()
    }
}
