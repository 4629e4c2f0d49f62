//! `damper demo`: the whole product in one process, with a scenario.
//!
//! A control plane on an embedded store, four services with the SDK ([`chain`]), customers ([`load`]), an
//! operator who changes rules through the admin API ([`operator`]), and the [`scenario`] that makes stock
//! fail and recover. All parts talk over loopback TCP as separate processes would; only the measurements
//! ([`ledger`], [`report`], [`terminal`]) are shared.

mod chain;
mod fault;
mod kept;
mod ledger;
mod load;
mod operator;
mod report;
mod scenario;
mod server;
mod services;
mod terminal;

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{env, io};

use anyhow::Context as _;
use clap::{Subcommand, value_parser};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use tonic::transport::server::TcpIncoming;

use self::chain::{Chain, Surroundings};
use self::fault::{Share, Switch};
use self::kept::Kept;
use self::ledger::{LAYERS, Ledger};
use self::load::Load;
use self::operator::Operator;
use self::report::Report;
use self::scenario::{Scenario, Stage};
use self::server::Running;
use self::terminal::{Announcer, Terminal};

/// Messages and services of the demo's shop.
mod shop {
    #![allow(missing_docs, unreachable_pub, clippy::all, reason = "generated; documented in demo/shop.proto")]
    tonic::include_proto!("shop.v1");
}

/// Longest wait for the last lines.
const PRINT_WITHIN: Duration = Duration::from_secs(2);

/// Arguments of `damper demo`.
#[derive(clap::Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Set the share of failed calls of stock in a running demo
    ///
    /// Until the scenario has ended, its next phase sets the share again.
    Fault {
        /// Share of failed calls: 5%, 0.25%, 100%
        #[arg(value_name = "PERCENT")]
        share: Share,
        /// Address at which the running demo accepts this command
        #[arg(long, value_name = "ADDR", default_value_t = server::CONTROL)]
        control: SocketAddr,
    },
}

#[derive(clap::Args, Clone, Debug)]
struct RunArgs {
    /// End the demo after this time, but not before the end of its scenario [default: run until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Write the measurements to this file as JSON at the end of the scenario
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Requests per second that the demo sends to its first service. In an outage without Damper, each
    /// request can cause 27 calls to the last service (`stock`)
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = value_parser!(u32).range(1..=1000))]
    load: u32,
    /// Random seed that selects which calls fail
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Run no scenario: start healthy services with rules of Damper, for your own experiments
    #[arg(long, conflicts_with_all = ["report", "observe", "phase_seconds"])]
    playground: bool,
    /// Add a phase to the demo, before its first outage phase: the rules only observe and retry nothing,
    /// and the demo predicts the effect of enforcing them
    #[arg(long)]
    observe: bool,
    /// Shortest length of a phase of the scenario; phases in which the retry breaker opens and recovers take
    /// longer
    #[arg(long, value_name = "SECONDS", default_value_t = 12, value_parser = value_parser!(u64).range(1..=3600))]
    phase_seconds: u64,
    /// Address of the demo's control plane and its web UI [default: 127.0.0.1:7600, or a free port if 7600 is
    /// in use]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Address at which the demo accepts `damper demo fault` [default: 127.0.0.1:7601, or a free port if 7601
    /// is in use]
    #[arg(long, value_name = "ADDR")]
    control: Option<SocketAddr>,
}

/// Runs the demo, or sets the fault of a running one.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Some(Command::Fault { share, control }) => fault::set_in_running_demo(control, share).await,
        None => demo(args.run).await,
    }
}

async fn demo(args: RunArgs) -> anyhow::Result<()> {
    if let Some(path) = &args.report {
        // Fails now rather than at the end of the scenario.
        File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let ledger = Arc::<Ledger>::default();
    let fault = Arc::new(Switch::new(args.seed));
    let (announcer, terminal) = Terminal::new(Arc::clone(&ledger));
    let mut printing = tokio::spawn(terminal.run());

    let control_plane = Running::control_plane(server::address(args.listen, server::LISTEN)).await?;
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let switch =
        TcpIncoming::bind(server::address(args.control, server::CONTROL)).context("the fault switch")?;
    let control = switch.local_addr()?;
    tasks.spawn(server::serve_faults(
        switch,
        fault::Service::new(Arc::clone(&fault), announcer.clone()),
        stopped,
    ));
    introduce(&announcer, &args, control_plane.address, control);

    let kept = Arc::<Kept>::default();
    let surroundings = Surroundings { control_plane: control_plane.address, ledger, fault, kept };
    let played = play_scenario(&args, surroundings, announcer, &mut printing).await;
    stop.send_replace(true);
    tasks.join_all().await.into_iter().collect::<anyhow::Result<()>>()?;
    control_plane.stop().await?;
    // All writers have ended; lines that remain are not important.
    if !printing.is_finished() {
        let _ = timeout(PRINT_WITHIN, printing).await;
    }
    played
}

/// Builds the chain, plays the scenario and continues until the end of the demo; then stops everything in
/// order.
async fn play_scenario(
    args: &RunArgs,
    surroundings: Surroundings,
    announcer: Announcer,
    printing: &mut JoinHandle<io::Result<()>>,
) -> anyhow::Result<()> {
    let mut operator = Operator::connect(surroundings.control_plane).await?;
    operator.put_queue().await?;
    let chain = Chain::start(&surroundings).await?;
    let stage = Stage {
        operator,
        callers: chain.callers(),
        kept: surroundings.kept,
        ledger: Arc::clone(&surroundings.ledger),
        fault: surroundings.fault,
        announcer,
    };
    let ending = stage.announcer.clone();
    let mut scenario = match args.playground {
        true => Scenario::none(stage),
        false => Scenario::new(stage, args.phase_seconds, args.observe),
    };
    scenario.prepare().await?;
    let load = Load::start(chain.gateway(), args.load, surroundings.ledger)?;
    let played = tokio::select! {
        played = play(&mut scenario, args) => played,
        interrupted = interrupted() => {
            ending.text("Stopping: waiting for the last requests, then all services stop.");
            interrupted.map_err(Into::into)
        }
        printed = printing => return printed?.or_else(unless_closed),
    };
    let reported = if args.playground { Ok(()) } else { write_report(&scenario, args).map(drop) };
    load.stop().await?;
    chain.stop().await?;
    played.and(reported)
}

async fn play(scenario: &mut Scenario, args: &RunArgs) -> anyhow::Result<()> {
    let began = Instant::now();
    if !args.playground {
        scenario.play().await?;
        let report = write_report(scenario, args)?;
        scenario.sum_up(&report);
    }
    match args.duration {
        None => scenario.watch().await,
        Some(duration) if began.elapsed() < duration => {
            drop(timeout_at(began + duration, scenario.watch()).await);
        }
        Some(_) => {}
    }
    Ok(())
}

/// Writes the report so far, if requested.
fn write_report(scenario: &Scenario, args: &RunArgs) -> anyhow::Result<Report> {
    let report = scenario.report(args.load, args.seed)?;
    if let Some(path) = &args.report {
        let json = serde_json::to_string_pretty(&report)?;
        fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(report)
}

/// Waits for Ctrl-C or SIGTERM.
async fn interrupted() -> io::Result<()> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => interrupted,
            _ = terminate.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}

/// A closed pipe, as in `damper demo | head`, is an end, not an error.
fn unless_closed(error: io::Error) -> anyhow::Result<()> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error).context("standard output"),
    }
}

fn introduce(announcer: &Announcer, args: &RunArgs, control_plane: SocketAddr, control: SocketAddr) {
    let damper = env::args().next().unwrap_or_else(|| "damper".to_owned());
    let server = option("--server", format!("http://{control_plane}"), control_plane == server::LISTEN);
    let switch = option("--control", control.to_string(), control == server::CONTROL);
    announcer.headline(format!("Damper demo: {}", LAYERS.join(" -> ")));
    announcer.text(format!(
        "Four services on loopback, each with the SDK and its own runtime; {} requests per second.\n\n  \
         Web UI           http://{control_plane}/\n  \
         Commands for     {damper} stats -w{server}\n  \
         another          {damper} clients{server}\n  \
         terminal         {damper} demo fault 5%{switch}\n\n\
         Ctrl-C stops the demo.",
        args.load,
    ));
    for (what, asked, usual, used) in [
        ("the control plane", args.listen, server::LISTEN, control_plane),
        ("the fault switch", args.control, server::CONTROL, control),
    ] {
        if asked.is_none() && used != usual {
            announcer.text(format!("Note: {usual} is in use; {what} listens on {used}."));
        }
    }
}

/// Returns an option that other terminals need if the address is not the default.
fn option(name: &str, value: String, is_usual: bool) -> String {
    if is_usual { String::new() } else { format!(" {name} {value}") }
}
