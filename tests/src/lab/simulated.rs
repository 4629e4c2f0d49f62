//! A scenario of the lab in virtual time: the same chain, rules, faults and load, decided by the simulator.
//!
//! What comes out is a [`Record`], as from real processes, so that the same code makes figures of both. Requests are
//! numbered here too: an attempt belongs to the request that caused it.
//!
//! Not as in the lab: a message takes [`MESSAGE`] and work without a queue takes no time, since processor time is not
//! simulated; random shares are other draws; at a standstill the queue holds one less, for nobody has one in hand.

use std::time::Duration;

use damper_core::{Code, CodeSet, Ratio};
use damper_proto::manifest;
use damper_sim::scenario::{
    Arrivals, Balance, Fault, FaultKind, Flapping, Load, Method, Peer, PeerBackoff, PeerBudget, PeerCap,
    PeerJitter, PeerQuota, PeerThrottling, RateFrom, Retries, Service, Strategy as Simulated, Target,
};
use damper_sim::{Spread, Trace, trace};

use super::load::Ended;
use super::results::name;
use super::scenario::{FLAP_MS, Record, SLOW_MS, SLOW_PERCENT, Scenario, Trouble};
use super::strategy::{ATTEMPTS, BUDGET, Strategy, WAIT, service};
use crate::hop::METHOD;

/// One way over loopback through both stacks, from and to: a refused repeat costs the lab 0.12 ms, there and back, as
/// the 27 of `m4/errors-100/naive` beside the 9 of `m3` show. Never twice the same, as in the lab: what begins every
/// 20 ms does not meet the ends of windows exactly.
pub const MESSAGE: (Duration, Duration) = (Duration::from_micros(40), Duration::from_micros(80));

const CUSTOMER: &str = "customer";
/// What a retry costs in the AWS SDKs from 2026 on, whatever the failure.
const AWS_COST: u32 = 14;

impl Scenario {
    /// Plays it in virtual time.
    #[must_use]
    pub fn simulated(&self) -> Record {
        let mut traces = trace(&self.in_virtual_time()).expect("the lab's scenarios are in range");
        record(&traces.remove(0), self.layers - self.called() + 1, self.called() - 1)
    }

    /// The simulator's scenario.
    #[must_use]
    pub fn in_virtual_time(&self) -> damper_sim::Scenario {
        damper_sim::Scenario {
            name: name(self),
            duration: self.parts.all(),
            seed: self.seed,
            network: Spread::Uniform { min: MESSAGE.0, max: MESSAGE.1 },
            services: (self.called()..=self.layers).map(|layer| self.service(layer)).collect(),
            load: vec![self.customers()],
            faults: self.simulated_faults(),
            strategies: vec![Simulated {
                name: self.strategy.name().to_owned(),
                retries: self.retries(),
                queues: Vec::new(),
            }],
        }
    }

    /// The first layer that is called: callers of a fleet make the load themselves.
    fn called(&self) -> usize {
        if self.fleet.is_some() { 2 } else { 1 }
    }

    fn service(&self, layer: usize) -> Service {
        let is_bottom = layer == self.layers;
        let capacity = self.capacity.filter(|_| is_bottom);
        let time = capacity.map_or(Duration::ZERO, |capacity| period(capacity.per_second));
        let calls = if is_bottom { Vec::new() } else { vec![vec![Target::new(&service(layer + 1), METHOD)]] };
        let method = Method { name: METHOD.to_owned(), time: Spread::Fixed(time), calls };
        Service {
            instances: if is_bottom { self.bottoms() as u32 } else { 1 },
            balance: match self.strategy {
                Strategy::DamperBalanced => Balance::Balanced,
                _ => Balance::Random,
            },
            full_cost: percent(capacity.map_or(0, |capacity| capacity.refusal_percent)),
            workers: capacity.map(|_| 1),
            queue: capacity.map(|capacity| capacity.queue as u32),
            // A station works off whatever was queued; all else ends when its caller hangs up.
            cancellable: capacity.is_none(),
            ..Service::new(&service(layer), vec![method])
        }
    }

    fn customers(&self) -> Load {
        let milli_per_second = u64::from(self.load.rate) * 1_000;
        let rates = vec![RateFrom { from: Duration::ZERO, milli_per_second }];
        Load {
            caller: self.fleet.map_or_else(|| CUSTOMER.to_owned(), |_| service(1)),
            processes: self.fleet.map_or(1, |fleet| fleet.callers as u32),
            call: Target::new(&service(self.called()), METHOD),
            timeout: Some(self.load.patience),
            bare: self.fleet.is_none(),
            restart: self.fleet.and_then(|fleet| fleet.restart),
            arrivals: Arrivals::Open { even: self.fleet.is_none(), rates },
        }
    }

    fn retries(&self) -> Retries {
        if self.strategy.is_damper() {
            let text = self.strategy.manifest(self.layers, &self.times);
            let checked = manifest::parse(&text).and_then(|documents| manifest::check(&documents));
            let checked = checked.expect("the control plane accepts it");
            return Retries::Damper { rules: checked.rules, guards: checked.guards };
        }
        let timeout = |caller| (service(caller + 1), self.times.attempt_of(caller, self.layers));
        // gRPC has no time-out of an attempt.
        let timed = 1..if self.strategy == Strategy::GrpcThrottling { 1 } else { self.layers };
        let waits = !matches!(self.strategy, Strategy::None | Strategy::Naive);
        Retries::Peer(Peer {
            attempts: if self.strategy == Strategy::None { 1 } else { ATTEMPTS },
            codes: CodeSet::of(&[Code::Unavailable, Code::DeadlineExceeded]),
            per_attempt_timeout: None,
            callee_timeouts: timed.map(timeout).collect(),
            backoff: waits.then_some(PeerBackoff { base: WAIT.0, max: WAIT.1, jitter: PeerJitter::Added }),
            cap: self.cap(),
        })
    }

    fn cap(&self) -> Option<PeerCap> {
        let (share, min_per_sec) = BUDGET;
        match self.strategy {
            Strategy::TowerBudget => Some(PeerCap::Budget(PeerBudget {
                ttl: self.times.window().max(Duration::from_secs(1)),
                min_per_sec,
                retry_percent: Ratio::from_bp((share * 1e4).round() as u32),
            })),
            Strategy::GrpcThrottling => Some(PeerCap::Throttling(PeerThrottling::default())),
            Strategy::AwsQuota => Some(PeerCap::Quota(PeerQuota {
                cost: AWS_COST,
                timeout_cost: AWS_COST,
                ..PeerQuota::default()
            })),
            strategy => {
                assert!(strategy.is_simulated(), "the simulator has no {strategy}");
                None
            }
        }
    }

    fn simulated_faults(&self) -> Vec<Fault> {
        let refuse = |share| FaultKind::Error { code: Code::Unavailable, share };
        let flapping =
            Flapping { period: Duration::from_millis(2 * FLAP_MS), on: Duration::from_millis(FLAP_MS) };
        let at = |layer: usize, kind| Fault {
            service: service(layer),
            method: None,
            instances: None,
            from: self.parts.broken(),
            until: Some(self.parts.healed()),
            flapping: None,
            kind,
        };
        let bottom = |kind| at(self.layers, kind);
        match self.trouble {
            Trouble::Errors(share) => vec![bottom(refuse(percent(share)))],
            Trouble::Middle => vec![at(self.faulty(), refuse(Ratio::ONE))],
            Trouble::Silent => vec![bottom(FaultKind::NoAnswer { share: Ratio::ONE })],
            Trouble::Lost => {
                let mute =
                    (2..self.layers).map(|layer| at(layer, FaultKind::LostAnswer { share: Ratio::ONE }));
                mute.chain([bottom(FaultKind::NoAnswer { share: Ratio::ONE })]).collect()
            }
            Trouble::Slow => vec![bottom(FaultKind::Slow {
                add: Duration::from_millis(SLOW_MS),
                factor: Ratio::ONE,
                share: percent(SLOW_PERCENT),
            })],
            Trouble::Overload | Trouble::OverloadCostly => {
                let well = self.capacity.map_or(Duration::ZERO, |capacity| period(capacity.per_second));
                let add = period(self.overloaded()).saturating_sub(well);
                vec![bottom(FaultKind::Slow { add, factor: Ratio::ONE, share: Ratio::ONE })]
            }
            Trouble::Partial => vec![Fault { instances: Some(1), ..bottom(refuse(Ratio::ONE)) }],
            Trouble::Flapping => vec![Fault { flapping: Some(flapping), ..bottom(refuse(Ratio::ONE)) }],
            Trouble::Stall | Trouble::StallRestarts | Trouble::StallPatient(_) => {
                vec![bottom(FaultKind::Workers { count: 0 })]
            }
        }
    }
}

fn percent(share: u32) -> Ratio {
    Ratio::from_bp(share * 100)
}

/// How long one request takes of so many per second, in whole microseconds.
fn period(per_second: u32) -> Duration {
    Duration::from_micros(1_000_000 / u64::from(per_second.max(1)))
}

/// The layers that were called, and so many above them that each request reached once.
fn record(traces: &[Trace], layers: usize, above: usize) -> Record {
    let ended = |trace: &Trace| {
        let end = trace.ended_us.expect("customers hang up in the end");
        let [due, took] = [trace.begun_us, end - trace.begun_us].map(Duration::from_micros);
        Ended { due, took, success: trace.succeeded }
    };
    Record {
        ended: traces.iter().map(ended).collect(),
        arrivals: std::iter::repeat_n(vec![1; traces.len()], above)
            .chain((0..layers).map(|layer| traces.iter().map(|trace| trace.arrivals[layer]).collect()))
            .collect(),
    }
}
