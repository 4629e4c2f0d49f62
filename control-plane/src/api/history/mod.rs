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
use tonic::{Request, Response, Status};

use crate::api::response_stream::{ResponseStream, StreamLimits};
use crate::cluster::Cluster;
use crate::write::Writes;

/// The history service.
pub(crate) struct History {
    writes: Arc<Writes>,
    cluster: Arc<Cluster>,
    streams: StreamLimits,
}

impl History {
    pub(crate) fn new(writes: Arc<Writes>, cluster: Arc<Cluster>, streams: StreamLimits) -> Self {
        Self { writes, cluster, streams }
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
        self.writes.fleet.state.answer(list::list(&self.writes, request.into_inner())).await
    }

    async fn get_object(
        &self,
        request: Request<v1::GetObjectRequest>,
    ) -> Result<Response<v1::Object>, Status> {
        self.writes.fleet.state.answer(get::get(&self.writes, request.into_inner())).await
    }

    async fn diff_revisions(
        &self,
        request: Request<v1::DiffRevisionsRequest>,
    ) -> Result<Response<v1::DiffRevisionsResponse>, Status> {
        self.writes.fleet.state.answer(diff::diff(&self.writes, request.into_inner())).await
    }

    async fn rollback(
        &self,
        request: Request<v1::RollbackRequest>,
    ) -> Result<Response<v1::ApplyRulesResponse>, Status> {
        let work = rollback::one(&self.writes, request);
        let answer = self.writes.fleet.state.answer(work).await;
        self.writes.fleet.metrics.written("rollback", answer)
    }

    async fn rollback_all(
        &self,
        request: Request<v1::RollbackAllRequest>,
    ) -> Result<Response<v1::ApplyRulesResponse>, Status> {
        let work = rollback::all(&self.writes, request);
        let answer = self.writes.fleet.state.answer(work).await;
        self.writes.fleet.metrics.written("rollback_all", answer)
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
        let work = export::open(&self.writes, &self.cluster, &self.streams, request);
        self.writes.fleet.state.answer(work).await
    }
}
