//! Hold and pace of a callee, within `max_in_flight`.
//!
//! The part of a callee's state that several servers can share: plain integers, see
//! [`CalleeParts`](super::CalleeParts). Windows, latencies and the methods of a callee stay in the process,
//! in [`Callee`](super::Callee).

use super::hold::{self, Hold};
use super::pace::Pace;
use super::{Admit, HoldReason};
use crate::time::Time;

/// Deliveries to a callee in flight, and whether a further one may begin.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gate {
    pub(super) hold: Hold,
    pub(super) pace: Pace,
    pub(super) in_flight: u32,
}

impl Gate {
    pub(super) fn admit(self, hold_after: u32, max_in_flight: u32, now: Time) -> Admit {
        if self.hold.is_held(hold_after) {
            return hold::probe(self.hold, self.in_flight, now, HoldReason::CalleeFailing);
        }
        match self.pace.limit(max_in_flight).saturating_sub(self.in_flight) {
            0 => Admit::Hold { until: None, why: HoldReason::Pace },
            room => Admit::Deliver(room),
        }
    }

    pub(super) fn begins(&mut self, hold_after: u32, now: Time) {
        self.in_flight = self.in_flight.saturating_add(1);
        if self.hold.is_held(hold_after) {
            self.hold.probe_begins(now);
        }
    }

    /// A delivery is no longer in flight.
    pub(super) fn ends(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    pub(super) fn failed(&mut self, hold_after: u32, now: Time) {
        self.pace.failed(now);
        self.hold.failed(hold_after, now);
        if self.hold.is_held(hold_after) {
            self.pace.restart();
        }
    }

    pub(super) fn succeeded(&mut self, max_in_flight: u32) {
        self.pace.succeeded(max_in_flight);
        self.hold.succeeded();
    }
}
