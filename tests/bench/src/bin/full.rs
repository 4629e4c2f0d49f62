//! Runs a command on a control plane that is full: of rules, and of services that report their calls.
//!
//! `DAMPER_URL` names the server to the command, `DAMPER_BINARY` the binary that is started. Without TLS and tokens, so
//! that a browser needs neither. `cargo xtask page-speed` measures the page on it.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use damper_bench::fleet::{Fleet, Server, Settings, write_rules};
use tokio::process::Command;

/// What each client reports.
const ROUTES: usize = 10;
/// Until every client has reported.
const SETTLE: Duration = Duration::from_secs(6);

/// Runs a command on a control plane full of rules and of services that report
#[derive(Debug, Parser)]
struct Plan {
    /// How many clients; up to 100 each is a service of its own
    #[arg(long, default_value_t = 60)]
    clients: usize,
    /// How many rules
    #[arg(long, default_value_t = 10_000)]
    rules: usize,
    /// The command with its arguments
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let plan = Plan::parse();
    let server = Server::start(Settings { plaintext: true, ..Default::default() }).await?;
    write_rules(server.door(), plan.rules).await?;
    let fleet = Fleet::connect(server.door(), plan.clients, ROUTES).await?;
    tokio::time::sleep(SETTLE).await;
    let (program, arguments) = plan.command.split_first().context("clap asks for a command")?;
    let mut command = Command::new(program);
    command.args(arguments).env("DAMPER_URL", server.url()).kill_on_drop(true);
    let status = command.status().await.with_context(|| format!("can not start {program}"))?;
    fleet.check()?;
    if !status.success() {
        bail!("{program} ended with {status}");
    }
    Ok(())
}
