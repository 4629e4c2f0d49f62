//! Predicts the effects of a set without writing it.
//!
//! The set is read, checked and rejected like the apply of the same set. A prediction uses a processor for a
//! moment, so only one runs at a time. A request that waits too long gets DEADLINE_EXCEEDED. A cancelled
//! prediction ends after the current route.

use std::sync::Arc;

use damper_proto::v1::{self, rule_result};
use tonic::Request;

use crate::api::rules::apply::predicted::Prediction;
use crate::api::rules::apply::read::read_what_if;
use crate::api::rules::apply::{Apply, check, check_conditions, over_table};
use crate::state::error::ApiError;
use crate::state::exclusive::ExclusiveWorker;
use crate::state::resource_key::ResourceKey;
use crate::write::Writes;

pub(crate) async fn what_if(
    writes: &Arc<Writes>,
    worker: &ExclusiveWorker,
    request: Request<v1::WhatIfRequest>,
) -> Result<v1::WhatIfResponse, ApiError> {
    let Apply { asked, claim, set } = read_what_if(request)?;
    let over = over_table(writes, &asked, claim, set);
    let (resolved, _) = check(writes, &asked, &over).await?;
    check_conditions(writes, &asked, &over, &resolved)?;
    let edits = over.edits_over(&over.table, &resolved);
    let named = over.set.0.iter().zip(&resolved.outcome);
    let changed = named.filter(|(_, outcome)| **outcome != rule_result::Change::Unchanged);
    let changed: Vec<ResourceKey> =
        changed.map(|(change, _)| change.subject.clone()).chain(resolved.pruned).collect();

    let (writes, before) = (writes.clone(), over.table);
    worker.run(move |cancel| Prediction::of(&writes, &before, &edits, &changed).response(cancel)).await
}
