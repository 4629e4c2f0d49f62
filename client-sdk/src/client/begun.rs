//! A call whose answer has begun, of either kind: the body goes on with it.
//!
//! The body tells it how the answer ended, and asks it how long that may take. Only a call under a rule has an answer
//! to the second: the time of one that passes is somebody else's business.

use std::task::{Context, Poll, ready};

use damper_core::{Answer, Step, Verdict};

use super::calling::{CallState, CommittedAttempt};
use super::cause::Cause;
use super::passing::PassthroughCall;

#[derive(Debug)]
pub(super) enum CommittedCall {
    Passing(PassthroughCall),
    Governed(CommittedAttempt),
}

impl CommittedCall {
    /// The callee is not of this system: what it says of the chain is not heard.
    pub(super) fn is_external(&self) -> bool {
        match self {
            Self::Passing(call) => call.external,
            Self::Governed(call) => call.calling.external,
        }
    }

    /// The answer ended so. True if the application is to be told that its time is over.
    pub(super) fn ended(self, verdict: Verdict, cause: Cause<'_>) -> bool {
        match self {
            Self::Passing(call) => {
                call.ended(&verdict, cause);
                false
            }
            Self::Governed(mut call) => is_timed_out(&call.ended(verdict, cause)),
        }
    }

    /// The same for an answer that was cut.
    pub(super) fn timed_out(self) -> bool {
        match self {
            Self::Passing(_) => false,
            Self::Governed(mut call) => is_timed_out(&call.timed_out()),
        }
    }

    /// One more frame of data was ready. True if the answer's time is over: a body that always has one would never be
    /// asked otherwise. Most answers have a single frame, for which the clock is not read.
    pub(super) fn is_over_at_frame(&mut self) -> bool {
        match self {
            Self::Passing(_) => false,
            Self::Governed(answering) => answering.is_over_at_frame(),
        }
    }

    /// Ready when the attempt's time is over.
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

fn is_timed_out(step: &Step) -> bool {
    matches!(step, Step::Finish(finish) if finish.answer == Answer::TimedOut)
}
