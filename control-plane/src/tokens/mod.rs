//! `damper.v1.Tokens`: who may do what. One use case, one file.

use std::sync::Arc;

use damper_proto::v1;
use tonic::{Request, Response, Status};

use crate::shared::Shared;

/// The service.
pub(crate) struct Tokens {
    #[expect(dead_code, reason = "not built yet")]
    shared: Arc<Shared>,
}

impl Tokens {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

#[tonic::async_trait]
impl v1::tokens_server::Tokens for Tokens {
    async fn create_token(
        &self,
        _request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenResponse>, Status> {
        Err(Status::unimplemented("not built yet"))
    }

    async fn list_tokens(
        &self,
        _request: Request<v1::ListTokensRequest>,
    ) -> Result<Response<v1::ListTokensResponse>, Status> {
        Err(Status::unimplemented("not built yet"))
    }

    async fn revoke_token(
        &self,
        _request: Request<v1::RevokeTokenRequest>,
    ) -> Result<Response<v1::RevokeTokenResponse>, Status> {
        Err(Status::unimplemented("not built yet"))
    }

    async fn who_am_i(
        &self,
        _request: Request<v1::WhoAmIRequest>,
    ) -> Result<Response<v1::WhoAmIResponse>, Status> {
        Err(Status::unimplemented("not built yet"))
    }
}
