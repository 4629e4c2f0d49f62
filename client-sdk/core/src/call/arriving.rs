//! Requests that are not complete when their call begins.
//!
//! The first attempt forwards such a request while it arrives, and the driver keeps what passes. The driver
//! reports when the request is kept whole, or that it never will be. Until then nothing is retried: hedges
//! are not planned, and the call waits for the request after its attempt has failed, but not for long. All
//! other checks have passed by then, so what they reserved is returned if the wait is in vain.

use std::time::Duration;

use super::hints::Hints;
use super::in_flight::Pending;
use super::{Call, Step, enforced};
use crate::outcome::classify::Verdict;
use crate::outcome::fate::{Ending, Fate};
use crate::policy::Mode;
use crate::route::Route;
use crate::time::Time;
use crate::time::deadline;

/// Longest wait for the rest of a request after an attempt failed.
const PATIENCE: Duration = Duration::from_millis(20);

/// Whether a request can be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replay {
    /// It is complete and kept.
    Kept,
    /// It is not complete.
    Arriving,
    /// It is not kept.
    Never,
}

impl Replay {
    pub(super) fn of(replayable: bool) -> Self {
        if replayable { Self::Kept } else { Self::Never }
    }
}

impl Call {
    /// Declares that the request is not complete yet but may be kept: the driver reports
    /// [`request_kept`](Self::request_kept) or [`request_not_kept`](Self::request_not_kept) later.
    #[inline]
    pub fn await_request(&mut self) {
        self.replay = Replay::Arriving;
    }

    /// Returns true if the request may still be kept.
    #[must_use]
    pub fn awaits_request(&self) -> bool {
        self.replay == Replay::Arriving
    }

    /// Records that the request is complete and kept, so it can be sent again. The delay of a hedge begins
    /// here, because no callee responds before it has the request.
    pub fn request_kept(&mut self, route: &Route, now: Time) {
        if !self.awaits_request() {
            return;
        }
        self.replay = Replay::Kept;
        let is_open = self.finish.is_none() && self.stopped.is_none() && self.unseen.is_none();
        let in_flight = !self.in_flight.is_empty() && self.in_flight.iter().all(|sent| !sent.committed);
        if let Some(policy) = enforced(route)
            && is_open
            && in_flight
        {
            self.next = self.next_hedge(route, policy, now);
        }
    }

    /// Records that the request will not be kept: it is too long, or its source failed.
    pub fn request_not_kept(&mut self) {
        if self.awaits_request() {
            self.replay = Replay::Never;
        }
    }

    /// Returns true if the request cannot be sent again. A call in observe mode does not wait for it.
    pub(super) fn is_not_replayable(&self, mode: Mode) -> bool {
        match self.replay {
            Replay::Kept => false,
            Replay::Arriving => mode != Mode::Enforce,
            Replay::Never => true,
        }
    }

    /// Begins to wait for the request, at most until the deadline and `latest`.
    pub(super) fn wait_for_request(&mut self, latest: Option<Time>, now: Time) {
        if self.awaits_request() {
            self.replay_until = deadline::earliest([Some(now + PATIENCE), self.deadline, latest]);
        }
    }

    /// Returns true while a transparent resend waits for the request.
    pub(super) fn resend_waits(&self) -> bool {
        self.unseen.is_some() && self.replay != Replay::Kept
    }

    /// Returns the step of a call that waits for its request, or that has waited in vain. After the deadline
    /// the attempt that waits reports that.
    pub(super) fn await_rest(&mut self, route: &Route, now: Time) -> Option<Step> {
        if self.replay == Replay::Kept || !self.is_between_attempts() || self.is_out_of_time(route, now) {
            return None;
        }
        if self.awaits_request()
            && let Some(until) = self.replay_until
            && now < until
            && !route.switch().refuses_calls(now)
        {
            return Some(Step::Wait { until: Some(until) });
        }
        self.replay = Replay::Never;
        match self.unseen.take() {
            None => Some(self.finish(route, Ending::real(Fate::NotReplayable), self.last, now)),
            Some(pending) => self.give_up_resend(route, pending, now),
        }
    }

    /// Ends the call with the attempt that is not resent.
    fn give_up_resend(&mut self, route: &Route, pending: Pending, now: Time) -> Option<Step> {
        let verdict = if self.unseen_is_unsent { Verdict::Unsent } else { Verdict::Unprocessed };
        let failed = self.failed(route, &pending, verdict, now);
        self.after_failure(route, pending, failed, &Hints::default(), now, 0);
        self.finish.map(Step::Finish)
    }
}
