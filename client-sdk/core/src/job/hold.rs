//! Hold: while a callee fails, its jobs wait and use up no attempts.
//!
//! After `hold_after` failures in a row one delivery per second is a probe, alone, until one succeeds. So an
//! hour of outage costs a queue 3,600 deliveries, however many jobs wait. A delivery that takes long delays
//! the next probe by [`ALONE_FOR`], not until its end.

use std::time::Duration;

use super::{Admit, HoldReason};
use crate::time::Time;

/// Least time between two probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which a probe waits for other deliveries in flight.
const ALONE_FOR: Duration = Duration::from_secs(30);

/// Failures in a row, and when the next probe may begin.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hold {
    failures: u32,
    probe_at: Time,
}

impl Hold {
    pub(super) fn is_held(self, hold_after: u32) -> bool {
        self.failures >= hold_after
    }

    /// Returns true if no failure was counted since the last success.
    pub(super) fn is_clear(self) -> bool {
        self.failures == 0
    }

    /// Returns the time of the next probe, if none ends before. `is_alone`: no delivery is in flight.
    pub(super) fn probe_at(self, is_alone: bool) -> Time {
        if is_alone { self.probe_at } else { self.probe_at + ALONE_FOR }
    }

    /// Counts a failure. The hold begins with a pause.
    pub(super) fn failed(&mut self, hold_after: u32, now: Time) {
        let was_held = self.is_held(hold_after);
        self.failures = self.failures.saturating_add(1);
        if self.is_held(hold_after) && !was_held {
            self.probe_begins(now);
        }
    }

    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    pub(super) fn probe_begins(&mut self, now: Time) {
        self.probe_at = now + PROBE_INTERVAL;
    }

    /// A probe did not begin.
    pub(super) fn probe_is_unused(&mut self, now: Time) {
        self.probe_at = self.probe_at.min(now);
    }

    /// Returns the failures in a row and the time of the next probe.
    pub(super) fn parts(self) -> (u32, Time) {
        (self.failures, self.probe_at)
    }

    /// No probe is further ahead than the interval: else the clock was set back.
    pub(super) fn from_parts(failures: u32, probe_at: Time, now: Time) -> Self {
        Self { failures, probe_at: probe_at.min(now + PROBE_INTERVAL) }
    }
}

/// Returns what a hold admits.
pub(super) fn probe(hold: Hold, in_flight: u32, now: Time, why: HoldReason) -> Admit {
    let at = hold.probe_at(in_flight == 0);
    if now < at { Admit::Hold { until: Some(at), why } } else { Admit::Probe }
}
