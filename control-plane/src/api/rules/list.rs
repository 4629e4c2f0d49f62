//! Lists rules by filter, in pages.

use std::sync::Arc;

use damper_core::Pattern;
use damper_proto::v1;

use crate::api::filter::{ListFilter, names};
use crate::api::page;
use crate::state::error::ApiError;
use crate::state::snapshot::Snapshot;
use crate::write::Writes;

pub(crate) async fn list(
    writes: &Arc<Writes>,
    request: v1::ListRulesRequest,
) -> Result<v1::ListRulesResponse, ApiError> {
    let size = page::size(request.page_size)?;
    let filter = ListFilter::new(request.filter)?;
    let start = page::start_pattern(filter.digest(), &request.page_token)?;
    let table = writes.fleet.state.at_least(request.min_revision).await?;
    writes.fleet.off_runtime(move |_| Ok(page(&table, &filter, start.as_ref(), size))).await
}

fn page(
    table: &Snapshot,
    filter: &ListFilter,
    start: Option<&Pattern>,
    size: usize,
) -> v1::ListRulesResponse {
    let accepted = |rule: &&v1::Rule| {
        let mode = rule.policy.as_ref().map_or(0, |policy| policy.mode);
        let named = rule.key.as_ref().is_some_and(|key| filter.accepts(names(key), mode));
        named && filter.accepts_owner(&rule.owner)
    };
    let total = table.iter().filter(|(_, stored)| accepted(&&stored.wire)).count() as u64;
    let rest = table.behind(start);
    let (rules, more) = page::page(rest.map(|(_, stored)| &stored.wire).filter(accepted), size);
    let last = rules.last().filter(|_| more).and_then(|last| last.key.as_ref());
    v1::ListRulesResponse {
        next_page_token: last.map(|key| page::token(filter.digest(), names(key))).unwrap_or_default(),
        rules,
        revision: table.revision(),
        total,
    }
}
