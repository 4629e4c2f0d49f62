//! A running chain: the processes of its layers, the control plane that governs them, and what they are told.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::fault::Fault;
use super::layer::{Answer, Order, Spec};
use super::scenario::Scenario;
use crate::control_plane::ControlPlane;

/// The processes of a chain; they end when it is dropped.
#[derive(Debug)]
pub struct Chain {
    /// By layer, from the top; each has one instance or more.
    layers: Vec<Vec<Process>>,
    control_plane: Option<ControlPlane>,
}

impl Chain {
    /// Starts all of them from the bottom up, by the program that has the role `layer`.
    ///
    /// # Errors
    /// One of them does not start.
    pub async fn start(program: &Path, scenario: &Scenario) -> anyhow::Result<Self> {
        let control_plane = match scenario.strategy.is_damper() {
            true => Some(governed(scenario).await),
            false => None,
        };
        let mut layers: Vec<Vec<Process>> = Vec::new();
        for layer in (1..=scenario.layers).rev() {
            let below = layers.last().into_iter().flatten();
            let spec = Spec {
                layer,
                layers: scenario.layers,
                strategy: scenario.strategy,
                times: scenario.times,
                next: below.map(|process| process.address).collect(),
                control_plane: control_plane.as_ref().map(|control_plane| control_plane.url().to_owned()),
                capacity: scenario.capacity.filter(|_| layer == scenario.layers),
                seed: scenario.seed ^ layer as u64,
            };
            let instances = if layer == scenario.layers { scenario.bottoms() } else { 1 };
            let mut processes = Vec::new();
            for instance in 0..instances {
                let seed = spec.seed ^ (instance as u64) << 32;
                processes.push(Process::start(program, &Spec { seed, ..spec.clone() }).await?);
            }
            layers.push(processes);
        }
        layers.reverse();
        Ok(Self { layers, control_plane })
    }

    /// Where requests go.
    #[must_use]
    pub fn top(&self) -> SocketAddr {
        self.layers[0][0].address
    }

    /// Lets an instance of a layer behave so; the top is layer 1, the first instance 0.
    ///
    /// # Errors
    /// It is gone.
    pub async fn set(&mut self, layer: usize, instance: usize, fault: Fault) -> anyhow::Result<()> {
        match self.layers[layer - 1][instance].ask(&Order::Fault(fault)).await? {
            Answer::Done => Ok(()),
            other => bail!("layer {layer} answered {other:?}"),
        }
    }

    /// How often each request has arrived at each layer, from the top, by the number of the request.
    ///
    /// # Errors
    /// A process is gone.
    pub async fn arrivals(&mut self, requests: usize) -> anyhow::Result<Vec<Vec<u32>>> {
        let mut all = Vec::new();
        for layer in &mut self.layers {
            let mut sum = vec![0; requests];
            for process in layer {
                let Answer::Arrivals(arrivals) = process.ask(&Order::Arrivals).await? else {
                    bail!("no count of arrivals");
                };
                for (sum, arrivals) in sum.iter_mut().zip(arrivals) {
                    *sum += arrivals;
                }
            }
            all.push(sum);
        }
        Ok(all)
    }

    /// Ends all of it.
    ///
    /// # Errors
    /// A process ended badly.
    pub async fn stop(self) -> anyhow::Result<()> {
        for process in self.layers.into_iter().flatten() {
            process.stop().await?;
        }
        if let Some(control_plane) = self.control_plane {
            control_plane.stop().await;
        }
        Ok(())
    }
}

/// A control plane of its own with the scenario's rules.
async fn governed(scenario: &Scenario) -> ControlPlane {
    let control_plane = ControlPlane::start().await;
    control_plane.apply(&scenario.strategy.manifest(scenario.layers, &scenario.times)).await;
    control_plane
}

#[derive(Debug)]
struct Process {
    address: SocketAddr,
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Process {
    async fn start(program: &Path, spec: &Spec) -> anyhow::Result<Self> {
        let mut child = Command::new(program)
            .arg("layer")
            .arg(serde_json::to_string(spec)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("can not start {}", program.display()))?;
        let orders = child.stdin.take().context("its input is a pipe")?;
        let output = child.stdout.take().context("its output is a pipe")?;
        let mut answers = BufReader::new(output).lines();
        match read(&mut answers).await.with_context(|| format!("layer {} does not start", spec.layer))? {
            Answer::Listening(address) => Ok(Self { address, child, orders, answers }),
            other => bail!("layer {} began with {other:?}", spec.layer),
        }
    }

    async fn ask(&mut self, order: &Order) -> anyhow::Result<Answer> {
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        self.orders.write_all(line.as_bytes()).await?;
        read(&mut self.answers).await
    }

    async fn stop(self) -> anyhow::Result<()> {
        let Self { mut child, orders, .. } = self;
        drop(orders);
        let ended = child.wait().await?;
        if !ended.success() {
            bail!("a layer ended with {ended}");
        }
        Ok(())
    }
}

async fn read(answers: &mut Lines<BufReader<ChildStdout>>) -> anyhow::Result<Answer> {
    let line = answers.next_line().await?.context("the process has ended")?;
    serde_json::from_str(&line).with_context(|| format!("no answer: {line}"))
}
