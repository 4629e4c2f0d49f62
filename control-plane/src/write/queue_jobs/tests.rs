use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use damper_core::Pattern;
use damper_store::sled::SledStore;
use damper_store::{Change, Identity, Membership, Position, Store, StoreContents, StoreError, Watch};
use futures_util::FutureExt as _;
use tempfile::TempDir;
use tonic::Request;

use super::*;
use crate::api::queues::{delete::delete, put::put};
use crate::auth::caller::Caller;
use crate::server::tasks::{OpenedServer, Tasks, start};
use crate::state::job_action::JOB_ACTION;

/// The jobs of a queue `full`; other queues have none.
#[derive(Debug, Default)]
struct TestJobs {
    left: AtomicU64,
    /// The next purge fails.
    fails: AtomicBool,
    is_absent: bool,
}

impl QueueJobs for TestJobs {
    fn has_store(&self) -> bool {
        !self.is_absent
    }

    fn unended_jobs<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Result<u64, ApiError>> {
        let jobs = if queue == "full" { self.left.load(Ordering::Relaxed) } else { 0 };
        async move { Ok(jobs) }.boxed()
    }

    fn purge_jobs<'a>(
        &'a self,
        queue: &'a str,
        only_count: bool,
    ) -> BoxFuture<'a, Result<(u64, bool), ApiError>> {
        let purge = async move {
            if queue != "full" || only_count {
                return Ok((self.unended_jobs(queue).await?, false));
            }
            if self.fails.swap(false, Ordering::Relaxed) {
                return Err(ApiError::unavailable("the job store is away"));
            }
            Ok((self.left.swap(0, Ordering::Relaxed), false))
        };
        purge.boxed()
    }
}

/// A store whose commits can fail: all of them, or those of records of what was done with jobs.
struct FailingStore {
    inner: SledStore,
    fails: AtomicBool,
    fails_records: AtomicBool,
}

#[tonic::async_trait]
impl Store for FailingStore {
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
        let is_record = changes.iter().flat_map(|change| &change.edits).any(|edit| edit.key == JOB_ACTION);
        if self.fails.load(Ordering::Relaxed) || (is_record && self.fails_records.load(Ordering::Relaxed)) {
            return Err(StoreError::Unavailable { reason: "away".into() });
        }
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

/// A server without ports whose queue `full` has three jobs.
struct Rig {
    store: Arc<FailingStore>,
    jobs: Arc<TestJobs>,
    writes: Arc<Writes>,
    _tasks: Tasks,
    _folder: TempDir,
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(Caller::AuthDisabled);
    request
}

impl Rig {
    async fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let inner = SledStore::open(folder.path()).await.unwrap();
        let store = Arc::new(FailingStore { inner, fails: false.into(), fails_records: false.into() });
        let (parts, tasks) = start(OpenedServer::for_test(store.clone()).await);
        let jobs = Arc::new(TestJobs { left: 3.into(), ..TestJobs::default() });
        let writes = Arc::new(Writes {
            fleet: parts.writes.fleet.clone(),
            limiter: parts.writes.limiter.clone(),
            limits: parts.writes.limits.clone(),
            jobs: jobs.clone(),
        });
        let rig = Self { store, jobs, writes, _tasks: tasks, _folder: folder };
        rig.put().await;
        rig
    }

    async fn put(&self) {
        let policy = Some(v1::Policy { mode: v1::Mode::Enforce.into(), ..Default::default() });
        let queue = Some(v1::Queue { name: "full".to_owned(), policy, ..Default::default() });
        put(&self.writes, request(v1::PutQueueRequest { queue, ..Default::default() })).await.unwrap();
    }

    async fn purge(&self, request_id: &str, expected_revision: Option<u64>) -> Result<u64, ApiError> {
        let request_id = request_id.to_owned();
        let options = Some(v1::WriteOptions { purge_jobs: true, request_id, ..Default::default() });
        let asked = v1::DeleteQueueRequest { name: "full".to_owned(), expected_revision, options };
        delete(&self.writes, request(asked)).await.map(|response| response.revision)
    }

    fn left(&self) -> u64 {
        self.jobs.left.load(Ordering::Relaxed)
    }

    fn has_queue(&self) -> bool {
        self.writes.fleet.table().revision_of(&ResourceKey::Queue("full".to_owned())).is_some()
    }
}

#[tokio::test]
async fn jobs_stay_if_the_deletion_of_their_queue_fails() {
    let rig = Rig::new().await;
    assert!(matches!(rig.purge("", Some(99)).await, Err(ApiError::Conflict { .. })));
    rig.store.fails.store(true, Ordering::Relaxed);
    let error = rig.purge("", None).await.unwrap_err();
    assert!(matches!(error, ApiError::Unavailable { .. }), "{error}");
    assert_eq!((rig.left(), rig.has_queue()), (3, true));
}

#[tokio::test]
async fn failed_purge_shows_what_is_left_and_is_finished_later() {
    let rig = Rig::new().await;
    rig.jobs.fails.store(true, Ordering::Relaxed);
    let error = rig.purge("", None).await.unwrap_err();
    let text = "the queue was deleted at revision 2, but some of its jobs remain (the job store is away); delete them with \
                `damper queues delete full --purge`";
    assert!(matches!(error, ApiError::Unmet(_)) && error.to_string() == text, "{error}");
    assert_eq!((rig.left(), rig.has_queue()), (3, false));

    assert!(matches!(rig.purge("", Some(1)).await, Err(ApiError::Conflict { .. })));
    assert_eq!(rig.purge("", None).await.unwrap(), 2, "the queue is gone, its jobs are not");
    assert_eq!(rig.left(), 0);
    let missing = rig.purge("", None).await.unwrap_err();
    assert!(matches!(missing, ApiError::NotFound(_)), "nothing is left: {missing}");
}

#[tokio::test]
async fn purge_without_its_record_has_no_known_outcome() {
    let rig = Rig::new().await;
    rig.store.fails_records.store(true, Ordering::Relaxed);
    let error = rig.purge("", None).await.unwrap_err();
    assert!(matches!(error, ApiError::Unavailable { outcome_known: false, .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.starts_with("3 jobs were changed, but the history could not record it: "), "{text}");
    assert_eq!((rig.left(), rig.has_queue()), (0, false));
}

#[tokio::test]
async fn repeated_request_finishes_its_purge_alone() {
    let rig = Rig::new().await;
    rig.jobs.fails.store(true, Ordering::Relaxed);
    rig.purge("delete-1", None).await.unwrap_err();
    assert_eq!(rig.purge("delete-1", None).await.unwrap(), 2);
    assert_eq!(rig.left(), 0);
    rig.put().await;
    rig.jobs.left.store(1, Ordering::Relaxed);
    assert_eq!(rig.purge("delete-1", None).await.unwrap(), 2);
    assert_eq!((rig.left(), rig.has_queue()), (1, true), "a new queue of the same name keeps its jobs");
}

#[tokio::test]
async fn queue_with_unended_jobs_is_not_deleted() {
    let jobs = TestJobs { left: 1.into(), ..TestJobs::default() };
    let queue = |name: &str| ResourceKey::Queue(name.to_owned());
    let rule = ResourceKey::Rule(Pattern::parse("*", "*", "full", "*").unwrap());
    let others = [rule, queue("empty")];
    let keeps = v1::WriteOptions::default();
    assert!(check_deleted(&jobs, &keeps, &queues(&others)).await.is_ok());
    let all = queues(others.iter().chain([&queue("full")]));
    let refused = check_deleted(&jobs, &keeps, &all).await.unwrap_err();
    assert!(matches!(refused, ApiError::Unmet(_)));
    let text = refused.to_string();
    assert!(text.starts_with("queue full cannot be deleted: it has jobs that have not ended (1)"), "{text}");
    let purges = v1::WriteOptions { purge_jobs: true, ..Default::default() };
    assert!(check_deleted(&jobs, &purges, &all).await.is_ok());
}

#[tokio::test]
async fn queue_is_not_deleted_where_its_jobs_are_unknown() {
    let jobs = TestJobs { is_absent: true, ..TestJobs::default() };
    let check = async |force, purge_jobs, names: &[&str]| {
        let options = v1::WriteOptions { force, purge_jobs, ..Default::default() };
        let queues: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        check_deleted(&jobs, &options, &queues).await.map_err(|refused| refused.to_string())
    };
    let start = "queue later cannot be deleted here: this server has no job store (--queues) and ";
    let unknown = "does not know whether it has jobs that have not ended; use a server that has it, or delete \
                   it anyway by --force";
    assert_eq!(check(false, false, &["later"]).await, Err(format!("{start}{unknown}")));
    let purge = format!("{start}cannot delete its jobs; use a server that has it");
    assert_eq!(check(false, true, &["later"]).await, Err(purge.clone()));
    assert_eq!(check(true, true, &["later"]).await, Err(purge));
    assert_eq!(check(true, false, &["later"]).await, Ok(()));
    assert_eq!(check(false, true, &[]).await, Ok(()), "no queue is deleted");
}
