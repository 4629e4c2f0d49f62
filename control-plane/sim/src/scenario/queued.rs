//! A queued load: jobs of a queue, delivered by workers.
//!
//! The queue is one of the strategy, so that two policies can be compared. Checks are those of the scenario;
//! the settings of a queue are checked by the engine.

use std::time::Duration;

use damper_core::fault::{Bounds, Faults, Millis};
use damper_core::job::Queue;
use damper_core::{Mode, key};

use super::check::check_rates;
use super::{Load, RateFrom, Scenario, Strategy};

/// `load[].queued.backlog`
pub const BACKLOG: Bounds<u32> = Bounds { min: 0, max: 1_000_000 };
/// `load[].queued.concurrency`: the deliveries of one worker stream.
pub const CONCURRENCY: Bounds<u32> = Bounds { min: 1, max: 1_000 };
/// Default of `load[].queued.concurrency`.
pub const DEFAULT_CONCURRENCY: u32 = 32;

/// Jobs of a queue. The processes of the load are their workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Name of the queue.
    pub queue: String,
    /// Jobs that are submitted together.
    pub backlog: u32,
    /// Time of their submission.
    pub from: Duration,
    /// Deliveries that each process handles at once.
    pub concurrency: u32,
    /// Evenly spaced submissions; false: Poisson.
    pub even: bool,
    /// Rates of further submissions and their start.
    pub rates: Vec<RateFrom>,
}

impl Queued {
    pub(super) fn check(&self, scenario: &Scenario, load: &Load, path: &str, faults: &mut Faults) {
        BACKLOG.check(&format!("{path}.queued.backlog"), self.backlog, faults);
        CONCURRENCY.check(&format!("{path}.queued.concurrency"), self.concurrency, faults);
        check_rates(&format!("{path}.queued"), &self.rates, faults);
        if self.backlog == 0 && self.rates.is_empty() {
            faults.add(format!("{path}.queued"), "requires `backlog`, `rate` or `rates`");
        }
        if self.from >= scenario.duration {
            let (from, duration) = (Millis(self.from), Millis(scenario.duration));
            let problem = format!("must be before the end, {duration}, not {from}");
            faults.add(format!("{path}.queued.from"), problem);
        }
        let others = [
            ("timeout", load.timeout.is_some(), "the queue has `per_attempt_timeout`"),
            ("bare", load.bare, "workers are services"),
            ("restart", load.restart.is_some(), "lost deliveries are not simulated"),
        ];
        for (name, _, why) in others.into_iter().filter(|(_, is_set, _)| *is_set) {
            faults.add(format!("{path}.{name}"), format!("conflicts with `queued`: {why}"));
        }
        for (i, strategy) in scenario.strategies.iter().enumerate() {
            self.check_queue(&format!("strategies[{i}].queues"), strategy, load, faults);
        }
    }

    /// The strategy must have the queue, and the queue must accept and deliver the jobs of the load.
    fn check_queue(&self, path: &str, strategy: &Strategy, load: &Load, faults: &mut Faults) {
        let mut found = strategy.queues.iter().filter(|queue| queue.name() == self.queue);
        let Some(queue) = found.next() else {
            return faults.add(path, format!("requires the queue {:?} of a load", self.queue));
        };
        if found.next().is_some() {
            faults.add(path, format!("duplicate queue {:?}", self.queue));
        }
        let problem = match queue.settings() {
            settings if settings.policy.mode != Mode::Enforce => "must have `mode: enforce`",
            settings if !settings.paused.is_empty() => "must not be paused",
            _ if !accepts(queue, load) => {
                "does not accept the jobs of the load, or does not deliver them to it"
            }
            _ => return,
        };
        faults.add(path, format!("{:?} {problem}", self.queue));
    }
}

/// Returns true if the service of a load may submit its jobs and receives them.
fn accepts(queue: &Queue, load: &Load) -> bool {
    let route = key::RouteKey::new(&load.caller, super::CLUSTER, &load.call.service, &load.call.method);
    // An invalid name has a fault of its own.
    let route = route.ok();
    route.is_none_or(|route| queue.accepts_route(&route))
        && queue.accepts_from(&load.caller)
        && queue.delivers_to(&load.caller, &load.caller)
}
