//! `damper.v1.Kills`: stops what is repeated, at once and for a time. One use case, one file.
//!
//! A kill is written as a rule is, through the same writer, so that history, audit and repeated requests hold for
//! it. What it stops is the engine's; that it goes out before anything else is `distribution`'s. It is over when its
//! time is, without a write; [`expiry`] only clears away what is left of it in the store.

pub(crate) mod list;
pub(crate) mod set;
pub(crate) mod unset;

use std::sync::Arc;

use damper_proto::v1;
use tonic::{Request, Response, Status};

use crate::write::Writes;

/// The service.
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
