//! Figures of a queued load.

use serde::Serialize;

use super::Latency;
use crate::ledger::JobCount;
use crate::plan::Plan;
use crate::scenario::Arrivals;

/// The jobs of a queued load.
#[derive(Clone, Debug, Serialize)]
pub struct Jobs {
    /// Name of the queue.
    pub queue: String,
    /// Service that submits and delivers them.
    pub caller: String,
    /// Callee.
    pub callee: String,
    /// Method.
    pub method: String,
    /// Submitted jobs.
    pub submitted: u64,
    /// Those that a worker finished.
    pub done: u64,
    /// Those that the policy gave up.
    pub dead: u64,
    /// Those whose time ran out.
    pub expired: u64,
    /// Those that wait at the end, or are in flight.
    pub waiting: u64,
    /// Deliveries.
    pub deliveries: u64,
    /// Deliveries that began before, during and after the faults; all before, without faults.
    pub deliveries_by_phase: [u64; 3],
    /// Deliveries that failed.
    pub failed: u64,
    /// Deliveries that the worker's own rule did not send.
    pub released: u64,
    /// Time from the submission to the end of jobs that are done.
    pub wait: Latency,
    /// Time from the end of the last fault, or from the beginning, to the end of the last job; `None` while
    /// jobs wait.
    pub drained_after_us: Option<u64>,
}

impl Jobs {
    /// Returns the figures of all queued loads.
    pub(super) fn of(plan: &Plan<'_>, counts: Vec<JobCount>) -> Vec<Self> {
        let mut all = Vec::new();
        for (load, mut count) in plan.scenario.load.iter().zip(counts) {
            let Arrivals::Queued(queued) = &load.arrivals else { continue };
            let done = count.done_us.len() as u64;
            let waiting = count.submitted - done - count.dead - count.expired;
            let from = plan.trouble.map_or(0, |(_, until)| until.as_micros());
            all.push(Self {
                queue: queued.queue.clone(),
                caller: load.caller.clone(),
                callee: load.call.service.clone(),
                method: load.call.method.clone(),
                submitted: count.submitted,
                done,
                dead: count.dead,
                expired: count.expired,
                waiting,
                deliveries: count.deliveries.iter().sum(),
                deliveries_by_phase: count.deliveries,
                failed: count.failed,
                released: count.released,
                wait: Latency::of(&mut count.done_us),
                drained_after_us: (waiting == 0).then(|| count.last_ended.as_micros().saturating_sub(from)),
            });
        }
        all
    }
}
