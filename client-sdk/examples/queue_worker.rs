//! A worker of a durable queue, with a control plane in the process that keeps one job in memory.
//!
//! The worker fails on the first delivery and succeeds on the second. In production the control plane keeps
//! the job on disk, and the queue's policy decides when it is delivered again.
//! `cargo run -p damper-sdk --features queue --example queue_worker`

use std::time::Duration;

use damper_proto::v1;
use damper_proto::v1::from_worker::Kind as FromWorker;
use damper_proto::v1::jobs_server::{Jobs, JobsServer};
use damper_proto::v1::settle::How;
use damper_proto::v1::to_worker::Kind as ToWorker;
use damper_sdk::queue::{Delivery, HandlerError, NeverAgain, NewJob};
use damper_sdk::{Context, Damper, Options};
use tokio::sync::{Mutex, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// Handles one job. It may run more than once for the same job.
async fn send_email(delivery: Delivery) -> Result<(), HandlerError> {
    let address =
        std::str::from_utf8(delivery.body()).map_err(|_| NeverAgain::new("the address is no text"))?;
    let time_left = Context::current().and_then(|context| context.time_left());
    println!("job {}, delivery {}: email to {address}, {time_left:?}", delivery.job_id(), delivery.number());
    if delivery.number() == 1 {
        // May pass: the queue delivers the job again.
        return Err(HandlerError::from(Status::unavailable("mail server away")).describe("mail server away"));
    }
    Ok(())
}

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpIncoming::bind("127.0.0.1:0".parse()?)?;
    let url = format!("http://{}", listener.local_addr()?);
    let (fake, mut ended) = FakeQueue::new();
    let serving =
        tokio::spawn(Server::builder().add_service(JobsServer::new(fake)).serve_with_incoming(listener));

    let damper = Damper::connect(Options::new([url]).service("mailer").environment(|_| None))?;
    let job = NewJob::new("emails", "welcome-17", "mailer", "mail.Mailer/Welcome").body("ann@example.com");
    let submitted = damper.jobs().submit(job).await?;

    let worker = damper.worker("emails").handle(send_email).concurrency(4).start()?;
    let deliveries = tokio::time::timeout(Duration::from_secs(30), ended.recv()).await?;
    println!("job {} done after {deliveries:?} deliveries: {:?}", submitted.job_id, worker.stats());
    assert_eq!(deliveries, Some(2));

    // Stops the workers too: running handlers get their drain time.
    damper.shutdown().await;
    serving.abort();
    Ok(())
}

/// Keeps one job and delivers it until it is done. A server would write it to disk.
struct FakeQueue {
    job: Mutex<Option<v1::NewJob>>,
    ended: mpsc::Sender<u32>,
}

impl FakeQueue {
    fn new() -> (Self, mpsc::Receiver<u32>) {
        let (ended, receiver) = mpsc::channel(1);
        (Self { job: Mutex::default(), ended }, receiver)
    }
}

#[tonic::async_trait]
impl Jobs for FakeQueue {
    type WorkStream = ReceiverStream<Result<v1::ToWorker, Status>>;

    async fn submit(
        &self,
        request: Request<v1::SubmitRequest>,
    ) -> Result<Response<v1::SubmitResponse>, Status> {
        let job =
            request.into_inner().jobs.pop().ok_or_else(|| Status::invalid_argument("jobs: required"))?;
        let job_id = job.job_id.iter().map(|byte| format!("{byte:02x}")).collect();
        *self.job.lock().await = Some(job);
        let state = v1::JobState::Waiting.into();
        Ok(Response::new(v1::SubmitResponse {
            jobs: vec![v1::Submitted { job_id, state, ..v1::Submitted::default() }],
        }))
    }

    async fn work(
        &self,
        request: Request<Streaming<v1::FromWorker>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        let (to_worker, messages) = mpsc::channel(16);
        let job = self.job.lock().await.take();
        tokio::spawn(deliver(job.unwrap_or_default(), request.into_inner(), to_worker, self.ended.clone()));
        Ok(Response::new(ReceiverStream::new(messages)))
    }

    async fn cancel_job(
        &self,
        _: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::CancelJobResponse>, Status> {
        Ok(Response::new(v1::CancelJobResponse { cancelled: self.job.lock().await.take().is_some() }))
    }
}

/// Delivers the job until it is done, then reports the number of deliveries.
async fn deliver(
    job: v1::NewJob,
    mut from_worker: Streaming<v1::FromWorker>,
    to_worker: mpsc::Sender<Result<v1::ToWorker, Status>>,
    ended: mpsc::Sender<u32>,
) {
    let mut number = 0;
    while let Ok(Some(message)) = from_worker.message().await {
        let mut answers = Vec::new();
        let mut delivers = false;
        match message.kind {
            Some(FromWorker::Hello(_)) => {
                answers.push(ToWorker::Welcome(v1::WorkerWelcome::default()));
                delivers = true;
            }
            Some(FromWorker::Alive(alive)) => answers.push(ToWorker::Alive(alive)),
            Some(FromWorker::Settle(v1::Settle { lease, how })) => {
                answers.push(ToWorker::Settled(v1::Settled { lease, lost: false }));
                match how {
                    Some(How::Done(_)) => _ = ended.try_send(number),
                    _ => delivers = true,
                }
            }
            _ => {}
        }
        if delivers {
            number += 1;
            answers.push(ToWorker::Delivery(v1::Delivery {
                lease: number.to_be_bytes().to_vec(),
                job_id: job.job_id.iter().map(|byte| format!("{byte:02x}")).collect(),
                queue: job.queue.clone(),
                number,
                sends_before: number - 1,
                body: job.body.clone(),
                limit: Some(prost_types::Duration { seconds: 30, nanos: 0 }),
                ..v1::Delivery::default()
            }));
        }
        for kind in answers {
            // The worker has gone.
            _ = to_worker.send(Ok(v1::ToWorker { kind: Some(kind) })).await;
        }
    }
}
