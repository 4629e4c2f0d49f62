//! `damper proxy`: Damper next to a service that is not written in Rust, until SIGTERM or Ctrl-C.
//!
//! Identity, server and token come from the variables of the SDK (`DAMPER_*`), as for a process with the SDK.
//! One line on stderr contains the addresses once the listeners are open.

mod manifest;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use damper_proxy::{Addresses, Config, Proxy, ReadConfig, StartError};
use damper_sdk::Damper;

use super::admin_port::{ask, log_to_stderr, record_metrics};
use super::serve::Signals;
#[cfg(unix)]
use super::serve::take_descriptors;
use crate::error::{CliError, print_message};
use crate::remote::session::Session;

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
    /// Print the configuration and the patches that put a proxy next to a Kubernetes workload
    Manifest(manifest::ManifestArgs),
}

#[derive(Args, Debug)]
struct RunArgs {
    /// Configuration, a YAML file
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Allow unencrypted listeners, admin port and service on addresses other than loopback
    #[arg(long)]
    insecure_allow_remote: bool,
}

#[derive(Args, Debug)]
struct AdminArgs {
    /// Admin address of the proxy
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7801")]
    admin: SocketAddr,
}

/// Runs, checks or drains a proxy.
pub(crate) async fn run(session: &Session, args: ProxyArgs) -> Result<(), CliError> {
    match (args.command, args.run) {
        (Some(ProxyCommand::Check(args)), _) => {
            read(&args)?;
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
        (Some(ProxyCommand::Manifest(args)), _) => manifest::run(&args),
        (None, Some(args)) => serve(session, &args).await,
        (None, None) => Err(CliError::Usage("--file is required".to_owned())),
    }
}

async fn serve(session: &Session, args: &RunArgs) -> Result<(), CliError> {
    let config = read(args)?;
    log_to_stderr();
    #[cfg(unix)]
    take_descriptors();
    let mut signals = Signals::listen()?;
    let metrics = record_metrics()?;
    let mut options = session.server.service_options();
    if let Some(service) = &config.service {
        options = options.service(service);
    }
    let damper = Damper::connect(options).map_err(|faults| CliError::Config(vec![faults.to_string()]))?;
    let proxy = Proxy::bind(config, damper).await.map_err(|error| match error {
        StartError::Listen { .. } => CliError::Unavailable(error.to_string()),
        _ => CliError::Config(vec![error.to_string()]),
    })?;
    print_message(listening(proxy.addresses()));
    proxy.metrics(metrics).run(async move { signals.next().await }).await;
    Ok(())
}

fn listening(addresses: &Addresses) -> String {
    let mut line = format!("admin on {}", addresses.admin);
    if let Some(inbound) = addresses.inbound {
        line.push_str(&format!(", inbound on {inbound}"));
    }
    for outbound in &addresses.outbound {
        line.push_str(&format!(", outbound on {outbound}"));
    }
    line
}

fn read(args: &RunArgs) -> Result<Config, CliError> {
    let text = std::fs::read_to_string(&args.file).map_err(CliError::io(args.file.display()))?;
    let how = ReadConfig { allow_remote: args.insecure_allow_remote };
    Config::read(&text, how).map_err(|error| invalid(&args.file, &error))
}

fn invalid(file: &Path, error: &impl std::fmt::Display) -> CliError {
    let fault = |line: &str| format!("{}: {line}", file.display());
    CliError::Config(error.to_string().lines().map(fault).collect())
}
