//! Jobs over the wire: submitted, worked on, operated, across restarts.

use std::num::NonZeroU32;

use damper_control_plane::{QueuesUrl, Rate};
use damper_proto::v1::jobs_client::JobsClient;
use damper_proto::v1::{self, from_worker, to_worker};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt as _;

use crate::access::{Guarded, bearer};
use crate::harness::{Running, soon, start, start_in, start_with};

fn identity(service: &str) -> Option<v1::Identity> {
    Some(v1::Identity {
        service: service.to_owned(),
        cluster: "default".to_owned(),
        instance: format!("{service}-1"),
    })
}

fn job(key: &str) -> v1::NewJob {
    v1::NewJob {
        queue: "later".to_owned(),
        key: key.to_owned(),
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/Take".to_owned(),
        body: key.as_bytes().to_vec(),
        metadata: [("traceparent".to_owned(), "00-1".to_owned())].into(),
        ..Default::default()
    }
}

fn submission(jobs: Vec<v1::NewJob>) -> v1::SubmitRequest {
    v1::SubmitRequest { identity: identity("shop"), jobs }
}

pub(crate) async fn put_queue(server: &Running) {
    put_queue_with(server, v1::Queue::default(), None).await;
}

pub(crate) async fn put_queue_with(server: &Running, queue: v1::Queue, retry: Option<v1::Retry>) {
    let policy = v1::Policy { mode: v1::Mode::Enforce.into(), retry, ..Default::default() };
    let queue = v1::Queue { name: "later".to_owned(), policy: Some(policy), ..queue };
    let request = v1::PutQueueRequest { queue: Some(queue), ..Default::default() };
    soon(server.queues().put_queue(request)).await.unwrap();
}

fn jobs(server: &Running) -> JobsClient<Channel> {
    JobsClient::new(server.channel())
}

pub(crate) async fn submit(server: &Running, keys: &[&str]) -> Vec<v1::Submitted> {
    let request = submission(keys.iter().map(|key| job(key)).collect());
    soon(jobs(server).submit(request)).await.unwrap().into_inner().jobs
}

/// Submits until the job server knows the queue.
pub(crate) async fn first_job(server: &Running, key: &str) -> String {
    soon(async {
        loop {
            let submitted = submit(server, &[key]).await.remove(0);
            match submitted.rejected {
                None => return submitted.job_id,
                Some(rejected) => assert_eq!(rejected.code, v1::Code::NotFound as i32, "{rejected:?}"),
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

pub(crate) struct Worker {
    out: mpsc::Sender<v1::FromWorker>,
    messages: Streaming<v1::ToWorker>,
}

impl Worker {
    pub(crate) async fn connect(
        server: &Running,
        credits: u32,
        leases: Vec<Vec<u8>>,
    ) -> (Self, Vec<Vec<u8>>) {
        let hello = v1::WorkerHello {
            identity: identity("shop"),
            queues: vec![v1::Credits { queue: "later".to_owned(), more: credits }],
            leases,
        };
        let mut worker = Self::open(server, from_worker::Kind::Hello(hello)).await.unwrap();
        match worker.next().await {
            to_worker::Kind::Welcome(v1::WorkerWelcome { lost }) => (worker, lost),
            other => panic!("{other:?}"),
        }
    }

    async fn open(server: &Running, first: from_worker::Kind) -> Result<Self, Status> {
        let (out, outgoing) = mpsc::channel(16);
        out.send(v1::FromWorker { kind: Some(first) }).await.unwrap();
        let messages = soon(jobs(server).work(ReceiverStream::new(outgoing))).await?.into_inner();
        Ok(Self { out, messages })
    }

    async fn send(&self, kind: from_worker::Kind) {
        self.out.send(v1::FromWorker { kind: Some(kind) }).await.unwrap();
    }

    pub(crate) async fn credit(&self) {
        let credits = v1::Credits { queue: "later".to_owned(), more: 1 };
        self.send(from_worker::Kind::Credits(credits)).await;
    }

    async fn next(&mut self) -> to_worker::Kind {
        soon(self.messages.message()).await.unwrap().expect("the stream goes on").kind.unwrap()
    }

    pub(crate) async fn delivery(&mut self) -> v1::Delivery {
        loop {
            match self.next().await {
                to_worker::Kind::Delivery(delivery) => return delivery,
                to_worker::Kind::Alive(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) async fn settle(&mut self, lease: Vec<u8>, how: v1::settle::How) -> bool {
        self.send(from_worker::Kind::Settle(v1::Settle { lease, how: Some(how) })).await;
        loop {
            match self.next().await {
                to_worker::Kind::Settled(settled) => return settled.lost,
                to_worker::Kind::Alive(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

pub(crate) async fn get(server: &Running, job_id: &str) -> v1::Job {
    let request = v1::GetJobRequest { job_id: job_id.to_owned() };
    soon(server.queues().get_job(request)).await.unwrap().into_inner()
}

#[tokio::test]
async fn submitted_job_is_worked_on_and_settled() {
    let server = start().await;
    put_queue(&server).await;
    let id = first_job(&server, "order-1").await;
    let (mut worker, _) = Worker::connect(&server, 1, Vec::new()).await;
    let delivery = worker.delivery().await;
    assert_eq!((&delivery.job_id, delivery.number, delivery.sends_before), (&id, 1, 0));
    assert_eq!((delivery.body.as_slice(), &*delivery.metadata["traceparent"]), (&b"order-1"[..], "00-1"));
    let route = delivery.route.clone().unwrap();
    assert_eq!((&*route.caller_service, &*route.callee_method), ("shop", "stock.v1.Stock/Take"));
    worker.send(from_worker::Kind::Started(v1::Started { leases: vec![delivery.lease.clone()] })).await;
    assert!(!worker.settle(delivery.lease, v1::settle::How::Done(v1::Done {})).await);
    let done = get(&server, &id).await;
    assert_eq!((done.state(), done.attempts, done.body_bytes), (v1::JobState::Done, 1, 0));
    server.stop().await;
}

#[tokio::test]
async fn repeated_submission_finds_its_job() {
    let server = start().await;
    put_queue(&server).await;
    let id = first_job(&server, "order-1").await;
    let other = v1::NewJob { body: b"other".to_vec(), ..job("order-1") };
    let bad = v1::NewJob { key: String::new(), not_before: None, ..job("") };
    let request = submission(vec![job("order-1"), other, bad]);
    let results = soon(jobs(&server).submit(request)).await.unwrap().into_inner().jobs;
    assert_eq!((results[0].existing, &results[0].job_id), (true, &id));
    let code = |result: &v1::Submitted| result.rejected.as_ref().unwrap().code();
    assert_eq!((code(&results[1]), code(&results[2])), (v1::Code::AlreadyExists, v1::Code::InvalidArgument));
    server.stop().await;
}

#[tokio::test]
async fn restarted_server_keeps_jobs_and_leases() {
    let server = start().await;
    put_queue(&server).await;
    let leased = first_job(&server, "order-1").await;
    let (mut worker, _) = Worker::connect(&server, 1, Vec::new()).await;
    let lease = worker.delivery().await.lease;
    let waiting = submit(&server, &["order-2"]).await.remove(0).job_id;
    let folder = server.stop().await;
    loop {
        match soon(worker.messages.message()).await.unwrap().expect("a goodbye").kind.unwrap() {
            to_worker::Kind::Alive(_) => {}
            to_worker::Kind::Goodbye(_) => break,
            other => panic!("{other:?}"),
        }
    }
    let server = start_in(folder, |_| {}).await;
    let (mut worker, lost) = Worker::connect(&server, 1, vec![lease.clone()]).await;
    assert_eq!(lost, Vec::<Vec<u8>>::new());
    assert_eq!(worker.delivery().await.job_id, waiting);
    assert!(!worker.settle(lease, v1::settle::How::Done(v1::Done {})).await);
    assert_eq!(get(&server, &leased).await.state(), v1::JobState::Done);
    server.stop().await;
}

#[tokio::test]
async fn failed_delivery_is_shown_with_its_worker() {
    let server = start().await;
    put_queue(&server).await;
    let id = first_job(&server, "order-1").await;
    let (mut worker, _) = Worker::connect(&server, 1, Vec::new()).await;
    let lease = worker.delivery().await.lease;
    let failed = v1::DeliveryFailure {
        code: v1::Code::Unavailable.into(),
        took: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        detail: "connection refused".to_owned(),
        ..Default::default()
    };
    worker.settle(lease, v1::settle::How::Failed(failed)).await;
    let job = get(&server, &id).await;
    assert_eq!((job.state(), job.attempts), (v1::JobState::Waiting, 1));
    let failure = &job.failures[0];
    assert_eq!((failure.code(), &*failure.worker), (v1::Code::Unavailable, "shop/shop-1"));
    server.stop().await;
}

#[tokio::test]
async fn idle_stream_gets_signs_of_life() {
    let server = start().await;
    put_queue(&server).await;
    let (mut worker, _) = Worker::connect(&server, 1, Vec::new()).await;
    assert!(matches!(worker.next().await, to_worker::Kind::Alive(_)));
    server.stop().await;
}

#[tokio::test]
async fn broken_protocol_ends_the_stream() {
    let server = start().await;
    put_queue(&server).await;
    let end = async |worker: &mut Worker| loop {
        match soon(worker.messages.message()).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended without an error"),
            Err(status) => return status.code(),
        }
    };
    let mut worker = Worker::open(&server, from_worker::Kind::Bye(v1::Bye {})).await.unwrap();
    assert_eq!(end(&mut worker).await, Code::InvalidArgument);
    let (mut worker, _) = Worker::connect(&server, 1_000, Vec::new()).await;
    worker.credit().await;
    assert_eq!(end(&mut worker).await, Code::InvalidArgument);
    let (mut worker, _) = Worker::connect(&server, 1, Vec::new()).await;
    worker.send(from_worker::Kind::Started(v1::Started { leases: vec![vec![1]] })).await;
    assert_eq!(end(&mut worker).await, Code::InvalidArgument);
    server.stop().await;
}

#[tokio::test]
async fn operator_sees_and_changes_jobs() {
    let server = start().await;
    put_queue(&server).await;
    let first = first_job(&server, "order-1").await;
    submit(&server, &["order-2", "order-3"]).await;
    let filter = v1::JobFilter { queue: "later".to_owned(), ..Default::default() };
    let page = async |page_token: String| {
        let request = v1::ListJobsRequest { filter: Some(filter.clone()), page_size: 2, page_token };
        soon(server.queues().list_jobs(request)).await.unwrap().into_inner()
    };
    let (a, b) = (page(String::new()).await, page(page(String::new()).await.next_page_token).await);
    let keys: Vec<_> = a.jobs.iter().chain(&b.jobs).map(|job| job.key.clone()).collect();
    assert_eq!(
        (keys, b.next_page_token),
        (["order-1", "order-2", "order-3"].map(str::to_owned).into(), String::new())
    );
    let read = |reason: &str| v1::ReadBodyRequest { job_id: first.clone(), reason: reason.to_owned() };
    let refused = soon(server.queues().read_body(read(" "))).await.unwrap_err();
    assert_eq!(refused.get_details_bad_request().unwrap().field_violations[0].field, "reason");
    let body = soon(server.queues().read_body(read("INC-1"))).await.unwrap().into_inner();
    assert_eq!(body.body, b"order-1");
    let change = async |change: v1::JobChange, validate_only| {
        let options = Some(v1::WriteOptions { validate_only, ..Default::default() });
        let request = v1::ChangeJobsRequest {
            filter: Some(filter.clone()),
            change: change.into(),
            options,
            ..Default::default()
        };
        soon(server.queues().change_jobs(request)).await.unwrap().into_inner().jobs
    };
    assert_eq!(change(v1::JobChange::Cancel, true).await, 3);
    assert_eq!(change(v1::JobChange::Cancel, false).await, 3);
    assert_eq!(change(v1::JobChange::Purge, false).await, 3);
    assert_eq!(page(String::new()).await.jobs, []);
    server.stop().await;
}

#[tokio::test]
async fn invalid_filter_lists_all_faults() {
    let server = start().await;
    let filter = v1::JobFilter {
        queue: "A".to_owned(),
        states: vec![99],
        job_ids: vec!["x".to_owned()],
        code: Some(99),
        ..Default::default()
    };
    let request = v1::ListJobsRequest { filter: Some(filter), ..Default::default() };
    let refused = soon(server.queues().list_jobs(request)).await.unwrap_err();
    let faults = refused.get_details_bad_request().unwrap().field_violations;
    let fields: Vec<&str> = faults.iter().map(|fault| fault.field.as_str()).collect();
    assert_eq!(fields, ["filter.queue", "filter.states", "filter.code", "filter.job_ids[0]"]);
    server.stop().await;
}

#[tokio::test]
async fn statistics_show_why_jobs_wait() {
    let server = start().await;
    put_queue(&server).await;
    first_job(&server, "order-1").await;
    let stats = soon(async {
        loop {
            let request = v1::GetQueueStatsRequest { queue: "later".to_owned() };
            let mut stats = server.queues().get_queue_stats(request).await.unwrap().into_inner().queues;
            if stats.first().is_some_and(|queue| queue.lanes.iter().any(|lane| !lane.held.is_empty())) {
                return stats.remove(0);
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!((stats.waiting, stats.submitted, &*stats.lanes[0].held), (1, 1, "no_worker"));
    assert!(stats.oldest_due_at.is_some());
    server.stop().await;
}

#[tokio::test]
async fn queue_with_jobs_is_not_deleted() {
    let server = start().await;
    put_queue(&server).await;
    first_job(&server, "order-1").await;
    let delete = || v1::DeleteQueueRequest { name: "later".to_owned(), ..Default::default() };
    let refused = soon(async {
        loop {
            // The count of jobs is refreshed once a second.
            match server.queues().delete_queue(delete()).await {
                Err(refused) => return refused,
                Ok(_) => put_queue(&server).await,
            }
        }
    })
    .await;
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    server.stop().await;
}

#[tokio::test]
async fn server_without_a_job_store_serves_settings_only() {
    let server = start_with(|settings| settings.queues = QueuesUrl::Off).await;
    put_queue(&server).await;
    let refused = soon(jobs(&server).submit(submission(vec![job("order-1")]))).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    let stats = v1::GetQueueStatsRequest::default();
    assert_eq!(soon(server.queues().get_queue_stats(stats)).await.unwrap_err().code(), Code::Unavailable);
    server.stop().await;
}

#[tokio::test]
async fn submissions_of_an_identity_are_limited() {
    let few = Rate { per_second: NonZeroU32::MIN, burst: NonZeroU32::new(2).unwrap() };
    let server = start_with(|settings| settings.limits.submits = few).await;
    put_queue(&server).await;
    first_job(&server, "order-1").await;
    let refused = soon(async {
        loop {
            match jobs(&server).submit(submission(vec![job("order-1"), job("order-2")])).await {
                Err(refused) => return refused,
                Ok(_) => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.get_details_retry_info().is_some());
    server.stop().await;
}

#[tokio::test]
async fn agent_submits_as_its_own_service_only() {
    let server = Guarded::start().await;
    let agent = server.token(v1::Role::Agent, &["shop"], &[]).await;
    let mut client = JobsClient::with_interceptor(server.server.channel(), bearer(&agent));
    let own = soon(client.submit(submission(vec![job("order-1")]))).await.unwrap().into_inner();
    assert_eq!(own.jobs[0].rejected.as_ref().unwrap().code(), v1::Code::NotFound, "there is no queue");
    let foreign = v1::SubmitRequest { identity: identity("bank"), jobs: vec![job("order-1")] };
    assert_eq!(soon(client.submit(foreign)).await.unwrap_err().code(), Code::PermissionDenied);
    server.server.stop().await;
}
