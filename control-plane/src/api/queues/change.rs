//! Changes the jobs of a selection: run now, cancel, replay, purge. Each change is recorded in the history.

use std::sync::Arc;

use damper_core::job::RATE;
use damper_core::{Faults, Ratio};
use damper_proto::v1;
use damper_queue::{Changed, JobChange};
use tonic::Request;

use crate::api::queues::selection;
use crate::jobs::Jobs;
use crate::state::error::ApiError;
use crate::write::Writes;
use crate::write::job_action::record_done;
use crate::write::request::{WriteRequest, check_options};

/// Replayed jobs per second.
const DEFAULT_RATE: Ratio = Ratio::from_bp(100_000);

pub(crate) async fn change(
    writes: &Arc<Writes>,
    jobs: &Jobs,
    request: Request<v1::ChangeJobsRequest>,
) -> Result<v1::ChangeJobsResponse, ApiError> {
    let (asked, request) = WriteRequest::read("change jobs", request, |request| request.options.take());
    let v1::ChangeJobsRequest { filter, change: wanted, rate, options: _, done } = request;
    let mut faults = Faults::none();
    check_options("options", &asked.options, &mut faults);
    let change = read(wanted, rate, done, &mut faults);
    faults.or(()).map_err(ApiError::Faults)?;
    let (selection, server) = (selection::read(filter.clone())?, jobs.required()?.clone());
    let queue = selection.filter.queue.clone();
    if matches!(change, JobChange::Replay { .. }) && !server.has_policy(&queue) {
        return Err(ApiError::Unmet(format!(
            "the jobs of queue {queue} cannot be replayed, because the queue does not exist: create it again first"
        )));
    }
    let only_count = asked.options.validate_only;
    let response = |changed: Changed| {
        let Changed { jobs, skipped, more } = changed;
        v1::ChangeJobsResponse { jobs, skipped, more }
    };
    if only_count {
        return Ok(response(server.change(selection, change, true).await?));
    }
    // A change is recorded even if the request ends early.
    let writes = writes.clone();
    let changing = tokio::spawn(async move {
        let changed = server.change(selection, change, false).await?;
        let Changed { jobs, skipped, more } = changed;
        let (reason, principal) = (&asked.options.reason, asked.principal());
        tracing::warn!(queue, ?change, jobs, reason, principal, "jobs were changed");
        if jobs > 0 {
            let rate = rate.filter(|_| matches!(change, JobChange::Replay { .. }));
            let kind = kind(change).into();
            let action = v1::JobAction { kind, filter, jobs, skipped, more, rate, at: None };
            record_done(&writes, &asked, action).await?;
        }
        Ok::<_, ApiError>(changed)
    });
    let changed =
        changing.await.map_err(|_| ApiError::Damaged("the change of jobs panicked".to_owned()))??;
    Ok(response(changed))
}

fn kind(change: JobChange) -> v1::JobActionKind {
    match change {
        JobChange::Run => v1::JobActionKind::Run,
        JobChange::Cancel => v1::JobActionKind::Cancel,
        JobChange::Replay { .. } => v1::JobActionKind::Replay,
        JobChange::Purge => v1::JobActionKind::Purge,
        JobChange::Remove => v1::JobActionKind::PurgeQueue,
    }
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
