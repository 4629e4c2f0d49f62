//! What holds deliveries: a failing callee, kills, a queue without a policy.

use std::sync::Arc;
use std::time::Duration;

use damper_core::{Code, Kill, Pattern, Ratio};
use tokio::time::{Instant, sleep};

use super::rig::{QUEUE, Rig, Worker, failed, rejected, rig};
use crate::store::StateKind;
use crate::{FromWorker, KillUntil, Settle, ToWorker};

const SECOND: Duration = Duration::from_secs(1);

/// Fails or completes all deliveries of a time; returns their times since its begin in ms.
async fn settle_all(worker: &mut Worker, within: Duration, how: impl Fn() -> Settle) -> Vec<u128> {
    let (began, mut times) = (Instant::now(), Vec::new());
    while let Ok(message) = tokio::time::timeout_at(began + within, worker.next()).await {
        if let ToWorker::Delivery(delivery) = message {
            times.push(began.elapsed().as_millis());
            worker.send(FromWorker::Settle(delivery.lease, how())).await;
            worker.credit(1).await;
        }
    }
    times
}

#[tokio::test(start_paused = true)]
async fn failing_callee_is_held_and_probed_once_a_second() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(50).await;
    let ids = rig.submit(200).await;
    let times = settle_all(&mut worker, SECOND * 60, || failed(Code::Unavailable)).await;
    assert_eq!(rig.held(), "callee_failing");
    // 20 failures and what was in flight with the last of them; then one a second.
    assert!((20 + 58..=20 + 10 + 61).contains(&times.len()), "{} deliveries", times.len());
    let probes = times.iter().rev().take(50).collect::<Vec<_>>();
    assert!(probes.windows(2).all(|pair| pair[0] - pair[1] >= 1_000), "{probes:?}");
    let mut attempts = 0;
    for id in ids {
        attempts += rig.record(id).await.job.attempts;
    }
    assert_eq!(attempts as usize, times.len(), "only probes use attempts");
}

#[tokio::test(start_paused = true)]
async fn callee_that_recovers_gets_its_load_back() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(50).await;
    let ids = rig.submit(100).await;
    settle_all(&mut worker, SECOND * 10, || failed(Code::Unavailable)).await;
    settle_all(&mut worker, SECOND * 10, || Settle::Done).await;
    for id in ids {
        assert_eq!(rig.state(id).await, StateKind::Done);
    }
}

fn kill(rig: &Rig, calls: bool, seconds: u64) -> Vec<KillUntil> {
    let pattern = Pattern::parse("*", "*", "stock", "*").unwrap();
    let kill = Arc::new(Kill::new(pattern, calls, "incident".to_owned(), 1).unwrap());
    vec![KillUntil { kill, until: rig.now() + SECOND * u32::try_from(seconds).unwrap() }]
}

#[tokio::test(start_paused = true)]
async fn kill_of_calls_holds_the_lane_until_its_end() {
    let mut rig = rig(|_| {}).await;
    rig.kill(kill(&rig, true, 30));
    let mut worker = rig.worker(1).await;
    rig.submit(1).await;
    let began = Instant::now();
    sleep(SECOND * 2).await;
    assert_eq!(rig.held(), "killed");
    worker.receive().await;
    assert!(began.elapsed() >= SECOND * 29 && began.elapsed() <= SECOND * 31, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn kill_of_retries_lets_first_deliveries_go() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(10).await;
    let failing = rig.submit(1).await[0];
    let delivery = worker.start().await;
    rig.kill(kill(&rig, false, 30));
    worker.fail(delivery.lease).await;
    sleep(SECOND * 5).await;
    assert_eq!((rig.state(failing).await, rig.held()), (StateKind::Waiting, "killed"));
    let first = rig.submit(1).await[0];
    assert_eq!(worker.receive().await.job, first);
    worker.send(FromWorker::Alive).await;
    let began = Instant::now();
    assert_eq!(worker.receive().await.job, failing);
    assert!(began.elapsed() >= SECOND * 20, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn kill_set_while_a_job_is_due_stops_it() {
    let mut rig = rig(|_| {}).await;
    rig.submit(1).await;
    rig.kill(kill(&rig, true, 3600));
    sleep(SECOND).await;
    let mut worker = rig.worker(1).await;
    assert!(worker.deliveries(SECOND * 60).await.is_empty());
}

/// By the queue's own clock: twenty deliveries a second, until the kill.
#[tokio::test(start_paused = true)]
async fn kill_stops_jobs_that_wait_or_are_due_within_a_second() {
    let mut rig = rig(|settings| settings.rate = Some(Ratio::from_bp(200_000))).await;
    let mut worker = rig.worker(200).await;
    rig.submit(400).await;
    let waiting =
        crate::NewJob { after: Some(SECOND * 3), callee_method: "stock.Stock/Free".to_owned(), ..rig.job() };
    rig.submit_job(waiting).await;
    let before = settle_all(&mut worker, SECOND * 2, || Settle::Done).await;
    assert!(before.len() >= 30, "{} deliveries", before.len());
    rig.kill(kill(&rig, true, 3_600));
    let after = settle_all(&mut worker, SECOND * 60, || Settle::Done).await;
    assert!(after.iter().all(|at| *at < 1_000), "delivered after {after:?} ms");
    rig.kill(Vec::new());
    assert!(!settle_all(&mut worker, SECOND, || Settle::Done).await.is_empty(), "the kill has ended");
}

#[tokio::test(start_paused = true)]
async fn queue_without_a_policy_keeps_its_jobs() {
    let mut rig = rig(|settings| settings.expires_after = SECOND * 60).await;
    let waiting = rig.submit(1).await[0];
    rig.delete_queue();
    sleep(SECOND).await;
    let mut worker = rig.worker(1).await;
    assert!(worker.deliveries(SECOND * 3600).await.is_empty());
    assert_eq!(rig.state(waiting).await, StateKind::Waiting, "it does not expire");
    let job = rig.job();
    let (code, text) = rejected(rig.submit_job(job).await);
    assert_eq!(code, Code::FailedPrecondition, "{text}");
    assert_eq!(rig.server.stats(QUEUE)[0].held, "no_policy");
}

#[tokio::test(start_paused = true)]
async fn clock_step_makes_due_jobs_due() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(1).await;
    let job = crate::NewJob { after: Some(SECOND * 3600), ..rig.job() };
    rig.submit_job(job).await;
    assert!(worker.deliveries(SECOND * 10).await.is_empty());
    rig.clock.shift_ms.store(3_600_000, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(worker.deliveries(SECOND * 2).await.len(), 1);
}
