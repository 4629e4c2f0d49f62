//! Guards: the callee owner's ceilings on whatever rules callers write.
//!
//! The rule that wins a route is tightened by every guard that matches the route. A guard never loosens: each
//! ceiling is a minimum, a maximum or an intersection, so the order of guards does not matter and tightening
//! twice changes nothing. What is cut, and by which guard, is told as [`Excess`].
//!
//! A ceiling on the retry breaker's ratio also switches a breaker on that was off. It holds in either mode of the
//! breaker: what credit would pay for must be within the ratio too. Where no code is left to retry, calls are sent once;
//! a policy that only hedges then does not hedge either, because its hedges repeat failed attempts too. The limit
//! of an attempt stays: a guard takes no time limit away.
//!
//! The repeat limit is no ceiling on rules: it is for the server layer of the callee, see
//! [`repeat_limit`](crate::gates::repeat_limit).

use std::time::Duration;

use crate::fault::{Bounds, Faults, Millis, Ratio};
use crate::gates::repeat_limit::RepeatLimit;
use crate::outcome::code::{Code, CodeSet};
use crate::policy::{BREAKER_RATIO, BreakerMode, MAX_ATTEMPTS, Policy, RetryBreaker, TIMEOUT};
use crate::rules::pattern::{Part, Pattern};

/// The length of `owner`.
pub const OWNER_BYTES: Bounds<u32> = Bounds { min: 0, max: 255 };

/// What rules for the routes of a pattern may not exceed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    pattern: Pattern,
    ceiling: Ceiling,
    owner: String,
    revision: u64,
}

/// The ceilings of a guard; what is not said is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ceiling {
    /// Attempts per call, hedges included.
    pub max_attempts: Option<u32>,
    /// No hedging.
    pub forbid_hedge: bool,
    /// Only these codes may be retried.
    pub codes: Option<CodeSet>,
    /// The retry breaker's ratio.
    pub max_retry_breaker_ratio: Option<Ratio>,
    /// Attempts may not be given up sooner.
    pub min_per_attempt_timeout: Option<Duration>,
    /// How many repeats the callee serves, whoever sends them.
    pub repeat_limit: Option<RepeatLimit>,
}

/// A setting of a policy that is beyond a ceiling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CeilingExcess {
    /// The setting, by its path below the policy.
    pub field: &'static str,
    /// The setting and the ceiling, in words: `5 is more than 3`.
    pub problem: String,
}

/// Checks whom a rule or guard belongs to.
pub fn check_owner(owner: &str, faults: &mut Faults) {
    let length = u32::try_from(owner.len()).unwrap_or(u32::MAX);
    if length > OWNER_BYTES.max {
        faults.add("owner", format!("must have at most {} bytes, not {length}", OWNER_BYTES.max));
    }
}

impl Guard {
    /// Binds ceilings to a pattern; `owner` is whom to ask, `revision` that of the last change.
    ///
    /// # Errors
    /// Everything that is wrong with it, by its path: the ceilings below `ceiling`, and `owner`.
    pub fn new(pattern: Pattern, ceiling: Ceiling, owner: String, revision: u64) -> Result<Self, Faults> {
        let mut inner = Faults::none();
        ceiling.check(&pattern, &mut inner);
        let mut faults = Faults::none();
        faults.nest("ceiling", inner);
        check_owner(&owner, &mut faults);
        faults.or(Self { pattern, ceiling, owner, revision })
    }

    /// The routes it is for.
    #[must_use]
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// What it limits.
    #[must_use]
    pub fn ceiling(&self) -> &Ceiling {
        &self.ceiling
    }

    /// Whom to ask about it; empty if nobody is named.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The revision of its last change.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }
}

impl Ceiling {
    /// Notes every ceiling that is out of range, by its path, and what is not possible for the pattern.
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

    /// The policy within this ceiling, and what had to be cut for it.
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

/// A policy under the knife.
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
                    // The rest of the block stays: the limit of an attempt holds for one that is not repeated too.
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
        // With credit the ratio is for hedges alone.
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
