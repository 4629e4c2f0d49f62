//! One layer of a chain, as what runs in its process: an ordinary service that calls the next one.
//!
//! It is told what it is by one argument, says where it listens in its first line of output, and then answers each
//! [`Order`] that it reads with one line. It ends when its input does, so nothing outlives the lab.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use damper_sdk::{Damper, Options};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tonic::{Request, Response, Status};
use tower::ServiceExt as _;

use super::fault::{Fault, Gate};
use super::strategy::{Strategy, Times, service};
use super::stub::{self, Next};
use crate::hop::Hop;

pub use super::station::Capacity;

const READY: Duration = Duration::from_secs(30);

/// What a process of a chain is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Which layer; the top is 1.
    pub layer: usize,
    /// Of how many.
    pub layers: usize,
    /// How it repeats calls.
    pub strategy: Strategy,
    /// What its rules or policies say of times.
    pub times: Times,
    /// The instances of the next layer; none for the bottom.
    pub next: Vec<SocketAddr>,
    /// Where rules come from, with Damper.
    pub control_plane: Option<String>,
    /// How much it can do; none = more than it is sent.
    pub capacity: Option<Capacity>,
    /// Feeds its draws.
    pub seed: u64,
}

/// What a process is told while it runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Behave so from now on.
    Fault(Fault),
    /// Say how often each request has arrived.
    Arrivals,
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It serves, here.
    Listening(SocketAddr),
    /// It does as it was told.
    Done,
    /// How often each request has arrived, by the number of the request.
    Arrivals(Vec<u32>),
}

/// Runs a layer until its input ends.
///
/// # Errors
/// It can not start, or was told what it does not understand.
pub async fn run(spec: Spec) -> anyhow::Result<()> {
    let damper = connect(&spec).await?;
    let next = stub::next(&spec, damper.as_ref())?;
    let desk = Arc::new(Desk { gate: Gate::new(spec.seed, spec.capacity), arrivals: Arrivals::default() });
    let served = Arc::clone(&desk);
    let hop = Hop::serve(damper.as_ref().map(Damper::server_layer), move |request| {
        handle(Arc::clone(&served), next.clone(), request)
    })
    .await;
    say(&Answer::Listening(hop.address()))?;
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = orders.next_line().await? {
        match serde_json::from_str(&line).with_context(|| format!("no order: {line}"))? {
            Order::Fault(fault) => {
                desk.gate.set(fault);
                say(&Answer::Done)?;
            }
            Order::Arrivals => say(&Answer::Arrivals(desk.arrivals.all()))?,
        }
    }
    Ok(())
}

/// Connects a process to its control plane, with Damper, and waits for its rules.
pub(super) async fn connect(spec: &Spec) -> anyhow::Result<Option<Damper>> {
    let Some(control_plane) = &spec.control_plane else {
        ensure!(!spec.strategy.is_damper(), "{} needs a control plane", spec.strategy);
        return Ok(None);
    };
    let options = Options::new([control_plane]).service(service(spec.layer)).environment(|_| None);
    let damper = Damper::connect(options)?;
    damper.ready(READY).await?;
    Ok(Some(damper))
}

/// Says one line.
pub(super) fn say(answer: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, answer)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

struct Desk {
    gate: Gate,
    arrivals: Arrivals,
}

/// How often each request has arrived, by the number of the request.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<Vec<u32>>);

impl Arrivals {
    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all counts.
    pub(crate) fn all(&self) -> Vec<u32> {
        self.lock().clone()
    }

    /// Counts a request that has arrived.
    pub(crate) fn book(&self, text: &str) -> Result<(), Status> {
        let number: usize = text.parse().map_err(|_| Status::invalid_argument("not a number"))?;
        let mut arrivals = self.lock();
        if arrivals.len() <= number {
            arrivals.resize(number + 1, 0);
        }
        arrivals[number] += 1;
        Ok(())
    }
}

async fn handle(
    desk: Arc<Desk>,
    next: Option<Next>,
    request: Request<String>,
) -> Result<Response<String>, Status> {
    let text = request.into_inner();
    desk.arrivals.book(&text)?;
    let answer = match desk.gate.pass().await {
        Ok(()) => pass_on(next, &text).await,
        Err(refused) => Err(refused),
    };
    if answer.is_err() && desk.gate.is_mute() {
        std::future::pending::<()>().await;
    }
    answer.map(|()| Response::new(text))
}

/// The next layer's answer, passed on as it is.
async fn pass_on(next: Option<Next>, text: &str) -> Result<(), Status> {
    match next {
        Some(next) => next.oneshot(text.to_owned()).await,
        None => Ok(()),
    }
}
