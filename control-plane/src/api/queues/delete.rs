//! Deletes one queue.

use std::sync::Arc;

use damper_proto::v1;
use tonic::Request;

use crate::state::error::ApiError;
use crate::write::Writes;
use crate::write::removal::remove;
use crate::write::request::{WriteRequest, read_queue_name};

pub(crate) async fn delete(
    writes: &Arc<Writes>,
    request: Request<v1::DeleteQueueRequest>,
) -> Result<v1::DeleteQueueResponse, ApiError> {
    let (asked, request) = WriteRequest::read("delete queue", request, |request| request.options.take());
    let v1::DeleteQueueRequest { name, expected_revision, options: _ } = request;
    let removed = remove(writes, &asked, read_queue_name("name", &name), expected_revision).await?;
    Ok(v1::DeleteQueueResponse { revision: removed.revision, findings: removed.findings })
}
