//! What `damper proxy` and `damper worker` share as processes next to services: log, metrics, and commands
//! that ask the admin port of a running one.

use std::net::SocketAddr;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tracing_subscriber::EnvFilter;

use crate::error::CliError;

/// Limit for an answer of the admin port.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// Interval in which samples of histograms are counted: the recorder keeps each until then.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// Upper bounds of histograms, in seconds.
const BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// Logs to stderr, from this level on unless `RUST_LOG` has another.
pub(super) fn log_to_stderr(level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}

/// Records the metrics of the SDK, and returns a function that writes them.
pub(super) fn record_metrics() -> Result<impl Fn() -> String + Send + Sync + use<>, CliError> {
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

/// Sends a request to the admin port.
///
/// # Errors
/// There is no such process, or its answer is not 200.
pub(super) async fn ask(admin: SocketAddr, request: &str) -> Result<(), CliError> {
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
        _ => "not the admin port of a proxy or worker",
    };
    Err(CliError::Unavailable(format!("{admin}: {problem}")))
}
