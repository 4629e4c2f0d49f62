//! Measures rows of the table and writes docs/benchmarks; and plays the other processes that the rows need.

mod roles;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};
use damper_bench::process;
use damper_bench::report::Report;
use damper_bench::rows::{self, Size};

use crate::roles::Role;

/// What Damper costs, measured against its peers in the same run
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure rows and write what came of it
    Run(Run),
    #[command(flatten)]
    Role(Role),
}

#[derive(Debug, clap::Args)]
struct Run {
    /// How much is measured
    #[arg(long, value_enum, default_value_t = Size::Short)]
    size: Size,
    /// Only these rows; the others stay as they were measured last
    #[arg(long, value_delimiter = ',', value_parser = rows::IDS.to_vec())]
    only: Vec<String>,
    /// The folder that the report is written to
    #[arg(long, default_value = "docs/benchmarks")]
    out: PathBuf,
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Run(run) => run.measure(),
        Command::Role(role) => role.play(),
    }
}

impl Run {
    fn measure(self) -> Result<()> {
        let runtime = tokio::runtime::Runtime::new()?;
        let measured = runtime.block_on(self.rows());
        // A thread that never comes back must not keep an error from being told.
        runtime.shutdown_background();
        measured
    }

    async fn rows(self) -> Result<()> {
        let mut report = Report::read(&self.out, process::raise_file_limit()?)?;
        let chosen =
            rows::IDS.iter().filter(|id| self.only.is_empty() || self.only.iter().any(|only| only == *id));
        for id in chosen {
            eprintln!("\n=== {id}");
            let row = rows::measure(id, self.size).await?;
            eprint!("{}", report.shown(&row));
            report.put(row, &self.out)?;
            report.write(&self.out)?;
        }
        eprintln!("\nwrote {}", self.out.display());
        Ok(())
    }
}
