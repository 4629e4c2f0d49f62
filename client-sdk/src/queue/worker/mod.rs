//! Workers: receive the jobs of a queue and handle them.
//!
//! `leases` has the state without I/O, `connection` the stream, `task` drives both and the handlers.

mod connection;
mod leases;
mod task;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use damper_core::{Faults, Time, job};
use http::{Request, Response};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tonic::body::Body;
use tower_service::Service;

use self::connection::Connection;
use self::leases::{Leases, MAX_LEASES};
use self::task::{Handlers, WorkerTask};
use super::deliveries::{Delivery, Handled, HandlerError};
use super::dial::Boxed;
use super::forward::{self, Forward};
use super::{QueueAccess, Queues, Workers};
use crate::background::clock::Clock;
use crate::client::ClientLayer;
use crate::context::Context;
use crate::outcome::BoxError;
use crate::routes::Runtime;

/// Deliveries handled at the same time, unless set.
const CONCURRENCY: u32 = 16;
/// Time that handlers get when the worker stops, unless set.
const DRAIN: Duration = Duration::from_secs(10);
/// Longest drain time.
const MAX_DRAIN: Duration = Duration::from_secs(3_600);

/// Runs the handler of a delivery.
type Handler = Arc<dyn Fn(Delivery, Limits) -> Boxed<'static, Handled> + Send + Sync>;

/// A worker without a handler. Made by [`Damper::worker`](crate::Damper::worker).
#[derive(Debug)]
pub struct Worker {
    queue: String,
    engine: Arc<Runtime>,
    access: Option<QueueAccess>,
    stop: watch::Receiver<bool>,
    workers: Arc<watch::Sender<Workers>>,
}

/// A worker that can start.
pub struct WorkerBuilder {
    worker: Worker,
    work: Work,
    concurrency: u32,
    drain: Duration,
    faults: Faults,
}

enum Work {
    Handle(Handler),
    Forward(HashMap<String, Forward>),
}

/// A worker that runs. It goes on if the handle is dropped, until the last [`Damper`](crate::Damper) is
/// dropped or shut down.
#[derive(Debug)]
pub struct WorkerHandle {
    stop: watch::Sender<bool>,
    ended: watch::Receiver<()>,
    shared: Arc<WorkerShared>,
}

/// Figures of a worker since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// The control plane has accepted the worker.
    pub connected: bool,
    /// Reason why there is no stream.
    pub last_problem: Option<String>,
    /// Handlers that run.
    pub running: usize,
    /// Handlers of deliveries that the worker no longer has and that have not ended: they block their thread.
    pub stuck: usize,
    /// Deliveries that ended and are not confirmed yet.
    pub unconfirmed: usize,
    /// Deliveries whose handler began.
    pub begun: u64,
    /// Deliveries that were handled.
    pub done: u64,
    /// Deliveries that failed.
    pub failed: u64,
    /// Deliveries that were returned without an attempt.
    pub released: u64,
    /// Jobs that a handler gave up, or whose body does not authenticate.
    pub dead: u64,
    /// Deliveries whose body could not be decrypted: released, or dead. See [`BodyKeys`](super::BodyKeys).
    pub unreadable: u64,
    /// Handlers that were cancelled: the job was cancelled, or another worker has it.
    pub cancelled: u64,
    /// Deliveries that ended after another worker got the job.
    pub lost: u64,
}

/// Shared by a worker and its handle.
#[derive(Debug, Default)]
struct WorkerShared(Mutex<WorkerStats>);

/// Clock and deadline of a delivery.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    clock: Clock,
    deadline: Option<Time>,
}

/// Signals a worker to stop.
struct StopSignal {
    own: watch::Receiver<bool>,
    all: watch::Receiver<bool>,
}

impl Worker {
    pub(super) fn new(queue: &str, queues: &Queues) -> Self {
        Self {
            queue: queue.to_owned(),
            engine: Arc::clone(&queues.engine),
            access: queues.access.clone(),
            stop: queues.stop.subscribe(),
            workers: Arc::clone(&queues.workers),
        }
    }

    /// Handles each delivery by a function. It runs in a task of its own and in a [`Context`]; it is
    /// cancelled at the delivery's time limit, or when its job is cancelled.
    ///
    /// `Ok` ends the job. A [`Status`](tonic::Status) is a failure, after which the queue's policy decides; a
    /// panic is `INTERNAL`. [`NeverAgain`](super::NeverAgain) gives the job up.
    #[must_use]
    pub fn handle<F, R, E>(self, handler: F) -> WorkerBuilder
    where
        F: Fn(Delivery) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<HandlerError>,
    {
        let handler = move |delivery: Delivery, limits: Limits| -> Boxed<'static, Handled> {
            let before = delivery.attempts_before();
            let context = limits.context((before > 0).then_some(before));
            // The handler may make calls before its future is first polled.
            let handling = context.sync_scope(|| handler(delivery));
            Box::pin(async move {
                let result = context.clone().scope(handling).await;
                Handled::by_handler(result.map_err(Into::into), &context)
            })
        };
        WorkerBuilder::new(self, Work::Handle(Arc::new(handler)))
    }

    /// Sends each delivery as the call that it was made of, through the [client layer](crate::ClientLayer)
    /// for this callee. `channel` is what the layer would wrap.
    ///
    /// A delivery that was tried before is sent once, as a retry. One that the rule blocks (a kill, the
    /// budget) is returned without using an attempt. Jobs for other callees are returned too, for other
    /// workers.
    #[must_use]
    pub fn forward<S, B>(self, callee_service: &str, channel: S) -> WorkerBuilder
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        WorkerBuilder::new(self, Work::Forward(HashMap::new())).forward(callee_service, channel)
    }
}

impl WorkerBuilder {
    fn new(worker: Worker, work: Work) -> Self {
        Self { worker, work, concurrency: CONCURRENCY, drain: DRAIN, faults: Faults::none() }
    }

    /// Also forwards to this callee, see [`Worker::forward`].
    #[must_use]
    pub fn forward<S, B>(mut self, callee_service: &str, channel: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let engine = &self.worker.engine;
        match (&mut self.work, engine.callee(callee_service)) {
            (Work::Handle(_), _) => self.faults.add("forward", "conflicts with handle"),
            (_, Err(faults)) => self.faults.nest("", faults),
            (Work::Forward(callees), Ok(callee)) => {
                let layer = ClientLayer::new(Arc::clone(engine), callee);
                callees.insert(callee_service.to_owned(), forward::through(layer.layer(channel)));
            }
        }
        self
    }

    /// Deliveries handled at the same time. 1 to 1,000, default 16.
    #[must_use]
    pub fn concurrency(self, concurrency: u32) -> Self {
        Self { concurrency, ..self }
    }

    /// Time that running handlers get when the worker stops. At most 1 h, default 10 s.
    #[must_use]
    pub fn drain(self, drain: Duration) -> Self {
        Self { drain, ..self }
    }

    /// Checks the settings without starting. [`Damper::off`](crate::Damper::off) is enough for it.
    ///
    /// # Errors
    /// All problems of the settings together.
    pub fn check(&self) -> Result<(), Faults> {
        let Self { worker, concurrency, drain, .. } = self;
        let mut faults = self.faults.clone();
        job::check_queue_name("queue", &worker.queue, &mut faults);
        if !(1..=MAX_LEASES).contains(concurrency) {
            faults.add("concurrency", format!("must be 1 to {MAX_LEASES}, not {concurrency}"));
        }
        if *drain > MAX_DRAIN {
            faults.add("drain", format!("must be at most {MAX_DRAIN:?}, not {drain:?}"));
        }
        faults.or(())
    }

    /// Starts the worker in the background of the current tokio runtime, and returns at once. It connects and
    /// reconnects on its own.
    ///
    /// # Errors
    /// All problems of the settings together; there is no tokio runtime or no control plane.
    pub fn start(self) -> Result<WorkerHandle, Faults> {
        let mut faults = self.check().err().unwrap_or_default();
        let Self { worker, work, concurrency, drain, .. } = self;
        let runtime = Handle::try_current()
            .map_err(|_| faults.add("runtime", "required; call `start` within a tokio runtime"));
        if worker.access.is_none() {
            faults.add("control plane", "required; use Damper::connect");
        }
        let (Some(access), Ok(runtime), true) = (worker.access, runtime, faults.is_empty()) else {
            return Err(faults);
        };
        let handler = match work {
            Work::Handle(handler) => handler,
            Work::Forward(callees) => forward::handler(callees),
        };
        let shared = Arc::<WorkerShared>::default();
        let task = WorkerTask {
            queue: worker.queue,
            identity: access.identity.clone(),
            keys: access.keys.clone(),
            drain,
            handler,
            clock: worker.engine.clock(),
            connection: Connection::new(access.dials.dial(), concurrency),
            leases: Leases::new(concurrency),
            handlers: Handlers::default(),
            shared: Arc::clone(&shared),
            warned: None,
            warned_of_body: None,
        };
        let (stop, own) = watch::channel(false);
        let (running, ended) = watch::channel(());
        let counted = Counted::new(worker.workers, drain);
        let signal = StopSignal { own, all: worker.stop };
        runtime.spawn(async move {
            task.run(signal).await;
            drop((counted, running));
        });
        Ok(WorkerHandle { stop, ended, shared })
    }
}

impl WorkerHandle {
    /// Stops the worker: it gets no further deliveries, running handlers get the drain time. Returns when it
    /// has ended.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        // An error means that the task has ended.
        while self.ended.clone().changed().await.is_ok() {}
    }

    /// Returns the present figures.
    #[must_use]
    pub fn stats(&self) -> WorkerStats {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl WorkerShared {
    fn update(&self, change: impl FnOnce(&mut WorkerStats)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn count(&self, handled: &Handled) {
        self.update(|stats| match handled {
            Handled::Done => stats.done += 1,
            Handled::Failed { .. } => stats.failed += 1,
            Handled::Released { .. } => stats.released += 1,
            Handled::Dead(_) => stats.dead += 1,
        });
    }
}

impl Limits {
    /// Returns the context of a handler. `flag` is the number of attempts before a repeat.
    pub(super) fn context(&self, flag: Option<u32>) -> Context {
        Context::new(flag, self.deadline, self.clock)
    }
}

impl StopSignal {
    /// Returns when the worker is to stop.
    async fn stopped(&mut self) {
        let own = async {
            if self.own.wait_for(|stop| *stop).await.is_err() {
                // The handle was dropped.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = own => {}
            // An error means that the last `Damper` was dropped.
            _ = self.all.wait_for(|stop| *stop) => {}
        }
    }
}

/// Counts a worker while it runs.
struct Counted(Arc<watch::Sender<Workers>>);

impl Counted {
    fn new(workers: Arc<watch::Sender<Workers>>, drain: Duration) -> Self {
        workers.send_modify(|workers| {
            workers.count += 1;
            workers.drain = workers.drain.max(drain);
        });
        Self(workers)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|workers| workers.count = workers.count.saturating_sub(1));
    }
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder")
            .field("queue", &self.worker.queue)
            .field("concurrency", &self.concurrency)
            .field("drain", &self.drain)
            .finish_non_exhaustive()
    }
}
