//! A call without a rule: the request is forwarded with the chain's flag and deadline, and the call is
//! counted.
//!
//! This is a separate path because most calls take it. Its state fits into a few hundred bytes and moves with
//! the future: no heap slot, no timer, no span. `damper_core::Passthrough` decides what the call counts as.
//! Only a request whose inner service is not ready goes to the heap.

use std::sync::Arc;

use damper_core::{Code, CodeSet, Fate, Finish, Time, Verdict};

use crate::background::clock::Clock;
use crate::context::Context;
use crate::metrics::{AttemptTimes, CallTimes};
use crate::outcome::cause::{self, Cause};
use crate::record::trail::AttemptTrail;
use crate::routes::RouteHandle;
use crate::routes::failed_calls::{HexId, Ids};

/// The call until its end. If dropped before, it counts as cancelled, or as timed out if its deadline has
/// passed.
#[derive(Debug)]
pub(super) struct PassthroughCall {
    /// `None` once the call has ended.
    pub(super) call: Option<damper_core::Passthrough>,
    pub(super) route: Arc<RouteHandle>,
    pub(super) context: Option<Context>,
    pub(super) clock: Clock,
    pub(super) trace: Option<HexId>,
    pub(super) times: CallTimes,
    pub(super) attempt: AttemptTimes,
    pub(super) external: bool,
}

impl PassthroughCall {
    /// Records the end of the attempt.
    pub(super) fn ended(mut self, verdict: &Verdict, cause: Cause<'_>) {
        let Some(call) = self.call.take() else { return };
        let (began, now) = (call.began(), self.clock.now());
        let (finish, code) = call.ended(&self.route, verdict, now);
        if !finish.ending.fate.is_ok() {
            let mut trail = self.trail(began);
            trail.attempt_ended(1, code, verdict, cause, now, self.route.failures());
            trail.ended(&finish, code, now, self.route.failures());
        }
        self.record(&finish, cause::seen_as(code, matches!(cause, Cause::Error(_))), now);
    }

    fn trail(&self, began: Time) -> AttemptTrail {
        AttemptTrail::of_first(Ids { trace: self.trace, call: None }, began)
    }

    fn record(&mut self, finish: &Finish, codes: CodeSet, now: Time) {
        self.times.attempt_ended(now);
        self.attempt.ended(now);
        self.times.ended(now);
        if let Some(context) = &self.context {
            context.call_ended(&self.route, finish, codes);
        }
    }
}

impl Drop for PassthroughCall {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        let (began, now) = (call.began(), self.clock.now());
        let finish = call.dropped(&self.route, now);
        let (mut trail, failures) = (self.trail(began), self.route.failures());
        let code = match finish.ending.fate {
            Fate::Deadline => {
                trail.timed_out(now, failures);
                Code::DeadlineExceeded
            }
            _ => Code::Cancelled,
        };
        trail.ended(&finish, code, now, failures);
        self.record(&finish, cause::seen_as(code, false), now);
    }
}
