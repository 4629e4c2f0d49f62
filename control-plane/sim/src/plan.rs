//! A scenario with numbers in place of names, so that the simulation needs no lookups.
//!
//! Routes are numbered by process: those of each service instance for the calls of its methods, one for each
//! process of a load. Hops are numbered from the top down by a breadth-first walk.

use std::collections::VecDeque;

use damper_core::Time;
use damper_core::fault::Faults;

use crate::scenario::{Scenario, Target};

/// The scenario, resolved.
pub(crate) struct Plan<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) hops: Vec<Hop<'a>>,
    pub(crate) services: Vec<ServicePlan>,
    /// First route of each load.
    pub(crate) loads: Vec<usize>,
    /// Hop of each route.
    pub(crate) routes: Vec<usize>,
    /// Service of each instance.
    pub(crate) instances: Vec<usize>,
    /// End of the load.
    pub(crate) end: Time,
    /// Start of the first and end of the last fault; `None` without faults.
    pub(crate) trouble: Option<(Time, Time)>,
}

/// All calls from one service to one method of another.
#[derive(Clone, Copy)]
pub(crate) struct Hop<'a> {
    pub(crate) caller: &'a str,
    pub(crate) target: &'a Target,
    pub(crate) service: usize,
    pub(crate) method: usize,
}

/// A service.
pub(crate) struct ServicePlan {
    pub(crate) first_instance: usize,
    pub(crate) first_route: usize,
    /// Hops of its methods, which are the routes of each instance.
    pub(crate) hops: Vec<usize>,
    pub(crate) methods: Vec<MethodPlan>,
}

/// A method: its stages of calls, each call as its index in the service's `hops`.
pub(crate) struct MethodPlan {
    pub(crate) stages: Vec<Vec<usize>>,
}

impl<'a> Plan<'a> {
    /// Checks the scenario and resolves it.
    pub(crate) fn new(scenario: &'a Scenario) -> Result<Self, Faults> {
        let mut faults = Faults::none();
        scenario.check(&mut faults);
        faults.or(())?;
        let mut plan = Self {
            scenario,
            hops: Vec::new(),
            services: Vec::new(),
            loads: Vec::new(),
            routes: Vec::new(),
            instances: Vec::new(),
            end: Time::after_origin(scenario.duration),
            trouble: trouble(scenario),
        };
        plan.find_hops();
        plan.place_services();
        plan.place_loads();
        Ok(plan)
    }

    fn find_hops(&mut self) {
        let mut next: VecDeque<(&str, &Target)> =
            self.scenario.load.iter().map(|load| (load.caller.as_str(), &load.call)).collect();
        while let Some((caller, target)) = next.pop_front() {
            if self.hop(caller, target).is_some() {
                continue;
            }
            let Some((service, method)) = self.scenario.method(target) else { continue };
            self.hops.push(Hop { caller, target, service, method });
            let called = &self.scenario.services[service];
            let calls = called.methods[method].calls.iter().flatten();
            next.extend(calls.map(|target| (called.name.as_str(), target)));
        }
    }

    fn place_services(&mut self) {
        for (index, service) in self.scenario.services.iter().enumerate() {
            let mut hops = Vec::new();
            // A method without callers has no hops.
            let place = |target: &Target, hops: &mut Vec<usize>| {
                let hop = self.hop(&service.name, target)?;
                Some(hops.iter().position(|known| *known == hop).unwrap_or_else(|| {
                    hops.push(hop);
                    hops.len() - 1
                }))
            };
            let methods = service.methods.iter().map(|method| MethodPlan {
                stages: method
                    .calls
                    .iter()
                    .map(|stage| stage.iter().filter_map(|target| place(target, &mut hops)).collect())
                    .collect(),
            });
            let methods = methods.collect();
            let (first_instance, first_route) = (self.instances.len(), self.routes.len());
            for _ in 0..service.instances {
                self.instances.push(index);
                self.routes.extend(&hops);
            }
            self.services.push(ServicePlan { first_instance, first_route, hops, methods });
        }
    }

    fn place_loads(&mut self) {
        for load in &self.scenario.load {
            let hop = self.hop(&load.caller, &load.call);
            self.loads.push(self.routes.len());
            self.routes.extend((0..load.processes * load.seats()).filter_map(|_| hop));
        }
    }

    /// True if the callers of a route have no retry layer.
    pub(crate) fn is_bare(&self, route: usize) -> bool {
        let mut loads = self.scenario.load.iter().zip(&self.loads);
        loads.any(|(load, first)| {
            load.bare && (*first..first + (load.processes * load.seats()) as usize).contains(&route)
        })
    }

    fn hop(&self, caller: &str, target: &Target) -> Option<usize> {
        self.hops.iter().position(|hop| hop.caller == caller && hop.target == target)
    }
}

fn trouble(scenario: &Scenario) -> Option<(Time, Time)> {
    let spans = || scenario.faults.iter().map(|fault| fault.span(scenario.duration));
    let from = spans().map(|(from, _)| from).min()?;
    let until = spans().map(|(_, until)| until).max()?;
    Some((Time::after_origin(from), Time::after_origin(until)))
}
