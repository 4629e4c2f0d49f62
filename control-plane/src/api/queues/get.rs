//! Returns one queue by its name.

use damper_proto::v1;

use crate::state::error::ApiError;
use crate::write::Writes;
use crate::write::request::read_queue_name;

pub(crate) async fn get(writes: &Writes, request: v1::GetQueueRequest) -> Result<v1::Queue, ApiError> {
    let v1::GetQueueRequest { name, min_revision } = request;
    let subject = read_queue_name("name", &name).map_err(ApiError::Faults)?;
    let table = writes.fleet.state.at_least(min_revision).await?;
    let stored = table.queue(&name).ok_or_else(|| ApiError::NotFound(format!("there is no {subject}")))?;
    Ok(stored.wire.clone())
}
