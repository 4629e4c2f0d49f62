//! Cancels a job of the caller's service that was never delivered.

use damper_proto::v1;
use damper_queue::Cancellation;
use tonic::Request;

use crate::api::jobs::identity::Sender;
use crate::api::jobs::{JobsContext, wire};
use crate::state::error::ApiError;

pub(crate) async fn cancel(
    context: &JobsContext,
    request: Request<v1::CancelJobRequest>,
) -> Result<v1::CancelJobResponse, ApiError> {
    let sender = Sender::of(request.extensions());
    let v1::CancelJobRequest { identity, job_id } = request.into_inner();
    let identity = sender.checked(context, "identity", identity)?;
    let server = context.jobs.required()?;
    let id = wire::job_id("job_id", &job_id)?;
    if sender.is_limited() {
        context.limiter.admit_jobs(&sender.name(), 1, 0)?;
    }
    match server.cancel(&identity.service, id).await? {
        Cancellation::Cancelled => Ok(v1::CancelJobResponse { cancelled: true }),
        Cancellation::NotFound => Ok(v1::CancelJobResponse { cancelled: false }),
        Cancellation::TooLate => Err(ApiError::Unmet(format!(
            "job {id} cannot be cancelled by a submitter: it was delivered at least once, or has ended; an operator can end a waiting job with `damper jobs cancel`"
        ))),
    }
}
