//! `damper worker`: delivers the kept calls of queues to services in any language, until SIGTERM or Ctrl-C.
//!
//! A worker of the SDK for each queue. Deliveries go through the client layer, so rules, kills and flags
//! apply as if the service itself sent them. All faults of the arguments are reported at once, before a job
//! is taken. One line on stderr contains the admin address once the workers have started.

mod figures;
mod settings;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use damper_proxy::Admin;
use damper_sdk::Damper;
use tokio::net::TcpListener;

use self::figures::Running;
use self::settings::Settings;
use super::admin_port::{ask, log_to_stderr, record_metrics};
use super::serve::Signals;
#[cfg(unix)]
use super::serve::take_descriptors;
use crate::error::{CliError, print_message};
use crate::remote::session::Session;

/// Admin address unless set: the port after that of a proxy.
const ADMIN: &str = "127.0.0.1:7802";
/// Exit status of a process that a second signal ended.
const INTERRUPTED: i32 = 130;

/// Arguments of `damper worker`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "docs/queue.md explains its use. DAMPER_SERVICE and other variables are those of the SDK."
)]
pub(crate) struct WorkerArgs {
    #[command(subcommand)]
    command: Option<WorkerCommand>,
    #[command(flatten)]
    run: Option<RunArgs>,
}

#[derive(Debug, Subcommand)]
enum WorkerCommand {
    /// Ask a running worker if it is ready, for a probe
    Ready(AdminArgs),
}

#[derive(Args, Debug)]
struct RunArgs {
    /// Queue whose jobs the worker delivers; repeatable, at most 100 queues
    #[arg(long = "queue", value_name = "NAME", required = true)]
    queues: Vec<String>,
    /// Callee and its gRPC URL; each address to which the URL's host resolves is an endpoint. Repeat the
    /// option for each callee; jobs for other callees are left to other workers
    #[arg(long = "to", value_name = "CALLEE=URL", required = true)]
    callees: Vec<String>,
    /// Name of this service in rules and queues [default: DAMPER_SERVICE, else OTEL_SERVICE_NAME, else
    /// service.name of OTEL_RESOURCE_ATTRIBUTES]
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Largest number of concurrent deliveries per queue, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 16)]
    concurrency: u32,
    /// Time to finish running deliveries after SIGTERM, at most 1h
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    drain: Duration,
    /// File with the keys that decrypt the bodies of jobs [env: DAMPER_BODY_KEYS_FILE]
    #[arg(long, value_name = "FILE")]
    body_keys: Option<PathBuf>,
    /// With --body-keys: also deliver jobs whose body is not encrypted; needed while some callers do not
    /// encrypt yet
    #[arg(long)]
    accept_plain: bool,
    /// PEM file with the CA certificates that verify https endpoints of callees [default: the system's]
    #[arg(long, value_name = "FILE")]
    to_ca_file: Option<PathBuf>,
    /// PEM file with the client certificate that is presented to callees
    #[arg(long, value_name = "FILE", requires = "to_key_file")]
    to_cert_file: Option<PathBuf>,
    /// PEM file with the private key of the client certificate in --to-cert-file
    #[arg(long, value_name = "FILE", requires = "to_cert_file")]
    to_key_file: Option<PathBuf>,
    /// Admin address: /livez, /readyz and /metrics
    #[arg(long, value_name = "ADDRESS:PORT", default_value = ADMIN)]
    admin: SocketAddr,
    /// Allow the unencrypted admin port on an address other than loopback
    #[arg(long)]
    insecure_allow_remote: bool,
}

#[derive(Args, Debug)]
struct AdminArgs {
    /// Admin address of the running worker, to which this command connects
    #[arg(long, value_name = "ADDRESS:PORT", default_value = ADMIN)]
    admin: SocketAddr,
}

/// Runs a worker, or asks a running one.
pub(crate) async fn run(session: &Session, args: WorkerArgs) -> Result<(), CliError> {
    match (args.command, args.run) {
        (Some(WorkerCommand::Ready(args)), _) => {
            ask(args.admin, "GET /readyz").await?;
            print_message("ready");
            Ok(())
        }
        (None, Some(args)) => work(session, args).await,
        (None, None) => Err(CliError::Usage("--queue and --to are required".to_owned())),
    }
}

async fn work(session: &Session, args: RunArgs) -> Result<(), CliError> {
    log_to_stderr("info");
    #[cfg(unix)]
    take_descriptors();
    let mut signals = Signals::listen()?;
    let metrics = record_metrics()?;
    let settings = Settings::read(session, args)?;
    let listener = TcpListener::bind(settings.admin).await;
    let listener = listener.map_err(|error| CliError::Unavailable(format!("{}: {error}", settings.admin)))?;
    let admin = listener.local_addr().map_err(CliError::io("the admin port"))?;
    let damper = settings.damper.clone();
    let running = Arc::new(Running::new(settings.start()?));
    let (readiness, figures) = (Arc::clone(&running), Arc::clone(&running));
    let port = Admin::new(move || readiness.problem(), move || figures.text() + &metrics());
    let port = tokio::spawn(port.serve(listener));
    print_message(format_args!("working on {}, admin on {admin}", running.queues()));
    signals.next().await;
    running.begin_drain();
    stop(&damper, signals).await;
    port.abort();
    Ok(())
}

/// Stops the workers, which get their drain time. A second signal ends the process at once.
async fn stop(damper: &Damper, mut signals: Signals) {
    tokio::select! {
        () = damper.shutdown() => {}
        _ = signals.next() => std::process::exit(INTERRUPTED),
    }
}
