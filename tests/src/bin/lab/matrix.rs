//! Which scenarios are run, and with which times.
//!
//! The matrix scales the breaker's window down from ten seconds to two, and with it tower's budget, so that hundreds
//! of scenarios fit into a run; the stall, which asks how long it takes to come back, has the default window. Counts
//! hang on the window only through how many requests are in it.

use std::time::Duration;

use damper_tests::lab::fleet::Fleet;
use damper_tests::lab::layer::Capacity;
use damper_tests::lab::load::Load;
use damper_tests::lab::scenario::{Parts, Scenario, Trouble};
use damper_tests::lab::strategy::{Strategy, Times};

/// The shares of errors, in percent.
pub(crate) const SHARES: [u32; 7] = [1, 5, 10, 15, 30, 50, 100];
/// Layers of the chains, the top included.
pub(crate) const LENGTHS: [usize; 4] = [2, 3, 4, 5];
/// Where one chain stands for all.
pub(crate) const LAYERS: usize = 4;
/// The faults that the target for chains names, ...
pub(crate) const TARGETED: [Trouble; 4] =
    [Trouble::Errors(100), Trouble::Errors(50), Trouble::Errors(10), Trouble::Silent];
/// ... and whom it compares.
pub(crate) const COMPARED: [Strategy; 3] = [Strategy::Naive, Strategy::TowerBudget, Strategy::Damper];
const SEED: u64 = 20;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Every strategy against every fault on every chain, and the stall against every strategy.
pub(crate) fn full() -> Vec<Scenario> {
    let troubles = SHARES.map(Trouble::Errors).into_iter().chain(OTHERS);
    let troubles: Vec<_> = troubles.collect();
    let mut all = Vec::new();
    for layers in LENGTHS {
        for &trouble in &troubles {
            // The layer above the bottom is the top of a chain of two.
            if trouble == Trouble::Middle && layers == 2 {
                continue;
            }
            all.extend(chains().map(|strategy| scenario(layers, trouble, strategy)));
        }
    }
    all.extend(chains().map(stall));
    all
}

/// The strategies that a layer of a chain can have.
fn chains() -> impl Iterator<Item = Strategy> {
    Strategy::ALL.into_iter().filter(|strategy| !strategy.is_go())
}

const OTHERS: [Trouble; 7] = [
    Trouble::Middle,
    Trouble::Silent,
    Trouble::Lost,
    Trouble::Slow,
    Trouble::Overload,
    Trouble::Partial,
    Trouble::Flapping,
];

/// A selection: every share of errors, every other fault and every step of Damper on one chain, and at every length what
/// the target names.
pub(crate) fn short() -> Vec<Scenario> {
    use Strategy::{
        Backoff, Damper, DamperBalanced, DamperBreaker, DamperDeadline, DamperHedge, DamperLimit,
        DamperRatio, DamperUp, Naive, None, TowerBudget,
    };
    let mut all = Vec::new();
    let mut add = |layers, trouble, strategies: &[Strategy]| {
        all.extend(strategies.iter().map(|&strategy| scenario(layers, trouble, strategy)));
    };
    for share in SHARES {
        add(LAYERS, Trouble::Errors(share), &[Naive, TowerBudget, Damper, DamperRatio]);
    }
    add(LAYERS, Trouble::Errors(100), &[Backoff, DamperBreaker, DamperUp, DamperDeadline, DamperLimit]);
    add(LAYERS, Trouble::Middle, &[Naive, TowerBudget, Damper]);
    add(LAYERS, Trouble::Silent, &[Naive, TowerBudget, Damper, DamperDeadline]);
    add(LAYERS, Trouble::Lost, &[Naive, TowerBudget, DamperBreaker, Damper]);
    add(LAYERS, Trouble::Slow, &[None, Naive, Damper, DamperHedge]);
    add(LAYERS, Trouble::Overload, &[None, Naive, TowerBudget, Damper]);
    add(LAYERS, Trouble::Partial, &[None, Naive, TowerBudget, Damper, DamperRatio, DamperBalanced]);
    add(LAYERS, Trouble::Flapping, &[None, Naive, TowerBudget, Damper, DamperRatio]);
    for layers in LENGTHS.into_iter().filter(|layers| *layers != LAYERS) {
        for trouble in TARGETED {
            add(layers, trouble, &COMPARED);
        }
    }
    all.extend([None, Naive, Backoff, TowerBudget, Damper, DamperRatio].map(stall));
    all
}

/// The scenario of this name.
pub(crate) fn of(layers: usize, trouble: Trouble, strategy: Strategy) -> Scenario {
    if trouble == Trouble::Stall { stall(strategy) } else { scenario(layers, trouble, strategy) }
}

fn scenario(layers: usize, trouble: Trouble, strategy: Strategy) -> Scenario {
    // Where every answer comes at once an attempt has so much time that a busy machine does not count as a fault.
    let attempt = match trouble {
        Trouble::Silent | Trouble::Lost | Trouble::Slow | Trouble::Overload => ms(80),
        _ => ms(1000),
    };
    let times = Times { attempt, bucket: ms(200), deadline: ms(1000), hedge: ms(15) };
    let load = Load { rate: 50, patience: ms(3500) };
    // A call to a bottom that does not answer may take all of the customer's patience.
    let longest = match trouble {
        Trouble::Silent | Trouble::Lost => load.patience,
        _ => ms(1000),
    };
    // A share needs more requests to show than an outage.
    let steady = if matches!(trouble, Trouble::Errors(..100)) { ms(6000) } else { ms(3000) };
    let parts = Parts {
        warm_up: ms(1000),
        healthy: ms(2500),
        first: times.window(),
        steady,
        end: longest,
        after: ms(4500),
    };
    // Seven tenths of the load are 29 ms each: one that waits for another is served within an attempt's time.
    let capacity =
        (trouble == Trouble::Overload).then_some(Capacity { per_second: 200, queue: 1, refusal_percent: 0 });
    Scenario { layers, trouble, strategy, times, load, fleet: None, parts, capacity, seed: SEED }
}

/// The metastable one: the load is 0.8 of the capacity, the bottom stands still for ten seconds, and its queue is
/// worth 0.4 s, which is twice what an attempt waits.
fn stall(strategy: Strategy) -> Scenario {
    let times = Times { attempt: ms(200), bucket: ms(1000), deadline: ms(1500), hedge: ms(40) };
    let parts = Parts {
        warm_up: ms(2000),
        healthy: ms(10_000),
        first: ms(10_000),
        steady: ms(0),
        end: ms(0),
        after: ms(40_000),
    };
    let capacity = Some(Capacity { per_second: 125, queue: 50, refusal_percent: 0 });
    let load = Load { rate: 100, patience: ms(2000) };
    let trouble = Trouble::Stall;
    Scenario { layers: 3, trouble, strategy, times, load, fleet: None, parts, capacity, seed: SEED }
}

/// Callers in the fleets, which make 300 calls a second together: one process, twenty, three hundred and a thousand.
pub(crate) const FLEETS: [usize; 4] = [1, 20, 300, 1_000];
/// Those of them that real processes play, ...
const REAL_FLEETS: [usize; 2] = [1, 1_000];
/// ... and what goes wrong with them.
const REAL_TROUBLES: [Trouble; 5] =
    [Trouble::Stall, Trouble::StallRestarts, Trouble::Errors(100), Trouble::Overload, Trouble::Errors(10)];
/// What the simulator plays besides.
const SIMULATED_TROUBLES: [Trouble; 5] = [
    Trouble::StallPatient(1),
    Trouble::StallPatient(5),
    Trouble::OverloadCostly,
    Trouble::Errors(30),
    Trouble::Flapping,
];
/// The strategies of fleets: without chains there is nothing for flags to do.
pub(crate) const OF_FLEETS: [Strategy; 10] = [
    Strategy::None,
    Strategy::Naive,
    Strategy::TowerBudget,
    Strategy::GrpcThrottling,
    Strategy::AwsQuota,
    Strategy::Kitex,
    Strategy::FailsafeGo,
    Strategy::DamperRatio,
    Strategy::Damper,
    Strategy::DamperLimit,
];

/// What of the fleets is run with real processes.
pub(crate) fn fleets() -> Vec<Scenario> {
    all_fleets(&REAL_FLEETS, &REAL_TROUBLES)
}

/// What of them is simulated: all of it, but for the strategies that the simulator does not have.
pub(crate) fn simulated_fleets() -> Vec<Scenario> {
    let troubles = [REAL_TROUBLES, SIMULATED_TROUBLES].concat();
    let mut all = all_fleets(&FLEETS, &troubles);
    all.retain(|scenario| scenario.strategy.is_simulated());
    all
}

fn all_fleets(sizes: &[usize], troubles: &[Trouble]) -> Vec<Scenario> {
    let of = |trouble: Trouble| {
        let sizes = sizes.iter().copied();
        sizes.flat_map(move |callers| OF_FLEETS.map(|strategy| fleet(callers, trouble, strategy)))
    };
    troubles.iter().copied().flat_map(of).collect()
}

/// A fleet and its callee. Callers are healthy for a minute first: so rare ones have made the ten calls in a row that
/// earn them a retry, and all have been through a restart.
pub(crate) fn fleet(callers: usize, trouble: Trouble, strategy: Strategy) -> Scenario {
    let seconds = |seconds: u64| Duration::from_secs(seconds);
    let attempt = match trouble {
        Trouble::StallPatient(patience) => seconds(u64::from(patience)),
        _ if trouble.is_stall() => ms(200),
        _ => ms(1000),
    };
    let times = Times { attempt, bucket: ms(1000), deadline: attempt * 4, hedge: attempt };
    // All attempts, and the waits between them.
    let load = Load { rate: 300, patience: attempt * 3 + ms(300) };
    let warm_up = seconds(5);
    let healthy = seconds(if trouble == Trouble::StallRestarts { 60 } else { 55 });
    let parts = if trouble.is_stall() {
        let after = if attempt > seconds(1) { 90 } else { 45 };
        Parts { warm_up, healthy, first: seconds(10), steady: ms(0), end: ms(0), after: seconds(after) }
    } else {
        Parts {
            warm_up,
            healthy,
            first: seconds(10),
            steady: seconds(30),
            end: seconds(1),
            after: seconds(10),
        }
    };
    let capacity = match trouble {
        // The load is 0.8 of it; a full queue keeps one waiting for twice the time that an attempt has.
        _ if trouble.is_stall() => {
            let queue = (375.0 * 2.0 * attempt.as_secs_f64()) as usize;
            Some(Capacity { per_second: 375, queue, refusal_percent: 0 })
        }
        Trouble::Overload => Some(Capacity { per_second: 500, queue: 15, refusal_percent: 0 }),
        Trouble::OverloadCostly => Some(Capacity { per_second: 500, queue: 15, refusal_percent: 30 }),
        _ => None,
    };
    let restart = (trouble == Trouble::StallRestarts).then_some(seconds(60));
    let fleet = Some(Fleet { callers, restart });
    Scenario { layers: 2, trouble, strategy, times, load, fleet, parts, capacity, seed: SEED }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use damper_tests::lab::results::name;

    use super::*;

    fn names(scenarios: &[Scenario]) -> HashSet<String> {
        let names: HashSet<_> = scenarios.iter().map(name).collect();
        assert_eq!(names.len(), scenarios.len(), "none is there twice");
        names
    }

    #[test]
    fn the_selection_is_of_the_whole_and_has_what_the_target_names_at_every_length() {
        let (short, full) = (names(&short()), names(&full()));
        assert_eq!(short.difference(&full).next(), None);
        for layers in 2..=5 {
            for trouble in ["errors-100", "errors-50", "errors-10", "silent"] {
                for strategy in ["naive", "tower-budget", "damper"] {
                    let name = format!("m{layers}/{trouble}/{strategy}");
                    assert!(short.contains(&name), "{name}");
                }
            }
        }
    }
}
