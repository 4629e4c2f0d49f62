//! Lists all kills in force.

use std::time::SystemTime;

use damper_proto::v1;

use crate::state::error::ApiError;
use crate::write::Writes;

pub(crate) async fn list(
    writes: &Writes,
    request: v1::ListKillsRequest,
) -> Result<v1::ListKillsResponse, ApiError> {
    let table = writes.fleet.state.at_least(request.min_revision).await?;
    Ok(v1::ListKillsResponse { kills: table.shown_kills(SystemTime::now()), revision: table.revision() })
}
