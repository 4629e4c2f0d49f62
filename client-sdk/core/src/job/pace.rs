//! Pace: deliveries to a callee in flight at once.
//!
//! Begins at 10. Each success adds 1, so the pace doubles per round; a failure halves it, at most once per
//! second because failures come in groups. Never below 1, never above `max_in_flight`. After a hold it begins
//! at 1: a callee that has recovered gets its load back gradually.
//!
//! Source: additive increase, multiplicative decrease, slow start (RFC 5681).

use std::time::Duration;

use crate::time::Time;

const START: u32 = 10;
/// Least time between two halvings.
const HALVING_INTERVAL: Duration = Duration::from_secs(1);

/// Limit of deliveries in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    limit: u32,
    halved_at: Option<Time>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { limit: START, halved_at: None }
    }
}

impl Pace {
    pub(super) fn limit(self, max_in_flight: u32) -> u32 {
        self.limit.min(max_in_flight)
    }

    pub(super) fn succeeded(&mut self, max_in_flight: u32) {
        self.limit = self.limit.saturating_add(1).min(max_in_flight.max(1));
    }

    pub(super) fn failed(&mut self, now: Time) {
        if self.halved_at.is_none_or(|at| now.since(at) >= HALVING_INTERVAL) {
            (self.limit, self.halved_at) = ((self.limit / 2).max(1), Some(now));
        }
    }

    pub(super) fn restart(&mut self) {
        self.limit = 1;
    }

    /// Returns the limit and when it was last halved.
    pub(super) fn parts(self) -> (u32, Option<Time>) {
        (self.limit, self.halved_at)
    }

    /// It was not halved in the future: else the clock was set back.
    pub(super) fn from_parts(limit: u32, halved_at: Option<Time>, now: Time) -> Self {
        Self { limit: limit.max(1), halved_at: halved_at.map(|at| at.min(now)) }
    }
}
