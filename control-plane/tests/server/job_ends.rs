//! Jobs that fail or may not be delivered, over the wire: given up and replayed, held, stopped by a kill.

use damper_control_plane::QueuesUrl;
use damper_proto::v1;
use damper_proto::v1::settle::How;
use tempfile::TempDir;

use crate::harness::{Running, key, soon, start, start_in, start_with};
use crate::jobs::{Worker, first_job, get, put_queue_with, submit};

const DONE: How = How::Done(v1::Done {});

fn failed() -> How {
    How::Failed(v1::DeliveryFailure { code: v1::Code::Unavailable.into(), ..Default::default() })
}

/// Repeats after 10 ms.
fn retry(max_attempts: u32) -> Option<v1::Retry> {
    let delay = Some(prost_types::Duration { seconds: 0, nanos: 10_000_000 });
    let fixed = v1::FixedBackoff { delay, ..Default::default() };
    let backoff = v1::Backoff { kind: Some(v1::backoff::Kind::Fixed(fixed)) };
    Some(v1::Retry { max_attempts: Some(max_attempts), backoff: Some(backoff), ..Default::default() })
}

async fn stats(server: &Running) -> v1::QueueStats {
    let request = v1::GetQueueStatsRequest { queue: "later".to_owned() };
    soon(server.queues().get_queue_stats(request)).await.unwrap().into_inner().queues.remove(0)
}

/// Waits until the statistics, which are up to a second old, are so.
async fn stats_until(server: &Running, are_so: impl Fn(&v1::QueueStats) -> bool) -> v1::QueueStats {
    soon(async {
        loop {
            let stats = stats(server).await;
            if are_so(&stats) {
                return stats;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// Waits until the only lane is held for this reason.
async fn held(server: &Running, why: &str) {
    stats_until(server, |stats| stats.lanes.iter().any(|lane| lane.held == why)).await;
}

/// Gives one more credit, for one more delivery.
async fn next(worker: &mut Worker) -> v1::Delivery {
    worker.credit().await;
    worker.delivery().await
}

#[tokio::test]
async fn job_without_attempts_left_is_dead_until_replayed() {
    let server = start().await;
    put_queue_with(&server, v1::Queue::default(), retry(2)).await;
    let id = first_job(&server, "order-1").await;
    let mut worker = Worker::connect(&server, 1, Vec::new()).await.0;
    let first = worker.delivery().await;
    worker.settle(first.lease, failed()).await;
    let second = next(&mut worker).await;
    assert_eq!((&second.job_id, second.number, second.sends_before), (&id, 2, 1));
    worker.settle(second.lease, failed()).await;
    let dead = get(&server, &id).await;
    assert_eq!((dead.state(), dead.attempts, dead.failures.len()), (v1::JobState::Dead, 2, 2));
    let filter = v1::JobFilter {
        queue: "later".to_owned(),
        states: vec![v1::JobState::Dead.into()],
        ..Default::default()
    };
    let change = v1::JobChange::Replay.into();
    let request = v1::ChangeJobsRequest { filter: Some(filter), change, ..Default::default() };
    assert_eq!(soon(server.queues().change_jobs(request)).await.unwrap().into_inner().jobs, 1);
    let third = next(&mut worker).await;
    assert_eq!((&third.job_id, third.body.as_slice()), (&id, &b"order-1"[..]));
    worker.settle(third.lease, DONE).await;
    assert_eq!(get(&server, &id).await.state(), v1::JobState::Done);
    server.stop().await;
}

#[tokio::test]
async fn jobs_of_a_failing_callee_wait_for_a_probe() {
    let server = start().await;
    let alone = v1::Queue { hold_after: Some(2), max_in_flight: Some(1), ..Default::default() };
    put_queue_with(&server, alone, retry(5)).await;
    first_job(&server, "order-1").await;
    submit(&server, &["order-2", "order-3", "order-4"]).await;
    let mut worker = Worker::connect(&server, 100, Vec::new()).await.0;
    for _ in 0..2 {
        let lease = worker.delivery().await.lease;
        worker.settle(lease, failed()).await;
    }
    held(&server, "callee_failing").await;
    let probe = worker.delivery().await;
    let while_held = stats_until(&server, |stats| stats.leased == 1).await;
    assert_eq!((while_held.delivered, while_held.waiting), (3, 3), "one probe, and the others wait");
    worker.settle(probe.lease, DONE).await;
    for _ in 0..3 {
        let lease = worker.delivery().await.lease;
        worker.settle(lease, DONE).await;
    }
    let after = stats_until(&server, |stats| stats.waiting == 0 && stats.leased == 0).await;
    assert_eq!((after.done, after.failed, after.died), (4, 2, 0));
    server.stop().await;
}

#[tokio::test]
async fn kill_holds_jobs_until_it_ends() {
    let server = start().await;
    put_queue_with(&server, v1::Queue::default(), None).await;
    let of_stock = || key("*", "stock", "*");
    let options = Some(v1::WriteOptions { reason: "stock is down".to_owned(), ..Default::default() });
    let kill = v1::KillRequest { key: Some(of_stock()), calls: true, options, ..Default::default() };
    soon(server.kills().kill(kill)).await.unwrap();
    let mut worker = Worker::connect(&server, 1, Vec::new()).await.0;
    let id = first_job(&server, "order-1").await;
    held(&server, "killed").await;
    assert_eq!(stats(&server).await.delivered, 0);
    let unkill = v1::UnkillRequest { key: Some(of_stock()), ..Default::default() };
    soon(server.kills().unkill(unkill)).await.unwrap();
    assert_eq!(worker.delivery().await.job_id, id);
    server.stop().await;
}

#[tokio::test]
async fn queue_without_a_policy_holds_its_jobs() {
    let folder = TempDir::new().unwrap();
    let file = QueuesUrl::Redb(folder.path().join("jobs.redb"));
    let server = start_with(|settings| settings.queues = file.clone()).await;
    put_queue_with(&server, v1::Queue::default(), None).await;
    let id = first_job(&server, "order-1").await;
    server.stop().await;
    // Another policy store, without the queue.
    let server = start_in(TempDir::new().unwrap(), |settings| settings.queues = file).await;
    let stats = stats(&server).await;
    assert_eq!((&*stats.held, stats.waiting), ("no_policy", 1));
    let rejected = submit(&server, &["order-2"]).await.remove(0).rejected.unwrap();
    assert_eq!(rejected.code(), v1::Code::FailedPrecondition, "{rejected:?}");
    put_queue_with(&server, v1::Queue::default(), None).await;
    let mut worker = Worker::connect(&server, 1, Vec::new()).await.0;
    assert_eq!(worker.delivery().await.job_id, id);
    server.stop().await;
}
