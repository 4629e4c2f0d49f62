//! Deletes one guard.

use std::sync::Arc;

use damper_proto::v1;
use tonic::Request;

use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::write::Writes;
use crate::write::removal::{DeletionResult, remove};
use crate::write::request::{WriteRequest, read_key};

pub(crate) async fn delete(
    writes: &Arc<Writes>,
    request: Request<v1::DeleteGuardRequest>,
) -> Result<v1::DeleteGuardResponse, ApiError> {
    let (asked, request) = WriteRequest::read("delete guard", request, |request| request.options.take());
    let v1::DeleteGuardRequest { key, expected_revision, options: _ } = request;
    let key = read_key("key", key.as_ref()).map(ResourceKey::Guard);
    let removed = remove(writes, &asked, key, expected_revision).await?;
    let DeletionResult { revision, findings, amplified: _ } = removed;
    Ok(v1::DeleteGuardResponse { revision, findings })
}
