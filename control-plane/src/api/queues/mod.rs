//! `damper.v1.Queues`: the admin API for queues and their jobs, one file per method.
//!
//! The settings of a queue are read and written like rules. Everything about jobs needs the job store.

pub(crate) mod delete;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod put;

use std::sync::Arc;

use damper_proto::v1;
use tonic::{Request, Response, Status};

use crate::api::jobs::no_job_store;
use crate::write::Writes;

/// The queue service.
pub(crate) struct Queues {
    writes: Arc<Writes>,
}

impl Queues {
    pub(crate) fn new(writes: Arc<Writes>) -> Self {
        Self { writes }
    }
}

#[tonic::async_trait]
impl v1::queues_server::Queues for Queues {
    async fn get_queue(&self, request: Request<v1::GetQueueRequest>) -> Result<Response<v1::Queue>, Status> {
        self.writes.fleet.state.answer(get::get(&self.writes, request.into_inner())).await
    }

    async fn list_queues(
        &self,
        request: Request<v1::ListQueuesRequest>,
    ) -> Result<Response<v1::ListQueuesResponse>, Status> {
        self.writes.fleet.state.answer(list::list(&self.writes, request.into_inner())).await
    }

    async fn put_queue(
        &self,
        request: Request<v1::PutQueueRequest>,
    ) -> Result<Response<v1::PutQueueResponse>, Status> {
        let answer = self.writes.fleet.state.answer(put::put(&self.writes, request)).await;
        self.writes.fleet.metrics.written("put_queue", answer)
    }

    async fn delete_queue(
        &self,
        request: Request<v1::DeleteQueueRequest>,
    ) -> Result<Response<v1::DeleteQueueResponse>, Status> {
        let answer = self.writes.fleet.state.answer(delete::delete(&self.writes, request)).await;
        self.writes.fleet.metrics.written("delete_queue", answer)
    }

    async fn get_queue_stats(
        &self,
        _: Request<v1::GetQueueStatsRequest>,
    ) -> Result<Response<v1::GetQueueStatsResponse>, Status> {
        Err(no_job_store())
    }

    async fn list_jobs(
        &self,
        _: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        Err(no_job_store())
    }

    async fn get_job(&self, _: Request<v1::GetJobRequest>) -> Result<Response<v1::Job>, Status> {
        Err(no_job_store())
    }

    async fn read_body(
        &self,
        _: Request<v1::ReadBodyRequest>,
    ) -> Result<Response<v1::ReadBodyResponse>, Status> {
        Err(no_job_store())
    }

    async fn change_jobs(
        &self,
        _: Request<v1::ChangeJobsRequest>,
    ) -> Result<Response<v1::ChangeJobsResponse>, Status> {
        Err(no_job_store())
    }
}
