//! Which scenarios are run, and with which times.
//!
//! The matrix scales the breaker's window down from ten seconds to two, and with it tower's budget, so that hundreds
//! of scenarios fit into a run; the stall, which asks how long it takes to come back, has the default window. Counts
//! hang on the window only through how many requests are in it.

use std::time::Duration;

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
            all.extend(Strategy::ALL.map(|strategy| scenario(layers, trouble, strategy)));
        }
    }
    all.extend(Strategy::ALL.map(stall));
    all
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
        Backoff, Damper, DamperBreaker, DamperDeadline, DamperHedge, DamperLimit, DamperRatio, DamperUp,
        Naive, None, TowerBudget,
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
    add(LAYERS, Trouble::Partial, &[None, Naive, TowerBudget, Damper, DamperRatio]);
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
    let capacity = (trouble == Trouble::Overload).then_some(Capacity { per_second: 200, queue: 1 });
    Scenario { layers, trouble, strategy, times, load, parts, capacity, seed: SEED }
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
    let capacity = Some(Capacity { per_second: 125, queue: 50 });
    let load = Load { rate: 100, patience: ms(2000) };
    Scenario { layers: 3, trouble: Trouble::Stall, strategy, times, load, parts, capacity, seed: SEED }
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
