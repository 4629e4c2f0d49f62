//! What an attempt's end is counted as, and how a call ends.

use std::time::Duration;

use super::in_flight::{InFlight, Pending};
use super::questions::RetryDecision;
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

/// How an attempt ended that was no success.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failed {
    pub(super) failure: Failure,
    /// What the application gets if the call ends with it.
    pub(super) answer: Answer,
    /// A timer ended it, so the callee has said nothing.
    pub(super) timed_out: bool,
    /// It left this process.
    was_sent: bool,
}

impl Failed {
    /// The engine cut it.
    pub(super) fn cut() -> Self {
        let failure = Failure::new(Code::DeadlineExceeded);
        Self { failure, answer: Answer::TimedOut, timed_out: true, was_sent: true }
    }
}

impl Call {
    pub(super) fn succeed(&mut self, route: &Route, pending: Pending, now: Time) {
        route.state().counters.count_code(Code::Ok);
        if let Some(policy) = route.policy() {
            count(route, policy, &pending, None, now);
            let given = self.given_from_outside(&pending);
            // Of attempts that have less time than usual only the quick ones succeed.
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

    /// What an attempt's end means that was no success.
    pub(super) fn failed(&self, route: &Route, pending: &Pending, verdict: Verdict, now: Time) -> Failed {
        let failure = match verdict {
            Verdict::Failure(failure) => failure,
            other => Failure::new(other.code()),
        };
        let at_limit = deadline::ended_by(pending.limit, pending.sent_at, now);
        // A timer elsewhere that runs on the same limit usually beats ours and calls it a cancellation.
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
        now: Time,
        random: u64,
    ) {
        let Failed { failure, answer, .. } = failed;
        route.state().counters.count_code(failure.code);
        self.flag_received |= failure.no_more_retry;
        let Some(policy) = route.policy() else {
            self.finish(route, Ending::real(Fate::PolicyOff), answer, now);
            return;
        };
        let says_something =
            failed.was_sent && !self.was_hurried_to_failure(route, &pending, failure.code, now);
        self.counted_at = None;
        if says_something {
            self.count_failed(route, policy, &pending, &failure, now);
        }
        if !failed.was_sent {
            route.give_back(pending.paid);
        }
        let at_least = pending.overtaken || failed.timed_out && says_something;
        if at_least && pending.kind != AttemptKind::Hedge {
            route.state().record_at_least(now, now.since(pending.sent_at));
        }
        self.count_would_hedge(route, policy, &pending, now);
        let decision = self.decide(route, policy, &pending, failed, now, random);
        match (policy.mode, decision) {
            (Mode::Enforce, RetryDecision::Next(next)) => (self.next, self.last) = (next, answer),
            (Mode::Enforce, RetryDecision::Remember(fate)) => {
                self.refused.get_or_insert(fate);
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
        let is_failure = count(route, policy, pending, Some(failure), now);
        self.outcome = if is_failure { Outcome::Failed } else { Outcome::Good };
        self.counted_at = Some(now).filter(|_| is_failure && !pending.overtaken);
    }

    /// A deadline from outside that leaves an attempt less time than usual says nothing of the callee when it has
    /// passed: callers may give as little as they like.
    fn was_hurried_to_failure(&self, route: &Route, pending: &Pending, code: Code, now: Time) -> bool {
        let given = self.given_from_outside(pending).filter(|_| code == Code::DeadlineExceeded);
        given.is_some_and(|given| !route.state().is_long_enough(given, now))
    }

    /// How long the attempt may take, where that is not the rule's word.
    fn given_from_outside(&self, pending: &Pending) -> Option<Duration> {
        let limit = pending.limit.filter(|_| pending.limit == self.start.deadline)?;
        Some(limit.since(pending.sent_at))
    }

    /// In observe mode nothing wakes a call, so hedges are found out when its attempt has ended.
    fn count_would_hedge(&mut self, route: &Route, policy: &Policy, pending: &Pending, now: Time) {
        if policy.mode != Mode::Observe {
            return;
        }
        let delay = self.hedge_delay(route, policy, now);
        if delay.is_some_and(|delay| delay <= pending.took(now)) && self.may_hedge(route, policy, now) {
            route.state().counters.count_would_hedge();
        }
    }

    /// The application dropped the call.
    pub(super) fn drop_at(&mut self, route: &Route, now: Time) -> Finish {
        if !deadline::ended_by(self.deadline, self.start.now, now) {
            self.outcome = Outcome::Unknown;
            return self.finished(route, Ending::real(Fate::Cancelled), Answer::TimedOut, now);
        }
        // Somebody's timer ended the call, and with it whatever was under way.
        let failure = Failure::new(Code::DeadlineExceeded);
        for pending in self.in_flight.iter() {
            route.state().counters.count_code(failure.code);
            if let Some(policy) = route.policy()
                && !self.was_hurried_to_failure(route, pending, failure.code, now)
            {
                count(route, policy, pending, Some(&failure), now);
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
        self.tell_circuit(route, now);
        // A kill of calls holds whatever the rule: without the mark those above would call again and again.
        let decided = enforced(route).is_some() || answer == Answer::Killed;
        let gave_up = decided && !ending.would && ending.fate.stops_layers_above();
        let finish = Finish { ending, answer, marks_context: gave_up || self.flag_received };
        self.finish = Some(finish);
        finish
    }

    fn tell_circuit(&self, route: &Route, now: Time) {
        let Some(settings) = route.policy().and_then(|policy| policy.circuit_breaker.as_ref()) else {
            return;
        };
        let is_slow = settings.slow_call.is_some_and(|limit| now.since(self.start.now) > limit);
        let outcome = if is_slow && self.outcome == Outcome::Good { Outcome::Failed } else { self.outcome };
        route.state().circuit.ended(settings, self.admission, outcome, route.calls(), now);
    }
}

/// Attempts that lost against another. They count nothing and cost nothing, but those that a hedge overtook took at
/// least so long: left out, they would make the percentile that hedges go by drift down.
pub(super) fn give_up(route: &Route, losers: &InFlight, now: Time) {
    losers.iter().for_each(|loser| route.give_back(loser.paid));
    for loser in losers.iter().filter(|loser| loser.overtaken && loser.kind != AttemptKind::Hedge) {
        route.state().record_at_least(now, now.since(loser.sent_at));
    }
}

/// Counts an attempt's end, before anything is asked. True if the breaker takes it for a failure.
fn count(route: &Route, policy: &Policy, pending: &Pending, failure: Option<&Failure>, now: Time) -> bool {
    let is_failure = failure.is_some_and(|failure| breaker::is_failure(Some(policy), failure));
    if !pending.overtaken {
        route.count(is_failure, now);
    }
    if pending.kind != AttemptKind::First {
        route.repeats().count(is_failure, now);
    }
    if let Some(breaker) = &policy.retry_breaker {
        match (is_failure, pending.kind) {
            (true, _) => route.spoil(breaker),
            (false, AttemptKind::First) if !pending.overtaken => route.earn(breaker),
            (false, _) => route.give_back(pending.paid),
        }
    }
    is_failure
}
