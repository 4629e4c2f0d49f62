//! Bounds of a queue that several servers keep together.
//!
//! Line of servers -> `max_in_flight` -> `rate` -> hold and pace of the callee
//!
//! The store of the servers keeps [`QueueParts`] and [`CalleeParts`], and counts the deliveries in flight.
//! Under a lock it makes a [`SharedFlow`] of them, asks and changes it, and stores what has changed. Times
//! are those of the store's clock. After that clock was set back, times too far ahead count as the latest
//! possible ones, so nothing is held longer than in the first place.
//!
//! Servers that `max_in_flight` refused stand in line: a place is kept for each, first come, first served.
//! Else servers with deliveries in flight would take each place again that becomes free.
//!
//! Not shared: `stop_when` and holds of single methods, which stay with what each server has seen itself.

use std::collections::HashMap;
use std::time::Duration;

use super::gate::Gate;
use super::hold::Hold;
use super::pace::Pace;
use super::rate::Rate;
use super::{Admit, HoldReason, Outcome, QueueSettings};
use crate::fault::Ratio;
use crate::time::Time;

/// Time for which a server that does not ask again stays in line.
const IN_LINE: Duration = Duration::from_secs(1);

/// Settings of a queue that bound all servers together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBounds {
    /// [`QueueSettings::max_in_flight`]
    pub max_in_flight: u32,
    /// [`QueueSettings::rate`]
    pub rate: Option<Ratio>,
    /// [`QueueSettings::hold_after`]
    pub hold_after: u32,
}

impl From<&QueueSettings> for SharedBounds {
    fn from(settings: &QueueSettings) -> Self {
        let &QueueSettings { max_in_flight, rate, hold_after, .. } = settings;
        Self { max_in_flight, rate, hold_after }
    }
}

/// What is stored of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueParts {
    /// When `rate` allows the next delivery.
    pub next_delivery: Time,
    /// Servers in line, each with the time until which it stays there.
    pub line: Vec<(u64, Time)>,
}

/// What is stored of a callee of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalleeParts {
    /// Failures in a row.
    pub failures: u32,
    /// When the next probe may begin.
    pub probe_at: Time,
    /// Deliveries in flight at once.
    pub pace: u32,
    /// When the pace was last halved.
    pub halved_at: Option<Time>,
}

impl Default for CalleeParts {
    fn default() -> Self {
        Gate::default().parts()
    }
}

impl Gate {
    fn parts(self) -> CalleeParts {
        let ((failures, probe_at), (pace, halved_at)) = (self.hold.parts(), self.pace.parts());
        CalleeParts { failures, probe_at, pace, halved_at }
    }

    fn from_parts(parts: CalleeParts, in_flight: u32, now: Time) -> Self {
        let CalleeParts { failures, probe_at, pace, halved_at } = parts;
        let hold = Hold::from_parts(failures, probe_at, now);
        Self { hold, pace: Pace::from_parts(pace, halved_at, now), in_flight }
    }
}

/// Deliveries of a queue over all servers: whether a further one may begin.
#[derive(Debug)]
pub struct SharedFlow {
    now: Time,
    in_flight: u32,
    rate: Rate,
    line: Vec<(u64, Time)>,
    callees: HashMap<String, Gate>,
}

impl SharedFlow {
    /// Returns the flow of a queue without its callees, at the present time of the store's clock.
    #[must_use]
    pub fn new(parts: QueueParts, in_flight: u32, now: Time) -> Self {
        let QueueParts { next_delivery, mut line } = parts;
        line.iter_mut().for_each(|(_, until)| *until = (*until).min(now + IN_LINE));
        line.retain(|(_, until)| *until > now);
        Self { now, in_flight, rate: Rate::from_next(next_delivery), line, callees: HashMap::new() }
    }

    /// Adds a callee. One that is not added has no state and no deliveries in flight.
    pub fn add(&mut self, callee: &str, parts: CalleeParts, in_flight: u32) {
        self.callees.insert(callee.to_owned(), Gate::from_parts(parts, in_flight, self.now));
    }

    /// Returns what is to be stored of the queue.
    #[must_use]
    pub fn parts(&self) -> QueueParts {
        QueueParts { next_delivery: self.rate.next(), line: self.line.clone() }
    }

    /// Returns what is to be stored of a callee.
    #[must_use]
    pub fn callee_parts(&self, callee: &str) -> CalleeParts {
        self.callees.get(callee).copied().unwrap_or_default().parts()
    }

    /// Checks if deliveries to a callee may begin at a server.
    #[must_use]
    pub fn admit(&self, bounds: &SharedBounds, callee: &str, server: u64) -> Admit {
        let before = self.line.iter().take_while(|(other, _)| *other != server).count();
        let kept = u32::try_from(before).unwrap_or(u32::MAX);
        let free = bounds.max_in_flight.saturating_sub(self.in_flight).saturating_sub(kept);
        if free == 0 {
            return Admit::Hold { until: None, why: HoldReason::MaxInFlight };
        }
        let rate = self.rate.bounded(bounds.rate, self.now);
        let room = match rate.room(bounds.rate, self.now) {
            0 => return Admit::Hold { until: Some(self.now + rate.wait(self.now)), why: HoldReason::Rate },
            room => room.min(free),
        };
        let gate = self.callees.get(callee).copied().unwrap_or_default();
        match gate.admit(bounds.hold_after, bounds.max_in_flight, self.now) {
            Admit::Deliver(count) => Admit::Deliver(count.min(room)),
            other => other,
        }
    }

    /// Counts a delivery that begins at a server.
    pub fn begins(&mut self, bounds: &SharedBounds, callee: &str, server: u64) {
        let now = self.now;
        self.in_flight = self.in_flight.saturating_add(1);
        self.rate = self.rate.bounded(bounds.rate, now);
        self.rate.take(bounds.rate, 1, now);
        self.line.retain(|(other, _)| *other != server);
        self.gate(callee).begins(bounds.hold_after, now);
    }

    /// A server was refused. By `max_in_flight`: it stands in line, where it is or at the end. By something
    /// else: it leaves the line.
    pub fn refused(&mut self, server: u64, why: HoldReason) {
        if why != HoldReason::MaxInFlight {
            return self.line.retain(|(other, _)| *other != server);
        }
        match self.line.iter_mut().find(|(other, _)| *other == server) {
            // Not stored again at each refusal.
            Some((_, until)) if until.since(self.now) > IN_LINE / 2 => {}
            Some((_, until)) => *until = self.now + IN_LINE,
            None => self.line.push((server, self.now + IN_LINE)),
        }
    }

    /// Counts what the end of a delivery shows of its callee. The number of deliveries in flight is not
    /// changed: the store counts them.
    pub fn shows(&mut self, bounds: &SharedBounds, callee: &str, outcome: &Outcome) {
        let now = self.now;
        match outcome.is_success() {
            Some(true) => self.gate(callee).succeeded(bounds.max_in_flight),
            Some(false) => self.gate(callee).failed(bounds.hold_after, now),
            None => {}
        }
    }

    fn gate(&mut self, callee: &str) -> &mut Gate {
        self.callees.entry(callee.to_owned()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Code, Failure};

    const BOUNDS: SharedBounds = SharedBounds { max_in_flight: 3, rate: None, hold_after: 20 };

    fn at(ms: u64) -> Time {
        Time::from_micros(ms * 1_000)
    }

    /// The flow as the store makes it of what it has kept of an earlier one.
    fn restored(flow: &SharedFlow, in_flight: u32, now: Time) -> SharedFlow {
        let mut restored = SharedFlow::new(flow.parts(), in_flight, now);
        restored.add("b", flow.callee_parts("b"), in_flight);
        restored
    }

    fn held(why: HoldReason, until: Option<Time>) -> Admit {
        Admit::Hold { until, why }
    }

    #[test]
    fn all_servers_together_keep_max_in_flight() {
        let mut flow = SharedFlow::new(QueueParts::default(), 1, at(0));
        assert_eq!(flow.admit(&BOUNDS, "b", 1), Admit::Deliver(2));
        flow.begins(&BOUNDS, "b", 1);
        flow.begins(&BOUNDS, "d", 2);
        for server in 1..=3 {
            assert_eq!(flow.admit(&BOUNDS, "b", server), held(HoldReason::MaxInFlight, None));
        }
    }

    #[test]
    fn refused_servers_get_the_next_places_in_order() {
        let mut flow = SharedFlow::new(QueueParts::default(), 3, at(0));
        flow.refused(2, HoldReason::MaxInFlight);
        flow.refused(1, HoldReason::MaxInFlight);
        let full = held(HoldReason::MaxInFlight, None);
        let mut one_free = restored(&flow, 2, at(900));
        for server in [1, 3] {
            assert_eq!(one_free.admit(&BOUNDS, "b", server), full, "it is kept for another server");
        }
        assert_eq!(one_free.admit(&BOUNDS, "b", 2), Admit::Deliver(1));
        one_free.begins(&BOUNDS, "b", 2);
        one_free.refused(2, HoldReason::MaxInFlight);
        let next_free = restored(&one_free, 2, at(901));
        assert_eq!(next_free.admit(&BOUNDS, "b", 2), full, "it is at the end now");
        assert_eq!(next_free.admit(&BOUNDS, "b", 1), Admit::Deliver(1));
        let silent = restored(&flow, 2, at(1_000));
        assert_eq!(silent.admit(&BOUNDS, "b", 3), Admit::Deliver(1), "the others did not ask again");
    }

    #[test]
    fn server_that_asks_again_stays_in_line() {
        let mut flow = SharedFlow::new(QueueParts::default(), 3, at(0));
        flow.refused(2, HoldReason::MaxInFlight);
        let before = flow.parts();
        let mut flow = restored(&flow, 3, at(400));
        flow.refused(2, HoldReason::MaxInFlight);
        assert_eq!(flow.parts(), before, "nothing to store");
        let mut flow = restored(&flow, 3, at(600));
        flow.refused(2, HoldReason::MaxInFlight);
        assert_eq!(flow.parts().line, [(2, at(1_600))]);
    }

    #[test]
    fn server_held_by_something_else_leaves_the_line() {
        let mut flow = SharedFlow::new(QueueParts::default(), 3, at(0));
        flow.refused(2, HoldReason::MaxInFlight);
        flow.refused(1, HoldReason::MaxInFlight);
        flow.refused(2, HoldReason::Pace);
        assert_eq!(flow.parts().line, [(1, at(1_000))]);
    }

    #[test]
    fn rate_is_one_for_all_servers() {
        let bounds = SharedBounds { rate: Some(Ratio::from_bp(10_000)), ..BOUNDS };
        let mut flow = SharedFlow::new(QueueParts::default(), 0, at(10_000));
        assert_eq!(flow.admit(&bounds, "b", 1), Admit::Deliver(1));
        flow.begins(&bounds, "b", 1);
        let next = flow.parts().next_delivery;
        let flow = restored(&flow, 0, at(10_500));
        assert_eq!(flow.admit(&bounds, "b", 2), held(HoldReason::Rate, Some(next)));
        assert_eq!(restored(&flow, 0, next).admit(&bounds, "b", 2), Admit::Deliver(1));
    }

    #[test]
    fn failures_at_all_servers_hold_the_callee() {
        let failed = Outcome::Failed(Failure::new(Code::Unavailable));
        let mut flow = SharedFlow::new(QueueParts::default(), 0, at(0));
        for _ in 0..BOUNDS.hold_after {
            flow = restored(&flow, 0, at(0));
            assert!(matches!(flow.admit(&BOUNDS, "b", 1), Admit::Deliver(_)));
            flow.shows(&BOUNDS, "b", &failed);
        }
        let holds = held(HoldReason::CalleeFailing, Some(at(1_000)));
        assert_eq!(restored(&flow, 0, at(999)).admit(&BOUNDS, "b", 1), holds);
        let mut flow = restored(&flow, 0, at(1_000));
        assert_eq!(flow.admit(&BOUNDS, "b", 1), Admit::Probe);
        flow.begins(&BOUNDS, "b", 1);
        let probing = restored(&flow, 1, at(5_000));
        assert!(matches!(probing.admit(&BOUNDS, "b", 2), Admit::Hold { .. }), "one probe in all");
        let mut flow = restored(&flow, 0, at(5_000));
        flow.shows(&BOUNDS, "b", &Outcome::Done { took: Duration::ZERO });
        assert_eq!(flow.admit(&BOUNDS, "b", 2), Admit::Deliver(2), "the pace rises from 1");
    }

    #[test]
    fn clock_set_back_holds_nothing_longer() {
        let far = at(3_600_000);
        let parts = QueueParts { next_delivery: far, line: vec![(2, far)] };
        let mut flow = SharedFlow::new(parts, 0, at(0));
        flow.add("b", CalleeParts { failures: 20, probe_at: far, pace: 1, halved_at: Some(far) }, 0);
        let bounds = SharedBounds { rate: Some(Ratio::from_bp(10_000)), ..BOUNDS };
        assert_eq!(flow.parts().line, [(2, at(1_000))]);
        assert_eq!(flow.admit(&bounds, "b", 2), held(HoldReason::Rate, Some(at(1_000))));
        assert_eq!(flow.admit(&BOUNDS, "b", 2), held(HoldReason::CalleeFailing, Some(at(1_000))));
    }
}
