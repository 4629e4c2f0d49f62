//! `damper serve`: the control plane, until SIGTERM or Ctrl-C.
//!
//! One line on stderr contains the address once the server listens; scripts wait for it. A second signal
//! during shutdown ends the process at once.

use damper_control_plane::{Auth, BootstrapError, Server, ServerConfig, StartError};
use damper_store::OpenError;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::fmt;

use crate::config::{self, Config, Log, ServeArgs};
use crate::error::{CliError, print_message};

/// Exit status of a process that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// Serves.
pub(crate) async fn run(args: ServeArgs) -> Result<(), CliError> {
    let only_check = args.check;
    let Config { server: settings, log, log_level } = config::settle(args, &|name| std::env::var(name).ok())?;
    if only_check {
        Server::check(&settings).map_err(|error| not_started(&error))?;
        print_message("the configuration is valid");
        return Ok(());
    }
    start_logging(log, log_level);
    warn_of_open_doors(&settings);
    #[cfg(unix)]
    take_descriptors();
    let mut signals = Signals::listen()?;
    let how = protection(&settings);
    let server = tokio::select! {
        server = Server::bind(settings) => server.map_err(|error| not_started(&error))?,
        _ = signals.next() => return Ok(()),
    };
    announce(&server, log, how);
    let shutdown = async move {
        signals.next().await;
        tokio::spawn(async move {
            signals.next().await;
            std::process::exit(INTERRUPTED);
        });
    };
    server.run(shutdown).await.map_err(|error| CliError::Defect(with_causes(&error)))
}

fn start_logging(log: Log, filter: EnvFilter) {
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match log {
        Log::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        Log::Json => builder.json().init(),
    }
}

/// Raises the soft limit of open files, often 1,024: each connection needs a descriptor.
#[cfg(unix)]
pub(super) fn take_descriptors() {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) => tracing::debug!(limit, "open files"),
        Err(error) => tracing::warn!(%error, "cannot raise the limit of open files (ulimit -n)"),
    }
}

/// Repeats each allowed risk in the log.
fn warn_of_open_doors(settings: &ServerConfig) {
    for problem in settings.open_doors().iter().filter(|_| settings.allow_insecure) {
        tracing::warn!("insecure, allowed by --insecure-allow-plaintext: {problem}");
    }
}

/// Protection of the port: ` (https, tokens)`; scripts read the address up to the first space or comma.
fn protection(settings: &ServerConfig) -> String {
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    match (settings.tls.is_some(), settings.auth) {
        (false, Auth::None) => String::new(),
        (_, Auth::None) => format!(" ({scheme})"),
        (_, Auth::Tokens) => format!(" ({scheme}, tokens)"),
    }
}

/// Prints the address at any log level.
fn announce(server: &Server, log: Log, how: String) {
    let mut line = format!("listening on {}{how}", server.local_addr());
    if let Some(metrics) = server.metrics_addr() {
        line.push_str(&format!(", metrics on {metrics}"));
    }
    match log {
        Log::Text => print_message(line),
        Log::Json => print_message(serde_json::json!({ "level": "INFO", "fields": { "message": line } })),
    }
}

/// Distinguishes invalid configuration from an unavailable store or address.
fn not_started(error: &StartError) -> CliError {
    let text = with_causes(error);
    match error {
        StartError::Insecure(problems) => {
            let anyhow = "override with --insecure-allow-plaintext".to_owned();
            CliError::Config(problems.iter().cloned().chain([anyhow]).collect())
        }
        StartError::Tls(faults) => CliError::Config(faults.clone()),
        StartError::Bootstrap(BootstrapError::Store(_)) => CliError::Unavailable(text),
        StartError::StoreUnusable(OpenError::Unusable { source, .. }) if !is_wrong_place(source) => {
            CliError::Unavailable(text)
        }
        StartError::StoreUnusable(_)
        | StartError::JobStorePlace(_)
        | StartError::NoAddress { .. }
        | StartError::Bootstrap(_) => CliError::Config(vec![text]),
        StartError::StoreLocked(_)
        | StartError::StoreDamaged(_)
        | StartError::StoreUnreachable { .. }
        | StartError::JobStore { .. }
        | StartError::AddressInUse { .. }
        | StartError::Listen { .. } => CliError::Unavailable(text),
    }
}

/// Whether a folder cannot be used because of how it was named or may be used. All else a disk can recover from.
fn is_wrong_place(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{InvalidFilename, IsADirectory, NotADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | PermissionDenied | NotADirectory | IsADirectory | InvalidFilename)
}

/// Returns an error and its sources in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(&format!(": {inner_text}"));
        }
        cause = inner.source();
    }
    text
}

/// Signals that end a server.
pub(super) struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    pub(super) fn listen() -> Result<Self, CliError> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen = |kind| signal(kind).map_err(CliError::io("signals"));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    #[cfg(unix)]
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    #[cfg(not(unix))]
    pub(super) fn listen() -> Result<Self, CliError> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    pub(super) async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
