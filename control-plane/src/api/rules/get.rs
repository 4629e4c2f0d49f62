//! Returns one rule by its key.

use damper_proto::v1;

use crate::state::error::ApiError;
use crate::write::Writes;
use crate::write::request::read_key;

pub(crate) async fn get(writes: &Writes, request: v1::GetRuleRequest) -> Result<v1::Rule, ApiError> {
    let pattern = read_key("key", request.key.as_ref()).map_err(ApiError::Faults)?;
    let table = writes.fleet.state.at_least(request.min_revision).await?;
    let stored =
        table.stored(&pattern).ok_or_else(|| ApiError::NotFound(format!("there is no rule {pattern}")))?;
    Ok(stored.wire.clone())
}
