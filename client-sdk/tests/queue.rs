//! A failed call of a generated client becomes a job, and a worker finishes it: over real sockets, with a
//! token, and with one of two replicas away.
#![allow(clippy::unwrap_used, reason = "test helpers, which clippy does not recognize")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use damper_core::{Backoff, Mode, Pattern, Policy, Retry, Waits};
use damper_proto::v1;
use damper_proto::v1::distribution_server::{Distribution, DistributionServer};
use damper_proto::v1::from_worker::Kind as FromWorker;
use damper_proto::v1::jobs_server::{Jobs, JobsServer};
use damper_proto::v1::to_worker::Kind as ToWorker;
use damper_sdk::{Damper, HandOver, Options, handed_over};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status, Streaming};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_health::server::WatchStream;

/// Longer than any step takes on a busy machine; reaching it is a failure.
const PATIENCE: Duration = Duration::from_secs(120);
const TOKEN: &str = "damper_abc_verysecret";

/// Sends one rule, keeps jobs and delivers them.
#[derive(Clone)]
struct Plane {
    jobs: Arc<Mutex<Vec<v1::NewJob>>>,
    ended: mpsc::Sender<v1::Settle>,
}

fn admit<M>(request: Request<M>) -> Result<M, Status> {
    match request.metadata().get("authorization") {
        Some(token) if token == &format!("Bearer {TOKEN}") => Ok(request.into_inner()),
        _ => Err(Status::unauthenticated("no token")),
    }
}

#[tonic::async_trait]
impl Distribution for Plane {
    type SubscribeStream = ReceiverStream<Result<v1::ServerMessage, Status>>;

    async fn subscribe(
        &self,
        request: Request<Streaming<v1::ClientMessage>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let mut from_client = admit(request)?;
        let retry = Retry { max_attempts: 2, backoff: Backoff::Always(Waits::None), ..Retry::default() };
        let policy = Policy { retry: Some(retry), retry_breaker: None, ..Policy::new(Mode::Enforce) };
        let kind = Some(v1::distributed_rule::Kind::Policy((&policy).into()));
        let key = Some((&Pattern::parse("*", "*", "*", "*").unwrap()).into());
        let rules = vec![v1::DistributedRule { key, revision: 1, kind }];
        let snapshot = v1::Snapshot { rules, last: true, ..v1::Snapshot::default() };
        let kind = Some(v1::server_message::Kind::Snapshot(snapshot));
        let epoch = "e".to_owned();
        let message = v1::ServerMessage { epoch, revision: 1, nonce: 1, kind, kills: None, commit: 0 };
        let (to_client, messages) = mpsc::channel(1);
        to_client.send(Ok(message)).await.unwrap();
        tokio::spawn(async move {
            while let Ok(Some(_)) = from_client.message().await {}
            drop(to_client);
        });
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}

#[tonic::async_trait]
impl Jobs for Plane {
    type WorkStream = ReceiverStream<Result<v1::ToWorker, Status>>;

    async fn submit(
        &self,
        request: Request<v1::SubmitRequest>,
    ) -> Result<Response<v1::SubmitResponse>, Status> {
        let v1::SubmitRequest { identity, jobs } = admit(request)?;
        assert_eq!(identity.unwrap().service, "orders");
        let mut submitted = Vec::new();
        for job in jobs {
            let job_id = job.job_id.iter().map(|byte| format!("{byte:02x}")).collect();
            self.jobs.lock().unwrap().push(job);
            submitted.push(v1::Submitted { job_id, state: 1, ..v1::Submitted::default() });
        }
        Ok(Response::new(v1::SubmitResponse { jobs: submitted }))
    }

    async fn work(
        &self,
        request: Request<Streaming<v1::FromWorker>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        let mut from_worker = admit(request)?;
        let (to_worker, messages) = mpsc::channel(16);
        // Earlier ones belong to hand-overs that took too long.
        let job = self.jobs.lock().unwrap().pop().unwrap();
        let ended = self.ended.clone();
        tokio::spawn(async move {
            let send = |kind| to_worker.send(Ok(v1::ToWorker { kind: Some(kind) }));
            send(ToWorker::Welcome(v1::WorkerWelcome::default())).await.unwrap();
            send(ToWorker::Delivery(delivery_of(job))).await.unwrap();
            while let Ok(Some(message)) = from_worker.message().await {
                match message.kind.unwrap() {
                    FromWorker::Alive(alive) => send(ToWorker::Alive(alive)).await.unwrap(),
                    FromWorker::Settle(settle) => {
                        let lease = settle.lease.clone();
                        ended.send(settle).await.unwrap();
                        send(ToWorker::Settled(v1::Settled { lease, lost: false })).await.unwrap();
                    }
                    _ => {}
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(messages)))
    }

    async fn cancel_job(
        &self,
        _: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::CancelJobResponse>, Status> {
        Err(Status::failed_precondition("delivered"))
    }
}

fn delivery_of(job: v1::NewJob) -> v1::Delivery {
    v1::Delivery {
        lease: vec![1],
        job_id: job.job_id.iter().map(|byte| format!("{byte:02x}")).collect(),
        queue: job.queue,
        route: Some(v1::RouteKey {
            caller_service: "orders".to_owned(),
            caller_cluster: "default".to_owned(),
            callee_service: job.callee_service,
            callee_method: job.callee_method,
        }),
        number: 1,
        sends_before: job.sends_before,
        body: job.body,
        metadata: job.metadata,
        limit: Some(prost_types::Duration { seconds: 30, nanos: 0 }),
        call_id: job.call_id,
        body_key_id: job.body_key_id,
    }
}

/// A callee that is down until it is up. Records the metadata and the message of the requests then.
#[derive(Clone, Default)]
struct Stock {
    is_up: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<(MetadataMap, String)>>>,
}

#[tonic::async_trait]
impl Health for Stock {
    type WatchStream = WatchStream;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !self.is_up.load(Ordering::SeqCst) {
            return Err(Status::unavailable("down"));
        }
        let metadata = request.metadata().clone();
        self.seen.lock().unwrap().push((metadata, request.into_inner().service));
        Ok(Response::new(HealthCheckResponse::default()))
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<WatchStream>, Status> {
        Err(Status::unimplemented("not watched"))
    }
}

#[tokio::test]
async fn failed_call_is_finished_by_a_worker() {
    let listen = || TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let (control, callee) = (listen(), listen());
    let (control_url, callee_url) = (
        format!("http://{}", control.local_addr().unwrap()),
        format!("http://{}", callee.local_addr().unwrap()),
    );
    let (ended, mut ends) = mpsc::channel(4);
    let plane = Plane { jobs: Arc::default(), ended };
    let server = Server::builder().add_service(DistributionServer::new(plane.clone()));
    tokio::spawn(server.add_service(JobsServer::new(plane)).serve_with_incoming(control));
    let stock = Stock::default();
    tokio::spawn(Server::builder().add_service(HealthServer::new(stock.clone())).serve_with_incoming(callee));

    let options = Options::new(["http://127.0.0.1:1".to_owned(), control_url]).service("orders").token(TOKEN);
    let damper = Damper::connect(options.environment(|_| None)).unwrap();
    damper.ready(PATIENCE).await.unwrap();
    let channel = Channel::from_shared(callee_url).unwrap().connect_lazy();
    let mut client = HealthClient::new(damper.client_layer("stock").unwrap().layer(channel.clone()));
    // The queue is allowed 1 s, which a busy machine may take to connect: then the application tries again.
    let job = tokio::time::timeout(PATIENCE, async {
        loop {
            let mut request = Request::new(HealthCheckRequest { service: "seats".to_owned() });
            request.extensions_mut().insert(HandOver::to("stock-later", "order-17"));
            let status = client.check(request).await.unwrap_err();
            assert_eq!((status.code(), status.message()), (tonic::Code::Unavailable, "down"));
            if let Some(job) = handed_over(&status) {
                break job.to_owned();
            }
        }
    });
    let job = job.await.unwrap();

    stock.is_up.store(true, Ordering::SeqCst);
    let worker = damper.worker("stock-later").forward("stock", channel).start().unwrap();
    let settle = tokio::time::timeout(PATIENCE, ends.recv()).await.unwrap().unwrap();
    assert_eq!(settle.how, Some(v1::settle::How::Done(v1::Done {})));
    let seen = stock.seen.lock().unwrap().clone();
    let [(metadata, service)] = seen.try_into().unwrap();
    assert_eq!(service, "seats");
    assert_eq!(metadata.get("damper-retry").unwrap(), "2");
    assert_eq!(metadata.get("damper-job").unwrap(), &metadata.get("damper-call").unwrap().clone());
    assert_eq!(metadata.get("damper-job").unwrap(), job.as_str());
    assert!(damper.hand_overs().accepted >= 1);
    damper.shutdown().await;
    assert_eq!(worker.stats().done, 1);
}
