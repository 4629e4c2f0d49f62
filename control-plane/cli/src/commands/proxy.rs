//! `damper proxy`: Damper next to a service that is not written in Rust, until SIGTERM or Ctrl-C.
//!
//! Identity, server and token come from the variables of the SDK (`DAMPER_*`), as for a process with the SDK.
//! One line on stderr contains the addresses once the listeners are open.

mod manifest;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use damper_proxy::{Addresses, Config, Proxy, ReadConfig, StartError};
use damper_sdk::{Damper, Options};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tracing_subscriber::EnvFilter;

use super::serve::Signals;
#[cfg(unix)]
use super::serve::take_descriptors;
use crate::error::{CliError, print_message};

/// Limit for an answer of the admin port.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// Interval in which samples of histograms are counted: the recorder keeps each until then.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// Upper bounds of histograms, in seconds.
const BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

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
pub(crate) async fn run(args: ProxyArgs) -> Result<(), CliError> {
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
        (None, Some(args)) => serve(&args).await,
        (None, None) => Err(CliError::Usage("--file is required".to_owned())),
    }
}

async fn serve(args: &RunArgs) -> Result<(), CliError> {
    let config = read(args)?;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    #[cfg(unix)]
    take_descriptors();
    let mut signals = Signals::listen()?;
    let metrics = record_metrics()?;
    let mut options = Options::from_env();
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

/// Records the metrics of the SDK, and returns a function that writes them.
fn record_metrics() -> Result<impl Fn() -> String + Send + Sync + use<>, CliError> {
    let builder = PrometheusBuilder::new().set_buckets(&BUCKETS);
    let recorder = builder.map_err(|error| CliError::Defect(error.to_string()))?.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|error| CliError::Defect(error.to_string()))?;
    let counted = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(COUNT_EVERY).await;
            counted.run_upkeep();
        }
    });
    Ok(move || handle.render())
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

/// Sends a request to the admin port.
///
/// # Errors
/// There is no proxy, or its answer is not 200.
async fn ask(admin: SocketAddr, request: &str) -> Result<(), CliError> {
    let answer = async {
        let mut stream = TcpStream::connect(admin).await?;
        let request = format!("{request} HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.take(4_096).read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(ASK_WITHIN, answer).await;
    let answer =
        answer.map_err(|_| CliError::Unavailable(format!("{admin}: no answer in {ASK_WITHIN:?}")))?;
    let answer = answer.map_err(|error| CliError::Unavailable(format!("{admin}: {error}")))?;
    let problem = match (answer.get(..12), answer.split_once("\r\n\r\n")) {
        (Some("HTTP/1.1 200"), _) => return Ok(()),
        (Some("HTTP/1.1 503"), Some((_, reason))) => reason.trim_end(),
        _ => "not the admin port of a proxy",
    };
    Err(CliError::Unavailable(format!("{admin}: {problem}")))
}
