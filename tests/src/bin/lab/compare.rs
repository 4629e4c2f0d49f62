//! The simulator beside the lab: every scenario of a run once more in virtual time, and how far the figures are apart.
//!
//! The simulator decides nothing by chance but its draws, so its figures are the same wherever they are made: the
//! committed page is what the committed `lab.json` and the present engine come to, and a test holds it to that.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use damper_tests::lab::figures::{Figures, Part};
use damper_tests::lab::results::{Results, Row};
use damper_tests::lab::scenario::{Scenario, Trouble};
use damper_tests::machine::cores;
use damper_tests::spread::Spread;

use crate::matrix;
use crate::table::{percent, recovery};

/// Where it is written, beside `lab.md`.
pub(crate) const PAGE: &str = "simulator-against-lab.md";
/// Simulations of each scenario, each with other draws; their median is compared.
const SEEDS: u64 = 15;
/// The same of the stall, which has ten times the requests and little that is drawn.
const SEEDS_OF_STALL: u64 = 5;
/// As far as figures may be apart to be called the same: so much of the lab's, ...
const APART: f64 = 0.1;
/// ... or so much where that is hardly anything: an attempt or a success in a hundred requests.
const HARDLY: f64 = 0.01;
/// Attempts per request from which on it takes more to agree than to say that hardly anything is repeated.
const MULTIPLIED: f64 = 1.1;

/// A scenario in the lab and in the simulator.
pub(crate) struct Pair<'a> {
    pub(crate) lab: &'a Row,
    pub(crate) simulated: Row,
}

/// One figure of both.
struct Both {
    name: &'static str,
    lab: Spread,
    simulated: Spread,
}

/// Simulates every scenario that the lab has run, on all cores.
pub(crate) fn pairs(results: &Results) -> Vec<Pair<'_>> {
    on_all_cores(&results.rows, |lab| Pair { lab, simulated: simulated(lab) })
}

/// What each of the items comes to, in their order.
pub(crate) fn on_all_cores<'a, T: Sync, U: Send>(items: &'a [T], of: impl Fn(&'a T) -> U + Sync) -> Vec<U> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(place) else { return done };
            done.push((place, of(item)));
        }
    };
    let mut all: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..cores()).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a simulation does not panic")).collect()
    });
    all.sort_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, done)| done).collect()
}

fn simulated(lab: &Row) -> Row {
    let scenario = matrix::of(lab.layers, lab.trouble, lab.strategy);
    let once = |round: u64| {
        let scenario = Scenario { seed: scenario.seed ^ round << 16, ..scenario };
        Figures::of(&scenario.simulated(), &scenario)
    };
    let seeds = if lab.trouble == Trouble::Stall { SEEDS_OF_STALL } else { SEEDS };
    Row::of(&scenario, (0..seeds).map(once).collect())
}

/// The parts of the page, by name.
pub(crate) fn parts(pairs: &[Pair<'_>]) -> Vec<(&'static str, String)> {
    vec![
        ("agreement", agreement(pairs)),
        ("apart", apart(pairs)),
        ("stall", stall(pairs)),
        ("comparison", comparison(pairs)),
    ]
}

impl Pair<'_> {
    /// Attempts on the last hop (the faulty one) per request, and the share of requests that succeeded: while the
    /// breaker's first window fills and then, or during the stall and after it.
    fn figures(&self) -> [Both; 4] {
        let is_stall = self.lab.trouble == Trouble::Stall;
        let then = |run: &Figures| if is_stall { run.after.clone() } else { run.steady.clone() };
        let (early, late) = if is_stall { (DURING, AFTER) } else { (FIRST, STEADY) };
        let both = |name, of: &dyn Fn(&Figures) -> f64| Both {
            name,
            lab: self.lab.spread(of),
            simulated: self.simulated.spread(of),
        };
        let attempts = |part: &Part| part.faulty;
        let success = |part: &Part| part.success;
        [
            both(early[0], &|run| attempts(&run.first)),
            both(early[1], &|run| success(&run.first)),
            both(late[0], &|run| attempts(&then(run))),
            both(late[1], &|run| success(&then(run))),
        ]
    }

    fn name(&self) -> String {
        let Row { layers, trouble, strategy, .. } = self.lab;
        format!("m{layers}/{trouble}/{strategy}")
    }
}

const FIRST: [&str; 2] = ["attempts, first window", "success, first window"];
const STEADY: [&str; 2] = ["attempts, steady", "success, steady"];
const DURING: [&str; 2] = ["attempts, during", "success, during"];
const AFTER: [&str; 2] = ["attempts, after", "success, after"];

impl Both {
    fn agrees(&self) -> bool {
        let distance = (self.simulated.median - self.lab.median).abs();
        distance <= (self.lab.median * APART).max(HARDLY)
    }

    fn is_success(&self) -> bool {
        self.name.starts_with("success")
    }

    fn shown(&self, spread: Spread) -> String {
        if self.is_success() { percent(spread) } else { spread.shown(2) }
    }
}

/// How many agree.
fn agreement(pairs: &[Pair<'_>]) -> String {
    let all: Vec<_> = pairs.iter().flat_map(Pair::figures).collect();
    let is_multiplied = |both: &&Both| !both.is_success() && both.lab.median > MULTIPLIED;
    let count = |kind: &dyn Fn(&&Both) -> bool| {
        let of = all.iter().filter(kind);
        format!("{} of {}", of.clone().filter(|both| both.agrees()).count(), of.count())
    };
    let whole = pairs.iter().filter(|pair| pair.figures().iter().all(Both::agrees)).count();
    format!(
        "| | within 10 % |\n|---|--:|\n| attempts on the last hop per request | {} |\n| of these where the lab has \
         more than {MULTIPLIED} | {} |\n| share of requests that succeed | {} |\n| scenarios with all four figures \
         within 10 % | {whole} of {} |\n",
        count(&|both| !both.is_success()),
        count(&is_multiplied),
        count(&|both| both.is_success()),
        pairs.len(),
    )
}

/// The figures that do not.
fn apart(pairs: &[Pair<'_>]) -> String {
    let mut table = "| scenario | figure | lab | simulator |\n|---|---|--:|--:|\n".to_owned();
    for pair in pairs {
        for both in pair.figures().iter().filter(|both| !both.agrees()) {
            let (lab, simulated) = (both.shown(both.lab), both.shown(both.simulated));
            let _ = writeln!(table, "| {} | {} | {lab} | {simulated} |", pair.name(), both.name);
        }
    }
    table
}

fn stall(pairs: &[Pair<'_>]) -> String {
    let mut table = "| strategy | attempts during: lab | simulator | after: lab | simulator | success during: lab | simulator | after: lab | simulator | recovered after: lab | simulator |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n".to_owned();
    for pair in pairs.iter().filter(|pair| pair.lab.trouble == Trouble::Stall) {
        let [attempts, success, attempts_after, success_after] = pair.figures().map(|both| medians(&both));
        let _ = writeln!(
            table,
            "| {} | {attempts} | {attempts_after} | {success} | {success_after} | {} | {} |",
            pair.lab.strategy,
            recovery(pair.lab),
            recovery(&pair.simulated),
        );
    }
    table
}

fn comparison(pairs: &[Pair<'_>]) -> String {
    let mut table = "| m | fault | strategy | first window, attempts: lab | simulator | success: lab | simulator | steady, attempts: lab | simulator | success: lab | simulator |\n|--:|---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n".to_owned();
    for pair in pairs.iter().filter(|pair| pair.lab.trouble != Trouble::Stall) {
        let Row { layers, trouble, strategy, .. } = pair.lab;
        let figures = pair.figures().map(|both| medians(&both)).join(" | ");
        let _ = writeln!(table, "| {layers} | {trouble} | {strategy} | {figures} |");
    }
    table
}

/// Both medians side by side, the simulator's in bold where it is off.
fn medians(both: &Both) -> String {
    let median = |spread: Spread| both.shown(Spread::exactly(spread.median));
    let (lab, simulated) = (median(both.lab), median(both.simulated));
    if both.agrees() { format!("{lab} | {simulated}") } else { format!("{lab} | **{simulated}**") }
}

#[cfg(test)]
mod tests {
    use damper_core::fault::Faults;
    use damper_proto::manifest;
    use damper_sim::file::{self, Manifests, Policies};
    use damper_tests::lab::strategy::Strategy;

    use super::*;

    #[test]
    fn the_example_of_the_simulator_is_the_stall_of_the_lab() {
        let text = include_str!("../../../../control-plane/sim/scenarios/stall.yaml");
        let example = file::read(text, &|which| {
            let Manifests::Inline(value) = which else { panic!("its rules are in it") };
            let documents = manifest::parse(&value.to_string()).map_err(|_| Faults::none())?;
            let checked = manifest::check(&documents).map_err(|_| Faults::none())?;
            Ok(Policies { rules: checked.rules, guards: checked.guards, ..Policies::default() })
        });
        let example = example.unwrap_or_else(|faults| panic!("{faults}"));
        assert!(example.strategies.len() > 4);
        for strategy in &example.strategies {
            let stall = matrix::of(3, Trouble::Stall, strategy.name.parse::<Strategy>().unwrap());
            let lab = stall.in_virtual_time();
            let alone = damper_sim::Scenario {
                name: lab.name.clone(),
                strategies: vec![strategy.clone()],
                ..example.clone()
            };
            assert_eq!(format!("{alone:#?}"), format!("{lab:#?}"));
        }
    }
}
