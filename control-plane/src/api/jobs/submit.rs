//! Submits jobs. A rejected job is part of the response; an error of the request is about all of them.

use damper_proto::v1;
use damper_queue::{MAX_JOBS_A_REQUEST, Submitter};
use tonic::Request;

use crate::api::jobs::identity::Sender;
use crate::api::jobs::{JobsContext, wire};
use crate::state::error::ApiError;

pub(crate) async fn submit(
    context: &JobsContext,
    request: Request<v1::SubmitRequest>,
) -> Result<v1::SubmitResponse, ApiError> {
    let sender = Sender::of(request.extensions());
    let v1::SubmitRequest { identity, jobs } = request.into_inner();
    let identity = sender.checked(context, "identity", identity)?;
    let server = context.jobs.required()?;
    let count = jobs.len();
    if !(1..=MAX_JOBS_A_REQUEST).contains(&count) {
        return Err(ApiError::fault("jobs", format!("must be 1 to {MAX_JOBS_A_REQUEST}, not {count}")));
    }
    if sender.is_limited() {
        let bytes = jobs.iter().map(|job| job.body.len()).sum();
        context.limiter.admit_jobs(&sender.name(), count, bytes)?;
    }
    let by = Submitter { service: identity.service, cluster: identity.cluster };
    let results = server.submit(&by, jobs.into_iter().map(wire::new_job).collect()).await?;
    Ok(v1::SubmitResponse { jobs: results.into_iter().map(wire::submitted).collect() })
}
