//! Lists changes by filter, the newest first, in pages.
//!
//! A page token contains the last examined revision, so later changes do not shift the pages.

use damper_proto::v1;
use damper_store::Change;
use prost::Message as _;

use crate::api::history::filter::Changes;
use crate::api::history::object;
use crate::api::page;
use crate::api::page::PAGE_BYTES;
use crate::state::error::ApiError;
use crate::state::history::oldest;
use crate::write::Writes;

/// The most objects that are listed per change.
const MAX_OBJECTS: usize = 100;
/// Changes per read, and per response.
const READ: u64 = 64;
const SEARCH: u64 = 4096;

pub(crate) async fn list(
    writes: &Writes,
    request: v1::ListChangesRequest,
) -> Result<v1::ListChangesResponse, ApiError> {
    let size = page::size(request.page_size)?;
    let filter = Changes::read(request.filter)?;
    let start = before(page::start(filter.digest, &request.page_token)?)?;
    let newest = writes.fleet.table().revision();
    let mut page = Page { changes: Vec::new(), size, bytes: 0 };
    let first = start.unwrap_or_else(|| newest.min(*filter.revisions.end()));
    let stopped = search(writes, &filter, first, &mut page).await?;
    Ok(v1::ListChangesResponse {
        changes: page.changes,
        next_page_token: stopped
            .map(|revision| page::token(filter.digest, [&revision.to_string()]))
            .unwrap_or_default(),
        revision: newest,
        oldest_revision: oldest(&*writes.fleet.state.store).await?,
    })
}

/// Returns the newest revision of a page from its token.
fn before(token: Option<[String; 1]>) -> Result<Option<u64>, ApiError> {
    let Some([last]) = token else { return Ok(None) };
    let last = last.parse::<u64>().ok().and_then(|last| last.checked_sub(1));
    last.map(Some).ok_or_else(|| ApiError::fault("page_token", "is not a token of this list"))
}

struct Page {
    changes: Vec<v1::Change>,
    size: usize,
    bytes: usize,
}

/// Fills a page with changes, from a revision backwards. Returns the last examined revision, `None` if no
/// earlier change can pass.
async fn search(
    writes: &Writes,
    filter: &Changes,
    first: u64,
    page: &mut Page,
) -> Result<Option<u64>, ApiError> {
    let mut upto = first;
    while upto >= *filter.revisions.start() {
        if first - upto >= SEARCH {
            return Ok(Some(upto + 1));
        }
        let after = upto.saturating_sub(READ).max(filter.revisions.start() - 1);
        let (after, read) = match damper_store::latest(&*writes.fleet.state.store, after, upto).await {
            Err(damper_store::StoreError::Compacted { .. }) => return Ok(None),
            read => read?,
        };
        for change in read.iter().rev() {
            if filter.ends_before(change) {
                return Ok(None);
            }
            page.take(change, filter);
            if page.is_full() {
                return Ok((change.revision > *filter.revisions.start()).then_some(change.revision));
            }
        }
        if (read.len() as u64) < upto - after {
            return Ok(None);
        }
        upto = after;
    }
    Ok(None)
}

impl Page {
    fn is_full(&self) -> bool {
        self.changes.len() == self.size || self.bytes > PAGE_BYTES
    }

    fn take(&mut self, change: &Change, filter: &Changes) {
        if !filter.accepts_change(change) {
            return;
        }
        let mut entry = object::head(change);
        let mut bytes = 0;
        for object in object::objects(change, filter).take(MAX_OBJECTS) {
            bytes += object.encoded_len();
            entry.objects.push(object);
            if bytes > PAGE_BYTES {
                break;
            }
        }
        if !entry.objects.is_empty() || filter.accepts_empty(change) {
            self.bytes += entry.encoded_len();
            self.changes.push(entry);
        }
    }
}
