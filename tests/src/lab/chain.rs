//! A running chain: the processes of its layers, the control plane that governs them, and what they are told.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::bail;
use tokio::process::Command;

use super::fault::Fault;
use super::layer::{Answer, Order, Spec};
use super::process::Process;
use super::scenario::Scenario;
use crate::control_plane::ControlPlane;

/// The processes of a chain; they end when it is dropped.
#[derive(Debug)]
pub struct Chain {
    /// By layer, from the top; each has one instance or more.
    layers: Vec<Vec<Instance>>,
    /// The number of the first of them: 2 where the callers above are a fleet.
    first: usize,
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
        let mut layers: Vec<Vec<Instance>> = Vec::new();
        let first = if scenario.fleet.is_some() { 2 } else { 1 };
        for layer in (first..=scenario.layers).rev() {
            let below = layers.last().into_iter().flatten();
            let spec = Spec {
                layer,
                layers: scenario.layers,
                strategy: scenario.strategy,
                times: scenario.times,
                next: below.map(|instance| instance.address).collect(),
                control_plane: control_plane.as_ref().map(|control_plane| control_plane.url().to_owned()),
                capacity: scenario.capacity.filter(|_| layer == scenario.layers),
                seed: scenario.seed ^ layer as u64,
            };
            let instances = if layer == scenario.layers { scenario.bottoms() } else { 1 };
            let mut all = Vec::new();
            for instance in 0..instances {
                let seed = spec.seed ^ (instance as u64) << 32;
                all.push(Instance::start(program, &Spec { seed, ..spec.clone() }).await?);
            }
            layers.push(all);
        }
        layers.reverse();
        Ok(Self { layers, first, control_plane })
    }

    /// Where requests go.
    #[must_use]
    pub fn top(&self) -> SocketAddr {
        self.layers[0][0].address
    }

    /// Its control plane, with Damper.
    #[must_use]
    pub fn control_plane(&self) -> Option<&str> {
        self.control_plane.as_ref().map(ControlPlane::url)
    }

    /// Lets an instance of a layer behave so; the top is layer 1, the first instance 0.
    ///
    /// # Errors
    /// It is gone.
    pub async fn set(&mut self, layer: usize, instance: usize, fault: Fault) -> anyhow::Result<()> {
        match self.layers[layer - self.first][instance].process.ask(&Order::Fault(fault)).await? {
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
            for instance in layer {
                let Answer::Arrivals(arrivals) = instance.process.ask(&Order::Arrivals).await? else {
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
        for instance in self.layers.into_iter().flatten() {
            instance.process.stop().await?;
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
struct Instance {
    address: SocketAddr,
    process: Process<Order, Answer>,
}

impl Instance {
    async fn start(program: &Path, spec: &Spec) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.arg("layer").arg(serde_json::to_string(spec)?);
        match Process::start(command, &format!("layer {}", spec.layer)).await? {
            (process, Answer::Listening(address)) => Ok(Self { address, process }),
            (_, other) => bail!("layer {} began with {other:?}", spec.layer),
        }
    }
}
