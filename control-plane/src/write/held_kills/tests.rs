use bytes::Bytes;
use damper_store::sled::SledStore;
use damper_store::{Change, Identity, Membership, Position, Store, StoreContents, StoreError, Watch};
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tonic::Request;

use crate::api::kills::set::kill;
use crate::auth::caller::Caller;
use crate::server::tasks::{OpenedServer, start};
use crate::write::held_kills::*;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A store whose commits wait for the test.
struct GatedStore {
    inner: SledStore,
    begun: Semaphore,
    ends: Semaphore,
}

#[tonic::async_trait]
impl Store for GatedStore {
    async fn create(&self) -> Result<(), StoreError> {
        self.inner.create().await
    }

    async fn identity(&self, revision: u64) -> Result<Identity, StoreError> {
        self.inner.identity(revision).await
    }

    async fn load(&self) -> Result<StoreContents, StoreError> {
        self.inner.load().await
    }

    async fn commit(&self, expected_head: u64, changes: &[Change]) -> Result<(), StoreError> {
        self.begun.add_permits(1);
        self.ends.acquire().await.expect("the semaphore is open").forget();
        self.inner.commit(expected_head, changes).await
    }

    fn watch(&self, after: &Position) -> Watch {
        self.inner.watch(after)
    }

    async fn changes(&self, after: u64, upto: u64) -> Result<Vec<Change>, StoreError> {
        self.inner.changes(after, upto).await
    }

    async fn compact(&self, revision: u64) -> Result<(), StoreError> {
        self.inner.compact(revision).await
    }

    async fn renew_epoch(&self, current: &str, predecessors: &[String]) -> Result<String, StoreError> {
        self.inner.renew_epoch(current, predecessors).await
    }

    fn join(&self, id: &str, value: Bytes) -> Option<Membership> {
        self.inner.join(id, value)
    }
}

#[tokio::test]
async fn kill_is_held_during_a_large_write_and_stored_after_it() {
    let folder = TempDir::new().unwrap();
    let inner = SledStore::open(folder.path()).await.unwrap();
    let store = Arc::new(GatedStore { inner, begun: Semaphore::new(0), ends: Semaphore::new(0) });
    let (parts, _tasks) = start(OpenedServer::for_test(store.clone()).await);
    let writes = parts.writes.clone();
    let large = tokio::spawn({
        let writes = writes.clone();
        let edits = vec![ProposedEdit { key: "rules/a".to_owned(), value: Some("1".into()), expected: None }];
        let asked = WriteRequest::internal(v1::WriteOptions::default());
        async move { writes.fleet.state.writer.propose(asked.proposal(SystemTime::now(), edits)).await }
    });
    timeout(TIMEOUT, store.begun.acquire()).await.expect("the large write has begun").unwrap().forget();

    let key = Some((&Pattern::parse("*", "*", "stock", "*").unwrap()).into());
    let options = Some(v1::WriteOptions { reason: "a drill".to_owned(), ..v1::WriteOptions::default() });
    let mut request = Request::new(v1::KillRequest { key, options, ..v1::KillRequest::default() });
    request.extensions_mut().insert(Caller::AuthDisabled);
    let answer = timeout(TIMEOUT, kill(&writes, request)).await.expect("the kill is answered").unwrap();
    assert!(answer.kill.unwrap().unstored, "it is in force from memory");
    assert!(!large.is_finished(), "the large write still holds the store");
    assert_eq!(writes.fleet.table().kills().in_force(SystemTime::now()).count(), 1);

    store.ends.add_permits(Semaphore::MAX_PERMITS >> 1);
    large.await.unwrap().unwrap();
    let mut tables = writes.fleet.state.table.clone();
    let stored = tables.wait_for(|table| table.held().is_empty() && table.kills().stored_count() == 1);
    timeout(TIMEOUT, stored).await.expect("the kill is stored").unwrap();
}
