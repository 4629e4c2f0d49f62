//! Lists guards by filter, in pages.

use damper_proto::v1;

use crate::api::filter::{ListFilter, names};
use crate::api::page;
use crate::state::error::ApiError;
use crate::write::Writes;

pub(crate) async fn list(
    writes: &Writes,
    request: v1::ListGuardsRequest,
) -> Result<v1::ListGuardsResponse, ApiError> {
    let size = page::size(request.page_size)?;
    let filter = ListFilter::without_mode("filter", request.filter, "guards")?;
    let start = page::start_pattern(filter.digest(), &request.page_token)?;
    let table = writes.fleet.state.at_least(request.min_revision).await?;
    let accepted = |guard: &&v1::Guard| {
        let named = guard.key.as_ref().is_some_and(|key| filter.accepts(names(key), 0));
        named && filter.accepts_owner(&guard.owner)
    };
    let total = table.guards().iter().filter(|stored| accepted(&&stored.wire)).count() as u64;
    let rest = table.guards().behind(start.as_ref());
    let (guards, more) = page::page(rest.map(|stored| &stored.wire).filter(accepted), size);
    let last = guards.last().filter(|_| more).and_then(|last| last.key.as_ref());
    Ok(v1::ListGuardsResponse {
        next_page_token: last.map(|key| page::token(filter.digest(), names(key))).unwrap_or_default(),
        guards,
        revision: table.revision(),
        total,
    })
}
