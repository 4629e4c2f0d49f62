//! Order, time and number of deliveries.

use std::sync::atomic::Ordering;
use std::time::Duration;

use damper_core::{Mode, Ratio};
use tokio::time::Instant;

use super::rig::{QUEUE, released, rig, service, stored_id};
use crate::store::StateKind;
use crate::{FromWorker, NewJob, Settle, ToWorker};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn submitted_job_is_delivered_and_done() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(1).await;
    let id = rig.submit(1).await[0];
    let delivery = worker.start().await;
    assert_eq!((delivery.job, delivery.number, delivery.sends_before), (id, 1, 0));
    assert_eq!(delivery.body.content, 1_u64.to_be_bytes());
    assert!(!worker.settle(delivery.lease, Settle::Done).await);
    assert_eq!(rig.state(id).await, StateKind::Done);
    assert_eq!(rig.store.inner.body(id).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn job_due_longest_is_delivered_first() {
    let mut rig = rig(|_| {}).await;
    let mut ids = Vec::new();
    for wait in [3, 1, 2] {
        let job = NewJob { after: Some(SECOND * wait), ..rig.job() };
        ids.push(stored_id(&rig.submit_job(job).await));
    }
    tokio::time::sleep(SECOND * 5).await;
    let mut worker = rig.worker(3).await;
    let order = [worker.receive().await.job, worker.receive().await.job, worker.receive().await.job];
    assert_eq!(order, [ids[1], ids[2], ids[0]]);
}

#[tokio::test(start_paused = true)]
async fn job_is_delivered_when_it_is_due() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(2).await;
    let began = Instant::now();
    for wait in [5_000, 5_300] {
        let job = NewJob { after: Some(Duration::from_millis(wait)), ..rig.job() };
        rig.submit_job(job).await;
    }
    for due in [5_000, 5_300] {
        worker.receive().await;
        let late = began.elapsed().as_millis() - due;
        assert!(late <= 2, "{late} ms late");
    }
}

#[tokio::test(start_paused = true)]
async fn worker_gets_no_more_jobs_than_it_has_credits_for() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(2).await;
    rig.submit(5).await;
    assert_eq!(worker.deliveries(SECOND * 10).await.len(), 2);
    worker.credit(1).await;
    assert_eq!(worker.deliveries(SECOND * 10).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn worker_of_another_service_gets_nothing() {
    let mut rig = rig(|settings| settings.workers = vec![service("mail")]).await;
    let mut worker = rig.worker(2).await;
    rig.submit(1).await;
    assert!(worker.deliveries(SECOND * 5).await.is_empty());
    assert_eq!(rig.held(), "no_worker");
}

#[tokio::test(start_paused = true)]
async fn pace_lets_ten_begin_and_rises_with_successes() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(200).await;
    rig.submit(100).await;
    let first = worker.deliveries(SECOND).await;
    assert_eq!(first.len(), 10);
    for delivery in first {
        worker.send(FromWorker::Settle(delivery.lease, Settle::Done)).await;
    }
    assert_eq!(worker.deliveries(SECOND).await.len(), 20);
    assert_eq!(rig.held(), "pace");
}

#[tokio::test(start_paused = true)]
async fn queue_has_no_more_in_flight_than_max_in_flight() {
    let mut rig = rig(|settings| settings.max_in_flight = 3).await;
    let mut worker = rig.worker(100).await;
    rig.submit(10).await;
    assert_eq!(worker.deliveries(SECOND * 5).await.len(), 3);
    assert_eq!(rig.held(), "max_in_flight");
}

#[tokio::test(start_paused = true)]
async fn rate_spaces_deliveries() {
    let mut rig = rig(|settings| settings.rate = Some(Ratio::from_bp(20_000))).await;
    let mut worker = rig.worker(100).await;
    rig.submit(30).await;
    let mut count = 0;
    let end = Instant::now() + SECOND * 10;
    while let Ok(message) = tokio::time::timeout_at(end, worker.next()).await {
        if let ToWorker::Delivery(delivery) = message {
            count += 1;
            worker.send(FromWorker::Settle(delivery.lease, Settle::Done)).await;
        }
    }
    assert!((20..=21).contains(&count), "{count} deliveries in 10 s at 2 per second");
}

#[tokio::test(start_paused = true)]
async fn jobs_of_one_order_key_follow_each_other() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(10).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let job = NewJob { order_key: "customer 7".to_owned(), ..rig.job() };
        ids.push(stored_id(&rig.submit_job(job).await));
    }
    let first = worker.start().await;
    assert_eq!(first.job, ids[0]);
    assert!(worker.deliveries(SECOND * 5).await.is_empty(), "one at a time");
    worker.fail(first.lease).await;
    let again = worker.start().await;
    assert_eq!(again.job, ids[0], "a failed one delays those behind it");
    worker.settle(again.lease, Settle::Done).await;
    assert_eq!(worker.receive().await.job, ids[1]);
}

#[tokio::test(start_paused = true)]
async fn lane_with_one_job_is_served_next_to_a_full_one() {
    let mut rig = rig(|settings| settings.max_in_flight = 10_000).await;
    rig.submit(3_000).await;
    let job = NewJob { callee_service: "mail".to_owned(), ..rig.job() };
    let one = stored_id(&rig.submit_job(job).await);
    let mut worker = rig.worker(4).await;
    let began = Instant::now();
    loop {
        let delivery = worker.start().await;
        if delivery.job == one {
            break;
        }
        worker.send(FromWorker::Settle(delivery.lease, Settle::Done)).await;
        worker.credit(1).await;
    }
    assert!(began.elapsed() <= SECOND, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn failed_job_is_delivered_again_after_its_wait() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(2).await;
    let id = rig.submit(1).await[0];
    let first = worker.start().await;
    let began = Instant::now();
    worker.fail(first.lease).await;
    let second = worker.receive().await;
    assert_eq!((second.job, second.number, second.sends_before), (id, 2, 1));
    assert!(began.elapsed() >= SECOND, "{:?}", began.elapsed());
    let failure = &rig.record(id).await.failures[0];
    assert_eq!((failure.worker.as_str(), failure.detail.as_str()), ("orders/orders-1", "down"));
}

#[tokio::test(start_paused = true)]
async fn job_is_dead_after_max_attempts() {
    let mut rig = rig(|settings| settings.policy.retry.as_mut().unwrap().max_attempts = 3).await;
    let mut worker = rig.worker(10).await;
    let id = rig.submit(1).await[0];
    for number in 1..=3 {
        let delivery = worker.start().await;
        assert_eq!(delivery.number, number);
        worker.fail(delivery.lease).await;
    }
    let record = rig.record(id).await;
    assert_eq!((record.state.kind(), record.ended.as_str()), (StateKind::Dead, "attempts_exhausted"));
    assert!(worker.deliveries(SECOND * 60).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn release_uses_no_attempt_and_takes_the_lane_from_its_stream() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(10).await;
    let id = rig.submit(1).await[0];
    let mut waits = Vec::new();
    let mut last = Instant::now();
    for _ in 0..4 {
        let delivery = worker.receive().await;
        waits.push(last.elapsed().as_secs());
        worker.settle(delivery.lease, released()).await;
        last = Instant::now();
    }
    assert_eq!(waits, [0, 1, 2, 4]);
    assert_eq!(rig.held(), "released");
    let mut other = rig.worker(1).await;
    let began = Instant::now();
    assert_eq!(other.receive().await.job, id);
    assert!(began.elapsed() < SECOND, "another stream gets it at once");
    assert_eq!(rig.record(id).await.job.attempts, 0);
}

#[tokio::test(start_paused = true)]
async fn too_many_credits_end_the_stream() {
    let rig = rig(|_| {}).await;
    let mut worker = rig.worker(1_000).await;
    worker.credit(1).await;
    assert!(worker.work.deliveries.recv().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn paused_queue_delivers_nothing_until_it_is_resumed() {
    let mut rig = rig(|settings| settings.paused = "maintenance".to_owned()).await;
    let mut worker = rig.worker(1).await;
    rig.submit(1).await;
    assert!(worker.deliveries(SECOND * 60).await.is_empty());
    assert_eq!(rig.server.stats(QUEUE)[0].held, "paused");
    rig.change(|settings| settings.paused.clear());
    worker.receive().await;
}

#[tokio::test(start_paused = true)]
async fn queue_that_is_off_delivers_nothing() {
    let mut rig = rig(|_| {}).await;
    rig.submit(1).await;
    rig.change(|settings| settings.policy.mode = Mode::Off);
    tokio::task::yield_now().await;
    let mut worker = rig.worker(1).await;
    assert!(worker.deliveries(SECOND * 60).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn settlement_waits_until_the_store_is_back() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(2).await;
    let id = rig.submit(1).await[0];
    let delivery = worker.start().await;
    rig.store.is_away.store(true, Ordering::Relaxed);
    worker.send(FromWorker::Settle(delivery.lease, Settle::Done)).await;
    assert!(worker.deliveries(SECOND * 8).await.is_empty());
    rig.store.is_away.store(false, Ordering::Relaxed);
    assert!(matches!(worker.next().await, ToWorker::Settled { lost: false, .. }));
    assert_eq!(rig.state(id).await, StateKind::Done);
}
