//! One call in flight: the engine's `Call` and what it needs from outside. Ends exactly once.
//!
//! The call moves from the response future into the response body. If dropped before its end it counts as
//! cancelled, or as timed out if its deadline has passed.

use std::sync::Arc;
use std::time::Duration;

use damper_core::{
    Answer, Call, CallStart, Code, Failure, Fate, Finish, Mode, SendAttempt, Step, Time, Verdict,
};

use super::body_canceller::BodyCanceller;
use super::hand_over::Aftermath;
#[cfg(feature = "queue")]
use super::hand_over::Wanted;
use crate::background::clock::Clock;
use crate::context::Context;
use crate::outcome::cause::{self, Cause};
use crate::record::report::CallReport;
use crate::record::telemetry::{AttemptSpan, CallSpan};
use crate::record::trail::AttemptTrail;
use crate::routes::RouteHandle;
use crate::routes::kills::Bell;

#[derive(Debug)]
pub(crate) struct ActiveCall {
    route: Arc<RouteHandle>,
    call: Call,
    clock: Clock,
    context: Option<Context>,
    watch: CallSpan,
    trail: AttemptTrail,
    /// Time of the last step.
    now: Time,
    /// Cancels a request that is still being sent. Empty once the response has begun.
    hang_up: BodyCanceller,
    /// The last attempt failed with an error instead of a response.
    is_error: bool,
    /// Avoids reading the clock, which is expensive, after the end.
    has_ended: bool,
    aftermath: Aftermath,
}

impl ActiveCall {
    /// Begins a call.
    #[inline]
    pub(super) fn begin(
        route: Arc<RouteHandle>,
        context: Option<Context>,
        (watch, trail): (CallSpan, AttemptTrail),
        start: CallStart,
        clock: Clock,
    ) -> Self {
        Self {
            call: Call::begin(&route, start),
            route,
            clock,
            context,
            watch,
            trail,
            now: start.now,
            hang_up: BodyCanceller::default(),
            is_error: false,
            has_ended: false,
            aftermath: Aftermath::default(),
        }
    }

    /// Sends at most this number of attempts.
    #[inline]
    pub(super) fn limit_attempts(&mut self, max_attempts: u32) {
        self.call.limit_attempts(max_attempts);
    }

    /// Declares that the request is still arriving.
    pub(super) fn await_request(&mut self) {
        self.call.await_request();
    }

    /// Records whether a request that was arriving is kept.
    pub(super) fn request_arrived(&mut self, is_kept: bool) {
        if is_kept {
            self.call.request_kept(&self.route, self.clock.now());
        } else {
            self.call.request_not_kept();
        }
    }

    /// Returns the first step.
    pub(super) fn first_step(&mut self) -> Step {
        self.step(self.now)
    }

    /// Sets the request to cancel when the call ends.
    pub(super) fn hang_up_at_end(&mut self, hang_up: BodyCanceller) {
        self.hang_up = hang_up;
    }

    /// Sets what follows if the call fails.
    pub(super) fn set_aftermath(&mut self, aftermath: Aftermath) {
        self.aftermath = aftermath;
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// True if the engine may end an attempt before the transport does.
    pub(crate) fn is_enforced(&self) -> bool {
        self.route.policy().is_some_and(|policy| policy.mode == Mode::Enforce)
    }

    /// True if the engine limits the time of the attempt.
    pub(super) fn has_limit(&self) -> bool {
        self.is_enforced() && self.call.has_limit()
    }

    /// True while the call waits and nothing is in flight.
    pub(crate) fn is_between_attempts(&self) -> bool {
        self.call.is_between_attempts()
    }

    /// Returns the bell that wakes the call while it waits.
    pub(super) fn bell(&self) -> &Bell {
        self.route.bell()
    }

    /// Commits the call to an attempt whose response has begun and drops all others. Returns the canceller of
    /// the request, which only a timeout uses from here on.
    pub(super) fn answer_begins(&mut self, attempt: u32) -> BodyCanceller {
        self.call.attempt_committed(&self.route, attempt, || self.clock.now());
        std::mem::take(&mut self.hang_up)
    }

    pub(crate) fn next_step(&mut self) -> Step {
        self.step(self.clock.now())
    }

    /// Records the end of an attempt and returns the next step.
    pub(super) fn attempt_ended(&mut self, attempt: AttemptSpan, verdict: Verdict, cause: Cause<'_>) -> Step {
        let (now, number) = (self.clock.now(), attempt.number());
        self.is_error = matches!(cause, Cause::Error(_));
        let took = now.since(attempt.sent_at());
        let code = self.watch.attempt_ended(attempt, &verdict, now);
        self.aftermath.attempt_failed(code, &verdict, cause, took);
        self.trail.attempt_ended(number, code, &verdict, cause, now, self.route.failures());
        self.call.attempt_ended(&self.route, number, verdict, now, fastrand::u64(..));
        self.step(now)
    }

    /// Records the timeout of an attempt and returns the next step.
    pub(crate) fn attempt_timed_out(&mut self, attempt: AttemptSpan) -> Step {
        let (now, number) = (self.clock.now(), attempt.number());
        let took = now.since(attempt.sent_at());
        self.watch.attempt_timed_out(attempt, now);
        let (code, failures) = (Code::DeadlineExceeded, self.route.failures());
        let verdict = Verdict::Failure(Failure::new(code));
        self.aftermath.attempt_failed(code, &verdict, Cause::Over, took);
        self.trail.attempt_ended(number, code, &verdict, Cause::Over, now, failures);
        self.call.attempt_timed_out(&self.route, number, now, fastrand::u64(..));
        self.step(now)
    }

    /// Records the attempt of the last step as sent.
    pub(crate) fn attempt_sent(&mut self, send: &SendAttempt) -> AttemptSpan {
        self.trail.sent(send, self.now, self.route.failures());
        self.watch.sent(send, self.now, self.clock)
    }

    /// Longest response, in bytes, that is held until its status is known; `None` if responses are not held.
    pub(crate) fn hold_limit(&self) -> Option<usize> {
        let policy =
            self.route.policy().filter(|policy| policy.hold_unary && policy.mode == Mode::Enforce)?;
        policy.repeats().then(|| usize::try_from(policy.replay_limit).unwrap_or(usize::MAX))
    }

    /// Returns the time left; `None` without a deadline.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        self.call.deadline().map(|deadline| deadline.since(self.clock.now()))
    }

    /// Returns the report of a call that has ended; `None` if no rule or kill decided about it.
    pub(super) fn report(&self, finish: &Finish) -> Option<CallReport> {
        let is_decided = self.is_enforced() || finish.answer == Answer::Killed;
        is_decided.then(|| self.trail.report(finish, self.now))
    }

    /// Takes the plan to hand over the call, if there is one.
    #[cfg(feature = "queue")]
    pub(super) fn take_wanted(&mut self) -> Option<Wanted> {
        self.aftermath.take_wanted()
    }

    #[cfg(feature = "queue")]
    pub(super) fn policy(&self) -> Option<&damper_core::Policy> {
        self.route.policy()
    }

    #[cfg(feature = "queue")]
    pub(super) fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    /// Returns the code with which a call ended.
    #[cfg(feature = "queue")]
    pub(super) fn code_of(&self, finish: &Finish) -> Code {
        self.watch.code_of(finish)
    }

    /// Returns the codes that the application may see for a call that ended with this code.
    #[cfg(feature = "queue")]
    pub(super) fn codes_seen(&self, code: Code) -> damper_core::CodeSet {
        cause::seen_as(code, self.is_error)
    }

    fn step(&mut self, now: Time) -> Step {
        self.now = now;
        let step = self.call.next_step(&self.route, now);
        if let Step::Finish(finish) = &step {
            self.ended(finish, now);
        }
        step
    }

    fn ended(&mut self, finish: &Finish, now: Time) {
        self.has_ended = true;
        self.watch.ended(finish, self.trail.sends(), now);
        self.aftermath.ended(finish, self.trail.sends());
        self.trail.ended(finish, self.watch.code_of(finish), now, self.route.failures());
        if let Some(context) = &self.context {
            let codes = cause::seen_as(self.watch.code_of(finish), self.is_error);
            context.call_ended(&self.route, finish, codes);
        }
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        self.hang_up.now();
        if self.has_ended {
            return;
        }
        let now = self.clock.now();
        if let Some(finish) = self.call.dropped(&self.route, now) {
            // A timer outside the engine ended the call and its attempts at the deadline.
            if finish.ending.fate == Fate::Deadline {
                self.trail.timed_out(now, self.route.failures());
            }
            self.ended(&finish, now);
        }
    }
}
