//! Deliveries of one queue: whether a further one may begin.
//!
//! `max_in_flight` -> `rate` -> what the callee of the job bears
//!
//! The scheduler of a server and the simulator use the same state. Not here: kills, pauses, and free slots
//! of workers.

use std::collections::HashMap;
use std::time::Duration;

use super::rate::Rate;
use super::{Admit, Callee, HoldReason, Outcome, QueueSettings};
use crate::rules::key::RouteKey;
use crate::time::Time;

/// Deliveries of a queue in flight, and what is known of its callees.
#[derive(Debug, Default)]
pub struct Flow {
    in_flight: u32,
    rate: Rate,
    callees: HashMap<String, Callee>,
}

impl Flow {
    /// Checks if a delivery may begin, whatever its callee.
    #[must_use]
    pub fn room(&self, settings: &QueueSettings, now: Time) -> Admit {
        let free = settings.max_in_flight.saturating_sub(self.in_flight);
        if free == 0 {
            return Admit::Hold { until: None, why: HoldReason::MaxInFlight };
        }
        match self.rate.room(settings.rate, now) {
            0 => Admit::Hold { until: Some(now + self.rate.wait(now)), why: HoldReason::Rate },
            rate => Admit::Deliver(free.min(rate)),
        }
    }

    /// Checks if deliveries to the callee of a route may begin.
    #[must_use]
    pub fn admit(&self, settings: &QueueSettings, route: &RouteKey, now: Time) -> Admit {
        let room = match self.room(settings, now) {
            Admit::Deliver(room) => room,
            held => return held,
        };
        let method = route.callee_method();
        let admitted = match self.callees.get(route.callee_service()) {
            Some(callee) => callee.admit(settings, method, now),
            None => Callee::default().admit(settings, method, now),
        };
        match admitted {
            Admit::Deliver(count) => Admit::Deliver(count.min(room)),
            other => other,
        }
    }

    /// Returns true if `stop_when` ends a job whose delivery failed after this time.
    #[must_use]
    pub fn stops(&self, settings: &QueueSettings, route: &RouteKey, took: Duration, now: Time) -> bool {
        self.callees.get(route.callee_service()).is_some_and(|callee| callee.stops(settings, took, now))
    }

    /// Counts a delivery that begins.
    pub fn begins(&mut self, settings: &QueueSettings, route: &RouteKey, now: Time) {
        self.rate.take(settings.rate, 1, now);
        self.resumes(settings, route, now);
    }

    /// Counts a delivery in flight that began elsewhere.
    pub fn resumes(&mut self, settings: &QueueSettings, route: &RouteKey, now: Time) {
        self.in_flight = self.in_flight.saturating_add(1);
        self.with_callee(route, |callee| callee.begins(settings, route.callee_method(), now));
    }

    /// Counts that a delivery did not begin after all. `was_probe`: it was admitted as a probe.
    pub fn unused(&mut self, settings: &QueueSettings, route: &RouteKey, was_probe: bool, now: Time) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.rate.give_back(settings.rate);
        self.with_callee(route, |callee| callee.unused(route.callee_method(), was_probe, now));
    }

    /// Counts the end of a delivery.
    pub fn ended(&mut self, settings: &QueueSettings, route: &RouteKey, outcome: &Outcome, now: Time) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.with_callee(route, |callee| callee.ended(settings, route.callee_method(), outcome, now));
    }

    fn with_callee(&mut self, route: &RouteKey, change: impl FnOnce(&mut Callee)) {
        let name = route.callee_service();
        match self.callees.get_mut(name) {
            Some(callee) => change(callee),
            None => change(self.callees.entry(name.to_owned()).or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Ratio;
    use crate::policy::Mode;

    fn settings(max_in_flight: u32, rate: Option<Ratio>) -> QueueSettings {
        QueueSettings { max_in_flight, rate, ..QueueSettings::new(Mode::Enforce) }
    }

    fn route(callee: &str) -> RouteKey {
        RouteKey::new("a", "c", callee, "p.S/M").unwrap()
    }

    fn at(ms: u64) -> Time {
        Time::from_micros(ms * 1_000)
    }

    #[test]
    fn bound_of_the_queue_counts_all_callees() {
        let (settings, mut flow) = (settings(3, None), Flow::default());
        for callee in ["b", "b", "d"] {
            assert!(matches!(flow.admit(&settings, &route(callee), at(0)), Admit::Deliver(_)));
            flow.begins(&settings, &route(callee), at(0));
        }
        let full = Admit::Hold { until: None, why: HoldReason::MaxInFlight };
        assert_eq!(flow.admit(&settings, &route("e"), at(0)), full);
        flow.ended(&settings, &route("b"), &Outcome::Unknown, at(1));
        assert_eq!(flow.admit(&settings, &route("e"), at(1)), Admit::Deliver(1));
    }

    #[test]
    fn rate_holds_until_the_next_delivery() {
        let (settings, mut flow) = (settings(100, Some(Ratio::from_bp(20_000))), Flow::default());
        flow.begins(&settings, &route("b"), at(1_000));
        let held = Admit::Hold { until: Some(at(1_450)), why: HoldReason::Rate };
        assert_eq!(flow.admit(&settings, &route("b"), at(1_000)), held);
        assert_eq!(flow.admit(&settings, &route("b"), at(1_450)), Admit::Deliver(1));
    }

    #[test]
    fn delivery_that_did_not_begin_leaves_no_trace() {
        let (settings, mut flow) = (settings(1, Some(Ratio::from_bp(10_000))), Flow::default());
        let failed = Outcome::Failed(crate::Failure::new(crate::Code::Unavailable));
        for second in 0..u64::from(settings.hold_after) {
            flow.begins(&settings, &route("b"), at(second * 1_000));
            flow.ended(&settings, &route("b"), &failed, at(second * 1_000));
        }
        assert_eq!(flow.admit(&settings, &route("b"), at(60_000)), Admit::Probe);
        flow.begins(&settings, &route("b"), at(60_000));
        flow.unused(&settings, &route("b"), true, at(60_010));
        assert_eq!(flow.admit(&settings, &route("b"), at(60_010)), Admit::Probe);
    }

    #[test]
    fn callee_that_fails_holds_its_own_jobs_only() {
        let (settings, mut flow) = (settings(100, None), Flow::default());
        let failed = Outcome::Failed(crate::Failure::new(crate::Code::Unavailable));
        for _ in 0..settings.hold_after {
            flow.begins(&settings, &route("b"), at(0));
            flow.ended(&settings, &route("b"), &failed, at(0));
        }
        let held = Admit::Hold { until: Some(at(1_000)), why: HoldReason::CalleeFailing };
        assert_eq!(flow.admit(&settings, &route("b"), at(1)), held);
        assert_eq!(flow.admit(&settings, &route("d"), at(1)), Admit::Deliver(10));
    }
}
