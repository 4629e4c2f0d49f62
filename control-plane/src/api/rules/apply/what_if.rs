//! What a set would do, predicted and not written.
//!
//! It is read, judged and refused as the apply of the same set. The prediction keeps a processor busy for a moment: it
//! waits for its turn. Whoever has to wait for too long is answered DEADLINE_EXCEEDED, and a prediction that nobody waits
//! for any more ends after the route that it is at.

use std::sync::Arc;

use damper_proto::v1::{self, rule_result};
use tonic::Request;

use crate::api::rules::apply::predicted::Prediction;
use crate::api::rules::apply::read::read_what_if;
use crate::api::rules::apply::{Apply, holds, over_table, permitted};
use crate::state::error::ApiError;
use crate::state::exclusive::ExclusiveWorker;
use crate::state::resource_key::ResourceKey;
use crate::write::Writes;

pub(crate) async fn what_if(
    writes: &Arc<Writes>,
    turn: &ExclusiveWorker,
    request: Request<v1::WhatIfRequest>,
) -> Result<v1::WhatIfResponse, ApiError> {
    let Apply { asked, claim, set } = read_what_if(request)?;
    let over = over_table(writes, &asked, claim, set);
    let (settled, _) = permitted(writes, &asked, &over).await?;
    holds(writes, &asked, &over, &settled)?;
    let edits = over.edits_over(&over.table, &settled);
    let named = over.set.0.iter().zip(&settled.outcome);
    let changed = named.filter(|(_, outcome)| **outcome != rule_result::Change::Unchanged);
    let changed: Vec<ResourceKey> =
        changed.map(|(change, _)| change.subject.clone()).chain(settled.pruned).collect();

    let (writes, before) = (writes.clone(), over.table);
    turn.take(move |awaited| Prediction::of(&writes, &before, &edits, &changed).told(awaited)).await
}
