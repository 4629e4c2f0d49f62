//! Submission, quotas, expiry, and what operators change.

use std::time::Duration;

use damper_core::job::Submittable;
use damper_core::{Code, Failure, Fate, Faults, Mode, Ratio};
use futures_util::FutureExt as _;
use tokio::time::sleep;

use super::rig::{QUEUE, failed, rejected, rig, service, stored_id};
use crate::store::{Filter, JobId, StateKind};
use crate::{Cancellation, EarlierFailure, JobChange, NewJob, Selection, Settle, SubmitResult, Submitter};

const SECOND: Duration = Duration::from_secs(1);

fn all() -> Selection {
    let filter = Filter { queue: QUEUE.to_owned(), ..Filter::default() };
    Selection { filter, ..Selection::default() }
}

#[tokio::test(start_paused = true)]
async fn same_key_and_content_is_the_same_job() {
    let mut rig = rig(|_| {}).await;
    let job = rig.job();
    let id = stored_id(&rig.submit_job(job.clone()).await);
    match rig.submit_job(job.clone()).await {
        SubmitResult::Existing(record) => assert_eq!(record.id, id),
        other => panic!("{other:?}"),
    }
    let mut other = job.clone();
    other.body.content.push(1);
    let (code, text) = rejected(rig.submit_job(other).await);
    assert!(code == Code::AlreadyExists && text.contains(&id.to_string()), "{text}");
    let other = NewJob { callee_method: "stock.Stock/Free".to_owned(), ..job };
    assert_ne!(stored_id(&rig.submit_job(other).await), id, "the key of another method");
}

#[tokio::test(start_paused = true)]
async fn encrypted_bodies_are_compared_by_tag_under_the_same_key_only() {
    let mut rig = rig(|_| {}).await;
    let encrypted = |job: &NewJob, key: &str, tag: u8, body: u8| NewJob {
        body_key_id: key.to_owned(),
        body_tag: vec![tag; 32],
        body: crate::store::Body { content: vec![body; 8], metadata: Vec::new() },
        ..job.clone()
    };
    let job = rig.job();
    stored_id(&rig.submit_job(encrypted(&job, "k1", 1, 1)).await);
    let existing = |result| matches!(result, SubmitResult::Existing(_));
    assert!(existing(rig.submit_job(encrypted(&job, "k1", 1, 2)).await), "another nonce");
    assert!(!existing(rig.submit_job(encrypted(&job, "k1", 2, 1)).await), "another content");
    assert!(existing(rig.submit_job(encrypted(&job, "k2", 2, 1)).await), "the key alone decides");
}

#[tokio::test(start_paused = true)]
async fn all_faults_of_a_job_are_returned_at_once() {
    let mut rig = rig(|settings| settings.max_body = 1024).await;
    let mut job = rig.job();
    job.key = "k".repeat(256);
    job.callee_method = "none".to_owned();
    job.body.content = vec![0; 1025];
    job.body.metadata = vec![("cookie".to_owned(), String::new())];
    job.call_id = "xyz".to_owned();
    job.job_id = vec![1];
    job.after = Some(SECOND);
    job.not_before = Some(rig.now() + SECOND * 86_400 * 31);
    job.expires_after = Some(SECOND * 86_400 * 8);
    let (code, text) = rejected(rig.submit_job(job).await);
    assert_eq!(code, Code::InvalidArgument);
    for path in [
        "key: ",
        "callee_method: ",
        "body: ",
        "metadata.cookie: ",
        "call_id: ",
        "job_id: ",
        "after: ",
        "not_before: ",
        "expires_after: ",
    ] {
        assert!(text.contains(path), "{path} in {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn submission_is_refused_with_its_reason() {
    let mut rig = rig(|settings| {
        settings.submitters = vec![service("shop")];
        settings.methods = vec![Submittable::parse("", "stock *", &mut Faults::none()).unwrap()];
    })
    .await;
    let job = rig.job();
    let unknown = NewJob { queue: "none".to_owned(), ..job.clone() };
    assert_eq!(rejected(rig.submit_job(unknown).await).0, Code::NotFound);
    assert_eq!(rejected(rig.submit_as("bank", job.clone()).await).0, Code::PermissionDenied);
    let other = NewJob { callee_service: "mail".to_owned(), ..job.clone() };
    assert_eq!(rejected(rig.submit_job(other).await).0, Code::FailedPrecondition);
    let failed = |code| Some(EarlierFailure { failure: Failure::new(code), took: SECOND });
    let hopeless = NewJob { failed: failed(Code::InvalidArgument), ..job.clone() };
    match rig.submit_job(hopeless).await {
        SubmitResult::Rejected(rejected) => assert_eq!(rejected.fate, Some(Fate::NotRetryable)),
        other => panic!("{other:?}"),
    }
    let late = NewJob { failed: failed(Code::Unavailable), ..job.clone() };
    match rig.submit_job(late).await {
        SubmitResult::Stored { due, .. } => assert_eq!(due, rig.now() + SECOND, "after its first wait"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn queue_in_observe_mode_stores_nothing() {
    let mut rig = rig(|settings| settings.policy.mode = Mode::Observe).await;
    let job = rig.job();
    let (code, text) = rejected(rig.submit_job(job).await);
    assert_eq!((code, text.as_str()), (Code::FailedPrecondition, "observed: would have been accepted"));
    assert_eq!(rig.server.list(&all(), None, 10).await.unwrap().jobs, []);
}

#[tokio::test(start_paused = true)]
async fn full_queue_accepts_again_once_jobs_have_ended() {
    let mut rig = rig(|settings| (settings.max_jobs, settings.max_submitter_share) = (3, Ratio::ONE)).await;
    let mut worker = rig.worker(3).await;
    rig.submit(3).await;
    let job = rig.job();
    let (code, text) = rejected(rig.submit_job(job.clone()).await);
    assert!(code == Code::ResourceExhausted && text.contains("max_jobs"), "{text}");
    let lease = worker.start().await.lease;
    worker.settle(lease, Settle::Done).await;
    sleep(SECOND * 2).await;
    stored_id(&rig.submit_job(job).await);
}

#[tokio::test(start_paused = true)]
async fn routes_of_a_queue_are_limited() {
    let mut rig = rig(|_| {}).await;
    for number in 0..1_000 {
        let job = NewJob { callee_service: format!("s{number}"), ..rig.job() };
        stored_id(&rig.submit_job(job).await);
    }
    let job = NewJob { callee_service: "further".to_owned(), ..rig.job() };
    let (code, text) = rejected(rig.submit_job(job).await);
    assert!(code == Code::ResourceExhausted && text.contains("1000 routes"), "{text}");
    rig.submit(0).await;
    let known = NewJob { callee_service: "s7".to_owned(), ..rig.job() };
    stored_id(&rig.submit_job(known).await);
}

#[tokio::test(start_paused = true)]
async fn id_of_another_job_is_refused() {
    let mut rig = rig(|_| {}).await;
    let own = NewJob { job_id: vec![7; 16], ..rig.job() };
    assert_eq!(stored_id(&rig.submit_job(own).await), JobId([7; 16]));
    let other = NewJob { job_id: vec![7; 16], ..rig.job() };
    assert_eq!(rejected(rig.submit_job(other).await).0, Code::AlreadyExists);
}

#[tokio::test(start_paused = true)]
async fn job_without_a_worker_expires_and_is_forgotten() {
    let mut rig =
        rig(|settings| (settings.expires_after, settings.keep_done) = (SECOND * 60, SECOND * 60)).await;
    let id = rig.submit(1).await[0];
    sleep(SECOND * 58).await;
    assert_eq!(rig.state(id).await, StateKind::Waiting);
    sleep(SECOND * 4).await;
    let record = rig.record(id).await;
    assert_eq!((record.state.kind(), record.ended.as_str()), (StateKind::Expired, "expired"));
    sleep(SECOND * 63).await;
    assert_eq!(rig.store.inner.get(id).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn dead_job_is_kept_with_its_body_for_keep_dead() {
    let mut rig = rig(|settings| settings.keep_dead = SECOND * 3600).await;
    let id = rig.submit(1).await[0];
    let mut worker = rig.worker(1).await;
    let lease = worker.start().await.lease;
    worker.settle(lease, failed(Code::InvalidArgument)).await;
    sleep(SECOND * 3_590).await;
    assert!(rig.store.inner.body(id).await.unwrap().is_some());
    sleep(SECOND * 20).await;
    assert_eq!(rig.store.inner.get(id).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn submitter_cancels_a_job_until_it_is_delivered() {
    let mut rig = rig(|_| {}).await;
    let ids = rig.submit(2).await;
    let cancel = async |who: &str, id| rig.server.cancel(who, id).await.unwrap();
    assert_eq!(cancel("bank", ids[0]).await, Cancellation::NotFound, "the job of another service");
    assert_eq!(cancel("shop", ids[0]).await, Cancellation::Cancelled);
    assert_eq!(cancel("shop", ids[0]).await, Cancellation::Cancelled, "repeated");
    let mut worker = rig.worker(2).await;
    assert_eq!(worker.start().await.job, ids[1]);
    assert_eq!(cancel("shop", ids[1]).await, Cancellation::TooLate);
    assert_eq!(cancel("shop", JobId([9; 16])).await, Cancellation::NotFound);
}

#[tokio::test(start_paused = true)]
async fn replay_spaces_dead_jobs_by_its_rate() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(100).await;
    rig.submit(4).await;
    for _ in 0..4 {
        let lease = worker.start().await.lease;
        worker.settle(lease, Settle::Dead { reason: "bad order".to_owned() }).await;
    }
    let replay = JobChange::Replay { rate: Ratio::from_bp(20_000), done: 0 };
    let counted = rig.server.change(all(), replay, true).await.unwrap();
    assert_eq!((counted.jobs, counted.skipped, counted.more), (4, 0, false));
    let now = rig.now().0;
    rig.server.change(all(), replay, false).await.unwrap();
    let jobs = rig.server.list(&all(), None, 10).await.unwrap().jobs;
    let mut due: Vec<u64> = jobs.iter().map(|job| job.at.0 - now).collect();
    due.sort_unstable();
    assert_eq!(due, [0, 500, 1_000, 1_500]);
    let delivery = worker.start().await;
    assert_eq!((delivery.number, delivery.sends_before), (2, 1), "attempts begin again, sends go on");
    assert_eq!(rig.record(delivery.job).await.job.attempts, 0);
}

#[tokio::test(start_paused = true)]
async fn operator_runs_cancels_and_purges_a_selection() {
    let mut rig = rig(|_| {}).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let job = NewJob { after: Some(SECOND * 3600), ..rig.job() };
        ids.push(stored_id(&rig.submit_job(job).await));
    }
    let select = |id: JobId| Selection { ids: vec![id], ..all() };
    let change = async |selection, change| rig.server.change(selection, change, false).await.unwrap().jobs;
    assert_eq!(change(select(ids[0]), JobChange::Run).await, 1);
    let mut worker = rig.worker(1).await;
    assert_eq!(worker.start().await.job, ids[0]);
    assert_eq!(change(select(ids[0]), JobChange::Cancel).await, 0, "it is delivered");
    assert_eq!(change(all(), JobChange::Cancel).await, 2);
    assert_eq!(change(all(), JobChange::Purge).await, 2);
    assert_eq!(rig.server.list(&all(), None, 10).await.unwrap().jobs.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn removed_jobs_are_gone_in_any_state() {
    let mut rig = rig(|_| {}).await;
    let mut worker = rig.worker(1).await;
    rig.submit(3).await;
    let lease = worker.start().await.lease;
    assert_eq!(rig.server.unended(QUEUE).await, Ok(3));
    let removed = rig.server.change(all(), JobChange::Remove, false).await.unwrap();
    assert_eq!((removed.jobs, removed.skipped), (3, 0));
    assert_eq!(rig.server.unended(QUEUE).await, Ok(0));
    assert!(worker.settle(lease, Settle::Done).await, "its delivery is lost");
    assert_eq!(rig.server.ledger_gap().await, Ok(0));
    assert_eq!(rig.store.inner.check().await.unwrap(), Vec::<String>::new());
    // The worker is free for further jobs.
    worker.credit(1).await;
    rig.submit(1).await;
    worker.start().await;
}

#[tokio::test(start_paused = true)]
async fn submission_is_counted_if_its_caller_goes() {
    let mut rig = rig(|_| {}).await;
    let by = Submitter { service: "shop".to_owned(), cluster: "eu".to_owned() };
    let job = rig.job();
    assert!(rig.server.submit(&by, vec![job]).now_or_never().is_none(), "it is in flight");
    sleep(SECOND * 5).await;
    let ledger = rig.server.ledger();
    assert_eq!((ledger.submitted, ledger.present), (1, 1));
    assert_eq!(rig.server.ledger_gap().await, Ok(0));
}

#[tokio::test(start_paused = true)]
async fn ledger_balances() {
    let mut rig = rig(|settings| settings.keep_done = Duration::ZERO).await;
    let mut worker = rig.worker(100).await;
    rig.submit(5).await;
    for _ in 0..3 {
        let lease = worker.start().await.lease;
        worker.settle(lease, Settle::Done).await;
    }
    // Seen, deleted, and seen to be deleted.
    sleep(SECOND * 5).await;
    let ledger = rig.server.ledger();
    assert!(ledger.balances(), "{ledger:?}");
    assert_eq!(rig.server.ledger_gap().await, Ok(0));
    assert_eq!((ledger.submitted, ledger.present, ledger.deleted), (5, 2, 3));
    rig.restart().await;
    assert_eq!(rig.server.ledger().at_start, 2);
    assert_eq!(rig.store.inner.check().await.unwrap(), Vec::<String>::new());
}
