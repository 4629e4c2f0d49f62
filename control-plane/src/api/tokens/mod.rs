//! `damper.v1.Tokens`: creates, lists and revokes tokens, one file per method.
//!
//! A token is written like a rule, through the same writer, so history, audit log and repeated requests work
//! the same, and every replica receives a revocation like a rule. [`crate::auth`] decides which callers have
//! access.

pub(crate) mod create;
pub(crate) mod list;
pub(crate) mod revoke;

use std::sync::Arc;

use damper_proto::v1;
use tonic::{Request, Response, Status};

use crate::auth::Authenticator;
use crate::auth::caller::Caller;
use crate::write::Writes;

/// The token service.
pub(crate) struct Tokens {
    writes: Arc<Writes>,
    access: Arc<Authenticator>,
}

impl Tokens {
    pub(crate) fn new(writes: Arc<Writes>, access: Arc<Authenticator>) -> Self {
        Self { writes, access }
    }
}

#[tonic::async_trait]
impl v1::tokens_server::Tokens for Tokens {
    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenResponse>, Status> {
        let work = create::create(&self.writes, request);
        let answer = self.writes.fleet.state.answer(work).await;
        self.writes.fleet.metrics.written("create_token", answer)
    }

    async fn list_tokens(
        &self,
        _: Request<v1::ListTokensRequest>,
    ) -> Result<Response<v1::ListTokensResponse>, Status> {
        Ok(Response::new(list::list(&self.writes.fleet.table())))
    }

    async fn revoke_token(
        &self,
        request: Request<v1::RevokeTokenRequest>,
    ) -> Result<Response<v1::RevokeTokenResponse>, Status> {
        let work = revoke::revoke(&self.writes, request);
        let answer = self.writes.fleet.state.answer(work).await;
        self.writes.fleet.metrics.written("revoke_token", answer)
    }

    async fn who_am_i(
        &self,
        request: Request<v1::WhoAmIRequest>,
    ) -> Result<Response<v1::WhoAmIResponse>, Status> {
        Ok(Response::new(Caller::of(&request).described(self.access.required)))
    }
}
