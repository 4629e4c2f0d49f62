//! Ends of leases: lost, released, named again, late.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::rig::{Rig, released, rig};
use crate::store::{Batch, JobId, LeaseRequest, ServerId, State, StateKind, Store as _};
use crate::{FromWorker, LeaseId, Settle, ToWorker};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn lease_ends_10_s_after_its_stream_was_cut() {
    let mut rig = rig(|_| {}).await;
    let id = rig.submit(1).await[0];
    let mut worker = rig.worker(1).await;
    worker.start().await;
    worker.send(FromWorker::Alive).await;
    sleep(SECOND).await;
    let cut = Instant::now();
    drop(worker);
    let mut other = rig.worker(1).await;
    assert_eq!(other.receive().await.number, 2);
    assert_eq!(cut.elapsed().as_secs(), 10);
    let job = rig.record(id).await.job;
    assert_eq!((job.attempts, job.lost), (1, 1));
}

/// A worker that was killed had no time to report that it began.
#[tokio::test(start_paused = true)]
async fn delivery_that_may_have_begun_is_an_attempt() {
    let mut rig = rig(|settings| settings.policy.retry.as_mut().unwrap().max_attempts = 2).await;
    let id = rig.submit(1).await[0];
    for number in 1..=2 {
        let mut worker = rig.worker(1).await;
        assert_eq!(worker.receive().await.number, number);
        drop(worker);
        sleep(SECOND * 11).await;
        assert_eq!(rig.record(id).await.job.attempts, number);
    }
    let record = rig.record(id).await;
    assert_eq!((record.state.kind(), &*record.ended), (StateKind::Dead, "attempts_exhausted"));
}

/// The handler kills its worker before the worker can report that it began.
#[tokio::test(start_paused = true)]
async fn job_that_kills_at_once_is_delivered_alone_then_dead() {
    let mut rig = rig(|settings| settings.max_lost = 3).await;
    let suspect = rig.submit(1).await[0];
    for number in 1..=2 {
        let mut worker = rig.worker(1).await;
        assert_eq!(worker.receive().await.number, number);
        drop(worker);
        sleep(SECOND * 12).await;
    }
    let mut worker = rig.worker(10).await;
    let began = Instant::now();
    let alone = worker.receive().await;
    assert_eq!((alone.job, alone.number), (suspect, 3));
    assert!(began.elapsed() < SECOND, "a worker without deliveries gets it at once");
    let other = rig.submit(1).await[0];
    assert!(worker.deliveries(SECOND * 2).await.is_empty(), "it is alone");
    drop(worker);
    sleep(SECOND * 11).await;
    let record = rig.record(suspect).await;
    assert_eq!((record.state.kind(), &*record.ended, record.job.attempts), (StateKind::Dead, "lost", 3));
    assert_eq!(rig.worker(1).await.receive().await.job, other);
}

#[tokio::test(start_paused = true)]
async fn bye_releases_what_did_not_start_at_once() {
    let mut rig = rig(|_| {}).await;
    rig.submit(2).await;
    let mut worker = rig.worker(2).await;
    let started = worker.start().await;
    let waiting = worker.receive().await;
    worker.send(FromWorker::Bye).await;
    let mut other = rig.worker(2).await;
    let began = Instant::now();
    let again = other.receive().await;
    assert_eq!((again.job, again.number), (waiting.job, 2));
    assert!(began.elapsed() < SECOND);
    let job = rig.record(waiting.job).await.job;
    assert_eq!((job.attempts, job.lost, again.sends_before), (0, 0, 0), "it uses no attempt");
    assert!(!worker.settle(started.lease, Settle::Done).await, "what runs is finished");
}

#[tokio::test(start_paused = true)]
async fn stream_that_ends_after_a_bye_loses_its_leases_at_once() {
    let mut rig = rig(|_| {}).await;
    let id = rig.submit(1).await[0];
    let mut worker = rig.worker(1).await;
    worker.start().await;
    worker.send(FromWorker::Bye).await;
    drop(worker);
    let mut other = rig.worker(1).await;
    let began = Instant::now();
    let again = other.receive().await;
    assert_eq!((again.number, again.sends_before), (2, 1));
    assert!(began.elapsed() < SECOND);
    assert_eq!(rig.record(id).await.job.attempts, 1, "the handler was cut: it may have done its work");
}

#[tokio::test(start_paused = true)]
async fn lease_ends_when_worker_is_silent() {
    let mut rig = rig(|settings| settings.policy.retry.as_mut().unwrap().per_attempt_timeout = None).await;
    rig.change(|settings| settings.lease = SECOND * 20);
    rig.submit(1).await;
    let mut worker = rig.worker(1).await;
    let lease = worker.start().await.lease;
    let began = Instant::now();
    let cancelled = worker.next().await;
    assert!(matches!(cancelled, ToWorker::Cancelled(ended) if ended == lease), "{cancelled:?}");
    assert_eq!(began.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn silent_stream_gets_no_second_delivery() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(10).await;
    sleep(SECOND * 60).await;
    let id = rig.submit(1).await[0];
    assert_eq!(worker.receive().await.number, 1);
    assert!(worker.deliveries(SECOND * 60).await.is_empty());
    assert_eq!(rig.record(id).await.job.attempts, 1);
    worker.send(FromWorker::Alive).await;
    assert_eq!(worker.receive().await.number, 2);
}

#[tokio::test(start_paused = true)]
async fn lease_ends_5_s_after_its_limit_however_alive_its_worker() {
    let mut rig = rig(|_| {}).await;
    rig.submit(1).await;
    let mut worker = rig.worker(1).await;
    worker.start().await;
    let began = Instant::now();
    loop {
        match tokio::time::timeout(SECOND * 5, worker.next()).await {
            Err(_) => worker.send(FromWorker::Alive).await,
            Ok(ToWorker::Cancelled(_)) => break,
            Ok(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(began.elapsed().as_secs(), 35);
}

#[tokio::test(start_paused = true)]
async fn worker_that_returns_keeps_its_lease() {
    let mut rig = rig(|_| {}).await;
    let id = rig.submit(1).await[0];
    let mut worker = rig.worker(1).await;
    let lease = worker.start().await.lease;
    drop(worker);
    sleep(SECOND * 9).await;
    let mut again = rig.worker_with(0, vec![lease]).await;
    assert!(again.lost.is_empty());
    sleep(SECOND * 9).await;
    assert!(!again.settle(lease, Settle::Done).await);
    assert_eq!((rig.state(id).await, rig.record(id).await.job.attempts), (StateKind::Done, 1));
}

#[tokio::test(start_paused = true)]
async fn worker_learns_which_leases_it_lost() {
    let mut rig = rig(|_| {}).await;
    rig.submit(1).await;
    let mut worker = rig.worker(1).await;
    let lease = worker.start().await.lease;
    drop(worker);
    sleep(SECOND * 11).await;
    let again = rig.worker_with(0, vec![lease]).await;
    assert_eq!(again.lost, [lease]);
}

#[tokio::test(start_paused = true)]
async fn late_settlement_counts_until_the_job_is_delivered_again() {
    let mut rig = rig(|_| {}).await;
    let id = rig.submit(1).await[0];
    let mut worker = rig.worker(1).await;
    let lease = worker.start().await.lease;
    // Silent until the lease has ended.
    assert!(matches!(worker.next().await, ToWorker::Cancelled(_)));
    assert_eq!(rig.state(id).await, StateKind::Waiting);
    assert!(!worker.settle(lease, Settle::Done).await);
    let record = rig.record(id).await;
    assert_eq!((record.state.kind(), record.job.attempts, record.job.lost), (StateKind::Done, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn settlement_after_a_further_delivery_is_lost() {
    let mut rig = rig(|_| {}).await;
    let id = rig.submit(1).await[0];
    let mut worker = rig.worker(1).await;
    let lease = worker.start().await.lease;
    assert!(matches!(worker.next().await, ToWorker::Cancelled(_)));
    let mut other = rig.worker(1).await;
    let second = other.start().await;
    assert!(worker.settle(lease, Settle::Done).await);
    assert!(!other.settle(second.lease, Settle::Done).await);
    assert_eq!(rig.record(id).await.job.attempts, 2);
}

#[tokio::test(start_paused = true)]
async fn repeated_settlement_is_no_loss() {
    let mut rig = rig(|_| {}).await;
    rig.submit(1).await;
    let mut worker = rig.worker(1).await;
    let lease = worker.start().await.lease;
    assert!(!worker.settle(lease, Settle::Done).await);
    assert!(!worker.settle(lease, Settle::Done).await);
}

#[tokio::test(start_paused = true)]
async fn lost_attempts_count_towards_max_attempts() {
    let mut rig = rig(|settings| settings.policy.retry.as_mut().unwrap().max_attempts = 2).await;
    let id = rig.submit(1).await[0];
    for _ in 0..2 {
        let mut worker = rig.worker(1).await;
        worker.start().await;
        worker.send(FromWorker::Bye).await;
    }
    sleep(SECOND).await;
    let record = rig.record(id).await;
    assert_eq!((record.state.kind(), record.job.attempts), (StateKind::Dead, 2));
}

#[tokio::test(start_paused = true)]
async fn job_that_was_lost_twice_is_delivered_alone() {
    let mut rig = rig(|_| {}).await;
    let suspect = rig.submit(1).await[0];
    for _ in 0..2 {
        let mut worker = rig.worker(1).await;
        worker.start().await;
        worker.send(FromWorker::Bye).await;
        drop(worker);
    }
    let mut worker = rig.worker(10).await;
    rig.submit(1).await;
    let other = worker.start().await;
    assert_ne!(other.job, suspect, "it waits for its backoff");
    rig.submit(5).await;
    let more = worker.deliveries(SECOND * 3).await;
    assert!(more.iter().all(|delivery| delivery.job != suspect));
    for delivery in more {
        worker.settle(delivery.lease, Settle::Done).await;
    }
    worker.settle(other.lease, Settle::Done).await;
    let alone = worker.start().await;
    assert_eq!(alone.job, suspect);
    rig.submit(1).await;
    assert!(worker.deliveries(SECOND * 2).await.is_empty(), "it is alone");
    worker.settle(alone.lease, Settle::Done).await;
    worker.receive().await;
}

#[tokio::test(start_paused = true)]
async fn job_lost_max_lost_times_in_a_row_is_dead() {
    let mut rig = rig(|settings| settings.max_lost = 3).await;
    let id = rig.submit(1).await[0];
    for _ in 0..3 {
        let mut worker = rig.worker(1).await;
        worker.start().await;
        worker.send(FromWorker::Bye).await;
    }
    sleep(SECOND).await;
    let record = rig.record(id).await;
    assert_eq!((record.state.kind(), record.ended.as_str()), (StateKind::Dead, "lost"));
}

#[tokio::test(start_paused = true)]
async fn restarted_server_keeps_its_leases() {
    let mut rig = rig(|_| {}).await;
    let id = rig.submit(1).await[0];
    let mut worker = rig.worker(1).await;
    let lease = worker.start().await.lease;
    sleep(SECOND * 20).await;
    rig.restart().await;
    drop(worker);
    let mut other = rig.worker(1).await;
    assert!(other.deliveries(SECOND * 25).await.is_empty(), "the lease has its full time again");
    let mut again = rig.worker_with(0, vec![lease]).await;
    assert!(again.lost.is_empty());
    assert!(!again.settle(lease, Settle::Done).await);
    assert_eq!(rig.record(id).await.job.attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn lease_that_no_worker_names_after_a_restart_is_lost() {
    let mut rig = rig(|_| {}).await;
    let id = rig.submit(1).await[0];
    let mut worker = rig.worker(1).await;
    worker.start().await;
    rig.restart().await;
    let began = Instant::now();
    // A stream that is silent for as long as the lease is taken for dead.
    sleep(SECOND * 10).await;
    let mut other = rig.worker(1).await;
    assert_eq!(other.receive().await.job, id);
    assert_eq!(began.elapsed().as_secs(), 30);
    assert_eq!(rig.record(id).await.job.attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn lease_of_an_unknown_commit_is_given_back() {
    let mut rig = rig(|_| {}).await;
    let id = rig.submit(1).await[0];
    rig.store.loses_leases.store(true, Ordering::Relaxed);
    let mut worker = rig.worker(1).await;
    let began = Instant::now();
    assert_eq!(worker.receive().await.number, 2);
    assert!(began.elapsed() <= SECOND * 2, "{:?}", began.elapsed());
    assert_eq!(rig.record(id).await.job.attempts, 0);
}

/// As after a takeover whose answer was lost: the worker of another server may have it.
#[tokio::test(start_paused = true)]
async fn lease_that_only_the_store_knows_may_have_begun() {
    let mut rig = rig(|_| {}).await;
    let id = rig.submit(1).await[0];
    let server = rig.store.inner.beat(Vec::new()).await.unwrap().server;
    let lease = leased_elsewhere(&rig, id, server).await;
    let mut other = rig.worker(1).await;
    sleep(SECOND * 62).await;
    let worker = rig.worker_with(0, vec![lease]).await;
    assert!(worker.lost.is_empty(), "its worker may name it");
    assert!(other.deliveries(SECOND * 15).await.is_empty());
    drop(worker);
    other.send(FromWorker::Alive).await;
    assert_eq!(other.receive().await.number, 2);
    assert_eq!(rig.record(id).await.job.attempts, 1);
}

/// The token shows which request has made a lease.
#[tokio::test(start_paused = true)]
async fn unknown_commit_gives_back_its_own_leases_alone() {
    let mut rig = rig(|_| {}).await;
    let foreign = rig.submit(1).await[0];
    let server = rig.store.inner.beat(Vec::new()).await.unwrap().server;
    let lease = leased_elsewhere(&rig, foreign, server).await;
    let own = rig.submit(1).await[0];
    rig.store.loses_leases.store(true, Ordering::Relaxed);
    let mut worker = rig.worker(1).await;
    let again = worker.receive().await;
    assert_eq!((again.job, again.number), (own, 2));
    let mut other = rig.worker_with(0, vec![lease]).await;
    assert!(other.lost.is_empty(), "its worker may have it");
    assert!(!other.settle(lease, Settle::Done).await);
    assert_eq!(rig.record(foreign).await.job.attempts, 1);
}

/// Leases a job in the store alone.
async fn leased_elsewhere(rig: &Rig, id: JobId, server: ServerId) -> LeaseId {
    let request = LeaseRequest {
        lane: rig.record(id).await.lane,
        count: 1,
        max_bytes: u64::MAX,
        first_only: false,
        bounds: None,
        server,
        now: rig.now(),
        seed: 7,
    };
    let batch = Batch { leases: vec![request], ..Batch::default() };
    let leased = rig.store.commit(batch).await.unwrap().leases.remove(0).remove(0).0;
    let State::Leased { token, .. } = leased.state else { panic!("{leased:?}") };
    LeaseId { store: rig.store.inner.id(), job: id, delivery: 1, token }
}

/// The lease of a worker that comes from another server is in the store before it is in memory.
#[tokio::test(start_paused = true)]
async fn claimed_lease_is_not_given_back_as_unknown() {
    let mut rig = rig(|_| {}).await;
    let id = rig.submit(1).await[0];
    let lease = leased_elsewhere(&rig, id, ServerId(77)).await;
    rig.store.is_slow_to_claim.store(true, Ordering::Relaxed);
    let mut worker = rig.worker_with(0, vec![lease]).await;
    assert!(worker.lost.is_empty());
    sleep(SECOND * 5).await;
    assert_eq!(rig.record(id).await.job.deliveries, 1);
    assert!(!worker.settle(lease, Settle::Done).await);
    assert_eq!(rig.record(id).await.job.attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn server_that_stops_sends_goodbye_and_keeps_leases() {
    let mut rig = rig(|_| {}).await;
    let id = rig.submit(1).await[0];
    let mut worker = rig.worker(1).await;
    let lease = worker.start().await.lease;
    rig.server.shutdown();
    assert!(matches!(worker.next().await, ToWorker::Goodbye(_)));
    drop(worker);
    sleep(SECOND).await;
    rig.restart().await;
    let mut again = rig.worker_with(1, vec![lease]).await;
    assert!(again.lost.is_empty());
    again.settle(lease, released()).await;
    assert_eq!(rig.record(id).await.job.attempts, 0);
}
