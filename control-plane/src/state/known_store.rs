//! Check that a store is the one this server knows.
//!
//! A store that was emptied, replaced or rolled back takes nothing from connected clients by itself. The
//! watcher keeps its snapshot until the known store is back, or until an operator accepts the contents as its
//! successor (the lineage then names the known epoch). All others use [`KnownStore`], which returns errors
//! meanwhile, so no write goes to an unaccepted store.
//!
//! A replica that starts over such a store knows nothing else itself. It learns from the epochs of the other
//! replicas ([`PeerEpochs`]) that there was more, and then returns errors too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use damper_proto::v1;
use tokio::sync::watch;

use crate::state::snapshot::Snapshot;
use damper_store::Membership;
use damper_store::{Change, Identity, Position, Store, StoreContents, StoreError, Watch};

/// Relation of a store to a known snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The known store, perhaps with newer changes.
    Known,
    /// A successor accepted by an operator.
    Successor,
    /// Another store, or an older or different copy, with the difference.
    Other(String),
}

/// Epoch of each other replica, by its id: of its start, or of now while it is reachable.
pub(crate) type PeerEpochs = BTreeMap<String, String>;

/// Contents found in place of the known store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unaccepted {
    /// Empty: the store is empty.
    pub(crate) epoch: String,
    pub(crate) revision: u64,
    pub(crate) entries: usize,
    pub(crate) since: SystemTime,
    pub(crate) problem: String,
    /// The replica that knows another store, if this one has never known another.
    pub(crate) known_by: Option<String>,
}

impl Standing {
    /// Compares a store's identity with the known position.
    pub(crate) fn of(known: &Position, found: &Identity) -> Self {
        let Position { epoch, revision, .. } = known;
        if found.epoch.is_empty() {
            return Self::Other(format!("the store is empty, expected revision {revision}"));
        }
        if found.epoch != *epoch {
            if found.lineage.contains(epoch) {
                return Self::Successor;
            }
            return Self::Other(format!("a different store: epoch {}, expected {epoch}", found.epoch));
        }
        if found.revision < *revision {
            return Self::Other(format!(
                "the store is at revision {}, expected at least {revision}",
                found.revision
            ));
        }
        if !known.is_made_by(found.commit) {
            return Self::Other(format!("the store's revision {revision} differs from this replica's"));
        }
        Self::Known
    }
}

impl Unaccepted {
    /// Returns the API's report, next to the snapshot's own contents.
    pub(crate) fn reported(&self, table: &Snapshot) -> v1::UnacceptedStore {
        let count = |entries: usize| u32::try_from(entries).unwrap_or(u32::MAX);
        v1::UnacceptedStore {
            epoch: self.epoch.clone(),
            revision: self.revision,
            entries: count(self.entries),
            since: Some(self.since.into()),
            problem: self.problem.clone(),
            known_epoch: table.epoch().to_string(),
            known_revision: table.revision(),
            known_entries: count(table.entries()),
        }
    }
}

/// Returns true if a replica that knows an epoch continues from the store with this epoch and lineage.
pub(crate) fn continues(epoch: &str, lineage: &[String], known: &str) -> bool {
    epoch == known || lineage.iter().any(|before| before == known)
}

/// Reads the store's identity; a missing store has an empty epoch.
pub(crate) async fn identify(store: &dyn Store, revision: u64) -> Result<Identity, StoreError> {
    match store.identity(revision).await {
        Err(StoreError::Replaced { epoch }) if epoch.is_empty() => Ok(Identity::default()),
        answer => answer,
    }
}

/// Store that works only while it is the one of the snapshot; for all but the watcher.
pub(crate) struct KnownStore {
    store: Arc<dyn Store>,
    table: watch::Receiver<Arc<Snapshot>>,
}

impl KnownStore {
    pub(crate) fn new(store: Arc<dyn Store>, table: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self { store, table }
    }

    fn check(&self) -> Result<(), StoreError> {
        match &self.table.borrow().unaccepted {
            Some(found) => Err(refused(&found.problem)),
            None => Ok(()),
        }
    }
}

fn refused(problem: &str) -> StoreError {
    StoreError::Unavailable { reason: format!("{problem}; an operator decides with `damper store`") }
}

#[tonic::async_trait]
impl Store for KnownStore {
    async fn create(&self) -> Result<(), StoreError> {
        Err(StoreError::Invalid { reason: "only the start of a server makes a store".to_owned() })
    }

    async fn identity(&self, revision: u64) -> Result<Identity, StoreError> {
        self.store.identity(revision).await
    }

    async fn load(&self) -> Result<StoreContents, StoreError> {
        self.check()?;
        let known = self.table.borrow().position();
        let found = identify(&*self.store, known.revision).await?;
        if let Standing::Other(problem) = Standing::of(&known, &found) {
            return Err(refused(&problem));
        }
        let state = self.store.load().await?;
        match state.epoch == found.epoch && state.revision >= found.revision {
            true => Ok(state),
            false => Err(refused("the store changed its identity while it was read")),
        }
    }

    async fn commit(&self, expected_head: u64, changes: &[Change]) -> Result<(), StoreError> {
        self.check()?;
        self.store.commit(expected_head, changes).await
    }

    fn watch(&self, after: &Position) -> Watch {
        self.store.watch(after)
    }

    async fn changes(&self, after: u64, upto: u64) -> Result<Vec<Change>, StoreError> {
        self.check()?;
        self.store.changes(after, upto).await
    }

    async fn compact(&self, revision: u64) -> Result<(), StoreError> {
        self.check()?;
        self.store.compact(revision).await
    }

    async fn renew_epoch(&self, current: &str, predecessors: &[String]) -> Result<String, StoreError> {
        self.check()?;
        self.store.renew_epoch(current, predecessors).await
    }

    fn is_full(&self) -> bool {
        self.store.is_full()
    }

    fn join(&self, id: &str, value: Bytes) -> Option<Membership> {
        self.store.join(id, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_is_known_by_epoch_revision_and_commit() {
        let known = Position { epoch: "e".to_owned(), revision: 5, commit: 7 };
        let standing = |epoch: &str, revision, commit, lineage: &[&str]| {
            let lineage = lineage.iter().map(|&epoch| epoch.to_owned()).collect();
            Standing::of(&known, &Identity { epoch: epoch.to_owned(), revision, commit, lineage })
        };
        for (commit, is_known) in [(Some(7), true), (Some(8), false), (None, true), (Some(0), true)] {
            assert_eq!(standing("e", 9, commit, &[]) == Standing::Known, is_known, "{commit:?}");
        }
        assert_eq!(standing("f", 0, None, &["d", "e"]), Standing::Successor);
        for other in
            [standing("e", 4, None, &[]), standing("f", 9, Some(7), &["d"]), standing("", 0, None, &[])]
        {
            assert!(matches!(other, Standing::Other(_)), "{other:?}");
        }
        let unknown = Position { commit: 0, ..known.clone() };
        let found = Identity { epoch: "e".to_owned(), revision: 5, commit: Some(8), ..Identity::default() };
        assert_eq!(Standing::of(&unknown, &found), Standing::Known);
    }
}
