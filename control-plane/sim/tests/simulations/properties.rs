//! Whatever the scenario: nothing is lost, nothing comes from nowhere, and a seed decides everything.

use std::time::Duration;

use damper_core::{Budget, Code, CodeSet, Hedge, HedgeDelay, Mode, Policy, Ratio, RetryBreaker};
use damper_sim::scenario::{
    self, Arrivals, Balance, Fault, FaultKind, Flapping, Peer, PeerBackoff, PeerCap, Scenario,
};
use damper_sim::{Outcome, Spread};
use proptest::prelude::*;

use crate::harness::{chain, damper, ms, peer, simulated, three_attempts};

fn kind() -> impl Strategy<Value = FaultKind> {
    let share = (1_u32..=10_000).prop_map(Ratio::from_bp);
    prop_oneof![
        share.clone().prop_map(|share| FaultKind::Error { code: Code::Unavailable, share }),
        share.clone().prop_map(|share| FaultKind::Slow { add: ms(300), factor: Ratio::ONE, share }),
        share.clone().prop_map(|share| FaultKind::NoAnswer { share }),
        share.prop_map(|share| FaultKind::LostAnswer { share }),
        Just(FaultKind::Crash),
        (0_u32..2).prop_map(|count| FaultKind::Workers { count }),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    let times = (0_u64..4_000, prop::option::of(1_u64..3_000), prop::option::of((2_u64..900, 1_u64..900)));
    ("[abc]", kind(), prop::option::of(1_u32..=2), times).prop_map(|(service, kind, instances, times)| {
        let (from, length, flapping) = times;
        Fault {
            service,
            method: None,
            instances,
            from: ms(from),
            until: length.map(|length| ms(from + length)),
            flapping: flapping
                .map(|(period, on)| Flapping { period: ms(period), on: ms(on.min(period - 1)) }),
            kind,
        }
    })
}

fn strategy() -> impl Strategy<Value = scenario::Strategy> {
    let damped = (any::<[bool; 4]>(), 1_u32..=5).prop_map(|([breaker, hedge, budget, observe], attempts)| {
        let mut policy = three_attempts();
        let retry = policy.retry.as_mut().unwrap();
        retry.max_attempts = attempts;
        retry.per_attempt_timeout = Some(ms(100));
        retry.codes = CodeSet::of(&[Code::Unavailable, Code::DeadlineExceeded]);
        retry.backoff = damper_core::Backoff::default();
        policy.retry_breaker = breaker.then(RetryBreaker::default);
        policy.hedge = hedge.then_some(Hedge { delay: HedgeDelay::Fixed(ms(20)), max_hedges: 2 });
        policy.budget = budget.then(Budget::default);
        policy.mode = if observe { Mode::Observe } else { Mode::Enforce };
        damper(Policy { timeout: Some(ms(700)), ..policy })
    });
    let caps = [
        None,
        Some(PeerCap::Budget(Default::default())),
        Some(PeerCap::Throttling(Default::default())),
        Some(PeerCap::Quota(Default::default())),
    ];
    let caps = prop::sample::select(caps.to_vec());
    let peers = (1_u32..=5, any::<[bool; 2]>(), caps).prop_map(|(attempts, [timeout, waits], cap)| {
        peer(Peer {
            per_attempt_timeout: timeout.then_some(ms(100)),
            backoff: waits.then(PeerBackoff::default),
            cap,
            ..Peer::naive(attempts)
        })
    });
    prop_oneof![damped, peers]
}

fn any_scenario() -> impl Strategy<Value = Scenario> {
    let load = (any::<[bool; 4]>(), 1_u32..=3, any::<u64>());
    (strategy(), prop::collection::vec(fault(), 0..4), load).prop_map(|(strategy, faults, load)| {
        let ([closed, cancellable, parallel, limited], instances, seed) = load;
        let mut scenario = Scenario { duration: ms(4_500), seed, faults, ..chain(3, strategy) };
        scenario.network = Spread::Uniform { min: Duration::ZERO, max: ms(2) };
        for service in &mut scenario.services {
            service.instances = instances.max(2);
            service.balance = if parallel { Balance::Random } else { Balance::RoundRobin };
            service.cancellable = cancellable;
            service.workers = limited.then_some(2);
            service.queue = limited.then_some(3);
            service.methods[0].time = Spread::LogNormal { median: ms(5), p99: ms(80) };
        }
        if parallel {
            let below = scenario.services[1].methods[0].calls[0][0].clone();
            scenario.services[0].methods[0].calls[0].push(below);
        }
        scenario.load[0].timeout = cancellable.then_some(ms(800));
        if closed {
            let think = Spread::Exponential { mean: ms(100) };
            scenario.load[0].arrivals = Arrivals::Closed { users: 5, think };
        }
        scenario
    })
}

fn check_conservation(outcome: &Outcome) {
    for figures in &outcome.strategies {
        let ended: u64 = figures.codes.values().sum();
        assert_eq!(figures.requests, ended + figures.unfinished);
        assert_eq!(figures.succeeded, figures.codes.get("OK").copied().unwrap_or(0));
        assert_eq!(figures.requests, figures.phases.iter().map(|phase| phase.requests).sum::<u64>());
        assert_eq!(figures.requests, figures.timeline.iter().map(|second| second.requests).sum::<u64>());
        let top: u64 = figures.hops.iter().filter(|hop| hop.caller == "top").map(|hop| hop.calls).sum();
        assert_eq!(figures.requests, top);
        for hop in &figures.hops {
            let fates: u64 = hop.fates.values().sum();
            assert_eq!(hop.calls, fates + hop.unfinished, "{hop:?}");
            let repeats = hop.retries + hop.hedges + hop.resends;
            // What is out of time or refused by a circuit breaker is not sent.
            assert!(hop.attempts <= hop.calls + repeats && hop.attempts >= repeats, "{hop:?}");
        }
        for service in &figures.services {
            let to_it = figures.hops.iter().filter(|hop| hop.callee == service.service);
            assert!(service.arrived <= to_it.map(|hop| hop.attempts).sum::<u64>());
            let dealt_with = service.handler_runs + service.shed_repeats + service.queue_full;
            assert!(dealt_with <= service.arrived, "{service:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_nothing_comes_from_nowhere(scenario in any_scenario()) {
        check_conservation(&simulated(&scenario));
    }

    #[test]
    fn a_seed_decides_everything(scenario in any_scenario()) {
        let text = |scenario: &Scenario| serde_json::to_string(&simulated(scenario)).unwrap();
        prop_assert_eq!(text(&scenario), text(&scenario));
    }
}

#[test]
fn another_seed_is_another_course_of_events() {
    let mut scenario = chain(2, peer(Peer::naive(1)));
    scenario.services[0].methods[0].time = Spread::Exponential { mean: ms(5) };
    let p99 = |seed| simulated(&Scenario { seed, ..scenario.clone() }).strategies[0].latency.p99_us;
    assert_ne!(p99(1), p99(2));
}

#[test]
fn strategies_that_are_compared_meet_the_same_arrivals() {
    let mut scenario = chain(2, peer(Peer::naive(1)));
    let rate = scenario::RateFrom { from: Duration::ZERO, milli_per_second: 50_000 };
    scenario.load[0].arrivals = Arrivals::Open { even: false, rates: vec![rate] };
    scenario.strategies.push(damper(three_attempts()));
    scenario.faults = vec![Fault {
        service: "b".to_owned(),
        method: None,
        instances: None,
        from: Duration::ZERO,
        until: None,
        flapping: None,
        kind: FaultKind::Error { code: Code::Unavailable, share: Ratio::from_bp(3_000) },
    }];
    let outcome = simulated(&scenario);
    let begun =
        |i: usize| outcome.strategies[i].timeline.iter().map(|second| second.requests).collect::<Vec<_>>();
    assert_eq!(begun(0), begun(1));
}
