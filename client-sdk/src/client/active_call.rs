//! One call under way: the engine's `Call` with what it needs from outside, ended exactly once.
//!
//! The call travels from the response future into the response body. Wherever it is dropped before its end
//! it counts as cancelled, or as timed out if its deadline has come.

use std::sync::Arc;

use damper_core::{Call, CallStart, Finish, Mode, Route, Step, Time, Verdict, deadline};

use crate::clock::Clock;
use crate::context::Context;

#[derive(Debug)]
pub(crate) struct ActiveCall {
    route: Arc<Route>,
    call: Call,
    clock: Clock,
    context: Option<Context>,
    /// Reading the clock is most of what a call without a rule costs, so it is not read after the end.
    has_ended: bool,
}

impl ActiveCall {
    /// Begins a call and says what to do first; `own_deadline` is the one the application set, `replayable`
    /// whether its request is kept.
    pub(crate) fn begin(
        route: Arc<Route>,
        context: Option<Context>,
        own_deadline: Option<Time>,
        replayable: bool,
        now: Time,
        clock: Clock,
    ) -> (Self, Step) {
        // The context may come from another engine, whose times have another origin.
        let inherited = context.as_ref().and_then(Context::deadline);
        let start = CallStart {
            now,
            deadline: deadline::earliest([inherited.map(|at| clock.time(at)), own_deadline]),
            flag: context.as_ref().and_then(|context| context.chain().flag()),
            replayable,
        };
        let call = Call::begin(&route, start);
        let mut call = Self { route, call, clock, context, has_ended: false };
        let step = call.step(now);
        (call, step)
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// True if the engine may end an attempt before the transport does.
    pub(crate) fn is_enforced(&self) -> bool {
        self.route.policy().is_some_and(|policy| policy.mode == Mode::Enforce)
    }

    pub(crate) fn next_step(&mut self) -> Step {
        self.step(self.clock.now())
    }

    /// The attempt's answer has begun.
    pub(crate) fn commit(&mut self) {
        self.call.attempt_committed();
    }

    /// The attempt ended; what now?
    pub(crate) fn attempt_ended(&mut self, verdict: Verdict) -> Step {
        let now = self.clock.now();
        self.call.attempt_ended(&self.route, verdict, now, fastrand::u64(..));
        self.step(now)
    }

    /// The attempt was cancelled; what now?
    pub(crate) fn attempt_timed_out(&mut self) -> Step {
        let now = self.clock.now();
        self.call.attempt_timed_out(&self.route, now, fastrand::u64(..));
        self.step(now)
    }

    fn step(&mut self, now: Time) -> Step {
        let step = self.call.next_step(&self.route, now);
        if let Step::Finish(finish) = &step {
            self.has_ended = true;
            self.tell_context(finish);
        }
        step
    }

    fn tell_context(&self, finish: &Finish) {
        if let Some(context) = self.context.as_ref().filter(|_| finish.marks_context) {
            context.chain().mark_no_more_retry();
        }
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        if let Some(finish) = self.call.dropped(&self.route, self.clock.now()) {
            self.tell_context(&finish);
        }
    }
}
