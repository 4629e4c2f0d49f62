//! Inputs of a failed attempt that only code can give; a policy of the control plane never has them.
//!
//! A driver of closures knows more about a failure than a code: the class of the error, a wait that it asks
//! for, progress before it. It reports these as facts, and the checks of the call decide with them.

use std::time::Duration;

use super::checks::{admit, deny};
use super::{Answer, AttemptKind, Call, Finish, Next, Step, enforced};
use crate::outcome::fate::{Ending, Fate};
use crate::policy::Policy;
use crate::route::Route;
use crate::time::Time;

/// Facts and conditions about one failed attempt. The default adds nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hints<'a> {
    /// The error must not be retried, whatever its code.
    pub never: bool,
    /// The attempt asked for the end of the call: no retry follows.
    pub exhausted: bool,
    /// The attempt made progress before it failed: attempts and waits count from it.
    pub progressed: bool,
    /// Replaces the wait of the policy's backoff. A pushback of the callee goes first.
    pub wait: Option<Duration>,
    /// Random time after a pushback, so that calls rejected together do not return together. Whether the
    /// pushback is too long depends on the time that the callee named.
    pub spread: Duration,
    /// Count of errors of the same class.
    pub class: Option<ClassCount>,
    /// Ends the call in addition to the policy's limits.
    pub stop: Option<&'a Stop>,
    /// Time that earlier calls with the same key took, with the pauses between them.
    pub earlier: Duration,
}

/// Earlier calls with the same key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Earlier {
    /// Attempts of these calls.
    pub attempts: u32,
    /// Time since the first of them began.
    pub elapsed: Duration,
    /// A gate blocked the retry of the last attempt: the next attempt must be admitted first.
    pub blocked: bool,
}

/// Failures of one class of errors within a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassCount {
    /// Failures so far, this one included.
    pub failures: u32,
    /// Attempts that may fail with an error of the class.
    pub max_attempts: u32,
}

/// Condition that ends a call after a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Never.
    Never,
    /// After this many attempts.
    AfterAttempts(u32),
    /// If the next attempt would start this long after the first one, or later.
    After(Duration),
    /// If one of the conditions is met.
    Any(Vec<Stop>),
    /// If all conditions are met; an empty list never is.
    All(Vec<Stop>),
}

impl Stop {
    /// Returns a condition that is met if this or `other` is.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self::Any(vec![self, other])
    }

    /// Returns a condition that is met if this and `other` are.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::All(vec![self, other])
    }

    /// Returns the fate of a call whose condition is met after `attempts`, with the next one `elapsed` after
    /// the first. Of several conditions that are met together the last one names the fate.
    fn met(&self, attempts: u32, elapsed: Duration) -> Option<Fate> {
        match self {
            Self::Never => None,
            Self::AfterAttempts(most) => (attempts >= *most).then_some(Fate::AttemptsExhausted),
            Self::After(limit) => (elapsed >= *limit).then_some(Fate::MaxDuration),
            Self::Any(stops) => stops.iter().find_map(|stop| stop.met(attempts, elapsed)),
            Self::All(stops) => {
                let mut fate = None;
                for stop in stops {
                    fate = Some(stop.met(attempts, elapsed)?);
                }
                fate
            }
        }
    }
}

impl Call {
    /// Continues the attempts of earlier calls with the same key. The next attempt has the number after them;
    /// the call ends without an attempt if none is left or a gate blocks it.
    pub fn resume(&mut self, route: &Route, earlier: Earlier, stop: Option<&Stop>, now: Time) {
        self.attempts = earlier.attempts;
        let Some(policy) = enforced(route).filter(|_| earlier.attempts > 0) else { return };
        if let Err(fate) = may_resume(route, policy, earlier, stop, now) {
            route.state().counters.count_unsent();
            self.finish(route, Ending::real(fate), Answer::TimedOut, now);
        }
    }

    /// Sends no hedges, because the driver runs one attempt at a time.
    pub fn forbid_hedges(&mut self) {
        self.hedges_left = 0;
    }

    /// Ends a call whose retry its application makes with a later call of the same key. The retry has been
    /// admitted and paid for. Returns `None` unless the call waits for a retry.
    pub fn leave_retry(&mut self, route: &Route, now: Time) -> Option<Finish> {
        let Next::Repeat { .. } = self.next else { return None };
        self.next = Next::Nothing;
        let answer = self.last;
        match self.finish(route, Ending::real(Fate::Retry), answer, now) {
            Step::Finish(finish) => Some(finish),
            _ => None,
        }
    }

    /// Returns the attempts that count towards limits.
    pub(super) fn counted_attempts(&self) -> u32 {
        self.attempts.saturating_sub(self.counted_from)
    }

    /// Counts attempts and waits from the failed attempt on.
    pub(super) fn restart_count(&mut self) {
        self.counted_from = self.attempts.saturating_sub(1);
        self.waits.restart();
    }

    /// Checks the class of the error and the request for the end.
    pub(super) fn check_hints(hints: &Hints<'_>) -> Result<(), Fate> {
        let spent = hints.class.is_some_and(|class| class.failures >= class.max_attempts);
        if hints.exhausted || spent { Err(Fate::AttemptsExhausted) } else { Ok(()) }
    }

    /// Checks the condition for the end, with the wait before the next attempt.
    pub(super) fn check_stop(&self, hints: &Hints<'_>, wait: Duration, now: Time) -> Result<(), Fate> {
        let elapsed = (now + wait).since(self.start.now).saturating_add(hints.earlier);
        let met = hints.stop.and_then(|stop| stop.met(self.counted_attempts(), elapsed));
        met.map_or(Ok(()), Err)
    }
}

/// Checks if a call may make the next attempt of its key.
fn may_resume(
    route: &Route,
    policy: &Policy,
    Earlier { attempts, elapsed, blocked }: Earlier,
    stop: Option<&Stop>,
    now: Time,
) -> Result<(), Fate> {
    deny(attempts >= policy.max_attempts(), Fate::AttemptsExhausted)?;
    let max_duration = policy.retry.as_ref().and_then(|retry| retry.max_duration);
    deny(max_duration.is_some_and(|max| elapsed >= max), Fate::MaxDuration)?;
    stop.and_then(|stop| stop.met(attempts, elapsed)).map_or(Ok(()), Err)?;
    if blocked {
        // The payment is not returned: a first attempt follows, which costs nothing.
        admit(route, policy, AttemptKind::Retry, false, now)?;
    }
    Ok(())
}
