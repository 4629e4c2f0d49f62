//! All kills in force.

use std::time::SystemTime;

use damper_proto::v1;

use crate::state::error::ApiError;
use crate::state::shared::Shared;

pub(crate) async fn list(
    shared: &Shared,
    request: v1::ListKillsRequest,
) -> Result<v1::ListKillsResponse, ApiError> {
    let table = shared.table_at(request.min_revision, shared.settings.unary_deadline / 2).await?;
    Ok(v1::ListKillsResponse { kills: table.shown_kills(SystemTime::now()), revision: table.revision() })
}
