//! What came of a scenario: the figures of every strategy.
//!
//! Everything is a count, a whole number of microseconds, or a quotient of two of them, so that the figures
//! are the same to the last digit wherever they are made.
//!
//! **Recovered**: `recovered_after_s` seconds after the last fault's end (rounded up to a whole second) begin
//! five seconds in each of which at least 95 % as large a share of the requests succeeds as before the first
//! fault. None: not within the scenario, or it has no fault, or none that ends.

use std::collections::BTreeMap;

use damper_core::Code;
use serde::Serialize;

use crate::ledger::{HopCount, Ledger, PHASES, SecondCount, ServiceCount};
use crate::plan::Plan;

/// So many seconds in a row must be good for a recovery.
pub const RECOVERED_FOR: usize = 5;
/// Hundredths of the share before.
const RECOVERED_PERCENT: u64 = 95;

/// What came of a scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Its name.
    pub scenario: String,
    /// What every random number came from.
    pub seed: u64,
    /// For how long requests were made.
    pub duration_us: u64,
    /// When the first fault began and the last one ended, in microseconds; none without faults.
    pub trouble_us: Option<[u64; 2]>,
    /// By strategy, in their order.
    pub strategies: Vec<Figures>,
}

/// What came of one strategy.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Its name.
    pub strategy: String,
    /// Requests at the top.
    pub requests: u64,
    /// Those that were answered with OK.
    pub succeeded: u64,
    /// Those that had not ended a minute after the last one began.
    pub unfinished: u64,
    /// Requests answered with OK per second of the load.
    pub goodput_per_second: f64,
    /// How long those took that succeeded.
    pub latency: Latency,
    /// How requests ended, by gRPC code.
    pub codes: BTreeMap<&'static str, u64>,
    /// Before, during and after what goes wrong; those that there were.
    pub phases: Vec<Phase>,
    /// Whole seconds from the last fault's end until all was well again.
    pub recovered_after_s: Option<u64>,
    /// From the top down.
    pub hops: Vec<Hop>,
    /// In the scenario's order.
    pub services: Vec<ServiceFigures>,
    /// Second by second, to the end of the load.
    pub timeline: Vec<Second>,
    /// Events of the simulation.
    pub events: u64,
}

/// How long requests took that succeeded.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Half of them took no longer. 0 if none succeeded, as for the others.
    pub p50_us: u64,
    /// 99 of 100 took no longer.
    pub p99_us: u64,
    /// None took longer.
    pub max_us: u64,
}

/// Requests that began in a part of the scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// `before`, `during` or `after`; `all` without faults.
    pub name: &'static str,
    /// How many.
    pub requests: u64,
    /// Those that were answered with OK.
    pub succeeded: u64,
    /// Their share; 0 without requests.
    pub success_rate: f64,
    /// How long they took.
    pub latency: Latency,
    /// Attempts sent in this part, per request that began in it, on each hop.
    pub attempts_per_request: Vec<f64>,
    /// Handler runs that began in this part, per request that began in it, of each service.
    pub handler_runs_per_request: Vec<f64>,
}

/// All calls from one service to one method of another.
#[derive(Clone, Debug, Serialize)]
pub struct Hop {
    /// Who calls.
    pub caller: String,
    /// Who is called.
    pub callee: String,
    /// What is called.
    pub method: String,
    /// Calls.
    pub calls: u64,
    /// Sends: first ones, retries, hedges and transparent resends.
    pub attempts: u64,
    /// Sends after a failure.
    pub retries: u64,
    /// Sends beside another.
    pub hedges: u64,
    /// Sends of what a server had not seen.
    pub resends: u64,
    /// Attempts per request at the top.
    pub attempts_per_request: f64,
    /// Calls that had not ended.
    pub unfinished: u64,
    /// How calls ended, by fate.
    pub fates: BTreeMap<String, u64>,
}

/// A service.
#[derive(Clone, Debug, Serialize)]
pub struct ServiceFigures {
    /// Its name.
    pub service: String,
    /// Requests that reached an instance.
    pub arrived: u64,
    /// Those that the repeat limit refused.
    pub shed_repeats: u64,
    /// Those that found the queue full.
    pub queue_full: u64,
    /// Those that a handler began with, or answered at once with a fault's error.
    pub handler_runs: u64,
    /// Handler runs per request at the top.
    pub handler_runs_per_request: f64,
    /// How long those waited on average that a worker began with.
    pub mean_wait_us: f64,
    /// The most that waited at one instance.
    pub longest_queue: u64,
    /// How long workers were taken, of all instances together.
    pub busy_us: u64,
}

/// One second of the scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Second {
    /// Requests that began in it.
    pub requests: u64,
    /// Those of them that succeeded, then or later.
    pub succeeded: u64,
    /// Requests that succeeded in it, whenever they began: the goodput.
    pub answered: u64,
    /// Attempts sent in it, on each hop.
    pub attempts: Vec<u64>,
}

impl Figures {
    pub(crate) fn of(strategy: &str, plan: &Plan<'_>, ledger: Ledger) -> Self {
        let Ledger { phases, seconds, hops, services, unfinished, codes, events, .. } = ledger;
        let requests = phases.iter().map(|phase| phase.requests).sum();
        let mut all: Vec<u64> = phases.iter().flat_map(|phase| phase.succeeded_us.iter().copied()).collect();
        let succeeded = all.len() as u64;
        let names: [&str; PHASES] =
            if plan.trouble.is_some() { ["before", "during", "after"] } else { ["all", "", ""] };
        let mut named = Vec::new();
        for (number, mut phase) in phases.into_iter().enumerate().filter(|(_, phase)| phase.requests > 0) {
            let succeeded = phase.succeeded_us.len() as u64;
            let per_request = |counts: [u64; PHASES]| share(counts[number], phase.requests);
            named.push(Phase {
                name: names[number],
                requests: phase.requests,
                succeeded,
                success_rate: share(succeeded, phase.requests),
                latency: Latency::of(&mut phase.succeeded_us),
                attempts_per_request: hops.iter().map(|hop| per_request(hop.attempts)).collect(),
                handler_runs_per_request: services
                    .iter()
                    .map(|service| per_request(service.handler_runs))
                    .collect(),
            });
        }
        Self {
            strategy: strategy.to_owned(),
            requests,
            succeeded,
            unfinished,
            goodput_per_second: share(succeeded * 1_000_000, plan.end.as_micros()),
            latency: Latency::of(&mut all),
            codes: by_name(&codes),
            recovered_after_s: recovered_after(plan, &seconds, named.first()),
            phases: named,
            hops: plan.hops.iter().zip(&hops).map(|(hop, count)| Hop::of(hop, count, requests)).collect(),
            services: plan
                .scenario
                .services
                .iter()
                .zip(&services)
                .map(|(service, count)| ServiceFigures::of(&service.name, count, requests))
                .collect(),
            timeline: seconds.into_iter().map(Second::of).collect(),
            events,
        }
    }
}

impl Latency {
    fn of(all: &mut [u64]) -> Self {
        all.sort_unstable();
        let rank = |percent: usize| {
            let rank = (all.len() * percent).div_ceil(100).max(1);
            all.get(rank - 1).copied().unwrap_or(0)
        };
        Self { p50_us: rank(50), p99_us: rank(99), max_us: rank(100) }
    }
}

impl Hop {
    fn of(hop: &crate::plan::Hop<'_>, count: &HopCount, requests: u64) -> Self {
        let attempts = count.attempts.iter().sum();
        Self {
            caller: hop.caller.to_owned(),
            callee: hop.target.service.clone(),
            method: hop.target.method.clone(),
            calls: count.calls,
            attempts,
            retries: count.retries,
            hedges: count.hedges,
            resends: count.resends,
            attempts_per_request: share(attempts, requests),
            unfinished: count.unfinished,
            fates: count.fates().collect(),
        }
    }
}

impl ServiceFigures {
    fn of(service: &str, count: &ServiceCount, requests: u64) -> Self {
        let handler_runs = count.handler_runs.iter().sum();
        Self {
            service: service.to_owned(),
            arrived: count.arrived,
            shed_repeats: count.shed,
            queue_full: count.queue_full,
            handler_runs,
            handler_runs_per_request: share(handler_runs, requests),
            mean_wait_us: share(count.waited_us, count.begun),
            longest_queue: count.longest_queue,
            busy_us: count.busy_us,
        }
    }
}

impl Second {
    fn of(count: SecondCount) -> Self {
        let SecondCount { requests, succeeded, answered, attempts } = count;
        Self { requests, succeeded, answered, attempts }
    }
}

fn by_name(codes: &[u64]) -> BTreeMap<&'static str, u64> {
    let counted = Code::ALL.into_iter().map(|code| (code.name(), codes[code as usize]));
    counted.filter(|(_, count)| *count > 0).collect()
}

fn recovered_after(plan: &Plan<'_>, seconds: &[SecondCount], first: Option<&Phase>) -> Option<u64> {
    let (_, until) = plan.trouble?;
    let (good, of) = match first.filter(|phase| phase.name == "before") {
        Some(before) => (before.succeeded, before.requests),
        None => (1, 1),
    };
    let is_good = |second: &SecondCount| {
        let succeeded = u128::from(second.succeeded) * u128::from(of) * 100;
        succeeded >= u128::from(second.requests) * u128::from(good) * u128::from(RECOVERED_PERCENT)
    };
    let from = usize::try_from(until.as_micros().div_ceil(1_000_000)).ok()?;
    let found = seconds.get(from..)?.windows(RECOVERED_FOR).position(|run| run.iter().all(is_good))?;
    Some(found as u64)
}

/// A quotient; 0 where there is nothing to divide by.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
