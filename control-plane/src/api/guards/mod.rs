//! `damper.v1.Guards`: the admin API for the ceilings that callee owners set, one file per method.
//!
//! Guards are read and written like rules. The engine defines their effect on rules; the findings about it
//! are in [`crate::write::findings`].

pub(crate) mod delete;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod put;

use std::sync::Arc;

use damper_proto::v1;
use tonic::{Request, Response, Status};

use crate::write::Writes;

/// The guard service.
pub(crate) struct Guards {
    writes: Arc<Writes>,
}

impl Guards {
    pub(crate) fn new(writes: Arc<Writes>) -> Self {
        Self { writes }
    }
}

#[tonic::async_trait]
impl v1::guards_server::Guards for Guards {
    async fn get_guard(&self, request: Request<v1::GetGuardRequest>) -> Result<Response<v1::Guard>, Status> {
        self.writes.fleet.state.answer(get::get(&self.writes, request.into_inner())).await
    }

    async fn list_guards(
        &self,
        request: Request<v1::ListGuardsRequest>,
    ) -> Result<Response<v1::ListGuardsResponse>, Status> {
        self.writes.fleet.state.answer(list::list(&self.writes, request.into_inner())).await
    }

    async fn put_guard(
        &self,
        request: Request<v1::PutGuardRequest>,
    ) -> Result<Response<v1::PutGuardResponse>, Status> {
        let work = put::put(&self.writes, request);
        let answer = self.writes.fleet.state.answer(work).await;
        self.writes.fleet.metrics.written("put_guard", answer)
    }

    async fn delete_guard(
        &self,
        request: Request<v1::DeleteGuardRequest>,
    ) -> Result<Response<v1::DeleteGuardResponse>, Status> {
        let work = delete::delete(&self.writes, request);
        let answer = self.writes.fleet.state.answer(work).await;
        self.writes.fleet.metrics.written("delete_guard", answer)
    }

    async fn judge_guard(
        &self,
        request: Request<v1::JudgeGuardRequest>,
    ) -> Result<Response<v1::PutGuardResponse>, Status> {
        self.writes.fleet.state.answer(put::check(&self.writes, request.into_inner())).await
    }
}
