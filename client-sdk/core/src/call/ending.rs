//! What an attempt's end is counted as, and how a call ends.

use super::in_flight::{InFlight, Pending};
use super::questions::Decision;
use super::{Answer, Call, Finish, Next, SendKind, Step, enforced};
use crate::breaker;
use crate::circuit::{Admission, Outcome};
use crate::classify::Failure;
use crate::code::Code;
use crate::deadline;
use crate::fate::{Ending, Fate};
use crate::policy::{Mode, Policy};
use crate::route::Route;
use crate::time::Time;

impl Call {
    pub(super) fn succeed(&mut self, route: &Route, pending: Pending, now: Time) {
        route.state().counters.count_code(Code::Ok);
        if let Some(policy) = route.policy() {
            count(route, policy, &pending, None, now);
            if pending.kind != SendKind::Hedge {
                route.state().record(now, now.since(pending.sent_at));
            }
            self.count_would_hedge(route, policy, &pending, now);
        }
        let fate = match pending.kind {
            SendKind::First | SendKind::Resend => Fate::Ok,
            SendKind::Retry => Fate::OkAfterRetry,
            SendKind::Hedge => Fate::OkByHedge,
        };
        self.outcome = Outcome::Good;
        self.finish(route, Ending::real(fate), Answer::Attempt(pending.attempt), now);
    }

    pub(super) fn fail(&mut self, route: &Route, pending: Pending, failure: Failure, now: Time, random: u64) {
        // A timer elsewhere that runs on the same limit usually beats ours and calls it a cancellation.
        let timed_out = failure.code == Code::Cancelled && deadline::ended_by(pending.limit, now);
        let code = if timed_out { Code::DeadlineExceeded } else { failure.code };
        let answer = match enforced(route) {
            Some(_) if timed_out => Answer::TimedOut,
            _ => Answer::Attempt(pending.attempt),
        };
        self.after_failure(route, pending, Failure { code, ..failure }, answer, now, random);
    }

    pub(super) fn after_failure(
        &mut self,
        route: &Route,
        pending: Pending,
        failure: Failure,
        answer: Answer,
        now: Time,
        random: u64,
    ) {
        route.state().counters.count_code(failure.code);
        self.flag_received |= failure.no_more_retry;
        let Some(policy) = route.policy() else {
            self.finish(route, Ending::real(Fate::PolicyOff), answer, now);
            return;
        };
        let is_failure = count(route, policy, &pending, Some(&failure), now);
        self.outcome = if is_failure { Outcome::Failed } else { Outcome::Good };
        if (pending.overtaken || answer == Answer::TimedOut) && pending.kind != SendKind::Hedge {
            route.state().record_at_least(now, now.since(pending.sent_at));
        }
        self.count_would_hedge(route, policy, &pending, now);
        let decision = self.decide(route, policy, &pending, failure, now, random);
        match (policy.mode, decision) {
            (Mode::Enforce, Decision::Next(next)) => (self.next, self.last) = (next, answer),
            (Mode::Enforce, Decision::Remember(fate)) => {
                self.refused.get_or_insert(fate);
                self.next = Next::Nothing;
            }
            (Mode::Enforce, Decision::End(fate)) => {
                self.finish(route, Ending::real(fate), answer, now);
            }
            (_, decision) => {
                let fate = match decision {
                    _ if self.admission == Admission::Refused => Fate::CircuitOpen,
                    Decision::Next(_) => Fate::Retry,
                    Decision::Remember(fate) | Decision::End(fate) => fate,
                };
                self.finish(route, Ending { fate, would: true }, answer, now);
            }
        }
    }

    /// In observe mode nothing wakes a call, so hedges are found out when its attempt has ended.
    fn count_would_hedge(&mut self, route: &Route, policy: &Policy, pending: &Pending, now: Time) {
        if policy.mode != Mode::Observe {
            return;
        }
        let delay = self.hedge_delay(route, policy, now);
        if delay.is_some_and(|delay| delay <= now.since(pending.sent_at))
            && self.may_hedge(route, policy, now)
        {
            route.state().counters.count_would_hedge();
        }
    }

    /// The application dropped the call.
    pub(super) fn drop_at(&mut self, route: &Route, now: Time) -> Finish {
        if !deadline::ended_by(self.deadline, now) {
            self.outcome = Outcome::Unknown;
            return self.finished(route, Ending::real(Fate::Cancelled), Answer::TimedOut, now);
        }
        // Somebody's timer ended the call, and with it whatever was under way.
        let failure = Failure::new(Code::DeadlineExceeded);
        for pending in self.in_flight.iter() {
            route.state().counters.count_code(failure.code);
            if let Some(policy) = route.policy() {
                count(route, policy, pending, Some(&failure), now);
            }
            self.outcome = Outcome::Failed;
        }
        self.finished(route, Ending::real(Fate::Deadline), Answer::TimedOut, now)
    }

    pub(super) fn finish(&mut self, route: &Route, ending: Ending, answer: Answer, now: Time) -> Step {
        Step::Finish(self.finished(route, ending, answer, now))
    }

    fn finished(&mut self, route: &Route, ending: Ending, answer: Answer, now: Time) -> Finish {
        if let Next::Repeat { reserved: Some(reservation), .. } = self.next {
            route.spending().refund(reservation);
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

/// Attempts that lost against another. They count nothing, but those that a hedge overtook took at least so
/// long: left out, they would make the percentile that hedges go by drift down.
pub(super) fn give_up(route: &Route, losers: &InFlight, now: Time) {
    for loser in losers.iter().filter(|loser| loser.overtaken && loser.kind != SendKind::Hedge) {
        route.state().record_at_least(now, now.since(loser.sent_at));
    }
}

/// Counts an attempt's end, before anything is asked. True if the breaker takes it for a failure.
fn count(route: &Route, policy: &Policy, pending: &Pending, failure: Option<&Failure>, now: Time) -> bool {
    let is_failure = failure.is_some_and(|failure| breaker::is_failure(Some(policy), failure));
    let windows = [
        Some(route.window()).filter(|_| !pending.overtaken),
        Some(route.repeats()).filter(|_| pending.kind != SendKind::First),
    ];
    for window in windows.into_iter().flatten() {
        if is_failure { window.count_failure(now) } else { window.count_success(now) }
    }
    let run = &route.state().run;
    match (is_failure, pending.overtaken) {
        (false, _) => run.end(),
        (true, false) => _ = run.extend(now, route.window().shape().length()),
        // It was, when it was overtaken.
        (true, true) => {}
    }
    is_failure
}
