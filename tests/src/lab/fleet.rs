//! A fleet: many callers of one callee in few processes, in place of a chain's customers and its top.
//!
//! The load is drawn here, call by call, and handed to the processes: calls come at random (Poisson), each from any of
//! the identities, and every strategy meets the same ones.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures_util::future::try_join_all;
use tokio::process::Command;

use super::caller::{Answer, Due, Order, Spec};
use super::chain::Chain;
use super::layer;
use super::load::Ended;
use super::process::Process;
use super::scenario::Scenario;
use super::strategy::{ATTEMPTS, WAIT};

/// Identities that one process hosts at most.
const PER_PROCESS: usize = 350;

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// How many callers there are; the load is of all together.
    pub callers: usize,
    /// Each ends and begins anew once in so long.
    pub restart: Option<Duration>,
}

/// The programs that processes of the lab are.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The one that has the roles `layer` and `caller`.
    pub lab: PathBuf,
    /// The callers in Go; none: they have not been built.
    pub go: Option<PathBuf>,
}

impl Fleet {
    /// In which process an identity is, and its place there.
    fn home(&self, identity: usize) -> (usize, usize) {
        let processes = self.processes();
        (identity % processes, identity / processes)
    }

    fn processes(&self) -> usize {
        self.callers.div_ceil(PER_PROCESS)
    }

    /// The identities of a process.
    fn identities(&self, process: usize) -> usize {
        (self.callers - process).div_ceil(self.processes())
    }

    /// All calls of a run, by their numbers.
    fn calls(&self, scenario: &Scenario) -> Vec<Due> {
        let mut draws = fastrand::Rng::with_seed(scenario.seed);
        let space_us = 1e6 / f64::from(scenario.load.rate);
        let mut due_us = 0.0;
        let next = |number| {
            due_us += -(1.0 - draws.f64()).ln() * space_us;
            (number, due_us as u64, draws.usize(0..self.callers))
        };
        let during = scenario.parts.all().as_micros();
        (0..).map(next).take_while(|(_, due_us, _)| u128::from(*due_us) < during).collect()
    }
}

/// The running callers of a fleet.
#[derive(Debug)]
pub(super) struct Callers {
    fleet: Fleet,
    processes: Vec<Process<Order, Answer>>,
}

impl Callers {
    pub(super) async fn start(
        programs: &Programs,
        scenario: &Scenario,
        fleet: Fleet,
        callee: &Chain,
    ) -> anyhow::Result<Self> {
        let start = |process| start(programs, scenario, fleet, process, callee);
        let processes = try_join_all((0..fleet.processes()).map(start)).await?;
        Ok(Self { fleet, processes })
    }

    /// Lets them make all calls of the scenario, and says how these ended.
    pub(super) async fn play(&mut self, scenario: &Scenario) -> anyhow::Result<Vec<Ended>> {
        let calls = self.fleet.calls(scenario);
        let mut shares = vec![Vec::new(); self.processes.len()];
        for (number, due_us, identity) in &calls {
            let (process, place) = self.fleet.home(*identity);
            shares[process].push((*number, *due_us, place));
        }
        let asked = self.processes.iter_mut().zip(shares).map(|(process, share)| ask(process, share));
        let mut ended: Vec<_> = try_join_all(asked).await?.into_iter().flatten().collect();
        ended.sort_unstable_by_key(|(number, _)| *number);
        Ok(ended.into_iter().map(|(_, ended)| ended).collect())
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        try_join_all(self.processes.into_iter().map(Process::stop)).await.map(|_| ())
    }
}

async fn start(
    programs: &Programs,
    scenario: &Scenario,
    fleet: Fleet,
    process: usize,
    callee: &Chain,
) -> anyhow::Result<Process<Order, Answer>> {
    let callers = Spec {
        layer: spec(scenario, callee.top(), callee.control_plane()),
        identities: fleet.identities(process),
        attempts: ATTEMPTS,
        waits: WAIT,
        patience: scenario.load.patience,
        restart: fleet.restart,
    };
    let mut command = if scenario.strategy.is_go() {
        Command::new(programs.go.as_ref().context("the callers in Go have not been built")?)
    } else {
        let mut command = Command::new(&programs.lab);
        command.arg("caller");
        command
    };
    command.arg(serde_json::to_string(&callers)?);
    match Process::start(command, "a process of callers").await? {
        (process, Answer::Ready) => Ok(process),
        (_, other) => bail!("a process of callers began with {other:?}"),
    }
}

/// What each of the callers is.
fn spec(scenario: &Scenario, callee: SocketAddr, control_plane: Option<&str>) -> layer::Spec {
    layer::Spec {
        layer: 1,
        layers: scenario.layers,
        strategy: scenario.strategy,
        times: scenario.times,
        next: vec![callee],
        control_plane: control_plane.map(str::to_owned),
        capacity: None,
        seed: scenario.seed,
    }
}

async fn ask(process: &mut Process<Order, Answer>, share: Vec<Due>) -> anyhow::Result<Vec<(usize, Ended)>> {
    let order = Order::Load(share);
    let answer = process.ask(&order).await?;
    let (Order::Load(share), Answer::Ended(ended)) = (order, answer) else { bail!("no word of the calls") };
    let told = share.into_iter().zip(ended).map(|((number, due_us, _), (took_us, success))| {
        let [due, took] = [due_us, took_us].map(Duration::from_micros);
        (number, Ended { due, took, success })
    });
    Ok(told.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_identity_has_a_place_of_its_own() {
        for callers in [1, 2, 349, 350, 351, 1_000] {
            let fleet = Fleet { callers, restart: None };
            let homes: std::collections::HashSet<_> = (0..callers).map(|caller| fleet.home(caller)).collect();
            assert_eq!(homes.len(), callers);
            let within = |(process, place): &(usize, usize)| *place < fleet.identities(*process);
            assert!(homes.iter().all(within), "{callers}");
            let all: usize = (0..fleet.processes()).map(|process| fleet.identities(process)).sum();
            assert_eq!(all, callers);
        }
    }
}
