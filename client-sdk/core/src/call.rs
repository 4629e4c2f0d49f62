//! One call's decisions: a state machine that is told what happened and answers with what to do next.
//!
//! A driver creates a [`Call`], asks for the next [`Step`] and obeys it; when an attempt ends or the instant
//! of a `Wait` has come it says so and asks again. It decides nothing itself.
//!
//! ```text
//!            Send                 answer begins              trailers
//! ready ------------> pending --------------------> committed -------> finished
//!   ^                    | failed, may be repeated       | failed
//!   |    Wait is over    v                               v
//!   +---------------- waiting                         finished
//! ```
//!
//! After an attempt failed the questions of `call/questions.rs` are asked in their fixed order.
//!
//! In observe mode the same questions are asked of the first attempt and the answer is only counted. Without
//! a rule nothing is asked.

use std::time::Duration;

use crate::backoff::Sequence;
use crate::breaker;
use crate::classify::{Failure, Verdict};
use crate::code::Code;
use crate::deadline;
use crate::fate::{Ending, Fate};
use crate::policy::{Mode, Policy};
use crate::route::Route;
use crate::time::Time;

mod questions;

/// What a driver knows when a call begins.
#[derive(Clone, Copy, Debug)]
pub struct CallStart {
    /// The present.
    pub now: Time,
    /// The earlier of the inherited deadline and the call's own; none if there is neither.
    pub deadline: Option<Time>,
    /// The flag of the request being served, if it is a repeat.
    pub flag: Option<u32>,
    /// The request is complete and kept, so that it can be sent again.
    pub replayable: bool,
}

/// What a driver must do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send an attempt, then ask again.
    Send(Send),
    /// Wait until an attempt ends or this instant comes, then ask again. None: only an attempt's end matters.
    Wait {
        /// When to ask again at the latest.
        until: Option<Time>,
    },
    /// Cancel this attempt, report that it ended with [`Call::attempt_timed_out`], then ask again.
    Cancel {
        /// The attempt, as it was sent.
        attempt: u32,
    },
    /// Give the application its answer.
    Finish(Finish),
}

/// An attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send {
    /// 1, 2, ...; a transparent resend repeats the number of the attempt it replaces.
    pub attempt: u32,
    /// What to tell the server as `grpc-timeout`; none = nothing.
    pub limit: Option<Duration>,
    /// The value of `damper-retry`; none = no such header.
    pub flag: Option<u32>,
}

impl Send {
    /// The value of `grpc-previous-rpc-attempts`; 0 = no such header.
    #[must_use]
    pub fn previous_attempts(&self) -> u32 {
        self.attempt.saturating_sub(1)
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Its fate.
    pub ending: Ending,
    /// What the application gets.
    pub answer: Answer,
    /// The context of the request being served must be marked: an error answer to it carries the flag up.
    pub marks_context: bool,
}

/// What the application gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The answer to this attempt, as it came.
    Attempt(u32),
    /// DEADLINE_EXCEEDED: the engine ended the call, or a timer of the transport did in its place.
    TimedOut,
}

/// One call.
#[derive(Debug)]
pub struct Call {
    start: CallStart,
    /// Until when the call must really be over.
    deadline: Option<Time>,
    /// The same as the rule has it; differs in observe mode, where the rule's timeout cuts nothing.
    judged_deadline: Option<Time>,
    attempts: u32,
    resent: bool,
    flag_received: bool,
    waits: Sequence,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Ready,
    Pending(Pending),
    Waiting { until: Time },
    Finished(Finish),
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    sent_at: Time,
    /// Until when the rule gives it time; cuts it in enforce mode only.
    limit: Option<Time>,
    committed: bool,
}

impl Call {
    /// Begins a call on a route.
    #[must_use]
    pub fn begin(route: &Route, start: CallStart) -> Self {
        route.state().counters.count_call();
        let timeout = route.policy().and_then(|policy| policy.timeout).map(|timeout| start.now + timeout);
        let judged_deadline = deadline::earliest([start.deadline, timeout]);
        Self {
            start,
            deadline: if enforced(route).is_some() { judged_deadline } else { start.deadline },
            judged_deadline,
            attempts: 0,
            resent: false,
            flag_received: false,
            waits: Sequence::default(),
            state: State::Ready,
        }
    }

    /// Until when the call must be over.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// What to do at `now`.
    pub fn next_step(&mut self, route: &Route, now: Time) -> Step {
        match self.state {
            State::Ready => self.send(route, now),
            State::Waiting { until } if now < until => Step::Wait { until: Some(until) },
            State::Waiting { .. } => self.send(route, now),
            State::Pending(Pending { limit, .. }) => {
                // Without a rule, and in observe mode, deadlines are passed on and nothing is cut.
                let limit = limit.filter(|_| enforced(route).is_some());
                if limit.is_some_and(|limit| limit <= now) {
                    Step::Cancel { attempt: self.attempts }
                } else {
                    Step::Wait { until: limit }
                }
            }
            State::Finished(finish) => Step::Finish(finish),
        }
    }

    /// The answer to the attempt has begun: from now on it can not be repeated.
    pub fn attempt_committed(&mut self) {
        if let State::Pending(pending) = &mut self.state {
            pending.committed = true;
        }
    }

    /// The attempt ended; `random` is uniform over all of `u64`.
    pub fn attempt_ended(&mut self, route: &Route, verdict: Verdict, now: Time, random: u64) {
        let State::Pending(pending) = self.state else {
            return;
        };
        match verdict {
            Verdict::Success => self.succeed(route, pending, now),
            Verdict::Unprocessed if self.may_resend(route, pending) => {
                self.resent = true;
                self.state = State::Ready;
            }
            Verdict::Unprocessed => self.fail(route, pending, Failure::new(Code::Unavailable), now, random),
            Verdict::Failure(failure) => self.fail(route, pending, failure, now, random),
        }
    }

    /// The attempt was cancelled as [`Step::Cancel`] asked.
    pub fn attempt_timed_out(&mut self, route: &Route, now: Time, random: u64) {
        let State::Pending(pending) = self.state else {
            return;
        };
        let failure = Failure::new(Code::DeadlineExceeded);
        self.after_failure(route, pending, failure, Answer::TimedOut, now, random);
    }

    /// The application dropped the call. Says how it ended, unless it had ended before.
    pub fn dropped(&mut self, route: &Route, now: Time) -> Option<Finish> {
        if matches!(self.state, State::Finished(_)) {
            return None;
        }
        if !deadline::ended_by(self.deadline, now) {
            return Some(self.finish(route, Ending::real(Fate::Cancelled), Answer::TimedOut, now));
        }
        // Somebody's timer ended the call, and with it whatever was under way.
        if let State::Pending(_) = self.state {
            count_failure(route, &Failure::new(Code::DeadlineExceeded), now);
        }
        Some(self.finish(route, Ending::real(Fate::Deadline), Answer::TimedOut, now))
    }

    fn send(&mut self, route: &Route, now: Time) -> Step {
        let left = self.deadline.map(|deadline| deadline.since(now));
        if left == Some(Duration::ZERO) && enforced(route).is_some() {
            return Step::Finish(self.out_of_time(route, now));
        }
        if self.attempts > 0 && matches!(self.state, State::Ready) {
            route.state().counters.count_transparent_resend();
        } else {
            self.attempts += 1;
            if self.attempts > 1 {
                route.state().counters.count_retry();
            }
        }
        let attempt_timeout = route
            .policy()
            .and_then(|policy| policy.retry.as_ref())
            .and_then(|retry| retry.per_attempt_timeout);
        let told = attempt_timeout.filter(|_| enforced(route).is_some());
        let limit = deadline::earliest([self.judged_deadline, attempt_timeout.map(|timeout| now + timeout)]);
        self.state = State::Pending(Pending { sent_at: now, limit, committed: false });
        let limit = left.into_iter().chain(told).min();
        Step::Send(Send { attempt: self.attempts, limit, flag: self.flag_to_send() })
    }

    /// A repeat carries the flag; a first send only passes on the one it was made under.
    fn flag_to_send(&self) -> Option<u32> {
        match self.attempts.saturating_sub(1) {
            0 => self.start.flag,
            repeats => Some(self.start.flag.unwrap_or(0).saturating_add(repeats)),
        }
    }

    /// The deadline came before the first send, or during a wait.
    fn out_of_time(&mut self, route: &Route, now: Time) -> Finish {
        if self.attempts == 0 {
            route.state().counters.count_unsent();
        }
        self.finish(route, Ending::real(Fate::Deadline), Answer::TimedOut, now)
    }

    fn succeed(&mut self, route: &Route, pending: Pending, now: Time) {
        let counters = &route.state().counters;
        counters.count_code(Code::Ok);
        if route.policy().is_some() {
            route.window().count_success(now);
            route.state().recent.record(now, now.since(pending.sent_at));
        }
        let fate = if self.attempts > 1 { Fate::OkAfterRetry } else { Fate::Ok };
        self.finish(route, Ending::real(fate), Answer::Attempt(self.attempts), now);
    }

    fn fail(&mut self, route: &Route, pending: Pending, failure: Failure, now: Time, random: u64) {
        // A timer elsewhere that runs on the same limit usually beats ours and calls it a cancellation.
        let timed_out = failure.code == Code::Cancelled && deadline::ended_by(pending.limit, now);
        if timed_out {
            let failure = Failure { code: Code::DeadlineExceeded, ..failure };
            let answer =
                if enforced(route).is_some() { Answer::TimedOut } else { Answer::Attempt(self.attempts) };
            self.after_failure(route, pending, failure, answer, now, random);
        } else {
            self.after_failure(route, pending, failure, Answer::Attempt(self.attempts), now, random);
        }
    }

    fn after_failure(
        &mut self,
        route: &Route,
        pending: Pending,
        failure: Failure,
        answer: Answer,
        now: Time,
        random: u64,
    ) {
        count_failure(route, &failure, now);
        self.flag_received |= failure.no_more_retry;
        let Some(policy) = route.policy() else {
            self.finish(route, Ending::real(Fate::PolicyOff), answer, now);
            return;
        };
        let decision = self.refusal(route, policy, pending, failure, now, random);
        match (policy.mode, decision) {
            (Mode::Enforce, Ok(wait)) => self.state = State::Waiting { until: now + wait },
            (Mode::Enforce, Err(fate)) => {
                self.finish(route, Ending::real(fate), answer, now);
            }
            (_, decision) => {
                let fate = decision.err().unwrap_or(Fate::Retry);
                self.finish(route, Ending { fate, would: true }, answer, now);
            }
        }
    }

    /// A server that has not seen the request may get it once more at once, where the rule repeats at all.
    fn may_resend(&self, route: &Route, pending: Pending) -> bool {
        let repeats = enforced(route).is_some_and(Policy::repeats);
        repeats && self.start.replayable && !pending.committed && !self.resent
    }

    fn finish(&mut self, route: &Route, ending: Ending, answer: Answer, now: Time) -> Finish {
        let counters = &route.state().counters;
        counters.count_ending(ending);
        counters.latency().record(now.since(self.start.now));
        let gave_up = !ending.would && enforced(route).is_some() && ending.fate.stops_layers_above();
        let finish = Finish { ending, answer, marks_context: gave_up || self.flag_received };
        self.state = State::Finished(finish);
        finish
    }
}

/// Counts a failed attempt, before anything is asked.
fn count_failure(route: &Route, failure: &Failure, now: Time) {
    route.state().counters.count_code(failure.code);
    let Some(policy) = route.policy() else { return };
    if breaker::is_failure(Some(policy), failure) {
        route.window().count_failure(now);
    } else {
        route.window().count_success(now);
    }
}

/// The policy, where it is carried out.
fn enforced(route: &Route) -> Option<&Policy> {
    route.policy().filter(|policy| policy.mode == Mode::Enforce)
}

#[cfg(test)]
mod tests;
