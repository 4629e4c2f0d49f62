//! Faults between a store and PostgreSQL: lost answers, lost connections, deadlocks, rejected content.

use std::sync::Arc;

use damper_core::job::Wall;
use damper_queue::store::{
    Batch, Change, ChangeTo, Error, JobId, Lane, LeaseRequest, Record, ServerId, Settled, SettledBy, State,
    Store, Submitted,
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

#[tokio::test]
async fn lease_reads_the_bodies_of_taken_jobs_alone() {
    const COUNT: u32 = 16;
    const SIZE: usize = 1 << 16;
    let cluster = Cluster::shared().await;
    let relay = Relay::start(&cluster.database().await).await;
    let store = open(&relay.url).await;
    let mut world = World::new(15);
    let lane = world.lanes[0].clone();
    let mut submissions = Vec::new();
    for number in 0..u64::from(COUNT) {
        let (mut job, mut body) = job(&mut world, number);
        (job.lane, job.at) = (lane.clone(), Wall(world.now.0 + number));
        body.content = vec![u8::try_from(number).unwrap(); SIZE];
        submissions.push((job, body));
    }
    let request = LeaseRequest { count: COUNT, ..lease_of(&submissions[0].0, ME, 1) };
    store.commit(Batch { submissions: submissions.clone(), ..Batch::default() }).await.unwrap();
    for (seed, count) in [(1, 1), (2, 2)] {
        let before = relay.received();
        let max_bytes = count * SIZE as u64 - 1;
        let leases = vec![LeaseRequest { seed, max_bytes, ..request.clone() }];
        let leased = store.commit(Batch { leases, ..Batch::default() }).await.unwrap().leases.remove(0);
        let received = relay.received() - before;
        let expected = submissions.drain(..leased.len()).map(|(job, body)| (job.id, body));
        let leased: Vec<_> = leased.into_iter().map(|(job, body)| (job.id, body)).collect();
        assert!(leased.len() as u64 == count && leased == expected.collect::<Vec<_>>());
        let bytes = count * SIZE as u64;
        assert!((bytes..bytes + SIZE as u64).contains(&received), "{received} bytes for {count} jobs");
    }
}

/// A leased job can be removed in the same batch: its delivery has its body all the same.
#[tokio::test]
async fn job_leased_and_removed_in_a_batch_has_its_body() {
    let cluster = Cluster::shared().await;
    let store = open(&cluster.database().await).await;
    let (job, body) = job(&mut World::new(16), 1);
    submit(&*store, (job.clone(), body.clone())).await;
    let changes = vec![Change { id: job.id, to: ChangeTo::Removed, now: job.at }];
    let batch = Batch { leases: vec![lease_of(&job, ME, 1)], changes, ..Batch::default() };
    let committed = store.commit(batch).await.unwrap();
    assert_eq!(committed.changes, [true]);
    assert_eq!(committed.leases[0].iter().map(|(_, body)| body).collect::<Vec<_>>(), [&body]);
    assert_eq!(store.get(job.id).await.unwrap(), None);
    assert_eq!(store.check().await.unwrap(), Vec::<String>::new());
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

/// A submission waits for the job that has its key already. By then it must have locked no head: another
/// server locks that job first and heads after it, and the two would wait for each other.
#[tokio::test]
async fn job_found_by_its_key_is_locked_before_heads() {
    let cluster = Cluster::shared().await;
    let url = cluster.database().await;
    let store = open(&url).await;
    let mut world = World::new(14);
    let there = job(&mut world, 1);
    let mut in_order = |number| {
        let (mut job, body) = job(&mut world, number);
        job.lane = there.0.lane.clone();
        job.order_key = Some("one".to_owned());
        (job, body)
    };
    let (head, behind) = (in_order(2), in_order(3));
    submit(&*store, there.clone()).await;
    submit(&*store, head).await;
    let mut again = there.clone();
    again.0.id = JobId(4_u128.to_be_bytes());
    let gate = Session::open(&url).await;
    gate.run("begin").await;
    gate.run(&lock(1)).await;
    let batch = Batch { submissions: vec![again, behind], ..Batch::default() };
    let commit = tokio::spawn(async move { store.commit(batch).await });
    gate.blocks_another().await;
    gate.run("select 1 from damper_queue.head for update nowait").await;
    gate.run("rollback").await;
    let submissions = commit.await.unwrap().unwrap().submissions;
    let is_there = matches!(&submissions[0], Submitted::Existing(job) if job.id == there.0.id);
    assert!(is_there && submissions[1] == Submitted::Stored(State::Behind), "{submissions:?}");
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
