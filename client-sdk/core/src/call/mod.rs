//! One call's decisions: a state machine that is told what happened and answers with what to do next.
//!
//! A driver creates a [`Call`], asks for the next [`Step`] and obeys it; when an attempt ends or the instant
//! of a `Wait` has come it says so and asks again. It decides nothing itself.
//!
//! ```text
//!              Send                       answer begins              trailers
//! begun -----------------> in flight --------------------> committed -------> finished
//!   ^   Wait is over,         |  ^  Send: a hedge beside       | failed
//!   |   Send                  |  |  what is in flight          v
//!   +----- waiting <----------+--+                          finished
//!                    failed, may be repeated
//! ```
//!
//! `sending` says what is sent and when, `ending` what an attempt's end counts as; after an attempt failed the
//! questions of `questions` are asked in their fixed order; `in_flight` holds the attempts under way.
//!
//! A kill switch is asked before anything is sent, and whenever a call that waits is asked for its next step.
//!
//! In observe mode the same questions are asked of the first attempt and the answer is only counted. Without
//! a rule nothing is asked; `passing` is the same call for a driver that makes many of them.

use std::time::Duration;

use crate::call::backoff::Sequence;
use crate::gates::circuit::{CircuitDecision, Outcome};
use crate::outcome::classify::Verdict;
use crate::outcome::fate::{Ending, Fate};
use crate::policy::{Mode, Policy};
use crate::route::Route;
use crate::time::Time;
use crate::time::deadline;

use self::in_flight::{InFlight, Pending};
use self::questions::Taken;

pub mod backoff;
mod ending;
mod in_flight;
mod passing;
mod questions;
mod sending;

pub use self::passing::Passthrough;

use self::ending::Failed;

/// A request that a server leaves unprocessed is sent so many times more (gRFC A6).
const MAX_UNPROCESSED: u32 = 1;
/// One that was not written is, so many times.
const MAX_UNSENT: u32 = 4;

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
    /// Send an attempt, beside those that are in flight, then ask again.
    Send(SendAttempt),
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
    /// Give the application its answer and cancel every attempt that is still in flight.
    Finish(Finish),
}

/// An attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendAttempt {
    /// 1, 2, ...; a transparent resend repeats the number of the attempt it replaces.
    pub attempt: u32,
    /// Why it is sent.
    pub kind: AttemptKind,
    /// What to tell the server as `grpc-timeout`; none = nothing.
    pub limit: Option<Duration>,
    /// The value of `damper-retry`; none = no such header.
    pub flag: Option<u32>,
}

/// Why an attempt is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptKind {
    /// It is the first.
    First,
    /// One before it failed.
    Retry,
    /// One before it took long.
    Hedge,
    /// The server has provably not seen the one before it.
    Resend,
}

impl SendAttempt {
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
    /// UNAVAILABLE: the circuit breaker is open and nothing was sent.
    CircuitOpen,
    /// UNAVAILABLE: a kill refuses calls and nothing was sent.
    Killed,
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
    hedges_left: u32,
    /// Sends that the server has provably not seen, by what became of them.
    unprocessed: u32,
    unsent: u32,
    flag_received: bool,
    /// When a failure was counted that nothing was sent for since.
    counted_at: Option<Time>,
    waits: Sequence,
    /// A server asked not to be sent anything sooner.
    not_before: Option<Time>,
    in_flight: InFlight,
    next: Next,
    /// What the application gets if the call ends while it waits: the answer to the attempt that failed last.
    last: Answer,
    /// An attempt to send once more because the server has not seen it.
    unseen: Option<Pending>,
    /// Why nothing more is sent, although attempts are in flight.
    refused: Option<Fate>,
    admission: CircuitDecision,
    /// What the circuit breaker is told at the end.
    outcome: Outcome,
    finish: Option<Finish>,
}

/// What is sent next, if nothing happens before.
#[derive(Clone, Copy, Debug)]
enum Next {
    Nothing,
    First,
    /// After a failure, when the wait is over.
    Repeat {
        at: Time,
        kind: AttemptKind,
        taken: Taken,
    },
    /// Beside what is in flight, if nothing speaks against it then.
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
        let judged_deadline = deadline::earliest([start.deadline, timeout]);
        Self {
            start,
            deadline: if enforced(route).is_some() { judged_deadline } else { start.deadline },
            judged_deadline,
            attempts: 0,
            hedges_left: policy.and_then(|policy| policy.hedge).map_or(0, |hedge| hedge.max_hedges),
            unprocessed: 0,
            unsent: 0,
            flag_received: false,
            counted_at: None,
            waits: Sequence::default(),
            not_before: None,
            in_flight: InFlight::default(),
            next: Next::First,
            last: Answer::TimedOut,
            unseen: None,
            refused: None,
            admission: CircuitDecision::Closed { since_ms: 0 },
            outcome: Outcome::Unknown,
            finish: None,
        }
    }

    /// Until when the call must be over.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// True if something in flight has a limit.
    #[must_use]
    pub fn has_limit(&self) -> bool {
        self.in_flight.first_limit().is_some()
    }

    /// What to do at `now`.
    pub fn next_step(&mut self, route: &Route, now: Time) -> Step {
        if let Some(finish) = self.finish {
            return Step::Finish(finish);
        }
        if let Some(pending) = self.unseen.take() {
            return self.resend(route, pending, now);
        }
        match self.next {
            Next::First => return self.send_first(route, now),
            Next::Repeat { .. } if route.switch().stops_repeats(now) => {
                return self.finish(route, Ending::real(Fate::Killed), self.last, now);
            }
            Next::Repeat { at, kind, taken } if at <= now => return self.send_again(route, kind, taken, now),
            _ => {}
        }
        // Without a rule, and in observe mode, deadlines are passed on and nothing is cut.
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

    /// True while nothing is in flight and the call waits to send something again. A kill ends that wait: the
    /// driver must ask for the next step as soon as one comes.
    #[must_use]
    pub fn is_between_attempts(&self) -> bool {
        matches!(self.next, Next::Repeat { .. }) && self.finish.is_none()
    }

    /// The answer to the attempt has begun: from now on it can not be repeated, and the driver gives up all
    /// others. The present is asked for only where there are any, or where it may be of use to hedges.
    pub fn attempt_committed(&mut self, route: &Route, attempt: u32, now: impl FnOnce() -> Time) {
        let losers = self.in_flight.commit(attempt);
        if route.policy().is_some_and(|policy| policy.hedge.is_some()) {
            let now = now();
            ending::give_up(route, &losers, now);
            self.in_flight.begins(now);
        }
        self.next = Next::Nothing;
    }

    /// The attempt ended; `random` is uniform over all of `u64`.
    pub fn attempt_ended(&mut self, route: &Route, attempt: u32, verdict: Verdict, now: Time, random: u64) {
        let Some(pending) = self.in_flight.take(attempt) else {
            return;
        };
        if verdict == Verdict::Success {
            return self.succeed(route, pending, now);
        }
        if self.may_resend(route, pending, verdict, now) {
            self.unseen = Some(pending);
            return;
        }
        let failed = self.failed(route, &pending, verdict, now);
        self.after_failure(route, pending, failed, now, random);
    }

    /// The attempt was cancelled as [`Step::Cancel`] asked.
    pub fn attempt_timed_out(&mut self, route: &Route, attempt: u32, now: Time, random: u64) {
        let Some(pending) = self.in_flight.take(attempt) else {
            return;
        };
        self.after_failure(route, pending, Failed::cut(), now, random);
    }

    /// The application dropped the call. Says how it ended, unless it had ended before.
    pub fn dropped(&mut self, route: &Route, now: Time) -> Option<Finish> {
        if self.finish.is_some() {
            return None;
        }
        Some(self.drop_at(route, now))
    }

    /// A server that has not seen the request may get it once more at once, where the rule repeats at all. A
    /// kill of repeats does not forbid it, for it is none; one of calls does: nothing is sent. A request that never
    /// left the process may be sent a few times more, for connections that are closing are met in numbers.
    fn may_resend(&mut self, route: &Route, pending: Pending, verdict: Verdict, now: Time) -> bool {
        let (count, most) = match verdict {
            Verdict::Unprocessed => (&mut self.unprocessed, MAX_UNPROCESSED),
            Verdict::Unsent => (&mut self.unsent, MAX_UNSENT),
            _ => return false,
        };
        *count += 1;
        let repeats = enforced(route).is_some_and(Policy::repeats) && !route.switch().refuses_calls(now);
        *count <= most && repeats && self.start.replayable && !pending.committed
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

/// The policy, where it is carried out.
fn enforced(route: &Route) -> Option<&Policy> {
    route.policy().filter(|policy| policy.mode == Mode::Enforce)
}

#[cfg(test)]
mod tests;
