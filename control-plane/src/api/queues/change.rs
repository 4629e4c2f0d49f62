//! Changes the jobs of a selection: run now, cancel, replay, purge. Each change is recorded in the log.

use damper_core::job::RATE;
use damper_core::{Faults, Ratio};
use damper_proto::v1;
use damper_queue::JobChange;

use crate::api::queues::selection;
use crate::auth::caller::Caller;
use crate::jobs::Jobs;
use crate::state::error::ApiError;
use crate::write::request::check_options;

/// Replayed jobs per second.
const DEFAULT_RATE: Ratio = Ratio::from_bp(100_000);

pub(crate) async fn change(
    jobs: &Jobs,
    caller: &Caller,
    request: v1::ChangeJobsRequest,
) -> Result<v1::ChangeJobsResponse, ApiError> {
    let v1::ChangeJobsRequest { filter, change, rate, options, done } = request;
    let options = options.unwrap_or_default();
    let mut faults = Faults::none();
    check_options("options", &options, &mut faults);
    let change = read(change, rate, done, &mut faults);
    faults.or(()).map_err(ApiError::Faults)?;
    let (selection, server) = (selection::read(filter)?, jobs.required()?);
    let queue = selection.filter.queue.clone();
    if matches!(change, JobChange::Replay { .. }) && !server.has_policy(&queue) {
        return Err(ApiError::Unmet(format!(
            "the jobs of queue {queue} cannot be replayed, because the queue does not exist: create it again first"
        )));
    }
    let changed = server.change(selection, change, options.validate_only).await?;
    if !options.validate_only {
        let v1::WriteOptions { reason, author, .. } = options;
        let (jobs, principal) = (changed.jobs, caller.principal());
        tracing::warn!(queue, ?change, jobs, reason, author, principal, "jobs were changed");
    }
    Ok(v1::ChangeJobsResponse { jobs: changed.jobs, skipped: changed.skipped, more: changed.more })
}

fn read(change: i32, rate: Option<f64>, done: u64, faults: &mut Faults) -> JobChange {
    let is_replay = change == v1::JobChange::Replay as i32;
    let rate = match rate {
        Some(_) if !is_replay => {
            faults.add("rate", "is for a replay only");
            DEFAULT_RATE
        }
        Some(rate) => read_rate(rate, faults),
        None => DEFAULT_RATE,
    };
    match v1::JobChange::try_from(change) {
        Ok(v1::JobChange::Run) => JobChange::Run,
        Ok(v1::JobChange::Cancel) => JobChange::Cancel,
        Ok(v1::JobChange::Replay) => JobChange::Replay { rate, done },
        Ok(v1::JobChange::Purge) => JobChange::Purge,
        Ok(v1::JobChange::Unspecified) | Err(_) => {
            faults.add("change", "is required: run, cancel, replay or purge");
            JobChange::Run
        }
    }
}

/// Reads jobs per second, in steps of 0.1.
fn read_rate(rate: f64, faults: &mut Faults) -> Ratio {
    let tenths = (rate * 10.0).round();
    let is_step = (rate * 10.0 - tenths).abs() < 1e-6;
    let most = f64::from(RATE.max.bp()) / 1_000.0;
    if !is_step || !(1.0..=most).contains(&tenths) {
        faults.add("rate", format!("must be {RATE} in steps of 0.1, not {rate}"));
        return DEFAULT_RATE;
    }
    // In range: checked above.
    Ratio::from_bp(tenths as u32 * 1_000)
}
