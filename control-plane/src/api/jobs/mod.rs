//! `damper.v1.Jobs`: services submit jobs and work on them.
//!
//! The job server of `damper-queue` decides; this folder checks who calls, reads and writes messages, and
//! carries them.

pub(crate) mod cancel;
pub(crate) mod identity;
pub(crate) mod submit;
pub(crate) mod wire;
pub(crate) mod work;

use std::sync::Arc;

use damper_net::limits::Limiter;
use damper_proto::v1;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::api::response_stream::{Reader, ResponseStream, StreamLimits};
use crate::auth::Authenticator;
use crate::jobs::Jobs;
use crate::push::fleet_state::FleetState;

/// The job service.
pub(crate) struct JobsApi {
    context: Arc<JobsContext>,
    streams: StreamLimits,
}

/// What its methods share.
pub(crate) struct JobsContext {
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) fleet: Arc<FleetState>,
    pub(crate) access: Arc<Authenticator>,
    pub(crate) limiter: Limiter,
}

impl JobsApi {
    pub(crate) fn new(context: JobsContext, streams: StreamLimits) -> Self {
        // The job server ends the streams of workers, with a Goodbye.
        let streams = StreamLimits { stopping: CancellationToken::new(), ..streams };
        Self { context: Arc::new(context), streams }
    }
}

#[tonic::async_trait]
impl v1::jobs_server::Jobs for JobsApi {
    type WorkStream = ResponseStream<v1::ToWorker>;

    async fn submit(
        &self,
        request: Request<v1::SubmitRequest>,
    ) -> Result<Response<v1::SubmitResponse>, Status> {
        self.context.fleet.state.answer(submit::submit(&self.context, request)).await
    }

    async fn work(
        &self,
        request: Request<Streaming<v1::FromWorker>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        let reader = Reader::of(&request, &self.streams);
        let context = self.context.clone();
        Ok(Response::new(ResponseStream::of(reader, 1, |out| work::serve(context, request, out))))
    }

    async fn cancel_job(
        &self,
        request: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::CancelJobResponse>, Status> {
        self.context.fleet.state.answer(cancel::cancel(&self.context, request)).await
    }
}
