//! `damper jobs list QUEUE`

use clap::Args;
use damper_proto::v1;

use super::filter::{FilterArgs, code_name, state_name};
use crate::error::{CliError, print_message};
use crate::output::figures::{age, now};
use crate::output::{Align, Table, show};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Longest page of the server.
const PAGE: u32 = 1000;

/// Arguments of `damper jobs list`.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Most jobs listed
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
}

/// Prints the jobs, the ones submitted first on top.
pub(crate) async fn run(session: &Session, args: ListArgs) -> Result<(), CliError> {
    let client = Client::connect(&session.server).await?;
    let filter = args.filter.wire(&[])?;
    let mut found = v1::ListJobsResponse::default();
    loop {
        let left = args.limit.saturating_sub(u32::try_from(found.jobs.len()).unwrap_or(u32::MAX));
        if left == 0 {
            break;
        }
        let (page_size, page_token) = (left.min(PAGE), found.next_page_token);
        let request = v1::ListJobsRequest { filter: Some(filter.clone()), page_size, page_token };
        let page = client.answer(client.queues.clone().list_jobs(request)).await?;
        found.jobs.extend(page.jobs);
        found.next_page_token = page.next_page_token;
        if found.next_page_token.is_empty() {
            break;
        }
    }
    show(session.format, &found, || table(&found.jobs).to_string())?;
    if !found.next_page_token.is_empty() {
        print_message(format_args!("there can be more than {} jobs; see --limit", found.jobs.len()));
    }
    Ok(())
}

fn table(jobs: &[v1::Job]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("JOB", Left),
        ("STATE", Left),
        ("AGE", Right),
        ("DUE", Right),
        ("ATTEMPTS", Right),
        ("CALLER", Left),
        ("CALLEE", Left),
        ("METHOD", Left),
        ("KEY", Left),
        ("HELD", Left),
        ("LAST FAILURE", Left),
    ]);
    let now = now();
    for job in jobs {
        let route = job.route.clone().unwrap_or_default();
        let last = job.failures.last().map(|failed| code_name(failed.code).to_owned()).unwrap_or_default();
        let is_waiting = job.state == v1::JobState::Waiting as i32;
        table.row([
            job.job_id.clone(),
            state_name(job.state),
            age(job.submitted_at.as_ref(), now),
            if is_waiting { due(job.at.as_ref(), now) } else { String::new() },
            job.attempts.to_string(),
            route.caller_service,
            route.callee_service,
            route.callee_method,
            job.key.clone(),
            job.held.clone(),
            if job.ended.is_empty() { last } else { job.ended.clone() },
        ]);
    }
    table
}

/// Returns the time until a job is due; `now` if it is.
pub(super) fn due(at: Option<&prost_types::Timestamp>, now: i64) -> String {
    let seconds = at.map_or(0, |at| at.seconds.saturating_sub(now));
    if seconds <= 0 { "now".to_owned() } else { format!("in {seconds}s") }
}
