//! `damper.v1.Jobs`: jobs of services. This server has no job store, so all methods are unavailable.

use damper_proto::v1;
use tonic::{Request, Response, Status, Streaming};

use crate::api::response_stream::ResponseStream;
use crate::state::error::ApiError;

/// Returns the answer of a server without a job store.
pub(crate) fn no_job_store() -> Status {
    ApiError::unavailable("this server has no job store").into()
}

/// The job service.
pub(crate) struct Jobs;

#[tonic::async_trait]
impl v1::jobs_server::Jobs for Jobs {
    type WorkStream = ResponseStream<v1::ToWorker>;

    async fn submit(&self, _: Request<v1::SubmitRequest>) -> Result<Response<v1::SubmitResponse>, Status> {
        Err(no_job_store())
    }

    async fn work(
        &self,
        _: Request<Streaming<v1::FromWorker>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        Err(no_job_store())
    }

    async fn cancel_job(
        &self,
        _: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::CancelJobResponse>, Status> {
        Err(no_job_store())
    }
}
