//! Returns one guard by its key; the error for an unknown key names the most similar one.

use damper_proto::v1;

use crate::state::error::ApiError;
use crate::write::Writes;
use crate::write::reach;
use crate::write::request::read_key;

pub(crate) async fn get(writes: &Writes, request: v1::GetGuardRequest) -> Result<v1::Guard, ApiError> {
    let pattern = read_key("key", request.key.as_ref()).map_err(ApiError::Faults)?;
    let table = writes.fleet.state.at_least(request.min_revision).await?;
    if let Some(stored) = table.guards().stored(&pattern) {
        return Ok(stored.wire.clone());
    }
    let near = move |pattern: &_| {
        reach::nearest(pattern, table.guards().iter().map(|known| &known.pattern)).cloned()
    };
    Err(reach::unknown(&writes.fleet, "guard", pattern, near).await)
}
