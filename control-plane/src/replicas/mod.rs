//! `damper.v1.Replicas`: what the servers of one control plane tell each other.

use std::pin::Pin;
use std::sync::Arc;

use damper_proto::v1;
use futures_core::Stream;
use tonic::{Request, Response, Status, Streaming};

use crate::shared::Shared;

/// The service.
pub(crate) struct Replicas {
    #[expect(dead_code, reason = "not built yet")]
    shared: Arc<Shared>,
}

impl Replicas {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

#[tonic::async_trait]
impl v1::replicas_server::Replicas for Replicas {
    type FollowStream = Pin<Box<dyn Stream<Item = Result<v1::FollowResponse, Status>> + Send>>;

    async fn follow(
        &self,
        _request: Request<Streaming<v1::FollowRequest>>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        Err(Status::unimplemented("not built yet"))
    }
}
