//! Damper's retry rules in virtual time: effects of a policy on services under load and faults.
//!
//! A [`Scenario`] with its seed determines the [`Outcome`]. `damper-core`'s `Call` and `RouteState` decide
//! about calls, its `Job` and `Flow` about jobs of queues, and its retry limit about retries; this crate
//! keeps time, queues and network, as the SDK keeps sockets. Peers for comparison (naive retries, the caps of
//! tower, gRPC and the AWS SDKs) are in `peers`.
//!
//! [`file::read`] reads a scenario from YAML; [`what_if`] predicts the effect of a change of one route's
//! policy. The crate has no clock, threads or I/O. docs/simulator.md describes the model and its limits.

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
mod values;
mod what_if;
mod world;

pub use damper_core::fault::Faults;
pub use outcome::{Figures, Hop, Jobs, Latency, Outcome, Phase, RECOVERED_FOR, Second, ServiceFigures};
pub use scenario::Scenario;
pub use spread::{LENGTH, LIST, Spread};
pub use trace::Trace;
pub use what_if::{Change, Downstream, Measured, Prediction, RATE, Side, what_if};

/// Simulates every strategy of a scenario under its seed.
///
/// # Errors
/// All faults of the scenario, by their path in the YAML form.
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

/// Results of every strategy, in order.
fn simulate(plan: &plan::Plan<'_>) -> Vec<Figures> {
    let figures = |strategy: &scenario::Strategy| {
        let ledger = world::World::new(plan, strategy, plan.scenario.seed).run();
        Figures::of(&strategy.name, plan, ledger)
    };
    plan.scenario.strategies.iter().map(figures).collect()
}

/// Simulates every strategy of a scenario and returns a trace of each request in order of their starts.
///
/// # Errors
/// All faults of the scenario, by their path in the YAML form.
pub fn trace(scenario: &Scenario) -> Result<Vec<Vec<Trace>>, Faults> {
    let plan = plan::Plan::new(scenario)?;
    let of = |strategy: &scenario::Strategy| {
        world::World::new(&plan, strategy, scenario.seed).traced().run().traces.unwrap_or_default()
    };
    Ok(scenario.strategies.iter().map(of).collect())
}
