//! Deletes one guard.

use std::sync::Arc;

use damper_proto::v1;
use tonic::Request;

use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::write::Writes;
use crate::write::removal::{DeletionResult, remove};
use crate::write::request::WriteRequest;

pub(crate) async fn delete(
    writes: &Arc<Writes>,
    request: Request<v1::DeleteGuardRequest>,
) -> Result<v1::DeleteGuardResponse, ApiError> {
    let (asked, request) = WriteRequest::read("delete guard", request, |request| request.options.take());
    let v1::DeleteGuardRequest { key, expected_revision, options: _ } = request;
    let removed = remove(writes, &asked, key.as_ref(), expected_revision, ResourceKey::Guard).await?;
    let DeletionResult { revision, findings, amplified: _ } = removed;
    Ok(v1::DeleteGuardResponse { revision, findings })
}
