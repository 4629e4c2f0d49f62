//! Results of a scenario: the statistics of every strategy.
//!
//! All values are counts, whole microseconds, or quotients of two of them, so that results are equal to the
//! last digit on all platforms.
//!
//! **Recovered**: `recovered_after_s` seconds after the end of the last fault (rounded up to a whole second)
//! begin five seconds in which the share of successful requests is at least 95 % of the share before the
//! first fault. `None`: not within the scenario, or no fault that ends.

use std::collections::BTreeMap;

use damper_core::Code;
use serde::Serialize;

use crate::ledger::{HopCount, Ledger, PHASES, SecondCount, ServiceCount};
use crate::plan::Plan;

pub use self::jobs::Jobs;

mod jobs;

/// Good seconds in a row for a recovery.
pub const RECOVERED_FOR: usize = 5;
/// Required share in percent of the share before.
const RECOVERED_PERCENT: u64 = 95;

/// Results of a scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Name of the scenario.
    pub scenario: String,
    /// Random seed.
    pub seed: u64,
    /// Duration of the load.
    pub duration_us: u64,
    /// Start of the first and end of the last fault, in microseconds; `None` without faults.
    pub trouble_us: Option<[u64; 2]>,
    /// Results by strategy, in order.
    pub strategies: Vec<Figures>,
}

/// Results of one strategy.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Name of the strategy.
    pub strategy: String,
    /// Requests at the top.
    pub requests: u64,
    /// Requests answered with OK.
    pub succeeded: u64,
    /// Requests without an end one minute after the start of the last one.
    pub unfinished: u64,
    /// Requests answered with OK per second of the load.
    pub goodput_per_second: f64,
    /// Latency of successful requests.
    pub latency: Latency,
    /// Ended requests by gRPC code.
    pub codes: BTreeMap<&'static str, u64>,
    /// Phases before, during and after the faults, if present.
    pub phases: Vec<Phase>,
    /// Whole seconds from the end of the last fault to the recovery.
    pub recovered_after_s: Option<u64>,
    /// From the top down.
    pub hops: Vec<Hop>,
    /// In order of the scenario.
    pub services: Vec<ServiceFigures>,
    /// Queued loads, in order of the scenario.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<Jobs>,
    /// Second by second, to the end of the load.
    pub timeline: Vec<Second>,
    /// Events of the simulation.
    pub events: u64,
}

/// Latency of successful requests.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Median. 0 without successes, as the others.
    pub p50_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// Maximum.
    pub max_us: u64,
}

/// Requests started in a phase.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// `before`, `during` or `after`; `all` without faults.
    pub name: &'static str,
    /// Number of requests.
    pub requests: u64,
    /// Requests answered with OK.
    pub succeeded: u64,
    /// Share of OK; 0 without requests.
    pub success_rate: f64,
    /// Latency.
    pub latency: Latency,
    /// Attempts in this phase per request started in it, on each hop.
    pub attempts_per_request: Vec<f64>,
    /// Handler runs started in this phase per request started in it, of each service.
    pub handler_runs_per_request: Vec<f64>,
}

/// All calls from one service to one method of another.
#[derive(Clone, Debug, Serialize)]
pub struct Hop {
    /// Caller.
    pub caller: String,
    /// Callee.
    pub callee: String,
    /// Method.
    pub method: String,
    /// Calls.
    pub calls: u64,
    /// Attempts: first ones, retries, hedges and transparent resends.
    pub attempts: u64,
    /// Retries.
    pub retries: u64,
    /// Hedges.
    pub hedges: u64,
    /// Transparent resends: the server had not seen the request.
    pub resends: u64,
    /// Attempts per request at the top.
    pub attempts_per_request: f64,
    /// Unfinished calls.
    pub unfinished: u64,
    /// Ended calls by fate.
    pub fates: BTreeMap<String, u64>,
}

/// A service.
#[derive(Clone, Debug, Serialize)]
pub struct ServiceFigures {
    /// Name of the service.
    pub service: String,
    /// Requests that reached an instance.
    pub arrived: u64,
    /// Retries rejected by the retry limit.
    pub shed_repeats: u64,
    /// Requests that found the queue full.
    pub queue_full: u64,
    /// Requests started by a handler, or failed at once by a fault.
    pub handler_runs: u64,
    /// Handler runs per request at the top.
    pub handler_runs_per_request: f64,
    /// Mean wait of requests that a worker started.
    pub mean_wait_us: f64,
    /// Most waiting requests at one instance.
    pub longest_queue: u64,
    /// Busy time of the workers of all instances.
    pub busy_us: u64,
}

/// One second of the scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Second {
    /// Requests started in it.
    pub requests: u64,
    /// Successful requests among them.
    pub succeeded: u64,
    /// Requests that succeeded in it, from any start: the goodput.
    pub answered: u64,
    /// Attempts in it, on each hop.
    pub attempts: Vec<u64>,
}

impl Figures {
    pub(crate) fn of(strategy: &str, plan: &Plan<'_>, ledger: Ledger) -> Self {
        let Ledger { phases, seconds, hops, services, jobs, unfinished, codes, events, .. } = ledger;
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
            jobs: Jobs::of(plan, jobs),
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

/// A quotient; 0 for a divisor of 0.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
