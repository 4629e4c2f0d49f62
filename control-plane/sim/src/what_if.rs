//! Predicts the effect of a change of one route's policy.
//!
//! A small simulation of the route alone, before and after, against a callee that behaves as measured, fails
//! at least a tenth of its requests, or all. The first window of the simulation is as measured, so that the
//! retry breaker begins with a full window; results cover the time after it.
//!
//! The callee has unlimited capacity: slower responses under more load are not predicted. A route of many
//! processes is simulated with some of them, each with its own state. A fast process is simulated as a slower
//! one, since shares do not depend on the rate; so the single token of a small caller and the minimum of a
//! budget weigh a little more than in production. That keeps a response below 200 ms at any traffic.

use std::time::Duration;

use damper_core::fault::{Bounds, Faults};
use damper_core::{Bound, Code, Pattern, Policy, Ratio, Rule, Time};

use crate::outcome::Figures;
use crate::plan::Plan;
use crate::scenario::{
    Arrivals, Fault, FaultKind, Load, Method, RateFrom, Retries, Scenario, Service, Strategy, Target,
};
use crate::spread::Spread;

/// Calls per second of a route, in thousandths.
pub const RATE: Bounds<u32> = Bounds { min: 1, max: 1_000_000_000 };
/// Processes of the caller.
const PROCESSES: Bounds<u32> = Bounds { min: 1, max: 1_000_000 };
/// Most simulated calls; their shares are within about 2 % of those of all.
const CALLS: u64 = 12_000;
/// Shortest time of a state: twice the window of the retry breaker.
const STATE: Duration = Duration::from_secs(20);
/// Longest time: that of a route with little traffic.
const LONGEST_STATE: Duration = Duration::from_secs(3600);
/// Time as measured before the state begins: at least a window of the retry breaker.
const BEFORE: Duration = Duration::from_secs(10);
/// Fewest calls of each process, so that processes with little traffic have earned their credit.
const CALLS_BEFORE: u64 = 15;
const SEED: u64 = 1;
const METHOD: &str = "any.Service/Method";

/// A change of one route's policy.
#[derive(Clone, Debug)]
pub struct Change<'a> {
    /// Policy in force, guards included. `None`: no rule.
    pub before: Option<&'a Policy>,
    /// New policy. `None`: the rule is deleted.
    pub after: Option<&'a Policy>,
    /// Measurements of the route.
    pub measured: Measured,
}

/// Recent measurements of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Calls per second of all processes, in thousandths. 1 to 1,000,000,000.
    pub calls_milli_per_second: u32,
    /// Number of calling processes. 1 to 1,000,000.
    pub processes: u32,
    /// Shares of failed attempts by code. Together 0 to 1.
    pub failures: Vec<(Code, Ratio)>,
    /// Median of attempts.
    pub p50: Duration,
    /// 99th percentile of attempts.
    pub p99: Duration,
}

/// State of the callee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Downstream {
    /// As measured.
    AsMeasured,
    /// At least a tenth of the requests fail with UNAVAILABLE, more if more was measured; the others as
    /// measured.
    TenthFailing,
    /// All requests fail with UNAVAILABLE.
    TotalOutage,
}

/// Prediction of a change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// With the policy in force.
    pub before: Side,
    /// With the new policy.
    pub after: Side,
}

/// One side of a change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Side {
    /// Attempts per call.
    pub attempts_per_call: f64,
    /// Share of successful calls.
    pub success_rate: f64,
    /// Median of successful calls. 0 without successes, as the other.
    pub p50_us: u64,
    /// 99th percentile of successful calls.
    pub p99_us: u64,
    /// Most attempts of a call.
    pub worst_case: u32,
}

/// Predicts the effect of a change of one route's policy.
///
/// # Errors
/// Values out of range, by path: `measured.p99`, `after.retry.max_attempts`.
pub fn what_if(change: &Change<'_>, downstream: Downstream) -> Result<Prediction, Faults> {
    let mut faults = Faults::none();
    change.measured.check(&mut faults);
    let side = |name: &str, policy: Option<&Policy>, faults: &mut Faults| {
        let rule = policy.map(|policy| rule(policy.clone())).transpose();
        rule.map_err(|found| faults.nest(name, found)).unwrap_or_default()
    };
    let rules = [side("before", change.before, &mut faults), side("after", change.after, &mut faults)];
    faults.or(())?;
    let [before, after] = rules.map(|rule| rule.into_iter().collect());
    let strategies = [("before", before), ("after", after)]
        .map(|(name, rules)| Strategy {
            name: name.to_owned(),
            retries: Retries::Damper { rules, guards: Vec::new() },
            queues: Vec::new(),
        })
        .to_vec();
    let scenario = change.measured.scenario(downstream, strategies);
    let mut plan = Plan::new(&scenario)?;
    // Measurements may contain failures as well; the state comes after.
    plan.trouble = Some((Time::after_origin(change.measured.before()), plan.end));
    let figures = crate::simulate(&plan);
    let [before, after] =
        [(0, change.before), (1, change.after)].map(|(index, policy)| Side::of(&figures[index], policy));
    Ok(Prediction { before, after })
}

fn rule(policy: Policy) -> Result<Rule, Faults> {
    let pattern = Pattern::parse("*", "*", "*", METHOD)?;
    Rule::new(pattern, policy, 0).map_err(|found| {
        let mut faults = Faults::none();
        for fault in found.iter() {
            faults.add(fault.path.strip_prefix("policy.").unwrap_or(&fault.path), &fault.problem);
        }
        faults
    })
}

impl Measured {
    fn check(&self, faults: &mut Faults) {
        RATE.check("measured.calls_milli_per_second", self.calls_milli_per_second, faults);
        PROCESSES.check("measured.processes", self.processes, faults);
        let whole = Bounds { min: Ratio::from_bp(0), max: Ratio::ONE };
        let all = self.failures.iter().fold(0, |all: u32, (_, share)| all.saturating_add(share.bp()));
        whole.check("measured.failures", Ratio::from_bp(all), faults);
        if self.p99 < self.p50 {
            let (p99, p50) = (damper_core::fault::Millis(self.p99), damper_core::fault::Millis(self.p50));
            faults.add("measured.p99", format!("must be at least p50, {p50}, not {p99}"));
        }
        for (path, length) in [("measured.p50", self.p50), ("measured.p99", self.p99)] {
            crate::spread::LENGTH.check(path, length, faults);
        }
    }

    /// The route alone, small enough for an immediate result.
    fn scenario(&self, downstream: Downstream, strategies: Vec<Strategy>) -> Scenario {
        let before = self.before();
        let duration = before + self.state();
        let of_one = self.of_one();
        // Number of simulated processes.
        let most = CALLS * 1_000 / duration.as_secs();
        let processes = (most / of_one).clamp(1, u64::from(self.processes));
        let median = self.p50.max(Duration::from_micros(1));
        let name = String::from("callee");
        let failing = |(code, share), from, until| Fault {
            service: name.clone(),
            method: None,
            instances: None,
            from,
            until,
            flapping: None,
            kind: FaultKind::Error { code, share },
        };
        let as_measured = self.failures(Downstream::AsMeasured).into_iter();
        let as_measured = as_measured.map(|failure| failing(failure, Duration::ZERO, Some(before)));
        let then = self.failures(downstream).into_iter().map(|failure| failing(failure, before, None));
        let time = Spread::LogNormal { median, p99: self.p99.max(median) };
        let method = Method { name: METHOD.to_owned(), time, calls: Vec::new() };
        Scenario {
            name: "what if".to_owned(),
            duration,
            seed: SEED,
            network: Spread::Fixed(Duration::ZERO),
            services: vec![Service::new(&name, vec![method])],
            load: vec![Load {
                caller: "caller".to_owned(),
                processes: u32::try_from(processes).unwrap_or(1),
                call: Target::new(&name, METHOD),
                timeout: None,
                bare: false,
                restart: None,
                arrivals: Arrivals::Open {
                    even: false,
                    rates: vec![RateFrom {
                        from: Duration::ZERO,
                        milli_per_second: (processes * of_one).min(most),
                    }],
                },
            }],
            faults: as_measured.chain(then).collect(),
            strategies,
        }
    }

    /// Failures of requests: each code with its share of those that no earlier code failed.
    fn failures(&self, downstream: Downstream) -> Vec<(Code, Ratio)> {
        let measured = self.failures.iter().copied().filter(|(_, share)| share.bp() > 0);
        let (gone, others): (Vec<_>, Vec<_>) = measured.partition(|(code, _)| *code == Code::Unavailable);
        let gone = gone.iter().map(|(_, share)| share.bp()).sum::<u32>();
        let gone_in_state = match downstream {
            Downstream::AsMeasured => gone,
            Downstream::TenthFailing => gone.max(Ratio::ONE.bp() / 10),
            Downstream::TotalOutage => Ratio::ONE.bp(),
        };
        let mut failures = vec![(Code::Unavailable, Ratio::from_bp(gone_in_state))];
        let mut left = Ratio::ONE.bp() - gone;
        for (code, share) in others {
            failures.push((code, Ratio::from_bp(share.bp() * Ratio::ONE.bp() / left)));
            left -= share.bp();
        }
        failures.retain(|(_, share)| share.bp() > 0);
        failures
    }

    /// Rate of one process, in thousandths of a call per second.
    fn of_one(&self) -> u64 {
        u64::from(self.calls_milli_per_second).div_ceil(u64::from(self.processes)).max(1)
    }

    /// Time of the route as measured.
    fn before(&self) -> Duration {
        let wanted = Duration::from_secs((CALLS_BEFORE * 1_000).div_ceil(self.of_one()));
        wanted.clamp(BEFORE, LONGEST_STATE)
    }

    /// Time of the state: enough calls for statistics of all simulated processes.
    fn state(&self) -> Duration {
        let wanted = CALLS / 4 * 1_000 / u64::from(self.calls_milli_per_second.max(1));
        Duration::from_secs(wanted).clamp(STATE, LONGEST_STATE)
    }
}

impl Side {
    fn of(figures: &Figures, policy: Option<&Policy>) -> Self {
        let state = figures.phases.iter().find(|phase| phase.name == "during");
        Self {
            attempts_per_call: state.map_or(1.0, |state| state.attempts_per_request.iter().sum()),
            success_rate: state.map_or(0.0, |state| state.success_rate),
            p50_us: state.map_or(0, |state| state.latency.p50_us),
            p99_us: state.map_or(0, |state| state.latency.p99_us),
            worst_case: Bound::of(policy).max_attempts,
        }
    }
}
