//! Guards: ceilings that a callee's owner sets on the rules of callers.
//!
//! Every guard that matches a route tightens the winning rule. A guard never loosens: each ceiling is a
//! minimum, a maximum or an intersection, so the order of guards does not matter and tightening twice changes
//! nothing. Each cut is listed as a [`CeilingExcess`].
//!
//! A ceiling on the retry breaker's ratio also switches the breaker on. It applies in both modes of the
//! breaker: retries paid for by credit must be within the ratio too. If no code is left to retry, calls have
//! one attempt; a policy that only hedges then does not hedge, because its hedges follow failed attempts too.
//! The limit of an attempt stays: a guard removes no timeout.
//!
//! The repeat limit is not a ceiling on rules but a setting of the callee's server layer, see
//! [`repeat_limit`](crate::repeat_limit).

use std::time::Duration;

use crate::fault::{Bounds, Faults, Millis, Ratio};
use crate::gates::repeat_limit::RepeatLimit;
use crate::outcome::code::{Code, CodeSet};
use crate::policy::{BREAKER_RATIO, BreakerMode, MAX_ATTEMPTS, Policy, RetryBreaker, TIMEOUT};
use crate::rules::pattern::{Part, Pattern};

/// Length of `owner` in bytes.
pub const OWNER_BYTES: Bounds<u32> = Bounds { min: 0, max: 255 };

/// Ceilings for the rules of a pattern's routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    pattern: Pattern,
    ceiling: Ceiling,
    owner: String,
    revision: u64,
}

/// Ceilings of a guard. `None`: not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ceiling {
    /// Maximum attempts per call, hedges included.
    pub max_attempts: Option<u32>,
    /// Forbids hedging.
    pub forbid_hedge: bool,
    /// Codes that may be retried.
    pub codes: Option<CodeSet>,
    /// Maximum ratio of the retry breaker.
    pub max_retry_breaker_ratio: Option<Ratio>,
    /// Minimum timeout of an attempt.
    pub min_per_attempt_timeout: Option<Duration>,
    /// Retry limit of the callee, for all callers together.
    pub repeat_limit: Option<RepeatLimit>,
}

/// A setting that exceeds a ceiling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CeilingExcess {
    /// Path of the setting below the policy.
    pub field: &'static str,
    /// Setting and ceiling as text: `5 is more than 3`.
    pub problem: String,
}

/// Checks the owner of a rule or guard.
pub fn check_owner(owner: &str, faults: &mut Faults) {
    let length = u32::try_from(owner.len()).unwrap_or(u32::MAX);
    if length > OWNER_BYTES.max {
        faults.add("owner", format!("must have at most {} bytes, not {length}", OWNER_BYTES.max));
    }
}

impl Guard {
    /// Binds ceilings to a pattern. `owner` is the contact, `revision` that of the last change.
    ///
    /// # Errors
    /// All faults with their paths: the ceilings below `ceiling`, and `owner`.
    pub fn new(pattern: Pattern, ceiling: Ceiling, owner: String, revision: u64) -> Result<Self, Faults> {
        let mut inner = Faults::none();
        ceiling.check(&pattern, &mut inner);
        let mut faults = Faults::none();
        faults.nest("ceiling", inner);
        check_owner(&owner, &mut faults);
        faults.or(Self { pattern, ceiling, owner, revision })
    }

    /// Returns the pattern of its routes.
    #[must_use]
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// Returns the ceilings.
    #[must_use]
    pub fn ceiling(&self) -> &Ceiling {
        &self.ceiling
    }

    /// Returns the owner; empty if there is none.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Returns the revision of the last change.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }
}

impl Ceiling {
    /// Adds a fault for each ceiling that is out of range or impossible for the pattern.
    pub fn check(&self, pattern: &Pattern, faults: &mut Faults) {
        if *self == Self::default() {
            faults.add("", "requires at least one limit");
        }
        if let Some(most) = self.max_attempts {
            MAX_ATTEMPTS.check("max_attempts", most, faults);
        }
        if self.codes.is_some_and(|codes| codes.contains(Code::Ok)) {
            faults.add("codes", "OK is not a failure");
        }
        if let Some(ratio) = self.max_retry_breaker_ratio {
            BREAKER_RATIO.check("max_retry_breaker_ratio", ratio, faults);
        }
        if let Some(timeout) = self.min_per_attempt_timeout {
            TIMEOUT.check("min_per_attempt_timeout", timeout, faults);
        }
        if let Some(limit) = &self.repeat_limit {
            limit.check("repeat_limit", faults);
            if pattern.caller_service != Part::Any || pattern.caller_cluster != Part::Any {
                faults.add(
                    "repeat_limit",
                    "limits all callers together: caller_service and caller_cluster must be `*`",
                );
            }
        }
    }

    /// Returns the policy tightened by this ceiling, and the cuts.
    #[must_use]
    pub fn tighten(&self, policy: &Policy) -> (Policy, Vec<CeilingExcess>) {
        let mut cut = CeilingCut { policy: policy.clone(), excesses: Vec::new() };
        if policy.repeats() {
            cut.attempts(self.max_attempts);
            cut.hedge(self.forbid_hedge);
            cut.codes(self.codes);
            cut.retry_breaker(self.max_retry_breaker_ratio);
        }
        cut.attempt_timeout(self.min_per_attempt_timeout);
        (cut.policy, cut.excesses)
    }
}

/// A policy with the cuts so far.
struct CeilingCut {
    policy: Policy,
    excesses: Vec<CeilingExcess>,
}

impl CeilingCut {
    fn attempts(&mut self, most: Option<u32>) {
        let Some(most) = most.filter(|most| self.policy.max_attempts() > *most) else { return };
        let had = self.policy.max_attempts();
        match (&mut self.policy.retry, &mut self.policy.hedge) {
            (Some(retry), _) => {
                retry.max_attempts = most;
                self.note("retry.max_attempts", format!("{had} is more than {most}"));
            }
            (None, hedge) => {
                *hedge = hedge.filter(|_| most > 1);
                if let Some(hedge) = hedge {
                    hedge.max_hedges = most - 1;
                }
                self.note("hedge.max_hedges", format!("{} is more than {}", had - 1, most - 1));
            }
        }
    }

    fn hedge(&mut self, forbidden: bool) {
        if forbidden && self.policy.hedge.take().is_some() {
            self.note("hedge", "is forbidden".to_owned());
        }
    }

    fn codes(&mut self, allowed: Option<CodeSet>) {
        let Some(allowed) = allowed else { return };
        let beyond = self.policy.retryable().without(allowed);
        if beyond.is_empty() {
            return;
        }
        let names: Vec<_> = beyond.iter().map(Code::name).collect();
        let problem = format!("{} may not be retried", names.join(", "));
        match &mut self.policy.retry {
            Some(retry) => {
                let left = retry.codes.intersection(allowed);
                if left.is_empty() {
                    // The rest of the block stays: the attempt limit applies without retries too.
                    retry.max_attempts = 1;
                    self.policy.hedge = None;
                } else {
                    retry.codes = left;
                }
                self.note("retry.codes", problem);
            }
            None => {
                self.policy.hedge = None;
                self.note("hedge", problem);
            }
        }
    }

    fn attempt_timeout(&mut self, least: Option<Duration>) {
        let Some(least) = least else { return };
        let Some(timeout) = self.policy.retry.as_mut().and_then(|retry| retry.per_attempt_timeout.as_mut())
        else {
            return;
        };
        if *timeout < least {
            let problem = format!("{} is less than {}", Millis(*timeout), Millis(least));
            *timeout = least;
            self.note("retry.per_attempt_timeout", problem);
        }
    }

    fn retry_breaker(&mut self, most: Option<Ratio>) {
        let Some(most) = most.filter(|_| self.policy.repeats()) else { return };
        let Some(breaker) = &mut self.policy.retry_breaker else {
            let default = RetryBreaker::default();
            let ratio = default.ratio.min(most);
            self.policy.retry_breaker = Some(RetryBreaker { ratio, max_ratio: Some(most), ..default });
            self.note("retry_breaker.enabled", "false: the retry breaker must be on".to_owned());
            return;
        };
        let had = breaker.ratio;
        // With credit only hedges use the ratio.
        let is_used = breaker.mode == BreakerMode::Ratio || self.policy.hedge.is_some();
        breaker.ratio = had.min(most);
        breaker.max_ratio = Some(breaker.max_ratio.map_or(most, |max| max.min(most)));
        if had > most && is_used {
            self.note("retry_breaker.ratio", format!("{had} is more than {most}"));
        }
    }

    fn note(&mut self, field: &'static str, problem: String) {
        self.excesses.push(CeilingExcess { field, problem });
    }
}

#[cfg(test)]
mod tests;
