//! `damper.v1.Queues`: the admin API for queues and their jobs, one file per method.
//!
//! The settings of a queue are read and written like rules. Everything about jobs needs the job store.

pub(crate) mod change;
pub(crate) mod delete;
pub(crate) mod get;
pub(crate) mod jobs;
pub(crate) mod list;
pub(crate) mod put;
pub(crate) mod selection;
pub(crate) mod stats;

use std::sync::Arc;

use damper_proto::v1;
use tonic::{Request, Response, Status};

use crate::jobs::Jobs;
use crate::write::Writes;

/// The queue service.
pub(crate) struct Queues {
    writes: Arc<Writes>,
    jobs: Arc<Jobs>,
}

impl Queues {
    pub(crate) fn new(writes: Arc<Writes>, jobs: Arc<Jobs>) -> Self {
        Self { writes, jobs }
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
        request: Request<v1::GetQueueStatsRequest>,
    ) -> Result<Response<v1::GetQueueStatsResponse>, Status> {
        self.writes.fleet.state.answer(stats::get(&self.jobs, request.into_inner())).await
    }

    async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        self.writes.fleet.state.answer(jobs::list(&self.jobs, request.into_inner())).await
    }

    async fn get_job(&self, request: Request<v1::GetJobRequest>) -> Result<Response<v1::Job>, Status> {
        self.writes.fleet.state.answer(jobs::get(&self.jobs, request.into_inner())).await
    }

    async fn read_body(
        &self,
        request: Request<v1::ReadBodyRequest>,
    ) -> Result<Response<v1::ReadBodyResponse>, Status> {
        self.writes.fleet.state.answer(jobs::read_body(&self.writes, &self.jobs, request)).await
    }

    async fn change_jobs(
        &self,
        request: Request<v1::ChangeJobsRequest>,
    ) -> Result<Response<v1::ChangeJobsResponse>, Status> {
        let work = change::change(&self.writes, &self.jobs, request);
        let answer = self.writes.fleet.state.answer(work).await;
        self.writes.fleet.metrics.written("change_jobs", answer)
    }
}
