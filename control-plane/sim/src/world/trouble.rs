//! Faults: those that affect a request, and changes of instances.

use damper_core::{Code, Time};

use super::{Event, RequestKey, World};
use crate::scenario::{Fault, FaultKind};
use crate::spread::us;

impl Fault {
    /// True while it is active.
    fn holds(&self, now: Time) -> bool {
        let now = now.as_micros();
        let after_begin = now.checked_sub(us(self.from));
        let before_end = self.until.is_none_or(|until| now < us(until));
        let is_on =
            |since: u64| self.flapping.is_none_or(|flapping| since % us(flapping.period) < us(flapping.on));
        before_end && after_begin.is_some_and(is_on)
    }

    /// Next start or end after `now`.
    fn next_change(&self, now: Time) -> Option<Time> {
        let (now, from) = (now.as_micros(), us(self.from));
        let until = self.until.map(us);
        let next = match (now.checked_sub(from), self.flapping) {
            (None, _) => Some(from),
            (Some(_), None) => until,
            (Some(since), Some(flapping)) => {
                let (period, on) = (us(flapping.period), us(flapping.on));
                let phase = since % period;
                let change = now - phase + if phase < on { on } else { period };
                Some(until.map_or(change, |until| until.min(change)))
            }
        };
        next.filter(|next| *next > now).map(Time::from_micros)
    }

    /// True for faults of instances, not of requests.
    fn changes_instances(&self) -> bool {
        matches!(self.kind, FaultKind::Crash | FaultKind::Workers { .. })
    }

    /// True if it affects this instance, by number in the service.
    fn hits(&self, instance: usize) -> bool {
        self.instances.is_none_or(|count| instance < count as usize)
    }
}

impl<'a> World<'a> {
    pub(super) fn begin_trouble(&mut self) {
        for (index, fault) in self.plan.scenario.faults.iter().enumerate() {
            if !fault.changes_instances() {
                continue;
            }
            if fault.holds(Time::ZERO) {
                self.agenda.at(Time::ZERO, Event::Trouble(index));
            } else if let Some(at) = fault.next_change(Time::ZERO) {
                self.agenda.at(at, Event::Trouble(index));
            }
        }
    }

    /// Handles the start or end of a fault: sets its instances to the sum of all faults.
    pub(super) fn trouble(&mut self, index: usize) {
        let (scenario, now) = (self.plan.scenario, self.now());
        let fault = &scenario.faults[index];
        if let Some(at) = fault.next_change(now).filter(|at| *at < self.plan.end + super::DRAIN) {
            self.agenda.at(at, Event::Trouble(index));
        }
        let Some(service) = scenario.services.iter().position(|service| service.name == fault.service) else {
            return;
        };
        for place in 0..scenario.services[service].instances as usize {
            if fault.hits(place) {
                self.apply_trouble(service, place, now);
            }
        }
    }

    fn apply_trouble(&mut self, service: usize, place: usize, now: Time) {
        let instance = self.plan.services[service].first_instance + place;
        let scenario = self.plan.scenario;
        let here = |fault: &&Fault| {
            fault.service == scenario.services[service].name && fault.hits(place) && fault.holds(now)
        };
        let (mut is_up, mut workers) = (true, scenario.services[service].workers);
        for fault in scenario.faults.iter().filter(here) {
            match fault.kind {
                FaultKind::Crash => is_up = false,
                FaultKind::Workers { count } => workers = Some(workers.map_or(count, |now| now.min(count))),
                _ => {}
            }
        }
        self.instances[instance].workers = workers;
        match (self.instances[instance].is_up, is_up) {
            (true, false) => self.crash(instance),
            (false, true) => self.restart(service, place),
            _ => {}
        }
        self.dispatch(instance);
    }

    /// Restarts a process without memory.
    fn restart(&mut self, service: usize, place: usize) {
        let plan = &self.plan.services[service];
        self.instances[plan.first_instance + place].is_up = true;
        let first = plan.first_route + place * plan.hops.len();
        (first..first + plan.hops.len()).for_each(|route| self.forget(route));
    }

    /// Returns the code of an immediate failure, if any.
    pub(super) fn error_at(&mut self, key: RequestKey, service: usize, method: usize) -> Option<Code> {
        self.first(key, service, method, |kind| match kind {
            FaultKind::Error { code, share } => Some((share.bp(), code)),
            _ => None,
        })
    }

    /// True if a request is never served nor answered.
    pub(super) fn swallows(&mut self, key: RequestKey, service: usize, method: usize) -> bool {
        let found = self.first(key, service, method, |kind| match kind {
            FaultKind::NoAnswer { share } => Some((share.bp(), ())),
            _ => None,
        });
        found.is_some()
    }

    /// True if a response is lost.
    pub(super) fn is_lost(&mut self, key: RequestKey, service: usize, method: usize) -> bool {
        let found = self.first(key, service, method, |kind| match kind {
            FaultKind::LostAnswer { share } => Some((share.bp(), ())),
            _ => None,
        });
        found.is_some()
    }

    /// Returns the duration of work with a normal duration of `own`.
    pub(super) fn slowed(&mut self, key: RequestKey, service: usize, method: usize, own: u64) -> u64 {
        let slow = self.first(key, service, method, |kind| match kind {
            FaultKind::Slow { add, factor, share } => Some((share.bp(), (us(add), factor.bp()))),
            _ => None,
        });
        let Some((add, factor_bp)) = slow else { return own };
        let longer = u128::from(own) * u128::from(factor_bp) / 10_000;
        u64::try_from(longer).unwrap_or(u64::MAX).saturating_add(add)
    }

    /// Returns the first fault of a kind that affects a request.
    fn first<T>(
        &mut self,
        key: RequestKey,
        service: usize,
        method: usize,
        of_kind: impl Fn(FaultKind) -> Option<(u32, T)>,
    ) -> Option<T> {
        let scenario: &'a crate::scenario::Scenario = self.plan.scenario;
        if scenario.faults.is_empty() {
            return None;
        }
        let now = self.now();
        let place = self.requests[key].instance - self.plan.services[service].first_instance;
        let called = &scenario.services[service];
        scenario.faults.iter().find_map(|fault| {
            let (share_bp, found) = of_kind(fault.kind)?;
            let here = fault.service == called.name
                && fault.hits(place)
                && fault.method.as_ref().is_none_or(|name| *name == called.methods[method].name)
                && fault.holds(now);
            (here && self.streams.fault.happens(share_bp)).then_some(found)
        })
    }
}
