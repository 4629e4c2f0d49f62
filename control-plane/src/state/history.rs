//! The store's changes, read for what was: the state at a revision is the present one with the changes since taken
//! back.
//!
//! A change keeps each entry as it found it. So the state after the newest change that was dropped is still known,
//! and nothing before it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::sync::Arc;

use crate::state::State;
use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use damper_store::{Change, Entry, Store};

/// How many changes are read at once.
pub(crate) const PAGE: u64 = 16;

/// What a rule or guard was before some changes and what it is after them.
pub(crate) struct KeyHistory {
    pub(crate) before: Option<Entry>,
    pub(crate) after: Option<Entry>,
}

/// The oldest revision whose state is known: that of the newest change that was dropped.
pub(crate) async fn oldest(store: &dyn Store) -> Result<u64, damper_store::StoreError> {
    match store.changes(0, 1).await {
        Err(damper_store::StoreError::Compacted { oldest }) => Ok(oldest),
        first => first.map(|_| 0),
    }
}

/// The revision of the store, whether this replica has reached it or not.
pub(crate) async fn newest(state: &State) -> Result<u64, ApiError> {
    let mut newest = state.table().revision();
    while let Some(newer) = state.store.changes(newest, u64::MAX).await?.last() {
        newest = newer.revision;
    }
    Ok(newest)
}

/// The table once it has reached a revision, which must be there; `path` is where it was asked for.
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

/// A table as it was at an earlier revision; where the history no longer reaches that far, as it is.
pub(crate) async fn as_it_was(
    state: &State,
    table: &Arc<Snapshot>,
    revision: u64,
) -> Result<Arc<Snapshot>, ApiError> {
    match touched(&*state.store, revision, table.revision(), |_| true).await {
        Ok(touched) => {
            let before = touched.into_iter().map(|(subject, KeyHistory { before, .. })| (subject, before));
            Ok(Arc::new(table.rewound(revision, before)))
        }
        Err(ApiError::NoLongerKept { .. }) => Ok(table.clone()),
        Err(error) => Err(error),
    }
}

/// The first changes of `after + 1 ..= upto`, in order and without a gap; none only where there are none.
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

/// The rules and guards that the changes `after + 1 ..= upto` were about, as they were before and are after.
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

/// What an entry was before the changes `after + 1 ..= upto`; none where none of them was about it.
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
