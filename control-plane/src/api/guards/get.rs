//! One guard, by its key.

use damper_proto::v1;

use crate::state::error::ApiError;
use crate::state::shared::Shared;
use crate::write::request::read_key;

pub(crate) async fn get(shared: &Shared, request: v1::GetGuardRequest) -> Result<v1::Guard, ApiError> {
    let pattern = read_key("key", request.key.as_ref()).map_err(ApiError::Faults)?;
    let table = shared.table_at(request.min_revision, shared.settings.unary_deadline / 2).await?;
    let stored = table
        .guards()
        .stored(&pattern)
        .ok_or_else(|| ApiError::NotFound(format!("there is no guard {pattern}")))?;
    Ok(stored.wire.clone())
}
