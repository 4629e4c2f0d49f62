//! `damper.v1.Kills`: stops retries and hedges at once and for a time, one file per method.
//!
//! A kill is written like a rule, through the same writer, so history, audit log and repeated requests work
//! the same. The engine defines its effect; [`crate::push`] sends it before anything else. It ends at its
//! expiry without a write; [`crate::write::kill_expiry`] only deletes the expired entry from the store.

pub(crate) mod list;
pub(crate) mod set;
pub(crate) mod unset;

use std::sync::Arc;

use damper_proto::v1;
use tonic::{Request, Response, Status};

use crate::write::Writes;

/// The kill service.
pub(crate) struct Kills {
    writes: Arc<Writes>,
}

impl Kills {
    pub(crate) fn new(writes: Arc<Writes>) -> Self {
        Self { writes }
    }
}

#[tonic::async_trait]
impl v1::kills_server::Kills for Kills {
    async fn list_kills(
        &self,
        request: Request<v1::ListKillsRequest>,
    ) -> Result<Response<v1::ListKillsResponse>, Status> {
        self.writes.fleet.state.answer(list::list(&self.writes, request.into_inner())).await
    }

    async fn kill(&self, request: Request<v1::KillRequest>) -> Result<Response<v1::KillResponse>, Status> {
        let work = set::kill(&self.writes, request);
        let answer = self.writes.fleet.state.answer(work).await;
        self.writes.fleet.metrics.written("kill", answer)
    }

    async fn unkill(
        &self,
        request: Request<v1::UnkillRequest>,
    ) -> Result<Response<v1::UnkillResponse>, Status> {
        let work = crate::api::kills::unset::unkill(&self.writes, request);
        let answer = self.writes.fleet.state.answer(work).await;
        self.writes.fleet.metrics.written("unkill", answer)
    }
}
