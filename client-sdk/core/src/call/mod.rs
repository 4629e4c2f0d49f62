//! Decisions of one call: a state machine that receives events and returns the next step.
//!
//! A driver creates a [`Call`], requests the next [`Step`] and executes it. It reports the end of each
//! attempt and of each `Wait`, and requests the next step. The driver makes no decision of its own.
//!
//! ```text
//!              Send                       response begins            trailers
//! begun -----------------> in flight --------------------> committed -------> finished
//!   ^   Wait expires,         |  ^  Send: a hedge while        | failed
//!   |   Send                  |  |  others are in flight        v
//!   +----- waiting <----------+--+                          finished
//!                    failed, may be retried
//! ```
//!
//! `sending` decides what is sent and when, `ending` how the end of an attempt counts. After a failed attempt
//! the checks of `checks` run in a fixed order. `in_flight` holds the attempts in flight, `arriving` waits
//! for a request that is not complete.
//!
//! Kill switches are checked before each attempt, and whenever a waiting call requests its next step.
//!
//! In observe mode the same checks run for the first attempt and are only counted. Without a rule there are
//! no checks; `passing` is the same call for drivers that make many of them.

use std::time::Duration;

use crate::call::backoff::Sequence;
use crate::gates::circuit::{CircuitDecision, Outcome};
use crate::outcome::classify::Verdict;
use crate::outcome::fate::{Ending, Fate};
use crate::policy::{Mode, Policy};
use crate::route::Route;
use crate::time::Time;
use crate::time::deadline;

use self::arriving::Replay;
use self::checks::Taken;
use self::in_flight::{InFlight, Pending};

mod arriving;
pub mod backoff;
mod checks;
mod ending;
mod hints;
mod in_flight;
mod options;
mod passing;
mod sending;

pub use self::hints::{ClassCount, Earlier, Hints, Stop};
pub use self::options::CallOptions;
pub use self::passing::Passthrough;

use self::ending::Failed;

/// Input of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallStart {
    /// Current time.
    pub now: Time,
    /// The earlier of the inherited deadline and the call's own; `None` without either.
    pub deadline: Option<Time>,
    /// The flag of the request being served, if it is a retry.
    pub flag: Option<u32>,
    /// The request is complete and kept, so it can be sent again. If it is still arriving: false, then
    /// [`Call::await_request`].
    pub replayable: bool,
    /// Attempts of the request before this call. If not 0 the call begins with a retry, which is its only
    /// attempt. The retry is subject to kills and to the rule's budget, not to the retry breaker.
    pub sends_before: u32,
}

/// Next action of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send an attempt, in addition to those in flight, then request the next step.
    Send(SendAttempt),
    /// Wait until an attempt ends or until this time, then request the next step. `None`: only for the end of
    /// an attempt.
    Wait {
        /// Latest time of the next request.
        until: Option<Time>,
    },
    /// Cancel this attempt, report it with [`Call::attempt_timed_out`], then request the next step.
    Cancel {
        /// Number of the attempt.
        attempt: u32,
    },
    /// Give the application its response and cancel all attempts in flight.
    Finish(Finish),
}

/// An attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendAttempt {
    /// 1, 2, ...; a transparent resend has the number of the attempt it replaces.
    pub attempt: u32,
    /// Reason of the attempt.
    pub kind: AttemptKind,
    /// Value of `grpc-timeout`; `None`: no such header.
    pub limit: Option<Duration>,
    /// Value of `damper-retry`; `None`: no such header.
    pub flag: Option<u32>,
}

/// Reason of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptKind {
    /// The first attempt.
    First,
    /// An earlier attempt failed.
    Retry,
    /// An earlier attempt is slow.
    Hedge,
    /// The server provably has not processed the attempt before.
    Resend,
}

impl SendAttempt {
    /// Returns the value of `grpc-previous-rpc-attempts`; 0: no such header.
    #[must_use]
    pub fn previous_attempts(&self) -> u32 {
        self.attempt.saturating_sub(1)
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Fate of the call.
    pub ending: Ending,
    /// Response for the application.
    pub answer: Answer,
    /// True = mark the served request's context: an error response to it carries the no-more-retry flag.
    pub marks_context: bool,
}

/// Response for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The response to this attempt, as received.
    Attempt(u32),
    /// DEADLINE_EXCEEDED: the engine ended the call, or a timer of the transport did.
    TimedOut,
    /// UNAVAILABLE: the circuit breaker is open and nothing was sent.
    CircuitOpen,
    /// UNAVAILABLE: a kill rejects calls, or stops the retry that the call begins with. Nothing was sent.
    Killed,
    /// UNAVAILABLE: the budget blocks the retry that the call begins with. Nothing was sent.
    Blocked,
}

/// One call.
#[derive(Debug)]
pub struct Call {
    start: CallStart,
    replay: Replay,
    /// End of the wait for a request that arrives, after a failed attempt.
    replay_until: Option<Time>,
    /// Deadline that ends the call.
    deadline: Option<Time>,
    /// Deadline by the rule; differs in observe mode, where the rule's timeout ends nothing.
    rule_deadline: Option<Time>,
    attempts: u32,
    /// Limit of attempts that the application sets.
    max_attempts: u32,
    /// Attempts before the last progress: they count towards no limit.
    counted_from: u32,
    hedges_left: u32,
    /// Requests that the server provably has not processed, by kind.
    unprocessed: u8,
    unsent: u8,
    /// The attempt in `unseen` never left this process.
    unseen_is_unsent: bool,
    flag_received: bool,
    /// Time of a counted failure that no attempt has followed yet.
    counted_at: Option<Time>,
    waits: Sequence,
    /// Time before which the server asked for no attempt.
    not_before: Option<Time>,
    in_flight: InFlight,
    next: Next,
    /// Response for the application if the call ends while it waits: that of the last failed attempt.
    last: Answer,
    /// An attempt to resend because the server has not processed it.
    unseen: Option<Pending>,
    /// Reason why nothing more is sent, while attempts are in flight.
    stopped: Option<Fate>,
    admission: CircuitDecision,
    /// Outcome for the circuit breaker.
    outcome: Outcome,
    finish: Option<Finish>,
}

/// Next attempt, unless an event comes first.
#[derive(Clone, Copy, Debug)]
enum Next {
    Nothing,
    First,
    /// After a failure, when the wait expires.
    Repeat {
        at: Time,
        kind: AttemptKind,
        taken: Taken,
    },
    /// While others are in flight, if all checks pass then.
    Hedge {
        at: Time,
    },
}

impl Call {
    /// Begins a call on a route.
    #[inline]
    #[must_use]
    pub fn begin(route: &Route, start: CallStart) -> Self {
        route.state().counters.count_call();
        let policy = route.policy();
        let timeout = policy.and_then(|policy| policy.timeout).map(|timeout| start.now + timeout);
        let rule_deadline = deadline::earliest([start.deadline, timeout]);
        Self {
            replay: Replay::of(start.replayable),
            replay_until: None,
            start,
            deadline: if enforced(route).is_some() { rule_deadline } else { start.deadline },
            rule_deadline,
            attempts: start.sends_before,
            max_attempts: if start.sends_before > 0 { 1 } else { u32::MAX },
            counted_from: start.sends_before,
            hedges_left: policy.and_then(|policy| policy.hedge).map_or(0, |hedge| hedge.max_hedges),
            unprocessed: 0,
            unsent: 0,
            unseen_is_unsent: false,
            flag_received: false,
            counted_at: None,
            waits: Sequence::default(),
            not_before: None,
            in_flight: InFlight::default(),
            next: Next::First,
            last: Answer::TimedOut,
            unseen: None,
            stopped: None,
            admission: CircuitDecision::Closed { since_ms: 0 },
            outcome: Outcome::Unknown,
            finish: None,
        }
    }

    /// Sends at most this number of attempts, whatever the rule allows.
    #[inline]
    pub fn limit_attempts(&mut self, max_attempts: u32) {
        self.max_attempts = self.max_attempts.min(max_attempts);
    }

    /// Returns the deadline of the call.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Returns true if an attempt in flight has a limit.
    #[must_use]
    pub fn has_limit(&self) -> bool {
        self.in_flight.first_limit().is_some()
    }

    /// Returns the next step at `now`.
    pub fn next_step(&mut self, route: &Route, now: Time) -> Step {
        if let Some(finish) = self.finish {
            return Step::Finish(finish);
        }
        if let Next::Repeat { .. } = self.next
            && route.switch().stops_repeats(now)
        {
            return self.finish(route, Ending::real(Fate::Killed), self.last, now);
        }
        if let Some(step) = self.await_rest(route, now) {
            return step;
        }
        if let Some(pending) = self.unseen.take() {
            return self.resend(route, pending, now);
        }
        match self.next {
            Next::First => return self.send_first(route, now),
            Next::Repeat { at, kind, taken } if at <= now => return self.send_again(route, kind, taken, now),
            _ => {}
        }
        // Without a rule and in observe mode, deadlines are passed on and nothing is cut.
        let Some(policy) = enforced(route) else {
            return Step::Wait { until: None };
        };
        let limit = self.in_flight.first_limit();
        if let Some((_, attempt)) = limit.filter(|(limit, _)| *limit <= now) {
            return Step::Cancel { attempt };
        }
        if let Next::Hedge { at } = self.next
            && at <= now
            && let Some(step) = self.hedge(route, policy, now)
        {
            return step;
        }
        Step::Wait { until: deadline::earliest([self.next.at(), limit.map(|(limit, _)| limit)]) }
    }

    /// Returns true while nothing is in flight and the call waits for its next attempt. A kill ends that
    /// wait: the driver must request the next step as soon as one is set.
    #[must_use]
    pub fn is_between_attempts(&self) -> bool {
        (matches!(self.next, Next::Repeat { .. }) || self.resend_waits()) && self.finish.is_none()
    }

    /// Records that the response to the attempt has begun: it cannot be retried any more, and the driver
    /// cancels all others. `now` is read only if other attempts are in flight or the rule hedges.
    pub fn attempt_committed(&mut self, route: &Route, attempt: u32, now: impl FnOnce() -> Time) {
        let losers = self.in_flight.commit(attempt);
        if route.policy().is_some_and(|policy| policy.hedge.is_some()) {
            let now = now();
            ending::give_up(route, &losers, now);
            self.in_flight.begins(now);
        }
        self.next = Next::Nothing;
    }

    /// Records the end of an attempt; `random` is uniform over all of `u64`.
    pub fn attempt_ended(&mut self, route: &Route, attempt: u32, verdict: Verdict, now: Time, random: u64) {
        self.attempt_ended_with(route, attempt, verdict, &Hints::default(), now, random);
    }

    /// As [`attempt_ended`](Self::attempt_ended), with what only code knows about a failure.
    pub fn attempt_ended_with(
        &mut self,
        route: &Route,
        attempt: u32,
        verdict: Verdict,
        hints: &Hints<'_>,
        now: Time,
        random: u64,
    ) {
        let Some(pending) = self.in_flight.take(attempt) else {
            return;
        };
        if verdict == Verdict::Success {
            return self.succeed(route, pending, now);
        }
        if self.may_resend(route, pending, verdict, now) {
            self.unseen = Some(pending);
            self.unseen_is_unsent = verdict == Verdict::Unsent;
            return self.wait_for_request(None, now);
        }
        let failed = self.failed(route, &pending, verdict, now);
        self.after_failure(route, pending, failed, hints, now, random);
    }

    /// Records that an attempt was cancelled as [`Step::Cancel`] requested.
    pub fn attempt_timed_out(&mut self, route: &Route, attempt: u32, now: Time, random: u64) {
        self.attempt_timed_out_with(route, attempt, &Hints::default(), now, random);
    }

    /// As [`attempt_timed_out`](Self::attempt_timed_out), with what only code knows about the attempt.
    pub fn attempt_timed_out_with(
        &mut self,
        route: &Route,
        attempt: u32,
        hints: &Hints<'_>,
        now: Time,
        random: u64,
    ) {
        let Some(pending) = self.in_flight.take(attempt) else {
            return;
        };
        self.after_failure(route, pending, Failed::cut(), hints, now, random);
    }

    /// Records that the application dropped the call. Returns how it ended, unless it had ended before.
    pub fn dropped(&mut self, route: &Route, now: Time) -> Option<Finish> {
        if self.finish.is_some() {
            return None;
        }
        if matches!(self.next, Next::First) {
            route.state().counters.count_unsent();
        }
        Some(self.drop_at(route, now))
    }
}

impl Next {
    fn at(self) -> Option<Time> {
        match self {
            Self::Nothing | Self::First => None,
            Self::Repeat { at, .. } | Self::Hedge { at } => Some(at),
        }
    }
}

/// Returns the policy in enforce mode.
fn enforced(route: &Route) -> Option<&Policy> {
    route.policy().filter(|policy| policy.mode == Mode::Enforce)
}

#[cfg(test)]
mod tests;
