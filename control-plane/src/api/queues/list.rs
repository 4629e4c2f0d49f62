//! Lists queues by name or owner, in pages.

use damper_proto::v1;

use crate::api::page;
use crate::state::error::ApiError;
use crate::write::Writes;
use crate::write::digest::Digest;

pub(crate) async fn list(
    writes: &Writes,
    request: v1::ListQueuesRequest,
) -> Result<v1::ListQueuesResponse, ApiError> {
    let v1::ListQueuesRequest { text, page_size, page_token, min_revision } = request;
    let size = page::size(page_size)?;
    let digest = Digest::hash(text.as_bytes());
    let start = page::start::<1>(digest, &page_token)?.map(|[name]| name);
    let table = writes.fleet.state.at_least(min_revision).await?;
    let accepted = |queue: &&v1::Queue| queue.name.contains(&text) || queue.owner.contains(&text);
    let total = table.queues().filter(|(_, stored)| accepted(&&stored.wire)).count() as u64;
    let rest = table.queues_behind(start.as_deref());
    let (queues, more) = page::page(rest.map(|stored| &stored.wire).filter(accepted), size);
    let last = queues.last().filter(|_| more);
    Ok(v1::ListQueuesResponse {
        next_page_token: last.map(|last| page::token(digest, [&last.name])).unwrap_or_default(),
        queues,
        revision: table.revision(),
        total,
    })
}
