//! Lists the rules, guards and queues that differ between two revisions, in pages.
//!
//! A page token contains the later revision, so that pages are consistent even if the request omits it.

use damper_proto::v1;
use prost::Message as _;

use crate::api::filter::ListFilter;
use crate::api::history::object;
use crate::api::page;
use crate::state::error::ApiError;
use crate::state::history;
use crate::state::history::KeyHistory;
use crate::state::resource_key::ResourceKey;
use crate::write::Writes;
use crate::write::digest::Digest;

pub(crate) async fn diff(
    writes: &Writes,
    request: v1::DiffRevisionsRequest,
) -> Result<v1::DiffRevisionsResponse, ApiError> {
    let size = page::size(request.page_size)?;
    let question = v1::DiffRevisionsRequest { page_token: String::new(), page_size: 0, ..request.clone() };
    let digest = Digest::hash(&question.encode_to_vec());
    let start = page::start(digest, &request.page_token)?.map(read_start).transpose()?;
    let from = request.from_revision.ok_or_else(|| ApiError::fault("from_revision", "is required"))?;
    let filter = ListFilter::without_mode("filter", request.filter, "revisions")?;
    let to = match &start {
        Some((to, _)) => *to,
        None => request.to_revision.unwrap_or(writes.fleet.table().revision()),
    };
    history::table_at(&writes.fleet.state, "from_revision", from).await?;
    history::table_at(&writes.fleet.state, "to_revision", to).await?;
    let wanted = |subject: &ResourceKey| filter.accepts_subject(subject);
    let touched = history::touched(&*writes.fleet.state.store, from.min(to), from.max(to), wanted).await?;
    let differing = touched.into_iter().filter_map(|(subject, touched)| {
        let change = between(&subject, touched, from > to)?;
        let owned = object::owners(&change).any(|owner| filter.accepts_owner(owner));
        owned.then_some((subject, change))
    });
    let (subjects, changes): (Vec<ResourceKey>, Vec<v1::ObjectChange>) = differing.unzip();
    let begin = start.map_or(0, |(_, last)| subjects.partition_point(|subject| *subject <= last));
    let (objects, more) = page::page(changes[begin..].iter(), size);
    let last = subjects[begin..].get(objects.len().wrapping_sub(1)).filter(|_| more);
    Ok(v1::DiffRevisionsResponse {
        objects,
        next_page_token: last.map(|last| token(digest, to, last)).unwrap_or_default(),
        from_revision: from,
        to_revision: to,
        total: changes.len() as u64,
    })
}

/// Returns the difference of a resource; `None` if there is none.
fn between(
    subject: &ResourceKey,
    KeyHistory { before, after }: KeyHistory,
    backwards: bool,
) -> Option<v1::ObjectChange> {
    let read = |entry| object::read(subject, entry);
    let (before, after) = (before.map(read), after.map(read));
    if object::same(before.as_ref(), after.as_ref()) {
        return None;
    }
    let (before, after) = if backwards { (after, before) } else { (before, after) };
    Some(v1::ObjectChange { key: Some(object::key(subject)), before, after })
}

fn token(digest: u64, to: u64, last: &ResourceKey) -> String {
    page::token(digest, [&to.to_string(), &last.key()])
}

fn read_start([to, last]: [String; 2]) -> Result<(u64, ResourceKey), ApiError> {
    let read = to.parse().ok().zip(ResourceKey::of_key(&last));
    read.ok_or_else(|| ApiError::fault("page_token", "is not a token of this list"))
}
