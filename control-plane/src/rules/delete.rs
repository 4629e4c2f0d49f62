//! Removes one rule.

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
    request: Request<v1::DeleteRuleRequest>,
) -> Result<v1::DeleteRuleResponse, Error> {
    let (asked, request) = Asked::read("delete", request, |request| request.options.take());
    let v1::DeleteRuleRequest { key, expected_revision, options: _ } = request;
    let removed = remove(shared, &asked, key.as_ref(), expected_revision, Subject::Rule).await?;
    let Removed { revision, findings, amplified } = removed;
    let (before, after) = amplified.unzip();
    Ok(v1::DeleteRuleResponse { revision, findings, before, after })
}
