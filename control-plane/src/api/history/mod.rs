//! `damper.v1.History`: changes, earlier versions and rollback, one file per method.
//!
//! Everything is read from the changes in the store. Each contains the state before and after, so an earlier
//! state is the current one with the later changes reverted ([`crate::state::history`]). Nothing else is
//! stored for it.

pub(crate) mod accept;
pub(crate) mod audit;
pub(crate) mod diff;
pub(crate) mod export;
pub(crate) mod filter;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod object;
pub(crate) mod rollback;

use std::sync::Arc;

use damper_proto::v1;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use crate::api::response_stream::{ResponseStream, StreamLimits};
use crate::cluster::Cluster;
use crate::state::error::ApiError;
use crate::write::Writes;

/// The history service.
pub(crate) struct History {
    writes: Arc<Writes>,
    cluster: Arc<Cluster>,
    streams: StreamLimits,
    /// One rollback at a time: each keeps the values that it restores until they are written.
    rollbacks: Semaphore,
    /// One export of an earlier revision at a time: each keeps the values that were changed since.
    earlier: Arc<Semaphore>,
}

impl History {
    pub(crate) fn new(writes: Arc<Writes>, cluster: Arc<Cluster>, streams: StreamLimits) -> Self {
        let (rollbacks, earlier) = (Semaphore::new(1), Arc::new(Semaphore::new(1)));
        Self { writes, cluster, streams, rollbacks, earlier }
    }

    /// Answers a question about earlier changes at its turn.
    async fn answer<T>(
        &self,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<Response<T>, Status> {
        let in_turn = async {
            let _turn = self.writes.fleet.state.past.turn().await;
            work.await
        };
        self.writes.fleet.state.answer(in_turn).await
    }

    /// Answers a rollback at its turn.
    async fn roll_back(
        &self,
        what: &'static str,
        work: impl Future<Output = Result<v1::ApplyRulesResponse, ApiError>>,
    ) -> Result<Response<v1::ApplyRulesResponse>, Status> {
        let in_turn = async {
            let _turn = self.rollbacks.acquire().await.expect("it is never closed");
            work.await
        };
        let answer = self.writes.fleet.state.answer(in_turn).await;
        self.writes.fleet.metrics.written(what, answer)
    }
}

#[tonic::async_trait]
impl v1::history_server::History for History {
    type ExportStream = ResponseStream<v1::ExportResponse>;
    type ExportAuditStream = ResponseStream<v1::Change>;

    async fn list_changes(
        &self,
        request: Request<v1::ListChangesRequest>,
    ) -> Result<Response<v1::ListChangesResponse>, Status> {
        self.answer(list::list(&self.writes, request.into_inner())).await
    }

    async fn get_object(
        &self,
        request: Request<v1::GetObjectRequest>,
    ) -> Result<Response<v1::Object>, Status> {
        self.answer(get::get(&self.writes, request.into_inner())).await
    }

    async fn diff_revisions(
        &self,
        request: Request<v1::DiffRevisionsRequest>,
    ) -> Result<Response<v1::DiffRevisionsResponse>, Status> {
        self.answer(diff::diff(&self.writes, request.into_inner())).await
    }

    async fn rollback(
        &self,
        request: Request<v1::RollbackRequest>,
    ) -> Result<Response<v1::ApplyRulesResponse>, Status> {
        self.roll_back("rollback", rollback::one(&self.writes, request)).await
    }

    async fn rollback_all(
        &self,
        request: Request<v1::RollbackAllRequest>,
    ) -> Result<Response<v1::ApplyRulesResponse>, Status> {
        self.roll_back("rollback_all", rollback::all(&self.writes, request)).await
    }

    async fn accept_store(
        &self,
        request: Request<v1::AcceptStoreRequest>,
    ) -> Result<Response<v1::AcceptStoreResponse>, Status> {
        let work = accept::accept(&self.cluster, request);
        let answer = self.writes.fleet.state.answer(work).await;
        self.writes.fleet.metrics.written("accept_store", answer)
    }

    async fn export_audit(
        &self,
        request: Request<v1::ExportAuditRequest>,
    ) -> Result<Response<Self::ExportAuditStream>, Status> {
        let work = audit::open(&self.writes, &self.streams, request);
        self.writes.fleet.state.answer(work).await
    }

    async fn export(
        &self,
        request: Request<v1::ExportRequest>,
    ) -> Result<Response<Self::ExportStream>, Status> {
        let work = export::open(&self.writes, &self.cluster, &self.streams, &self.earlier, request);
        self.writes.fleet.state.answer(work).await
    }
}
