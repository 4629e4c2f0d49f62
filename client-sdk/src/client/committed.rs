//! A call of either kind whose response has begun; owned by the response body.
//!
//! The body reports how the response ended and asks for its time limit. Only a call under a rule has one.

use std::task::{Context, Poll, ready};

use damper_core::{Answer, Step, Verdict};

use super::passthrough::PassthroughCall;
use super::slot::{CallState, CommittedAttempt};
use crate::outcome::cause::Cause;
use crate::record::report::CallReport;

#[derive(Debug)]
pub(super) enum CommittedCall {
    Passing(PassthroughCall),
    Governed(CommittedAttempt),
}

impl CommittedCall {
    /// True if the callee is external: its chain flags are ignored.
    pub(super) fn is_external(&self) -> bool {
        match self {
            Self::Passing(call) => call.external,
            Self::Governed(call) => call.calling.external,
        }
    }

    /// Records the end of the response.
    pub(super) fn ended(self, verdict: Verdict, cause: Cause<'_>) -> CallEnd {
        match self {
            Self::Passing(call) => {
                call.ended(&verdict, cause);
                CallEnd::default()
            }
            Self::Governed(mut call) => {
                let step = call.ended(verdict, cause);
                CallEnd::of(&call, &step)
            }
        }
    }

    /// As [`ended`](Self::ended), for a response that timed out.
    pub(super) fn timed_out(self) -> CallEnd {
        match self {
            Self::Passing(_) => CallEnd::default(),
            Self::Governed(mut call) => {
                let step = call.timed_out();
                CallEnd::of(&call, &step)
            }
        }
    }

    /// Notes a data frame. Returns true if the time limit has passed: a body that always has a frame ready
    /// would never reach the timer. The clock is not read for the first frame, which is usually the only one.
    pub(super) fn is_over_at_frame(&mut self) -> bool {
        match self {
            Self::Passing(_) => false,
            Self::Governed(answering) => answering.is_over_at_frame(),
        }
    }

    /// Ready when the time limit of the attempt has passed.
    pub(super) fn poll_limit(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Self::Governed(answering) = self else { return Poll::Pending };
        let CallState { call, timer, .. } = &mut *answering.calling;
        if !call.is_enforced() {
            return Poll::Pending;
        }
        while let Step::Wait { until } = call.next_step() {
            ready!(timer.poll(until, call.clock(), cx));
        }
        Poll::Ready(())
    }
}

/// How a call ended whose response had begun.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallEnd {
    /// The application gets a timeout.
    pub(super) timed_out: bool,
    pub(super) report: Option<CallReport>,
}

impl CallEnd {
    fn of(call: &CommittedAttempt, step: &Step) -> Self {
        let Step::Finish(finish) = step else { return Self::default() };
        Self { timed_out: finish.answer == Answer::TimedOut, report: call.calling.call.report(finish) }
    }
}
