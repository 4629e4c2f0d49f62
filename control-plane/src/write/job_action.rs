//! Records in the history what operators do with jobs: who, when, why, which selection, how many.

use std::sync::Arc;
use std::time::SystemTime;

use damper_proto::v1;
use damper_store::writer::ProposedEdit;

use crate::state::error::ApiError;
use crate::state::job_action::{JOB_ACTION, value};
use crate::write::Writes;
use crate::write::request::{WriteRequest, write};

/// Records an action, and returns the revision. The options of the request give author and reason.
pub(crate) async fn record(
    writes: &Arc<Writes>,
    asked: &WriteRequest,
    action: v1::JobAction,
) -> Result<u64, ApiError> {
    let at = SystemTime::now();
    let action = v1::JobAction { at: Some(at.into()), ..action };
    let edit = ProposedEdit { key: JOB_ACTION.to_owned(), value: Some(value(&action)), expected: None };
    // The id identifies the request itself.
    let mut asked = asked.clone();
    asked.options.request_id.clear();
    write(writes, &asked, &writes.fleet.table(), at, vec![edit]).await.map(|done| done.committed.revision)
}

/// Records an action that was carried out. It cannot be undone, so an error contains what was done.
pub(crate) async fn record_done(
    writes: &Arc<Writes>,
    asked: &WriteRequest,
    action: v1::JobAction,
) -> Result<u64, ApiError> {
    let jobs = action.jobs;
    record(writes, asked, action).await.map_err(|error| ApiError::Unavailable {
        reason: format!("{jobs} jobs were changed, but the history could not record it: {error}"),
        outcome_known: false,
    })
}
