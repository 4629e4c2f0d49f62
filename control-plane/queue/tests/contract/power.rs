//! Loss of power and full disks below the embedded store, at every write.
//!
//! A run is recorded once. For each place in its log the file is rebuilt as a loss of power would leave it,
//! opened, and compared with the model: all that was answered is there, and what was not is there whole or
//! not at all.

use std::sync::Arc;

use damper_queue::store::redb::RedbStore;
use damper_queue::store::{Error, Filter, Store};
use fastrand::Rng;

use crate::disk::{Disk, Survivors};
use crate::model::Model;
use crate::operations::{QUEUES, World};

/// Commits batches until one fails; returns the model after each that was answered, the empty one first.
/// Tokens follow from the seed, so all runs of a seed have the same models.
async fn record(
    store: &dyn Store,
    mut world: World,
    batches: usize,
    mut answered: impl FnMut(usize),
) -> (Vec<Model>, Option<Error>) {
    let mut models = vec![Model::default()];
    for number in 1..=batches {
        let mut model = models.last().unwrap().clone();
        let operations = world.rng.usize(4..12);
        let batch = world.batch(&model, operations);
        let committed = match store.commit(batch.clone()).await {
            Ok(committed) => committed,
            Err(error) => return (models, Some(error)),
        };
        answered(number);
        model.commit(&batch, &committed.leases);
        world.leased(&committed.leases);
        models.push(model);
    }
    (models, None)
}

/// Returns how the store differs from a model; `None`: not at all.
async fn difference(store: &dyn Store, model: &Model) -> Option<String> {
    let mut jobs = Vec::new();
    for queue in QUEUES {
        let filter = Filter { queue: queue.to_owned(), ..Filter::default() };
        let page = store.list(filter, None, 5_000).await.unwrap();
        assert_eq!(page.next, None);
        jobs.extend(page.jobs);
    }
    jobs.sort_by_key(|job| job.id);
    let expected: Vec<_> = model.jobs.values().map(|(job, _)| job.clone()).collect();
    if jobs != expected {
        let differing: Vec<_> = jobs.iter().filter(|job| !expected.contains(job)).take(3).collect();
        return Some(format!("{} jobs, not {}: {differing:?}", jobs.len(), expected.len()));
    }
    for (id, (_, body)) in &model.jobs {
        if store.body(*id).await.unwrap() != *body {
            return Some(format!("body of {id:?}"));
        }
    }
    None
}

/// The store has all that was answered, and the batch in flight whole or not at all.
async fn assert_nothing_lost(store: &dyn Store, models: &[Model], answered: usize, place: &str) {
    assert_eq!(store.check().await.unwrap(), Vec::<String>::new(), "{place}");
    let Some(older) = difference(store, &models[answered]).await else { return };
    match models.get(answered + 1) {
        Some(next) => {
            let newer = difference(store, next).await;
            assert_eq!(newer, None, "{place}: neither before the batch in flight ({older}) nor after it");
        }
        None => panic!("{place}: {older}"),
    }
}

#[tokio::test]
async fn power_loss_at_every_write_loses_no_answered_commit() {
    // Of 8 operations in the mean, so 1,000 in all.
    let batches = std::env::var("DAMPER_POWER_BATCHES").map_or(25, |number| number.parse().unwrap());
    for seed in 0..5 {
        let disk = Disk::logged();
        let store = RedbStore::open_backend(disk.clone()).await.unwrap();
        disk.answered(0);
        let (models, error) = record(&store, World::new(seed), batches, |number| disk.answered(number)).await;
        assert_eq!(error, None);
        drop(store);
        let log = disk.log();
        let mut survivors = Survivors::new();
        let mut rng = Rng::with_seed(seed);
        for (index, step) in log.iter().enumerate() {
            survivors.step(step);
            let place = format!("seed {seed}, cut after {index} of {} steps", log.len());
            let opened = RedbStore::open_backend(Disk::of(survivors.file(&mut rng))).await;
            let store = opened.unwrap_or_else(|error| panic!("{place}: {error}"));
            assert_nothing_lost(&store, &models, survivors.answered.unwrap_or(0), &place).await;
        }
    }
}

#[tokio::test]
async fn full_disk_at_every_write_loses_no_answered_commit() {
    const BATCHES: usize = 6;
    let disk = Disk::default();
    let store = RedbStore::open_backend(disk.clone()).await.unwrap();
    let (models, error) = record(&store, World::new(7), BATCHES, |_| {}).await;
    assert_eq!(error, None);
    let all = disk.changes();
    for left in 0..all {
        let place = format!("full after {left} of {all} changes");
        let disk = Disk::default();
        disk.fill_after(Some(left));
        let mut answered = 0;
        if let Ok(store) = RedbStore::open_backend(disk.clone()).await {
            let (_, error) = record(&store, World::new(7), BATCHES, |number| answered = number).await;
            if let Some(error) = error {
                assert!(matches!(error, Error::Unavailable(_)), "{place}: {error:?}");
                assert_stopped(&store, &place).await;
            }
        }
        disk.fill_after(None);
        let store = RedbStore::open_backend(disk).await.unwrap_or_else(|error| panic!("{place}: {error}"));
        assert_nothing_lost(&store, &models, answered, &place).await;
    }
}

/// After a failed commit nothing is believed, though the disk has room again.
async fn assert_stopped(store: &RedbStore, place: &str) {
    let error = store.commit(World::new(9).batch(&Model::default(), 1)).await.unwrap_err();
    assert!(error.to_string().contains("stopped after a failed commit"), "{place}: {error}");
    let error = store.lanes().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{place}: {error:?}");
}

/// A store in memory that survives its closing.
pub(crate) struct InMemory(pub(crate) Disk);

impl crate::suite::Bench for InMemory {
    async fn open(&mut self) -> Arc<dyn Store> {
        Arc::new(RedbStore::open_backend(self.0.clone()).await.unwrap())
    }
}
