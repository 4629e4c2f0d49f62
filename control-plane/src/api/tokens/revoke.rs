//! Revokes a token.
//!
//! Its entry is deleted; every replica sees this in the next snapshot and ends the token's streams and
//! sessions. The last admin token without an expiry cannot be revoked, so that new tokens can always be
//! created. The writer checks this, since two could be revoked concurrently.

use std::sync::Arc;
use std::time::SystemTime;

use damper_core::Faults;
use damper_proto::v1;
use damper_store::writer::{EditPlanner, EntriesView, Proposal, ProposedEdit};
use tonic::Request;

use crate::state::error::ApiError;
use crate::state::snapshot::Snapshot;
use crate::state::tokens::secret::TokenId;
use crate::state::tokens::{StoredToken, token_key, token_of};
use crate::write::Writes;
use crate::write::request::{WriteRequest, check_options, commit, stored_answer};

pub(crate) async fn revoke(
    writes: &Writes,
    request: Request<v1::RevokeTokenRequest>,
) -> Result<v1::RevokeTokenResponse, ApiError> {
    let (asked, request) = WriteRequest::read("revoke token", request, |request| request.options.take());
    let mut faults = Faults::none();
    check_options("options", &asked.options, &mut faults);
    let id = TokenId::parse(&request.id);
    if id.is_none() {
        faults.add("id", "is not the id of a token: 16 digits 0-9a-f, the middle part of damper_ID_SECRET");
    }
    let Some(id) = faults.or(id).map_err(ApiError::Faults)? else { return Err(missing(&request.id)) };
    if let Some(first) = stored_answer(writes, &asked).await? {
        return Ok(v1::RevokeTokenResponse { revision: first.committed.revision });
    }
    let (table, at) = (writes.fleet.table(), SystemTime::now());
    if asked.options.validate_only {
        return try_out(&table, &id);
    }
    let edit = ProposedEdit { key: token_key(&id), value: None, expected: None };
    let revocation = Revocation { id: id.clone(), edit: edit.clone() };
    let proposal = Proposal { planner: Some(Arc::new(revocation)), ..asked.proposal(at, vec![edit]) };
    let done = commit(writes, &asked, &table, proposal).await.map_err(|error| match error {
        ApiError::PlannerRejected(_) => last(),
        other => other,
    })?;
    if done.committed.unchanged {
        return Err(missing(id.as_str()));
    }
    if !done.committed.repeated {
        let (author, principal) = (&asked.options.author, asked.principal());
        tracing::warn!(%id, author, principal, revision = done.committed.revision, "token revoked");
    }
    Ok(v1::RevokeTokenResponse { revision: done.committed.revision })
}

fn try_out(table: &Snapshot, id: &TokenId) -> Result<v1::RevokeTokenResponse, ApiError> {
    let token = table.tokens().stored(id).ok_or_else(|| missing(id.as_str()))?;
    let lasting = table.tokens().all().filter(|token| token.is_lasting_admin()).count();
    match token.is_lasting_admin() && lasting == 1 {
        true => Err(last()),
        false => Ok(v1::RevokeTokenResponse { revision: table.revision() }),
    }
}

fn missing(id: &str) -> ApiError {
    ApiError::NotFound(format!("there is no token with the id {id}"))
}

fn last() -> ApiError {
    ApiError::Unmet("this token cannot be revoked: it is the last admin token that does not expire; create another one first".to_owned())
}

/// Deletes a token unless it is the last admin token without an expiry.
#[derive(Debug)]
struct Revocation {
    id: TokenId,
    edit: ProposedEdit,
}

impl EditPlanner for Revocation {
    fn edits(&self, entries: &EntriesView<'_>) -> Result<Vec<ProposedEdit>, Vec<String>> {
        let lasting = entries.iter().filter_map(|(key, entry)| {
            let token = StoredToken::read(&token_of(key)?, &entry.value, entry.revision)?;
            token.is_lasting_admin().then_some(token.id)
        });
        let lasting: Vec<TokenId> = lasting.collect();
        if lasting == [self.id.clone()] {
            Err(vec![self.edit.key.clone()])
        } else {
            Ok(vec![self.edit.clone()])
        }
    }
}
