//! `damper proxy`: Damper next to a service that is not written in Rust, until SIGTERM or Ctrl-C.
//!
//! Identity, server and token come from the variables of the SDK (`DAMPER_*`), as for a process with the SDK.
//! One line on stderr contains the addresses once the listeners are open.

mod attempt;
mod callees;
#[cfg(unix)]
mod group;
mod manifest;
mod stop;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use damper_proxy::{Addresses, Config, Follow, Proxy, ReadConfig, StartError};
use damper_sdk::Damper;

use super::admin_port::{ask, log_to_stderr, record_metrics};
use super::serve::Signals;
#[cfg(unix)]
use super::serve::take_descriptors;
use crate::error::{CliError, print_message};
use crate::remote::session::Session;

/// Interval in which the configuration is read again.
const READ_EVERY: Duration = Duration::from_secs(2);
/// Admin port of a configuration without `admin`.
const ADMIN_PORT: u16 = 7801;
const DEFAULT_ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), ADMIN_PORT);

/// Run a proxy next to a service that is not written in Rust
#[derive(Debug, Parser)]
#[command(name = "damper-proxy", version, max_term_width = 100)]
pub(crate) struct ProxyCli {
    #[command(flatten)]
    args: ProxyArgs,
    #[command(flatten)]
    session: Session,
}

/// Arguments of `damper proxy`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_help = "docs/proxy.md explains the configuration.")]
pub(crate) struct ProxyArgs {
    #[command(subcommand)]
    command: Option<ProxyCommand>,
    #[command(flatten)]
    run: Option<RunArgs>,
}

#[derive(Debug, Subcommand)]
enum ProxyCommand {
    /// Check a configuration, and print all faults
    Check(RunArgs),
    /// Send the callers of a running proxy away, for a preStop hook
    Drain(AdminArgs),
    /// Ask a running proxy if it is ready, for a probe
    Ready(AdminArgs),
    /// Run a command whose gRPC calls go through a proxy, without a configuration
    Try(attempt::TryArgs),
    /// Print the configuration and the patches that put a proxy next to a Kubernetes workload
    Manifest(manifest::ManifestArgs),
}

#[derive(Args, Debug)]
struct RunArgs {
    /// Configuration, a YAML file
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Allow addresses that are not on loopback for unencrypted listeners, the admin port and the local
    /// service
    #[arg(long)]
    insecure_allow_remote: bool,
}

#[derive(Args, Debug)]
struct AdminArgs {
    /// Admin address of the proxy
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = DEFAULT_ADMIN)]
    admin: SocketAddr,
}

/// Returns the number of worker threads: one, unless the variable of tokio sets more. On two, most requests
/// wake both.
pub(crate) fn worker_threads() -> Option<usize> {
    std::env::var_os("TOKIO_WORKER_THREADS").is_none().then_some(1)
}

/// Runs a command of `damper-proxy`.
pub(crate) async fn run_alone(ProxyCli { args, session }: ProxyCli) -> Result<(), CliError> {
    run(&session, args).await
}

/// Runs, checks or drains a proxy.
pub(crate) async fn run(session: &Session, args: ProxyArgs) -> Result<(), CliError> {
    match (args.command, args.run) {
        (Some(ProxyCommand::Check(args)), _) => {
            let (_, config) = read(&args)?;
            config
                .check_files()
                .map_err(|faults| CliError::Config(faults.iter().map(ToString::to_string).collect()))?;
            print_message("the configuration is valid");
            Ok(())
        }
        (Some(ProxyCommand::Drain(args)), _) => {
            ask(args.admin, "POST /drain").await?;
            print_message("draining");
            Ok(())
        }
        (Some(ProxyCommand::Ready(args)), _) => {
            ask(args.admin, "GET /readyz").await?;
            print_message("ready");
            Ok(())
        }
        (Some(ProxyCommand::Try(args)), _) => attempt::run(session, args).await,
        (Some(ProxyCommand::Manifest(args)), _) => manifest::run(&args),
        (None, Some(args)) => serve(session, &args).await,
        (None, None) => Err(CliError::Usage("--file is required".to_owned())),
    }
}

async fn serve(session: &Session, args: &RunArgs) -> Result<(), CliError> {
    let (text, config) = read(args)?;
    log_to_stderr("info");
    #[cfg(unix)]
    take_descriptors();
    let mut signals = Signals::listen()?;
    let metrics = record_metrics()?;
    let damper = connect(session, config.service.as_deref())?;
    let proxy = bind(config, damper).await?;
    print_message(listening(proxy.addresses()));
    let follow = Follow::new(&args.file, text, args.how(), READ_EVERY);
    proxy.metrics(metrics).follow(follow).run(async move { signals.next().await }).await;
    Ok(())
}

/// Connects to the control plane as the proxy of a service; `None`: that of the variables.
fn connect(session: &Session, service: Option<&str>) -> Result<Damper, CliError> {
    let mut options = session.server.service_options().as_proxy();
    if let Some(service) = service {
        options = options.service(service);
    }
    Damper::connect(options).map_err(|faults| CliError::Config(vec![faults.to_string()]))
}

async fn bind(config: Config, damper: Damper) -> Result<Proxy, CliError> {
    Proxy::bind(config, damper).await.map_err(|faults| {
        let lines: Vec<_> = faults.iter().map(ToString::to_string).collect();
        if faults.iter().all(|fault| matches!(fault, StartError::Listen { .. })) {
            return CliError::Unavailable(lines.join("\n"));
        }
        CliError::Config(lines)
    })
}

fn listening(addresses: &Addresses) -> String {
    let mut line = format!("admin on {}", addresses.admin);
    if let Some(inbound) = addresses.inbound {
        line.push_str(&format!(", inbound on {inbound}"));
    }
    for outbound in &addresses.outbound {
        line.push_str(&format!(", outbound on {outbound}"));
    }
    if let Some(connect) = addresses.connect {
        line.push_str(&format!(", connect on {connect}"));
    }
    line
}

impl RunArgs {
    fn how(&self) -> ReadConfig {
        ReadConfig { allow_remote: self.insecure_allow_remote }
    }
}

fn read(args: &RunArgs) -> Result<(String, Config), CliError> {
    let text = std::fs::read_to_string(&args.file).map_err(CliError::io(args.file.display()))?;
    let config = Config::read(&text, args.how()).map_err(|error| invalid(&args.file, &error))?;
    Ok((text, config))
}

fn invalid(file: &Path, error: &impl std::fmt::Display) -> CliError {
    let fault = |line: &str| format!("{}: {line}", file.display());
    CliError::Config(error.to_string().lines().map(fault).collect())
}
