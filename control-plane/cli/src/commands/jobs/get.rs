//! `damper jobs get JOB`

use clap::Args;
use damper_proto::v1;

use super::filter::{code_name, state_name};
use super::list::due;
use crate::error::CliError;
use crate::output::figures::{age, now, time};
use crate::output::{Align, Table, printable, show};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper jobs get`.
#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    /// Id of the job
    job: String,
}

/// Prints the job.
pub(crate) async fn run(session: &Session, args: GetArgs) -> Result<(), CliError> {
    let client = Client::connect(&session.server).await?;
    let request = v1::GetJobRequest { job_id: args.job };
    let job = client.answer(client.queues.clone().get_job(request)).await?;
    show(session.format, &job, || text(&job))
}

fn text(job: &v1::Job) -> String {
    let now = now();
    let route = job.route.clone().unwrap_or_default();
    let is_waiting = job.state == v1::JobState::Waiting as i32;
    let state = match (is_waiting, job.held.as_str(), job.ended.as_str()) {
        (true, "", _) => format!("waiting, due {}", due(job.at.as_ref(), now)),
        (true, held, _) => format!("waiting, held: {held}"),
        (false, _, "") => state_name(job.state),
        (false, _, ended) => format!("{} ({ended})", state_name(job.state)),
    };
    let lines = [
        ("job", job.job_id.clone()),
        ("queue", job.queue.clone()),
        ("caller", format!("{} {}", route.caller_service, route.caller_cluster)),
        ("callee", format!("{} {}", route.callee_service, route.callee_method)),
        ("key", job.key.clone()),
        ("order key", job.order_key.clone()),
        ("state", state),
        ("submitted", format!("{} ago", age(job.submitted_at.as_ref(), now))),
        ("deliveries", format!("{}, {} of them attempts", job.deliveries, job.attempts)),
        ("lost in a row", job.lost.to_string()),
        ("sent before", job.sends_before.to_string()),
        ("body", format!("{} bytes", job.body_bytes)),
        ("call", job.call_id.clone()),
        ("body key", job.body_key_id.clone()),
    ];
    let lines = lines.iter().filter(|(_, value)| !value.is_empty());
    let lines: String =
        lines.map(|(name, value)| format!("{:<14} {}\n", format!("{name}:"), printable(value))).collect();
    if job.failures.is_empty() { lines } else { format!("{lines}\n{}", failures(job, now)) }
}

fn failures(job: &v1::Job, now: i64) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("DELIVERY", Right),
        ("AGE", Right),
        ("CODE", Left),
        ("TOOK", Right),
        ("WORKER", Left),
        ("DETAIL", Left),
    ]);
    for failed in &job.failures {
        table.row([
            failed.delivery.to_string(),
            age(failed.at.as_ref(), now),
            code_name(failed.code).to_owned(),
            time(failed.took.as_ref()),
            failed.worker.clone(),
            failed.detail.clone(),
        ]);
    }
    table
}
