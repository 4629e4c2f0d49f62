//! Earlier states, computed from the store's changes: the present state with later changes undone.
//!
//! A change keeps the previous entry of each key. So the oldest known state is the one after the newest
//! dropped change. One change can be a whole set with all that it replaced, so changes are read in turn
//! ([`PastReads`]), and at most 8 MiB of them are kept.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::state::State;
use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use damper_store::{Change, Entry, Store};

/// Changes per read.
pub(crate) const PAGE: u64 = 16;

/// Concurrent readers of earlier changes.
pub(crate) const READERS: usize = 1;
/// The most bytes of keys and values that are kept of the changes in between.
pub(crate) const KEPT_BYTES: usize = 8 << 20;

/// Turns of reading earlier changes.
pub(crate) struct PastReads(Semaphore);

impl PastReads {
    pub(crate) fn new() -> Self {
        Self(Semaphore::new(READERS))
    }

    /// Waits for a turn, which lasts until the permit is dropped.
    pub(crate) async fn turn(&self) -> SemaphorePermit<'_> {
        self.0.acquire().await.expect("it is never closed")
    }
}

/// A rule or guard before and after some changes.
pub(crate) struct KeyHistory {
    pub(crate) before: Option<Entry>,
    pub(crate) after: Option<Entry>,
}

/// Returns the oldest revision whose state is known: that of the newest dropped change.
pub(crate) async fn oldest(store: &dyn Store) -> Result<u64, damper_store::StoreError> {
    match store.changes(0, 1).await {
        Err(damper_store::StoreError::Compacted { oldest }) => Ok(oldest),
        first => first.map(|_| 0),
    }
}

/// Returns the revision of the store, which this replica may not have reached.
pub(crate) async fn newest(state: &State) -> Result<u64, ApiError> {
    let mut newest = state.table().revision();
    while let Some(newer) = state.store.changes(newest, u64::MAX).await?.last() {
        newest = newer.revision;
    }
    Ok(newest)
}

/// Returns the snapshot once it has reached a revision, which must exist; `path` is the request's field.
pub(crate) async fn table_at(state: &State, path: &str, revision: u64) -> Result<Arc<Snapshot>, ApiError> {
    if revision > state.table().revision() {
        let newest = newest(state).await?;
        if revision > newest {
            return Err(ApiError::fault(
                path,
                format!("revision {revision} does not exist yet; the newest is {newest}"),
            ));
        }
    }
    state.at_least(revision).await
}

/// Returns a snapshot at an earlier revision, or as it is if the history does not reach that far.
pub(crate) async fn snapshot_at(
    state: &State,
    table: &Arc<Snapshot>,
    revision: u64,
) -> Result<Arc<Snapshot>, ApiError> {
    let _turn = state.past.turn().await;
    match touched(&*state.store, revision, table.revision(), |_| true).await {
        Ok(touched) => {
            let before = touched.into_iter().map(|(subject, KeyHistory { before, .. })| (subject, before));
            Ok(Arc::new(table.at_revision(revision, before)))
        }
        Err(ApiError::NoLongerKept { .. }) => Ok(table.clone()),
        Err(error) => Err(error),
    }
}

/// Returns the first changes after `after` up to `upto`, in order and without a gap; empty only if there are
/// none.
pub(crate) async fn changes(store: &dyn Store, after: u64, upto: u64) -> Result<Vec<Change>, ApiError> {
    match store.changes(after, upto.min(after.saturating_add(PAGE))).await {
        Ok(changes) => match changes.first() {
            Some(first) if first.revision != after + 1 => {
                Err(ApiError::NoLongerKept { asked: after, oldest: first.revision - 1 })
            }
            _ => Ok(changes),
        },
        Err(damper_store::StoreError::Compacted { oldest }) => {
            Err(ApiError::NoLongerKept { asked: after, oldest })
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the rules and guards in the changes after `after` up to `upto`, before and after them.
pub(crate) async fn touched(
    store: &dyn Store,
    after: u64,
    upto: u64,
    wanted: impl Fn(&ResourceKey) -> bool,
) -> Result<BTreeMap<ResourceKey, KeyHistory>, ApiError> {
    let mut touched = BTreeMap::new();
    let mut bytes = 0;
    let mut reached = after;
    while reached < upto {
        let page = match changes(store, reached, upto).await {
            Err(ApiError::NoLongerKept { oldest, .. }) => {
                return Err(ApiError::NoLongerKept { asked: after, oldest });
            }
            page => page?,
        };
        let Some(last) = page.last() else {
            return Err(ApiError::unavailable(format!(
                "the store was replaced or restored: it lacks revision {upto}; see `damper store status`"
            )));
        };
        reached = last.revision;
        for change in page {
            take(&mut touched, &mut bytes, change, &wanted);
        }
        if bytes > KEPT_BYTES {
            let limit = KEPT_BYTES >> 20;
            return Err(ApiError::Unmet(format!(
                "the changes since revision {after} exceed {limit} MiB, the limit of one request; choose a later revision"
            )));
        }
    }
    Ok(touched)
}

/// Returns the entry before the changes after `after` up to `upto`; `None` if none of them contains it.
pub(crate) async fn before(
    store: &dyn Store,
    after: u64,
    upto: u64,
    key: &str,
) -> Result<Option<Option<Entry>>, ApiError> {
    let mut reached = after;
    while reached < upto {
        let page = changes(store, reached, upto).await?;
        let Some(last) = page.last() else {
            return Err(ApiError::unavailable(format!(
                "the store was replaced or restored: it lacks revision {upto}; see `damper store status`"
            )));
        };
        reached = last.revision;
        if let Some(edit) = page.iter().flat_map(|change| &change.edits).find(|edit| edit.key == key) {
            return Ok(Some(edit.before.clone()));
        }
    }
    Ok(None)
}

/// Keeps what a change did to the wanted keys, and counts the bytes kept.
fn take(
    touched: &mut BTreeMap<ResourceKey, KeyHistory>,
    bytes: &mut usize,
    change: Change,
    wanted: impl Fn(&ResourceKey) -> bool,
) {
    // A part of the buffer of the whole change would keep all of it.
    let copy = |value: Bytes| Bytes::copy_from_slice(&value);
    let size = |entry: &Option<Entry>| entry.as_ref().map_or(0, |entry| entry.value.len());
    let revision = change.revision;
    for edit in change.edits {
        let Some(subject) = ResourceKey::of_key(&edit.key).filter(&wanted) else { continue };
        let after = edit.value.map(|value| Entry { revision, value: copy(value) });
        *bytes += size(&after);
        match touched.entry(subject) {
            Vacant(free) => {
                let before =
                    edit.before.map(|Entry { revision, value }| Entry { revision, value: copy(value) });
                *bytes += edit.key.len() + size(&before);
                free.insert(KeyHistory { before, after });
            }
            Occupied(mut there) => {
                *bytes -= size(&std::mem::replace(&mut there.get_mut().after, after));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use damper_core::Pattern;
    use damper_store::Edit;
    use damper_store::sled::SledStore;

    use super::*;

    fn subject(callee: usize) -> ResourceKey {
        ResourceKey::Rule(Pattern::parse("*", "*", &format!("callee-{callee}"), "*").unwrap())
    }

    fn change(revision: u64, callee: usize, bytes: usize) -> Change {
        let edit = Edit { key: subject(callee).key(), value: Some(vec![1; bytes].into()), before: None };
        Change {
            revision,
            commit: 0,
            at: SystemTime::UNIX_EPOCH,
            author: String::new(),
            reason: String::new(),
            peer: String::new(),
            principal: String::new(),
            request_id: String::new(),
            request_digest: 0,
            edits: vec![edit],
        }
    }

    #[tokio::test]
    async fn values_of_earlier_changes_have_a_bound() {
        const EACH: usize = 1 << 20;
        const CHANGES: usize = KEPT_BYTES / EACH + 1;
        let folder = tempfile::tempdir().unwrap();
        let store = SledStore::open(folder.path()).await.unwrap();
        let changes: Vec<Change> = (0..CHANGES).map(|n| change(n as u64 + 1, n, EACH)).collect();
        store.commit(0, &changes).await.unwrap();
        // The same rule again and again: only the first and the last value are kept.
        let head = CHANGES as u64;
        let again: Vec<Change> = (1..=10).map(|n| change(head + n, 0, EACH)).collect();
        store.commit(head, &again).await.unwrap();
        let kept = async |after, upto, wanted: &dyn Fn(&ResourceKey) -> bool| {
            touched(&store, after, upto, wanted).await.map(|touched| touched.len())
        };
        assert!(matches!(kept(0, head, &|_| true).await, Err(ApiError::Unmet(_))));
        assert_eq!(kept(2, head, &|_| true).await.unwrap(), CHANGES - 2);
        assert_eq!(kept(0, head + 10, &|other| *other == subject(0)).await.unwrap(), 1);
        assert_eq!(kept(head, head + 10, &|_| true).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn earlier_changes_are_read_in_turn() {
        let past = PastReads::new();
        let held: Vec<_> = futures_util::future::join_all((0..READERS).map(|_| past.turn())).await;
        let mut next = std::pin::pin!(past.turn());
        assert!(futures_util::FutureExt::now_or_never(next.as_mut()).is_none());
        drop(held);
        let _turn = next.await;
    }
}
