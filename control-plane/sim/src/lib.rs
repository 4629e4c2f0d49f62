//! Damper's own retry rules in virtual time: what a policy does to services under load and faults.
//!
//! A [`Scenario`] goes in, an [`Outcome`] comes out: `Scenario -> Outcome`, decided by one seed and nothing else.
//! Calls are decided by `damper-core`'s `Call` and `RouteState`, repeats are bounded by its repeat limit; this
//! crate only keeps the time, the queues and the network, as the SDK keeps sockets. Peers for comparison (naive
//! retries, the caps of tower, gRPC and the AWS SDKs) are in `peers`.
//!
//! [`file::read`] reads a scenario from YAML; [`what_if`] asks what a change of one route's policy will do.
//! It has no clock, no thread and no I/O. docs/simulator.md says what is modelled and what is not.

mod agenda;
pub mod file;
mod ledger;
mod outcome;
mod peers;
mod plan;
mod random;
pub mod scenario;
mod spread;
mod trace;
mod what_if;
mod world;

pub use damper_core::fault::Faults;
pub use outcome::{Figures, Hop, Latency, Outcome, Phase, RECOVERED_FOR, Second, ServiceFigures};
pub use scenario::Scenario;
pub use spread::{LENGTH, LIST, Spread};
pub use trace::{Trace, trace};
pub use what_if::{Change, Downstream, Measured, Prediction, RATE, Side, what_if};

/// Simulates every strategy of a scenario under its seed.
///
/// # Errors
/// Everything that is wrong with the scenario, by its path in the YAML form.
pub fn run(scenario: &Scenario) -> Result<Outcome, Faults> {
    let plan = plan::Plan::new(scenario)?;
    Ok(Outcome {
        scenario: scenario.name.clone(),
        seed: scenario.seed,
        duration_us: plan.end.as_micros(),
        trouble_us: plan.trouble.map(|(from, until)| [from.as_micros(), until.as_micros()]),
        strategies: simulate(&plan),
    })
}

/// The figures of every strategy, in their order.
fn simulate(plan: &plan::Plan<'_>) -> Vec<Figures> {
    let figures = |strategy: &scenario::Strategy| {
        let ledger = world::World::new(plan, strategy, plan.scenario.seed).run();
        Figures::of(&strategy.name, plan, ledger)
    };
    plan.scenario.strategies.iter().map(figures).collect()
}
