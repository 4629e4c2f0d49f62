//! The suite on the embedded store.

use std::sync::Arc;

use ::redb::backends::InMemoryBackend;
use damper_queue::store::redb::RedbStore;
use damper_queue::store::{
    After, Error, JobId, LeaseRequest, Settled, SettledBy, Settlement, State, Store, Submitted,
};
use damper_queue::writer::{Writer, wakeups};
use tempfile::TempDir;

use crate::disk::Disk;
use crate::model::Model;
use crate::operations::World;
use crate::power::InMemory;
use crate::suite::{self, Bench};

/// A file of its own.
struct InFile(TempDir);

impl InFile {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("queues/jobs.redb")
    }
}

impl Bench for InFile {
    async fn open(&mut self) -> Arc<dyn Store> {
        Arc::new(RedbStore::open(self.path()).await.unwrap())
    }
}

#[tokio::test]
async fn redb_store_equals_model_over_random_batches() {
    for seed in 0..3 {
        suite::run(&mut InMemory(Disk::default()), seed, 200).await;
    }
}

#[tokio::test]
async fn redb_full_lane_does_not_hide_a_scarce_one() {
    suite::scarce_lane(&mut InMemory(Disk::default())).await;
}

#[tokio::test]
async fn redb_file_equals_model_over_random_batches() {
    suite::run(&mut InFile::new(), 4, 200).await;
}

#[tokio::test]
async fn second_opening_of_a_file_reports_its_use() {
    let file = InFile::new();
    let _open = RedbStore::open(file.path()).await.unwrap();
    match RedbStore::open(file.path()).await {
        Err(Error::Open(why)) => assert!(why.contains("jobs.redb is in use by another process"), "{why}"),
        other => panic!("{:?}", other.err()),
    }
}

#[tokio::test]
async fn file_is_readable_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let file = InFile::new();
    drop(RedbStore::open(file.path()).await.unwrap());
    assert_eq!(std::fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn foreign_file_is_not_opened() {
    let file = InFile::new();
    std::fs::create_dir_all(file.path().parent().unwrap()).unwrap();
    std::fs::write(file.path(), vec![7; 100_000]).unwrap();
    let error = RedbStore::open(file.path()).await.err().unwrap();
    assert!(matches!(error, Error::Open(_) | Error::Damaged(_)), "{error:?}");
}

#[tokio::test]
async fn file_of_a_newer_format_is_not_opened() {
    const META: ::redb::TableDefinition<'_, &str, u64> = ::redb::TableDefinition::new("meta");
    let file = InFile::new();
    drop(RedbStore::open(file.path()).await.unwrap());
    let database = ::redb::Database::open(file.path()).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(META).unwrap().insert("oldest_reader", 99).unwrap();
    transaction.commit().unwrap();
    drop(database);
    match RedbStore::open(file.path()).await {
        Err(Error::Open(why)) => assert!(why.contains("needs a server that reads format 99"), "{why}"),
        other => panic!("{:?}", other.err()),
    }
}

#[tokio::test]
async fn new_stores_have_different_identities() {
    let one = RedbStore::open_backend(InMemoryBackend::new()).await.unwrap();
    let other = RedbStore::open_backend(InMemoryBackend::new()).await.unwrap();
    assert_ne!(one.id(), other.id());
}

/// Many callers at once: every job is submitted, leased and settled once, whatever shares a commit.
#[tokio::test(flavor = "multi_thread")]
async fn writer_carries_whole_lives_of_many_callers() {
    let disk = Disk::default();
    let store: Arc<dyn Store> = Arc::new(RedbStore::open_backend(disk.clone()).await.unwrap());
    let (waker, mut woken) = wakeups();
    let writer = Arc::new(Writer::start(store.clone(), waker));
    let mut world = World::new(1);
    let lane = world.lane();
    let lives = (0..200).map(|number| {
        let (mut job, body) = world.submission(&Model::default());
        job.id = JobId(u128::to_be_bytes(number));
        job.key = number.to_string();
        job.lane = lane.clone();
        job.order_key = None;
        job.at = world.now;
        let request = LeaseRequest { lane: lane.clone(), count: 1, ..world.lease_request() };
        let request = LeaseRequest { max_bytes: 1, first_only: false, ..request };
        let writer = writer.clone();
        tokio::spawn(async move {
            assert_eq!(writer.submit(job, body).await, Ok(Submitted::Stored(State::Waiting)));
            let leased = writer.lease(vec![request]).await.unwrap().remove(0);
            let (job, _) = leased.jobs.first().expect("as many leases as jobs");
            let State::Leased { token, .. } = job.state else { panic!("{job:?}") };
            let settlement = Settlement {
                id: job.id,
                delivery: 1,
                token,
                by: SettledBy::Worker,
                to: After::Done,
                at: job.at,
                job: job.job,
                ended: String::new(),
                failure: None,
                evidence: None,
            };
            assert_eq!(writer.settle(settlement).await, Ok(Settled::Applied));
        })
    });
    let lives: Vec<_> = lives.collect();
    for life in lives {
        life.await.unwrap();
    }
    assert!(woken.next().await.contains_key(&lane));
    writer.close().await;
    assert_eq!(store.check().await.unwrap(), Vec::<String>::new());
    let lanes = store.lanes().await.unwrap();
    assert_eq!((lanes.len(), lanes[0].ended), (1, 200));
}
