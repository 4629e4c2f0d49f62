//! Earlier states, computed from the store's changes: the present state with later changes undone.
//!
//! A change keeps the previous entry of each key. So the oldest known state is the one after the newest
//! dropped change.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::sync::Arc;

use crate::state::State;
use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use damper_store::{Change, Entry, Store};

/// Changes per read.
pub(crate) const PAGE: u64 = 16;

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
                format!("{revision} is later than the newest revision, {newest}"),
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
    let mut reached = after;
    while reached < upto {
        let page = match changes(store, reached, upto).await {
            Err(ApiError::NoLongerKept { oldest, .. }) => {
                return Err(ApiError::NoLongerKept { asked: after, oldest });
            }
            page => page?,
        };
        let Some(last) = page.last() else {
            return Err(ApiError::unavailable(format!("the store has no revision {upto} any more")));
        };
        reached = last.revision;
        for change in page {
            take(&mut touched, change, &wanted);
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
            return Err(ApiError::unavailable(format!("the store has no revision {upto} any more")));
        };
        reached = last.revision;
        if let Some(edit) = page.iter().flat_map(|change| &change.edits).find(|edit| edit.key == key) {
            return Ok(Some(edit.before.clone()));
        }
    }
    Ok(None)
}

fn take(
    touched: &mut BTreeMap<ResourceKey, KeyHistory>,
    change: Change,
    wanted: impl Fn(&ResourceKey) -> bool,
) {
    let revision = change.revision;
    for edit in change.edits {
        let Some(subject) = ResourceKey::of_key(&edit.key).filter(&wanted) else { continue };
        let after = edit.value.map(|value| Entry { revision, value });
        match touched.entry(subject) {
            Vacant(free) => {
                free.insert(KeyHistory { before: edit.before, after });
            }
            Occupied(mut there) => there.get_mut().after = after,
        }
    }
}
