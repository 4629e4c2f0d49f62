//! The queues of a service with a scripted control plane in the process.
//!
//! Connections are pipes in memory, so a paused clock moves only when no task can run. The server decides
//! nothing: it passes each request to the test, which answers it. Signs of life of a worker are answered.

mod encryption;
mod forward;
mod hand_over;
mod submit;
mod worker;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use damper_proto::v1;
use damper_proto::v1::from_worker::Kind as FromWorker;
use damper_proto::v1::jobs_server::JobsServer;
use damper_proto::v1::to_worker::Kind as ToWorker;
use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

use super::dial::{Boxed, Dial, Line, LineEnd, Missed};
use super::{BodyKeys, Dials, QueueAccess, Queues};
use crate::control::SafeChannel;
use crate::routes::Runtime;

/// Longer than any step takes; reaching it is a failure.
const PATIENCE: Duration = Duration::from_secs(3_600);
/// Wait after a connection that failed or ended.
const RECONNECT: Duration = Duration::from_millis(100);

/// A request with the way to answer it.
pub(super) struct Asked<M, A> {
    pub(super) message: M,
    answer: oneshot::Sender<Result<A, Status>>,
}

impl<M, A> Asked<M, A> {
    #[track_caller]
    pub(super) fn answer(self, answer: Result<A, Status>) -> M {
        // A client that has given up is no failure of the script.
        _ = self.answer.send(answer);
        self.message
    }
}

pub(super) type AskedSubmit = Asked<v1::SubmitRequest, v1::SubmitResponse>;
pub(super) type AskedCancel = Asked<v1::CancelJobRequest, v1::CancelJobResponse>;

/// The server's end of a worker's stream.
pub(super) struct WorkStream {
    pub(super) hello: v1::WorkerHello,
    from_worker: Streaming<v1::FromWorker>,
    to_worker: mpsc::Sender<Result<v1::ToWorker, Status>>,
    /// Signs of life are answered.
    pub(super) is_alive: bool,
}

/// The scripted control plane.
pub(super) struct Plane {
    pub(super) submits: mpsc::Receiver<AskedSubmit>,
    pub(super) cancels: mpsc::Receiver<AskedCancel>,
    streams: mpsc::Receiver<WorkStream>,
    door: Arc<Door>,
}

/// Where connections arrive.
#[derive(Debug)]
struct Door {
    connections: mpsc::UnboundedSender<std::io::Result<DuplexStream>>,
    /// Number of connections to refuse.
    refuses: AtomicUsize,
    /// Connections so far, refused ones included.
    tried: AtomicUsize,
    ends: Mutex<Vec<LineEnd>>,
}

struct Script {
    submits: mpsc::Sender<AskedSubmit>,
    cancels: mpsc::Sender<AskedCancel>,
    streams: mpsc::Sender<WorkStream>,
}

async fn pass<M, A>(to: &mpsc::Sender<Asked<M, A>>, message: M) -> Result<Response<A>, Status> {
    let (answer, answered) = oneshot::channel();
    let ended = |_| Status::unavailable("the test has ended");
    to.send(Asked { message, answer }).await.map_err(|_| Status::unavailable("the test has ended"))?;
    answered.await.map_err(ended)?.map(Response::new)
}

#[tonic::async_trait]
impl v1::jobs_server::Jobs for Script {
    type WorkStream = ReceiverStream<Result<v1::ToWorker, Status>>;

    async fn submit(
        &self,
        request: Request<v1::SubmitRequest>,
    ) -> Result<Response<v1::SubmitResponse>, Status> {
        pass(&self.submits, request.into_inner()).await
    }

    async fn work(
        &self,
        request: Request<Streaming<v1::FromWorker>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        let mut from_worker = request.into_inner();
        let first = from_worker.message().await?.and_then(|message| message.kind);
        let Some(FromWorker::Hello(hello)) = first else {
            return Err(Status::invalid_argument("the first message is no hello"));
        };
        let (to_worker, messages) = mpsc::channel(64);
        let stream = WorkStream { hello, from_worker, to_worker, is_alive: true };
        self.streams.send(stream).await.map_err(|_| Status::unavailable("the test has ended"))?;
        Ok(Response::new(ReceiverStream::new(messages)))
    }

    async fn cancel_job(
        &self,
        request: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::CancelJobResponse>, Status> {
        pass(&self.cancels, request.into_inner()).await
    }
}

#[derive(Debug)]
struct ToPlane(Arc<Door>);

impl Dial for ToPlane {
    fn connect(&mut self) -> Boxed<'_, Result<Line, Missed>> {
        Box::pin(async {
            self.0.tried.fetch_add(1, Ordering::Relaxed);
            let refuses = self.0.refuses.load(Ordering::Relaxed);
            if refuses > 0 {
                self.0.refuses.store(refuses - 1, Ordering::Relaxed);
                return Err(Missed { problem: "refused".to_owned(), wait: RECONNECT });
            }
            let (ours, theirs) = tokio::io::duplex(64 << 10);
            self.0.connections.send(Ok(theirs)).unwrap();
            let mut ours = Some(ours);
            let connector = tower::service_fn(move |_| {
                let ours = ours.take().map(TokioIo::new);
                async { ours.ok_or_else(|| std::io::Error::other("connects once")) }
            });
            let endpoint = Endpoint::from_static("http://damper");
            let channel = endpoint.connect_with_connector(connector).await.unwrap();
            Ok(Line::new(SafeChannel(channel), None))
        })
    }

    fn wait_after(&mut self, end: LineEnd) -> Duration {
        self.0.ends.lock().unwrap().push(end);
        RECONNECT
    }
}

impl Plane {
    /// Starts a control plane with the queues of the service `orders`.
    pub(super) fn start(engine: &Arc<Runtime>) -> (Self, Queues) {
        Self::with_keys(engine, None)
    }

    /// As [`start`](Self::start), for a service with these keys.
    pub(super) fn with_keys(engine: &Arc<Runtime>, keys: Option<BodyKeys>) -> (Self, Queues) {
        let (submit, submits) = mpsc::channel(16);
        let (cancel, cancels) = mpsc::channel(16);
        let (stream, streams) = mpsc::channel(16);
        let (connections, mut arriving) = mpsc::unbounded_channel();
        let script = Script { submits: submit, cancels: cancel, streams: stream };
        let incoming = futures_util::stream::poll_fn(move |cx| arriving.poll_recv(cx));
        tokio::spawn(Server::builder().add_service(JobsServer::new(script)).serve_with_incoming(incoming));
        let (refuses, tried, ends) = Default::default();
        let door = Arc::new(Door { connections, refuses, tried, ends });
        let to = Arc::clone(&door);
        let dials = Dials(Arc::new(move || Box::new(ToPlane(Arc::clone(&to)))));
        let identity = v1::Identity {
            service: "orders".to_owned(),
            cluster: "default".to_owned(),
            instance: "orders-1".to_owned(),
        };
        let queues = Queues::with(Some(QueueAccess::new(identity, keys, dials)), engine);
        (Self { submits, cancels, streams, door }, queues)
    }

    /// Refuses this number of connections.
    pub(super) fn refuse(&self, connections: usize) {
        self.door.refuses.store(connections, Ordering::Relaxed);
    }

    /// Number of connections, refused ones included.
    pub(super) fn tried(&self) -> usize {
        self.door.tried.load(Ordering::Relaxed)
    }

    pub(super) fn ends(&self) -> Vec<LineEnd> {
        self.door.ends.lock().unwrap().clone()
    }

    pub(super) async fn submit(&mut self) -> AskedSubmit {
        soon(self.submits.recv()).await.unwrap()
    }

    /// Stores the next submission.
    pub(super) async fn store(&mut self) -> v1::SubmitRequest {
        let asked = self.submit().await;
        let response = stored(&asked);
        asked.answer(Ok(response))
    }

    pub(super) async fn cancel(&mut self) -> AskedCancel {
        soon(self.cancels.recv()).await.unwrap()
    }

    /// Accepts a worker whose leases are all known.
    pub(super) async fn accept(&mut self) -> WorkStream {
        let stream = self.accept_silently().await;
        stream.send(ToWorker::Welcome(v1::WorkerWelcome::default())).await;
        stream
    }

    pub(super) async fn accept_silently(&mut self) -> WorkStream {
        soon(self.streams.recv()).await.unwrap()
    }
}

impl WorkStream {
    pub(super) async fn send(&self, kind: ToWorker) {
        self.to_worker.send(Ok(v1::ToWorker { kind: Some(kind) })).await.unwrap();
    }

    /// Ends the stream with this status.
    pub(super) async fn fail(self, status: Status) {
        self.to_worker.send(Err(status)).await.unwrap();
    }

    /// Returns the next message that is no sign of life; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<FromWorker> {
        loop {
            let message = soon(self.from_worker.message()).await.ok().flatten()?;
            match message.kind.unwrap() {
                FromWorker::Alive(alive) if self.is_alive => self.send(ToWorker::Alive(alive)).await,
                kind => return Some(kind),
            }
        }
    }

    pub(super) async fn started(&mut self) -> Vec<Vec<u8>> {
        match self.next().await {
            Some(FromWorker::Started(v1::Started { leases })) => leases,
            other => panic!("expected started, received {other:?}"),
        }
    }

    pub(super) async fn settle(&mut self) -> v1::Settle {
        match self.next().await {
            Some(FromWorker::Settle(settle)) => settle,
            other => panic!("expected a settle, received {other:?}"),
        }
    }

    pub(super) async fn credits(&mut self) -> u32 {
        match self.next().await {
            Some(FromWorker::Credits(v1::Credits { queue, more })) => {
                assert_eq!(queue, QUEUE);
                more
            }
            other => panic!("expected credits, received {other:?}"),
        }
    }

    /// Confirms the end of a delivery.
    pub(super) async fn confirm(&self, lease: &[u8]) {
        self.send(ToWorker::Settled(v1::Settled { lease: lease.to_vec(), lost: false })).await;
    }
}

pub(super) const QUEUE: &str = "stock-later";

/// A delivery of a job to `inventory` that was never tried.
pub(super) fn delivery(lease: u8) -> v1::Delivery {
    v1::Delivery {
        lease: vec![lease],
        job_id: format!("{lease:032x}"),
        queue: QUEUE.to_owned(),
        route: Some(v1::RouteKey {
            caller_service: "orders".to_owned(),
            caller_cluster: "default".to_owned(),
            callee_service: "inventory".to_owned(),
            callee_method: "inventory.v1.Inventory/Reserve".to_owned(),
        }),
        number: 1,
        body: b"hello".to_vec(),
        limit: Some(prost_types::Duration { seconds: 30, nanos: 0 }),
        ..v1::Delivery::default()
    }
}

/// A delivery after earlier attempts.
pub(super) fn repeated(lease: u8, sends_before: u32) -> v1::Delivery {
    v1::Delivery { sends_before, number: sends_before + 1, ..delivery(lease) }
}

/// Waits for an event that must occur.
pub(super) async fn soon<T>(coming: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, coming).await.expect("the event did not occur")
}

/// The answer to a submission of one job.
pub(super) fn stored(asked: &AskedSubmit) -> v1::SubmitResponse {
    let stored = |job: &v1::NewJob| v1::Submitted {
        job_id: super::jobs::hex(&job.job_id),
        state: v1::JobState::Waiting.into(),
        ..v1::Submitted::default()
    };
    v1::SubmitResponse { jobs: asked.message.jobs.iter().map(stored).collect() }
}

/// The answer that rejects a submission of one job.
pub(super) fn rejected(code: v1::Code, fate: &str) -> v1::SubmitResponse {
    let rejected = v1::Rejected { code: code.into(), message: "no".to_owned(), fate: fate.to_owned() };
    v1::SubmitResponse { jobs: vec![v1::Submitted { rejected: Some(rejected), ..v1::Submitted::default() }] }
}
