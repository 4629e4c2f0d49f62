//! Removes one guard.

use std::sync::Arc;

use damper_proto::v1;
use tonic::Request;

use crate::errors::Error;
use crate::removal::{Removed, remove};
use crate::requests::Asked;
use crate::shared::Shared;
use crate::table::Subject;

pub(super) async fn delete(
    shared: &Arc<Shared>,
    request: Request<v1::DeleteGuardRequest>,
) -> Result<v1::DeleteGuardResponse, Error> {
    let (asked, request) = Asked::read("delete guard", request, |request| request.options.take());
    let v1::DeleteGuardRequest { key, expected_revision, options: _ } = request;
    let removed = remove(shared, &asked, key.as_ref(), expected_revision, Subject::Guard).await?;
    let Removed { revision, findings, amplified: _ } = removed;
    Ok(v1::DeleteGuardResponse { revision, findings })
}
