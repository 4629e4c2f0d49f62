//! Returns a rule, guard, kill, token or queue at a revision.

use damper_proto::v1;

use crate::api::history::object;
use crate::api::history::object::HistorySubject;
use crate::state::error::{ApiError, Current};
use crate::state::history::{before, table_at, touched};
use crate::state::snapshot::Snapshot;
use crate::state::tokens::secret::TokenId;
use crate::state::tokens::token_key;
use crate::write::Writes;

pub(crate) async fn get(writes: &Writes, request: v1::GetObjectRequest) -> Result<v1::Object, ApiError> {
    let named = object::named(request.key).map_err(ApiError::Faults)?;
    let table = table_at(&writes.fleet.state, "revision", request.revision.unwrap_or(0)).await?;
    let revision = request.revision.unwrap_or(table.revision());
    let subject = match named {
        HistorySubject::Subject(subject) => subject,
        HistorySubject::Token(id) => return token(writes, &table, &id, revision).await,
        HistorySubject::Jobs(queue) => {
            return Err(ApiError::NotFound(format!(
                "earlier states of the jobs of queue {queue} cannot be shown: the history records only the actions on jobs"
            )));
        }
    };
    let mut since =
        touched(&*writes.fleet.state.store, revision, table.revision(), |other| *other == subject).await?;
    let then = match since.remove(&subject) {
        Some(touched) => touched.before.map(|entry| object::read(&subject, entry)),
        None => Current::stored(&table, &subject).map(Into::into),
    };
    then.ok_or_else(|| ApiError::NotFound(format!("there was no {subject} at revision {revision}")))
}

async fn token(
    writes: &Writes,
    table: &Snapshot,
    id: &TokenId,
    revision: u64,
) -> Result<v1::Object, ApiError> {
    let then = match before(&*writes.fleet.state.store, revision, table.revision(), &token_key(id)).await? {
        Some(then) => then.map(|entry| object::token(id, &entry)),
        None => {
            let stored = table.tokens().stored(id).map(|stored| stored.wire.clone());
            stored.map(|wire| v1::Object { kind: Some(v1::object::Kind::Token(wire)) })
        }
    };
    then.ok_or_else(|| {
        ApiError::NotFound(format!("there was no token with the id {id} at revision {revision}"))
    })
}
