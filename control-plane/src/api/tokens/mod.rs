//! `damper.v1.Tokens`: who may do what. One use case, one file.
//!
//! A token is written as a rule is, through the same writer, so that history, audit and repeated requests hold for it,
//! and so that every replica learns of a revocation as it learns of a rule. Who may call this, as anything else, is
//! `access`'s to say.

pub(crate) mod create;
pub(crate) mod list;
pub(crate) mod revoke;

use std::sync::Arc;

use damper_proto::v1;
use tonic::{Request, Response, Status};

use crate::auth::caller::Caller;
use crate::state::error::within;
use crate::state::shared::Shared;

/// The service.
pub(crate) struct Tokens {
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
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenResponse>, Status> {
        let work = create::create(&self.shared, request);
        let answer = within(self.shared.settings.unary_deadline, work).await;
        self.shared.metrics.written("create_token", answer)
    }

    async fn list_tokens(
        &self,
        _: Request<v1::ListTokensRequest>,
    ) -> Result<Response<v1::ListTokensResponse>, Status> {
        Ok(Response::new(list::list(&self.shared.table())))
    }

    async fn revoke_token(
        &self,
        request: Request<v1::RevokeTokenRequest>,
    ) -> Result<Response<v1::RevokeTokenResponse>, Status> {
        let work = revoke::revoke(&self.shared, request);
        let answer = within(self.shared.settings.unary_deadline, work).await;
        self.shared.metrics.written("revoke_token", answer)
    }

    async fn who_am_i(
        &self,
        request: Request<v1::WhoAmIRequest>,
    ) -> Result<Response<v1::WhoAmIResponse>, Status> {
        Ok(Response::new(Caller::of(&request).described(self.shared.access.required)))
    }
}
