//! A service that submits jobs or works on them, as a process that a test can kill.
//!
//! `queue_peer producer CONTROL_PLANES NAME` submits jobs to the queue `later`, four at a time.
//! `queue_peer worker CONTROL_PLANES NAME` works on them; one attempt in four fails.
//!
//! Each event is one line, written by one call before the process goes on: what a killed process has done is
//! known. `acknowledged KEY JOB`, `begun KEY`, `failed KEY`, `handled KEY`.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use damper_sdk::queue::{Delivery, HandlerError, NewJob};
use damper_sdk::{Damper, Options};
use tonic::Status;

const SUBMITTERS: u32 = 4;
const CONCURRENCY: u32 = 16;
/// Time between two jobs of a submitter.
const PACE: Duration = Duration::from_millis(20);

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, control_planes, name] = arguments.as_slice() else { bail!("ROLE CONTROL_PLANES NAME") };
    let options = Options::new(control_planes.split(',')).service("orders").environment(|_| None);
    let damper = Damper::connect(options).context("connect")?;
    match role.as_str() {
        "producer" => {
            for submitter in 0..SUBMITTERS {
                tokio::spawn(produce(damper.clone(), format!("{name}.{submitter}")));
            }
        }
        "worker" => {
            damper.worker("later").handle(handle).concurrency(CONCURRENCY).start().context("a worker")?;
        }
        other => bail!("unknown role {other}"),
    }
    std::future::pending().await
}

/// Submits jobs for ever.
async fn produce(damper: Damper, name: String) {
    let mut pace = tokio::time::interval(PACE);
    for number in 0_u64.. {
        pace.tick().await;
        let key = format!("{name}.{number}");
        let job = NewJob::new("later", &key, "stock", "stock.Stock/Take").body(key.clone());
        if let Ok(submitted) = damper.jobs().submit(job).await {
            report(&format!("acknowledged {key} {}", submitted.job_id));
        }
    }
}

async fn handle(delivery: Delivery) -> Result<(), HandlerError> {
    let key = String::from_utf8_lossy(delivery.body()).into_owned();
    report(&format!("begun {key}"));
    tokio::time::sleep(Duration::from_millis(fastrand::u64(..20))).await;
    if fastrand::u32(..4) == 0 {
        report(&format!("failed {key}"));
        return Err(Status::unavailable("down").into());
    }
    report(&format!("handled {key}"));
    Ok(())
}

/// Writes a line. The end of the reader ends the process.
fn report(line: &str) {
    if io::stdout().lock().write_all(format!("{line}\n").as_bytes()).is_err() {
        std::process::exit(1);
    }
}
