//! The chain lab: runs its matrix of scenarios, writes what came of it, and draws it.
//!
//! `lab run` is the coordinator, `lab layer` is what it starts for each layer of each chain, `lab draw` makes tables
//! and pictures anew from the figures of a former run. `cargo xtask lab` builds it optimised and runs it.

mod chart;
mod compare;
mod draw;
mod fleets;
mod languages;
mod matrix;
mod run;
mod table;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use damper_tests::lab::results::Results;
use damper_tests::lab::{caller, layer};

/// Chains of real services under faults, repeated in every way that is compared.
#[derive(Parser)]
#[command(name = "lab")]
struct Lab {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Runs scenarios and writes what came of them.
    Run(Run),
    /// Makes tables and pictures anew from the figures in `lab.json`, and the comparison with the simulator.
    Draw {
        /// Where the figures are, and where tables and pictures go.
        #[arg(long, default_value = "docs/benchmarks")]
        out: PathBuf,
    },
    /// A process of callers of a fleet; started by `run`.
    #[command(hide = true)]
    Caller {
        /// What it is, as JSON.
        spec: String,
    },
    /// One layer of a chain; started by `run`.
    #[command(hide = true)]
    Layer {
        /// What it is, as JSON.
        spec: String,
    },
}

#[derive(Args)]
struct Run {
    /// A selection that shows every effect; the default.
    #[arg(long, conflicts_with_all = ["full", "fleets", "languages"])]
    short: bool,
    /// Every strategy against every fault on chains of two to five layers.
    #[arg(long)]
    full: bool,
    /// Fleets of one caller and of a thousand small ones, in place of chains; needs Go for some of the peers.
    #[arg(long, conflicts_with = "full")]
    fleets: bool,
    /// A chain of services in Rust, Go, Java, Node and Python; needs the build tools of all of them.
    #[arg(long, conflicts_with_all = ["full", "fleets"])]
    languages: bool,
    /// Only scenarios whose name (`m4/errors-100/damper`) contains this; shown, and not written.
    #[arg(long)]
    only: Option<String>,
    /// How often each scenario runs.
    #[arg(long, default_value_t = 1)]
    runs: usize,
    /// How many chains run at the same time.
    #[arg(long, default_value_t = 3)]
    parallel: usize,
    /// Where the figures, tables and pictures go.
    #[arg(long, default_value = "docs/benchmarks")]
    out: PathBuf,
}

fn main() -> anyhow::Result<()> {
    match Lab::parse().task {
        Task::Layer { spec } => until_told(layer::run(serde_json::from_str(&spec)?)),
        Task::Caller { spec } => until_told(caller::run(serde_json::from_str(&spec)?)),
        Task::Draw { out } => {
            draw::all(&Results::read(&out)?, &out)?;
            languages::draw(&out)?;
            fleets::write(None, &out)
        }
        Task::Run(run) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(run::run(&run))
        }
    }
}

/// A process that is told to end does not wait for the requests under way.
fn until_told(role: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(role);
    runtime.shutdown_background();
    ended
}
