//! Sending: first attempts, retries, hedges and transparent resends.

use std::time::Duration;

use super::arriving::Replay;
use super::checks::Taken;
use super::in_flight::Pending;
use super::{Answer, AttemptKind, Call, Next, SendAttempt, Step, enforced};
use crate::gates::circuit::CircuitDecision;
use crate::outcome::classify::Verdict;
use crate::outcome::fate::{Ending, Fate};
use crate::policy::{Hedge, Policy};
use crate::route::Route;
use crate::time::Time;
use crate::time::deadline;

/// Resends of a request that the server did not process (gRFC A6).
const MAX_UNPROCESSED: u8 = 1;
/// Resends of a request that was not written.
const MAX_UNSENT: u8 = 4;

impl Call {
    /// Sends the first attempt, if no kill rejects it, there is time left and the circuit is closed. If the
    /// call begins with a retry, a kill of retries and the budget can block it too.
    pub(super) fn send_first(&mut self, route: &Route, now: Time) -> Step {
        let (kind, admitted) = match self.start.sends_before {
            0 => (AttemptKind::First, self.admit_first(route, now)),
            _ => (AttemptKind::Retry, self.admit_first_retry(route, now)),
        };
        if kind != AttemptKind::First || admitted.is_err() {
            route.state().counters.count_unsent();
        }
        match admitted {
            Ok(()) => self.send(route, kind, Taken::default(), now),
            Err((fate, answer)) => self.finish(route, Ending::real(fate), answer, now),
        }
    }

    fn admit_first(&mut self, route: &Route, now: Time) -> Result<(), (Fate, Answer)> {
        self.admit_call(route, now)?;
        if route.policy().is_some_and(|policy| policy.budget.is_some()) {
            route.spending().count_call(now);
        }
        Ok(())
    }

    fn admit_first_retry(&mut self, route: &Route, now: Time) -> Result<(), (Fate, Answer)> {
        if route.switch().stops_repeats(now) {
            return Err((Fate::Killed, Answer::Killed));
        }
        self.admit_call(route, now)?;
        let budget = route.policy().and_then(|policy| policy.budget);
        let is_used_up = budget.is_some_and(|budget| route.spending().reserve(&budget, now).is_none());
        if is_used_up && enforced(route).is_some() { Err((Fate::Budget, Answer::Blocked)) } else { Ok(()) }
    }

    fn admit_call(&mut self, route: &Route, now: Time) -> Result<(), (Fate, Answer)> {
        if route.switch().refuses_calls(now) {
            return Err((Fate::Killed, Answer::Killed));
        }
        if self.is_out_of_time(route, now) {
            return Err((Fate::Deadline, Answer::TimedOut));
        }
        if let Some(settings) = route.policy().and_then(|policy| policy.circuit_breaker.as_ref()) {
            self.admission = route.state().circuit.admit(settings, now);
        }
        if self.admission == CircuitDecision::Refused && enforced(route).is_some() {
            return Err((Fate::CircuitOpen, Answer::CircuitOpen));
        }
        Ok(())
    }

    /// Sends a retry after its wait, or a hedge after a failed attempt. The deadline is checked again.
    pub(super) fn send_again(&mut self, route: &Route, kind: AttemptKind, taken: Taken, now: Time) -> Step {
        if self.is_out_of_time(route, now) {
            return self.finish(route, Ending::real(Fate::Deadline), Answer::TimedOut, now);
        }
        self.send(route, kind, taken, now)
    }

    /// Sends a hedge if all checks pass. Otherwise the checks run again after the same delay.
    pub(super) fn hedge(&mut self, route: &Route, policy: &Policy, now: Time) -> Option<Step> {
        if self.may_hedge(route, policy, now) {
            return Some(self.send(route, AttemptKind::Hedge, Taken::default(), now));
        }
        self.next = self.next_hedge(route, policy, now);
        None
    }

    /// Returns true if the attempt is resent because the server has not processed it, at once or as soon as
    /// the request is kept, if the rule allows extra attempts. A kill of retries does not stop it, because it
    /// is not a retry; a kill of calls does. Unsent requests may be resent several times, because closing
    /// connections come in groups.
    pub(super) fn may_resend(
        &mut self,
        route: &Route,
        pending: Pending,
        verdict: Verdict,
        now: Time,
    ) -> bool {
        let (count, most) = match verdict {
            Verdict::Unprocessed => (&mut self.unprocessed, MAX_UNPROCESSED),
            Verdict::Unsent => (&mut self.unsent, MAX_UNSENT),
            _ => return false,
        };
        *count = count.saturating_add(1);
        let repeats = self.max_attempts > 1 && enforced(route).is_some_and(Policy::repeats);
        let repeats = repeats && !route.switch().refuses_calls(now);
        *count <= most && repeats && self.replay != Replay::Never && !pending.committed
    }

    /// Resends an attempt that the server provably has not processed, with its number and limit.
    pub(super) fn resend(&mut self, route: &Route, pending: Pending, now: Time) -> Step {
        if self.is_out_of_time(route, now) {
            route.give_back(pending.paid);
            return self.finish(route, Ending::real(Fate::Deadline), Answer::TimedOut, now);
        }
        route.state().counters.count_transparent_resend();
        self.in_flight.push(pending);
        self.send_step(route, pending.attempt, AttemptKind::Resend, pending.limit, now)
    }

    fn send(&mut self, route: &Route, kind: AttemptKind, taken: Taken, now: Time) -> Step {
        let counters = &route.state().counters;
        match kind {
            AttemptKind::First | AttemptKind::Resend => {}
            AttemptKind::Retry => counters.count_retry(),
            AttemptKind::Hedge => {
                counters.count_hedge();
                self.hedges_left = self.hedges_left.saturating_sub(1);
            }
        }
        (self.not_before, self.counted_at) = (None, None);
        self.attempts = self.attempts.saturating_add(1);
        let attempt = self.attempts;
        let timeout = route.policy().and_then(|policy| policy.retry.as_ref()?.per_attempt_timeout);
        let limit = deadline::earliest([self.rule_deadline, timeout.map(|timeout| now + timeout)]);
        self.in_flight.push(Pending {
            attempt,
            kind,
            sent_at: now,
            limit,
            paid: taken.paid,
            committed: false,
            begun_at: None,
            overtaken: false,
        });
        // The reservation of this attempt is spent.
        self.next = enforced(route).map_or(Next::Nothing, |policy| self.next_hedge(route, policy, now));
        self.send_step(route, attempt, kind, limit, now)
    }

    /// Returns the step for the driver.
    fn send_step(
        &self,
        route: &Route,
        attempt: u32,
        kind: AttemptKind,
        limit: Option<Time>,
        now: Time,
    ) -> Step {
        // Without a rule and in observe mode, only deadlines from outside are passed on.
        let limit = if enforced(route).is_some() { limit } else { self.deadline };
        let limit = limit.map(|limit| limit.since(now));
        Step::Send(SendAttempt { attempt, kind, limit, flag: self.flag_to_send(attempt) })
    }

    /// Returns the flag: a retry adds to it, a first attempt passes on the one of its request. The flag of a
    /// delivery counts the sends before already.
    fn flag_to_send(&self, attempt: u32) -> Option<u32> {
        let inherited = self.start.flag.unwrap_or(0);
        match (attempt.saturating_sub(1), self.start.sends_before) {
            (0, 0) => self.start.flag,
            (repeats, 0) => Some(inherited.saturating_add(repeats)),
            (_, sends_before) => Some(inherited.max(sends_before)),
        }
    }

    /// Returns the time of the next hedge, after the previous one or its failed check; not before a kill
    /// expires.
    pub(super) fn next_hedge(&self, route: &Route, policy: &Policy, now: Time) -> Next {
        let due = self.hedge_delay(route, policy, now).map(|delay| route.switch().until().max(now + delay));
        due.map_or(Next::Nothing, |at| Next::Hedge { at })
    }

    /// Returns the wait before a hedge; `None` if no hedge may follow or the request is not kept, so that a
    /// call made to serve a retry is not woken at every delay.
    pub(super) fn hedge_delay(&self, route: &Route, policy: &Policy, now: Time) -> Option<Duration> {
        let Hedge { delay, .. } = policy.hedge?;
        let may_follow =
            self.hedges_left > 0 && self.replay == Replay::Kept && self.may_send_more(policy, false).is_ok();
        may_follow.then(|| route.hedge_delay(delay, now)).flatten()
    }

    pub(super) fn is_out_of_time(&self, route: &Route, now: Time) -> bool {
        enforced(route).is_some() && self.deadline.is_some_and(|deadline| deadline <= now)
    }
}
