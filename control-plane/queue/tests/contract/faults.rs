//! Faults between a store and PostgreSQL: lost answers, lost connections, deadlocks, rejected content.

use std::sync::Arc;

use damper_core::job::Wall;
use damper_queue::store::{
    Batch, Change, ChangeTo, Error, JobId, Lane, Record, ServerId, Settled, SettledBy, State, Store,
    Submitted,
};
use damper_queue::writer::{Writer, wakeups};
use futures_util::future::join_all;

use crate::cluster::{Cluster, Session};
use crate::operations::World;
use crate::postgres::{done, job, lease, lease_of, open, settle, submit};
use crate::relay::{Cut, Relay};

const ME: ServerId = ServerId(1);

/// Commits a batch whose connection is cut, and checks that its outcome is reported as unknown.
async fn commit_cut(store: &dyn Store, relay: &Relay, cut: Cut, batch: Batch) {
    relay.cut(cut);
    match store.commit(batch).await {
        Err(Error::Unavailable(why)) => assert!(why.starts_with("commit: "), "{why}"),
        other => panic!("{cut:?}: {other:?}"),
    }
}

fn submission(job: &(Record, damper_queue::store::Body)) -> Batch {
    Batch { submissions: vec![job.clone()], ..Batch::default() }
}

#[tokio::test]
async fn submission_of_unknown_outcome_is_stored_once() {
    let cluster = Cluster::shared().await;
    let relay = Relay::start(&cluster.database().await).await;
    let store = open(&relay.url).await;
    let mut world = World::new(6);
    let (one, other) = (job(&mut world, 1), job(&mut world, 2));
    commit_cut(&*store, &relay, Cut::After("commit"), submission(&one)).await;
    let again = submit(&*store, one.clone()).await;
    assert!(matches!(&again, Submitted::Existing(job) if job.id == one.0.id), "{again:?}");
    commit_cut(&*store, &relay, Cut::Before("commit"), submission(&other)).await;
    assert_eq!(store.get(other.0.id).await.unwrap(), None);
    assert_eq!(submit(&*store, other).await, Submitted::Stored(State::Waiting));
    assert_eq!(store.check().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn leases_of_unknown_outcome_are_found_by_their_server() {
    let cluster = Cluster::shared().await;
    let relay = Relay::start(&cluster.database().await).await;
    let store = open(&relay.url).await;
    let one = job(&mut World::new(7), 1);
    let request = lease_of(&one.0, ME, 1);
    let leases = || Batch { leases: vec![request.clone()], ..Batch::default() };
    submit(&*store, one).await;
    commit_cut(&*store, &relay, Cut::Before("commit"), leases()).await;
    assert_eq!(store.leases_of(ME).await.unwrap(), []);
    commit_cut(&*store, &relay, Cut::After("commit"), leases()).await;
    assert_eq!(lease(&*store, request.clone()).await, [], "it is leased already");
    let found = store.leases_of(ME).await.unwrap().remove(0);
    assert_eq!(settle(&*store, done(&found, SettledBy::Server(ME))).await, Settled::Applied);
    assert_eq!(store.check().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn settlement_of_unknown_outcome_is_applied_once() {
    let cluster = Cluster::shared().await;
    let relay = Relay::start(&cluster.database().await).await;
    let store = open(&relay.url).await;
    let mut world = World::new(8);
    for (number, cut, again) in
        [(1, Cut::Before("commit"), Settled::Applied), (2, Cut::After("commit"), Settled::Repeated)]
    {
        let one = job(&mut world, number);
        submit(&*store, one.clone()).await;
        let leased = lease(&*store, lease_of(&one.0, ME, number)).await.remove(0);
        let settlement = done(&leased, SettledBy::Worker);
        let batch = Batch { settlements: vec![settlement.clone()], ..Batch::default() };
        commit_cut(&*store, &relay, cut, batch).await;
        assert_eq!(settle(&*store, settlement).await, again, "{cut:?}");
    }
    assert_eq!(store.check().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn connection_lost_before_the_commit_is_no_error() {
    let cluster = Cluster::shared().await;
    let relay = Relay::start(&cluster.database().await).await;
    let store = open(&relay.url).await;
    let mut world = World::new(9);
    for (number, cut) in [(1, Cut::Before("begin")), (2, Cut::After("begin"))] {
        relay.cut(cut);
        let stored = submit(&*store, job(&mut world, number)).await;
        assert_eq!(stored, Submitted::Stored(State::Waiting), "{cut:?}");
    }
}

/// The store waits for a job that another session has locked, which waits for one that the store has locked.
/// Only the store looks for deadlocks, so PostgreSQL ends its transaction.
#[tokio::test]
async fn batch_ended_by_a_deadlock_is_repeated() {
    let cluster = Cluster::shared().await;
    let url = cluster.database().await;
    let name = url.rsplit('/').next().unwrap();
    cluster.execute("postgres", &format!("alter database {name} set deadlock_timeout = '50ms'")).await;
    let store = open(&url).await;
    let mut world = World::new(12);
    let mut changes = Vec::new();
    for number in 1..=3 {
        let (job, body) = job(&mut world, number);
        changes.push(Change { id: job.id, to: ChangeTo::Due, now: job.at });
        submit(&*store, (Record { at: Wall(job.at.0 + 60_000), ..job }, body)).await;
    }
    let (rival, gate) = (Session::open(&url).await, Session::open(&url).await);
    rival.run("set deadlock_timeout = '1h'; begin").await;
    rival.run(&lock(3)).await;
    gate.run("begin").await;
    gate.run(&lock(2)).await;
    let batch = Batch { changes, ..Batch::default() };
    let commit = tokio::spawn(async move { store.commit(batch).await });
    // It has the first job and waits for the second.
    gate.blocks_another().await;
    let (rival, first) = (Arc::new(rival), lock(1));
    let second = tokio::spawn({
        let rival = rival.clone();
        async move { rival.run(&first).await }
    });
    // The gate watches: the rival waits too, for the store.
    gate.sees_waiting(&rival).await;
    gate.run("rollback").await;
    // The rival has both, so the store gave its lock back.
    second.await.unwrap();
    assert!(!commit.is_finished(), "the rival still has two of the jobs");
    rival.run("rollback").await;
    assert_eq!(commit.await.unwrap().unwrap().changes, [true, true, true]);
}

/// Returns the statement that locks a job.
fn lock(number: u64) -> String {
    format!("select id from damper_queue.job where id = '\\x{:032x}' for update", u128::from(number))
}

/// PostgreSQL has no text with U+0000. The server refuses such names; a store that does not meets them here.
#[tokio::test]
async fn content_that_postgres_rejects_fails_its_job_alone() {
    let cluster = Cluster::shared().await;
    let store = open(&cluster.database().await).await;
    let (waker, _woken) = wakeups();
    let writer = Writer::start(store.clone(), waker);
    let mut world = World::new(13);
    // All are in one commit: the writer does not run before this test waits.
    let submitted = (0..9).map(|number| {
        let (mut job, body) = job(&mut world, number);
        if number == 5 {
            job.lane = Arc::new(Lane { queue: "with\0zero".to_owned(), ..(*job.lane).clone() });
        }
        writer.submit(job, body)
    });
    let submitted = join_all(submitted.collect::<Vec<_>>()).await;
    for (number, result) in submitted.iter().enumerate() {
        match result {
            Err(Error::Invalid(why)) if number == 5 => assert!(why.contains("0x00"), "{why}"),
            Ok(Submitted::Stored(State::Waiting)) if number != 5 => {
                assert!(store.get(JobId((number as u128).to_be_bytes())).await.unwrap().is_some());
            }
            other => panic!("{number}: {other:?}"),
        }
    }
    writer.close().await;
    assert_eq!(store.check().await.unwrap(), Vec::<String>::new());
}
