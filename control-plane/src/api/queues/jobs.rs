//! Jobs for operators: list, one job, its body.

use std::sync::Arc;

use damper_proto::v1;
use damper_queue::store::JobId;
use prost::Message as _;
use tonic::Request;

use crate::api::jobs::wire;
use crate::api::page;
use crate::api::queues::selection;
use crate::jobs::Jobs;
use crate::state::error::ApiError;
use crate::write::Writes;
use crate::write::digest::Digest;
use crate::write::job_action::record;
use crate::write::request::WriteRequest;

/// Length of the reason for reading a body.
const REASON_BYTES: std::ops::RangeInclusive<usize> = 1..=1024;

/// Lists the jobs of a selection, in pages.
pub(crate) async fn list(
    jobs: &Jobs,
    request: v1::ListJobsRequest,
) -> Result<v1::ListJobsResponse, ApiError> {
    let v1::ListJobsRequest { filter, page_size, page_token } = request;
    let size = page::size(page_size)?;
    let digest = Digest::hash(&filter.clone().unwrap_or_default().encode_to_vec());
    let selection = selection::read(filter)?;
    let after = page::start::<1>(digest, &page_token)?.map(|[id]| wire::job_id("page_token", &id));
    let server = jobs.required()?;
    let found = server.list(&selection, after.transpose()?, size).await?;
    let next_page_token = found.next.map(|id| page::token(digest, [&id.to_string()])).unwrap_or_default();
    let jobs = found.jobs.into_iter().map(|record| {
        let held = server.held(&record);
        wire::job(record, held)
    });
    Ok(v1::ListJobsResponse { jobs: jobs.collect(), next_page_token })
}

/// Returns one job.
pub(crate) async fn get(jobs: &Jobs, request: v1::GetJobRequest) -> Result<v1::Job, ApiError> {
    let id = wire::job_id("job_id", &request.job_id)?;
    let server = jobs.required()?;
    let record = server.get(id).await?.ok_or_else(|| missing(id))?;
    let held = server.held(&record);
    Ok(wire::job(record, held))
}

/// Returns body and metadata of a job, once it is recorded who reads them.
pub(crate) async fn read_body(
    writes: &Arc<Writes>,
    jobs: &Jobs,
    request: Request<v1::ReadBodyRequest>,
) -> Result<v1::ReadBodyResponse, ApiError> {
    let options = |request: &mut v1::ReadBodyRequest| {
        Some(v1::WriteOptions { reason: request.reason.clone(), ..v1::WriteOptions::default() })
    };
    let (asked, request) = WriteRequest::read("read body", request, options);
    let v1::ReadBodyRequest { job_id, reason } = request;
    let id = wire::job_id("job_id", &job_id)?;
    if !REASON_BYTES.contains(&reason.len()) || reason.trim().is_empty() {
        let text = format!("is required, with {} to {} bytes", REASON_BYTES.start(), REASON_BYTES.end());
        return Err(ApiError::fault("reason", text));
    }
    let server = jobs.required()?;
    let found = server.get(id).await?.ok_or_else(|| missing(id))?;
    let body = server.body(id).await?;
    let body = body.ok_or_else(|| ApiError::NotFound(format!("the body of job {id} is no longer stored")))?;
    let (queue, principal) = (found.lane.queue.clone(), asked.principal());
    tracing::warn!(%id, queue, reason, principal, "the body of a job is read");
    let filter = Some(v1::JobFilter { queue, job_ids: vec![id.to_string()], ..v1::JobFilter::default() });
    let kind = v1::JobActionKind::ReadBody.into();
    record(writes, &asked, v1::JobAction { kind, filter, jobs: 1, ..v1::JobAction::default() }).await?;
    Ok(v1::ReadBodyResponse { body: body.content, metadata: body.metadata.into_iter().collect() })
}

fn missing(id: JobId) -> ApiError {
    ApiError::NotFound(format!("there is no job with the id {id}"))
}
