//! How the end of an attempt counts, and how a call ends.

use std::time::Duration;

use super::checks::RetryDecision;
use super::hints::Hints;
use super::in_flight::{InFlight, Pending};
use super::{Answer, AttemptKind, Call, Finish, Next, Step, enforced};
use crate::gates::breaker;
use crate::gates::circuit::{CircuitDecision, Outcome};
use crate::outcome::classify::{Failure, Verdict};
use crate::outcome::code::Code;
use crate::outcome::fate::{Ending, Fate};
use crate::policy::{Mode, Policy};
use crate::route::Route;
use crate::time::Time;
use crate::time::deadline;

/// A failed attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failed {
    pub(super) failure: Failure,
    /// Response for the application if the call ends with it.
    pub(super) answer: Answer,
    /// A timer ended it, so the callee has not responded.
    pub(super) timed_out: bool,
    /// The request left this process.
    was_sent: bool,
}

impl Failed {
    /// Returns the failure of an attempt that the engine cancelled.
    pub(super) fn cut() -> Self {
        let failure = Failure::new(Code::DeadlineExceeded);
        Self { failure, answer: Answer::TimedOut, timed_out: true, was_sent: true }
    }
}

impl Call {
    pub(super) fn succeed(&mut self, route: &Route, pending: Pending, now: Time) {
        route.state().counters.count_code(Code::Ok);
        if let Some(policy) = route.policy() {
            self.count(route, policy, &pending, None, now);
            let given = self.outside_limit(&pending);
            // If attempts have less time than usual, only the fast ones succeed.
            if pending.kind != AttemptKind::Hedge
                && !given.is_some_and(|given| route.state().is_hurried(given, now))
            {
                route.state().record(now, pending.took(now));
            }
            self.count_would_hedge(route, policy, &pending, now);
        }
        let fate = match pending.kind {
            AttemptKind::First | AttemptKind::Resend => Fate::Ok,
            AttemptKind::Retry => Fate::OkAfterRetry,
            AttemptKind::Hedge => Fate::OkByHedge,
        };
        self.outcome = Outcome::Good;
        self.finish(route, Ending::real(fate), Answer::Attempt(pending.attempt), now);
    }

    /// Returns the failure of an attempt.
    pub(super) fn failed(&self, route: &Route, pending: &Pending, verdict: Verdict, now: Time) -> Failed {
        let failure = match verdict {
            Verdict::Failure(failure) => failure,
            other => Failure::new(other.code()),
        };
        let at_limit = deadline::ended_by(pending.limit, pending.sent_at, now);
        // A remote timer on the same limit usually fires first and reports a cancellation.
        let timed_out = verdict == Verdict::TimedOut || at_limit && failure.code == Code::Cancelled;
        let code = if timed_out { Code::DeadlineExceeded } else { failure.code };
        let answer = match enforced(route) {
            Some(_) if timed_out && at_limit => Answer::TimedOut,
            _ => Answer::Attempt(pending.attempt),
        };
        Failed {
            failure: Failure { code, ..failure },
            answer,
            timed_out,
            was_sent: !matches!(verdict, Verdict::Unsent | Verdict::Local),
        }
    }

    pub(super) fn after_failure(
        &mut self,
        route: &Route,
        pending: Pending,
        failed: Failed,
        hints: &Hints<'_>,
        now: Time,
        random: u64,
    ) {
        let Failed { failure, answer, .. } = failed;
        if hints.progressed {
            self.restart_count();
        }
        route.state().counters.count_code(failure.code);
        self.flag_received |= failure.no_more_retry;
        let Some(policy) = route.policy() else {
            self.finish(route, Ending::real(Fate::PolicyOff), answer, now);
            return;
        };
        let is_evidence =
            failed.was_sent && !self.exceeded_short_deadline(route, &pending, failure.code, now);
        self.counted_at = None;
        if is_evidence {
            self.count_failed(route, policy, &pending, &failure, now);
        }
        if !failed.was_sent {
            route.give_back(pending.paid);
        }
        let at_least = pending.overtaken || failed.timed_out && is_evidence;
        if at_least && pending.kind != AttemptKind::Hedge {
            route.state().record_at_least(now, now.since(pending.sent_at));
        }
        self.count_would_hedge(route, policy, &pending, now);
        let decision = self.decide(route, policy, (&pending, failed, hints), now, random);
        match (policy.mode, decision) {
            (Mode::Enforce, RetryDecision::Next(next)) => (self.next, self.last) = (next, answer),
            (Mode::Enforce, RetryDecision::Remember(fate)) => {
                self.stopped.get_or_insert(fate);
                self.next = Next::Nothing;
            }
            (Mode::Enforce, RetryDecision::End(fate)) => {
                self.finish(route, Ending::real(fate), answer, now);
            }
            (_, decision) => {
                if let RetryDecision::Next(Next::Repeat { taken, .. }) = decision {
                    route.owe(taken.paid);
                }
                let fate = match decision {
                    _ if self.admission == CircuitDecision::Refused => Fate::CircuitOpen,
                    RetryDecision::Next(_) => Fate::Retry,
                    RetryDecision::Remember(fate) | RetryDecision::End(fate) => fate,
                };
                self.finish(route, Ending { fate, would: true }, answer, now);
            }
        }
    }

    fn count_failed(
        &mut self,
        route: &Route,
        policy: &Policy,
        pending: &Pending,
        failure: &Failure,
        now: Time,
    ) {
        let is_failure = self.count(route, policy, pending, Some(failure), now);
        self.outcome = if is_failure { Outcome::Failed } else { Outcome::Good };
        self.counted_at = Some(now).filter(|_| is_failure && !pending.overtaken);
    }

    /// Counts the end of an attempt, before any check. Returns true if it is a failure for the breaker. The
    /// attempt of a call that begins with a retry was not paid for and earns nothing.
    fn count(
        &self,
        route: &Route,
        policy: &Policy,
        pending: &Pending,
        failure: Option<&Failure>,
        now: Time,
    ) -> bool {
        let is_failure = failure.is_some_and(|failure| breaker::is_failure(Some(policy), failure));
        if !pending.overtaken {
            route.count(is_failure, now);
        }
        if pending.kind != AttemptKind::First {
            route.repeats().count(is_failure, now);
        }
        if let Some(breaker) = policy.retry_breaker.as_ref().filter(|_| self.start.sends_before == 0) {
            match (is_failure, pending.kind) {
                (true, _) => route.spoil(breaker),
                (false, AttemptKind::First) if !pending.overtaken => route.earn(breaker),
                (false, _) => route.give_back(pending.paid),
            }
        }
        is_failure
    }

    /// Returns true if the attempt exceeded a deadline from outside that leaves less time than usual. That is
    /// no evidence about the callee: callers may set any deadline.
    fn exceeded_short_deadline(&self, route: &Route, pending: &Pending, code: Code, now: Time) -> bool {
        let given = self.outside_limit(pending).filter(|_| code == Code::DeadlineExceeded);
        given.is_some_and(|given| !route.state().is_long_enough(given, now))
    }

    /// Returns the limit of the attempt if it is not set by the rule.
    fn outside_limit(&self, pending: &Pending) -> Option<Duration> {
        let limit = pending.limit.filter(|_| pending.limit == self.start.deadline)?;
        Some(limit.since(pending.sent_at))
    }

    /// Counts would-be hedges. In observe mode nothing wakes a call, so this is computed when its attempt has
    /// ended.
    fn count_would_hedge(&mut self, route: &Route, policy: &Policy, pending: &Pending, now: Time) {
        if policy.mode != Mode::Observe {
            return;
        }
        let delay = self.hedge_delay(route, policy, now);
        if delay.is_some_and(|delay| delay <= pending.took(now)) && self.may_hedge(route, policy, now) {
            route.state().counters.count_would_hedge();
        }
    }

    /// Ends a call that the application dropped.
    pub(super) fn drop_at(&mut self, route: &Route, now: Time) -> Finish {
        if !deadline::ended_by(self.deadline, self.start.now, now) {
            self.outcome = Outcome::Unknown;
            return self.finished(route, Ending::real(Fate::Cancelled), Answer::TimedOut, now);
        }
        // A timer ended the call and all attempts in flight.
        let failure = Failure::new(Code::DeadlineExceeded);
        for pending in self.in_flight.iter() {
            route.state().counters.count_code(failure.code);
            if let Some(policy) = route.policy()
                && !self.exceeded_short_deadline(route, pending, failure.code, now)
            {
                self.count(route, policy, pending, Some(&failure), now);
                self.outcome = Outcome::Failed;
            }
        }
        self.in_flight.forfeit();
        self.finished(route, Ending::real(Fate::Deadline), Answer::TimedOut, now)
    }

    pub(super) fn finish(&mut self, route: &Route, ending: Ending, answer: Answer, now: Time) -> Step {
        Step::Finish(self.finished(route, ending, answer, now))
    }

    fn finished(&mut self, route: &Route, ending: Ending, answer: Answer, now: Time) -> Finish {
        if let Next::Repeat { taken, .. } = self.next {
            taken.give_back(route);
        }
        self.next = Next::Nothing;
        if !self.in_flight.is_empty() {
            give_up(route, &std::mem::take(&mut self.in_flight), now);
        }
        let counters = &route.state().counters;
        counters.count_ending(ending);
        counters.latency().record(now.since(self.start.now));
        self.report_to_circuit(route, now);
        // A kill of calls applies with any rule: without the mark, layers above would retry again and again.
        let decided = enforced(route).is_some() || answer == Answer::Killed;
        let gave_up = decided && !ending.would && ending.fate.stops_layers_above();
        let finish = Finish { ending, answer, marks_context: gave_up || self.flag_received };
        self.finish = Some(finish);
        finish
    }

    fn report_to_circuit(&self, route: &Route, now: Time) {
        let Some(settings) = route.policy().and_then(|policy| policy.circuit_breaker.as_ref()) else {
            return;
        };
        let is_slow = settings.slow_call.is_some_and(|limit| now.since(self.start.now) > limit);
        let outcome = if is_slow && self.outcome == Outcome::Good { Outcome::Failed } else { self.outcome };
        route.state().circuit.ended(settings, self.admission, outcome, route.calls(), now);
    }
}

/// Gives up attempts that lost. They count nothing and cost nothing, but those that a hedge overtook are
/// recorded with their minimum latency: otherwise the percentile for hedges would drift down.
pub(super) fn give_up(route: &Route, losers: &InFlight, now: Time) {
    losers.iter().for_each(|loser| route.give_back(loser.paid));
    for loser in losers.iter().filter(|loser| loser.overtaken && loser.kind != AttemptKind::Hedge) {
        route.state().record_at_least(now, now.since(loser.sent_at));
    }
}
