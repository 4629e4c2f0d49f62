//! `damper.v1.Rules`: the admin API for rules, one file per method.
//!
//! Reads use the snapshot; writes use [`crate::write`]. Nothing here touches a client stream.

pub(crate) mod apply;
pub(crate) mod delete;
pub(crate) mod explain;
pub(crate) mod get;
pub(crate) mod graph;
pub(crate) mod list;
pub(crate) mod propose;
pub(crate) mod put;

use std::sync::Arc;

use damper_proto::v1;
use tonic::{Request, Response, Status, Streaming};

use crate::state::exclusive::ExclusiveWorker;
use crate::write::Writes;
use tokio_util::sync::CancellationToken;

/// The rule service.
pub(crate) struct Rules {
    writes: Arc<Writes>,
    /// Cancels the reading of a set.
    stopping: CancellationToken,
    /// Quota for sets that are being read and written.
    quota: apply::ApplyQuota,
    /// Runs the predictions.
    worker: ExclusiveWorker,
}

impl Rules {
    pub(crate) fn new(writes: Arc<Writes>, stopping: CancellationToken) -> Self {
        let quota = apply::ApplyQuota::new(writes.limits.max_apply_bytes);
        Self { writes, stopping, quota, worker: ExclusiveWorker::new() }
    }
}

#[tonic::async_trait]
impl v1::rules_server::Rules for Rules {
    async fn get_rule(&self, request: Request<v1::GetRuleRequest>) -> Result<Response<v1::Rule>, Status> {
        self.writes.fleet.state.answer(get::get(&self.writes, request.into_inner())).await
    }

    async fn list_rules(
        &self,
        request: Request<v1::ListRulesRequest>,
    ) -> Result<Response<v1::ListRulesResponse>, Status> {
        self.writes.fleet.state.answer(list::list(&self.writes, request.into_inner())).await
    }

    async fn put_rule(
        &self,
        request: Request<v1::PutRuleRequest>,
    ) -> Result<Response<v1::PutRuleResponse>, Status> {
        let work = put::put(&self.writes, request);
        self.writes.fleet.metrics.written("put", self.writes.fleet.state.answer(work).await)
    }

    async fn delete_rule(
        &self,
        request: Request<v1::DeleteRuleRequest>,
    ) -> Result<Response<v1::DeleteRuleResponse>, Status> {
        let work = delete::delete(&self.writes, request);
        self.writes.fleet.metrics.written("delete", self.writes.fleet.state.answer(work).await)
    }

    async fn judge_rule(
        &self,
        request: Request<v1::JudgeRuleRequest>,
    ) -> Result<Response<v1::PutRuleResponse>, Status> {
        self.writes.fleet.state.answer(put::check(&self.writes, request.into_inner())).await
    }

    async fn apply_rules(
        &self,
        request: Request<Streaming<v1::ApplyRulesRequest>>,
    ) -> Result<Response<v1::ApplyRulesResponse>, Status> {
        let work = apply::apply(&self.writes, &self.quota, &self.stopping, request);
        self.writes.fleet.metrics.written("apply", work.await.map(Response::new).map_err(Status::from))
    }

    async fn what_if(
        &self,
        request: Request<v1::WhatIfRequest>,
    ) -> Result<Response<v1::WhatIfResponse>, Status> {
        let work = apply::what_if(&self.writes, &self.worker, request);
        self.writes.fleet.state.answer(work).await
    }

    async fn explain(
        &self,
        request: Request<v1::ExplainRequest>,
    ) -> Result<Response<v1::ExplainResponse>, Status> {
        self.writes.fleet.state.answer(explain::explain(&self.writes.fleet, request.into_inner())).await
    }

    async fn propose_rule(
        &self,
        request: Request<v1::ProposeRuleRequest>,
    ) -> Result<Response<v1::ProposeRuleResponse>, Status> {
        self.writes.fleet.state.answer(propose::propose(&self.writes.fleet, request.into_inner())).await
    }
}
