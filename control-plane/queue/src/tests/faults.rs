//! Faults around the server: its store, its clock, the source of its queues, a million due jobs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use damper_core::job::{MAX_BYTES, MAX_JOBS, SUBMITTER_SHARE};
use damper_core::{Kill, Pattern};
use tokio::time::{Instant, sleep};

use super::rig::{QUEUE, Rig, rig, stored_id};
use crate::store::{Error, StateKind};
use crate::{FromWorker, KillUntil, NewJob, Settle, Submitter, ToWorker};

const SECOND: Duration = Duration::from_secs(1);
const HOUR_MS: i64 = 3_600_000;

#[tokio::test(start_paused = true)]
async fn submission_fails_within_5_s_if_the_store_hangs() {
    let mut rig = rig(|_| {}).await;
    rig.store.is_silent.store(true, Ordering::Relaxed);
    let by = Submitter { service: "shop".to_owned(), cluster: "eu".to_owned() };
    let (job, began) = (rig.job(), Instant::now());
    let error = rig.server.submit(&by, vec![job]).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert_eq!(began.elapsed().as_secs(), 5);
}

/// On PostgreSQL each call is one statement.
#[tokio::test(start_paused = true)]
async fn idle_server_asks_its_store_few_times() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(10).await;
    rig.submit(2).await;
    for how in [Settle::Done, Settle::Dead { reason: "never".to_owned() }] {
        let delivery = worker.start().await;
        worker.settle(delivery.lease, how).await;
    }
    let later = NewJob { after: Some(SECOND * 3_600), ..rig.job() };
    rig.submit_job(later).await;
    let counts = |rig: &Rig| rig.store.calls.load(Ordering::Relaxed);
    assert!(worker.deliveries(SECOND * 5).await.is_empty());
    let before = counts(&rig);
    assert!(worker.deliveries(SECOND * 60).await.is_empty());
    let calls = counts(&rig) - before;
    assert!((60..=180).contains(&calls), "{calls} in a minute with jobs that wait, are done and are dead");
}

#[tokio::test(start_paused = true)]
async fn deliveries_go_on_after_the_store_was_away() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(10).await;
    let later = NewJob { after: Some(SECOND * 30), ..rig.job() };
    let id = stored_id(&rig.submit_job(later).await);
    rig.store.is_away.store(true, Ordering::Relaxed);
    assert!(worker.deliveries(SECOND * 600).await.is_empty(), "it is due, and cannot be leased");
    assert!(rig.server.away().is_some_and(|(since, _)| since >= SECOND * 500));
    rig.store.is_away.store(false, Ordering::Relaxed);
    // The stream was sent to another server: it returns.
    let mut worker = rig.worker(10).await;
    let began = Instant::now();
    let delivery = worker.start().await;
    assert!(delivery.job == id && began.elapsed() <= SECOND * 3, "{:?}", began.elapsed());
    assert!(!worker.settle(delivery.lease, Settle::Done).await);
    rig.submit(1).await;
    worker.receive().await;
}

#[tokio::test(start_paused = true)]
async fn clock_step_back_delays_due_jobs_and_loses_none() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(10).await;
    let later = NewJob { after: Some(SECOND * 10), ..rig.job() };
    let early = stored_id(&rig.submit_job(later).await);
    rig.clock.shift_ms.store(-HOUR_MS, Ordering::Relaxed);
    let now = rig.submit(1).await[0];
    let delivery = worker.start().await;
    assert_eq!(delivery.job, now, "jobs of the new time are delivered by it");
    worker.settle(delivery.lease, Settle::Done).await;
    assert!(worker.deliveries(SECOND * 3_600).await.is_empty(), "late by the step");
    let mut worker = rig.worker(10).await;
    let mut late = worker.deliveries(SECOND * 20).await;
    let delivery = late.remove(0);
    assert_eq!((delivery.job, late.len()), (early, 0), "once");
    assert!(!worker.settle(delivery.lease, Settle::Done).await);
}

#[tokio::test(start_paused = true)]
async fn clock_step_ahead_delivers_due_jobs_within_the_bounds() {
    let mut rig = rig(|settings| settings.max_in_flight = 7).await;
    let mut worker = rig.worker(100).await;
    for _ in 0..40 {
        let later = NewJob { after: Some(SECOND * 1_800), ..rig.job() };
        stored_id(&rig.submit_job(later).await);
    }
    rig.clock.shift_ms.store(HOUR_MS, Ordering::Relaxed);
    assert_eq!(worker.deliveries(SECOND * 5).await.len(), 7, "no storm");
}

#[tokio::test(start_paused = true)]
async fn leases_do_not_notice_a_clock_step() {
    for step in [HOUR_MS, -HOUR_MS] {
        let mut rig = rig(|_| {}).await;
        let id = rig.submit(1).await[0];
        let mut worker = rig.worker(1).await;
        let lease = worker.start().await.lease;
        let began = Instant::now();
        sleep(SECOND * 5).await;
        rig.clock.shift_ms.store(step, Ordering::Relaxed);
        assert!(matches!(worker.next().await, ToWorker::Cancelled(ended) if ended == lease));
        assert_eq!(began.elapsed().as_secs(), 30, "a silent worker's, after a step of {step} ms");
        assert!(!worker.settle(lease, Settle::Done).await);
        assert_eq!((rig.state(id).await, rig.record(id).await.job.attempts), (StateKind::Done, 1));
    }
}

/// As when the policy store is away: no further tables arrive.
#[tokio::test(start_paused = true)]
async fn last_queues_and_kills_stay_in_force_without_a_source() {
    let mut rig = rig(|_| {}).await;
    let pattern = Pattern::parse("*", "*", "stock", "stock.Stock/Free").unwrap();
    let kill = Arc::new(Kill::new(pattern, true, "incident".to_owned(), 1).unwrap());
    rig.kill(vec![KillUntil { kill, until: rig.now() + SECOND * 600 }]);
    sleep(SECOND).await;
    rig.lose_source();
    let began = Instant::now();
    let stopped = NewJob { callee_method: "stock.Stock/Free".to_owned(), ..rig.job() };
    let stopped = stored_id(&rig.submit_job(stopped).await);
    let id = rig.submit(1).await[0];
    let mut worker = rig.worker(10).await;
    let delivery = worker.start().await;
    assert_eq!(delivery.job, id, "the queue goes on");
    worker.settle(delivery.lease, Settle::Done).await;
    assert_eq!(worker.receive().await.job, stopped, "the kill lasts until its end");
    assert!(began.elapsed() >= SECOND * 598, "{:?}", began.elapsed());
}

/// 2,000 jobs, or as many as `DAMPER_DUE_JOBS` names.
fn due_jobs() -> usize {
    std::env::var("DAMPER_DUE_JOBS").map_or(2_000, |jobs| jobs.parse().expect("DAMPER_DUE_JOBS is a number"))
}

#[tokio::test(start_paused = true)]
async fn jobs_due_at_once_leave_as_the_bounds_allow() {
    let jobs = due_jobs();
    // A stream has at most 1,000 deliveries.
    let most = u32::try_from(jobs / 100).unwrap_or(u32::MAX).clamp(1, 900);
    let mut rig = rig(|settings| {
        settings.max_in_flight = most;
        (settings.max_jobs, settings.max_bytes) = (MAX_JOBS.max, MAX_BYTES.max);
        settings.max_submitter_share = SUBMITTER_SHARE.max;
    })
    .await;
    let due = rig.now();
    rig.submit(jobs).await;
    let mut worker = rig.worker(most + 50).await;
    let mut left = jobs;
    while left > 0 {
        let sent = worker.deliveries(SECOND * 2).await;
        assert!((1..=most as usize).contains(&sent.len()), "{} in flight", sent.len());
        left -= sent.len();
        if left > 0 {
            let oldest = rig.server.stats(QUEUE)[0].oldest_due;
            assert_eq!(oldest, Some(due), "the rest is late and shows it");
        }
        for delivery in sent {
            worker.send(FromWorker::Settle(delivery.lease, Settle::Done)).await;
            worker.credit(1).await;
        }
    }
}
