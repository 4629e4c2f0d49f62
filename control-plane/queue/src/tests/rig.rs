//! A job server over a store in memory, in paused time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use damper_core::job::{Queue, QueueSettings, ServiceName, Wall};
use damper_core::{Backoff, Code, Failure, Faults, Jitter, Mode, Waits};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, pending, ready};
use redb::backends::InMemoryBackend;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep, timeout_at};

use crate::store::redb::RedbStore;
use crate::store::{
    Batch, Beat, Body, Committed, Error, Filter, JobId, LaneCounts, Overdue, Page, Record, ServerId,
    StateKind, Store,
};
use crate::{
    Clock, Delivery, FromWorker, JobServer, KillUntil, LeaseId, NewJob, Queues, Settle, SubmitResult,
    Submitter, ToWorker, Work, WorkerIdentity,
};

/// Wall clock that follows the paused clock.
pub(super) struct TestClock {
    began: Instant,
    pub(super) shift_ms: AtomicI64,
}

impl Clock for TestClock {
    fn wall(&self) -> Wall {
        const BEGAN: u64 = 1_700_000_000_000;
        let passed = u64::try_from(self.began.elapsed().as_millis()).unwrap();
        Wall((BEGAN + passed).saturating_add_signed(self.shift_ms.load(Ordering::Relaxed)))
    }
}

/// Store whose commits hold the paused clock, and that can be away.
pub(super) struct TestStore {
    pub(super) inner: Arc<dyn Store>,
    pub(super) is_away: AtomicBool,
    /// Commits are not answered.
    pub(super) is_silent: AtomicBool,
    /// The next commit with leases is carried out, and its answer is lost.
    pub(super) loses_leases: AtomicBool,
    /// Commits with claims are answered 70 s late.
    pub(super) is_slow_to_claim: AtomicBool,
    /// Calls so far.
    pub(super) calls: AtomicU64,
}

impl TestStore {
    fn or_away<'a, T: Send + 'a>(
        &'a self,
        result: BoxFuture<'a, Result<T, Error>>,
    ) -> BoxFuture<'a, Result<T, Error>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        match self.is_away.load(Ordering::Relaxed) {
            true => ready(Err(Error::Unavailable("away".to_owned()))).boxed(),
            false => result,
        }
    }
}

impl Store for TestStore {
    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Committed, Error>> {
        if self.is_silent.load(Ordering::Relaxed) {
            return pending().boxed();
        }
        let is_lost = !batch.leases.is_empty() && self.loses_leases.swap(false, Ordering::Relaxed);
        let is_late = self.is_slow_to_claim.load(Ordering::Relaxed) && !batch.claims.is_empty();
        let inner = self.inner.clone();
        // A blocking task keeps the paused clock where it is.
        let committed = spawn_blocking(move || Handle::current().block_on(inner.commit(batch)));
        let committed = async move {
            let committed = committed.await.unwrap();
            if is_late {
                sleep(Duration::from_secs(70)).await;
            }
            if is_lost { Err(Error::Unavailable("the answer is lost".to_owned())) } else { committed }
        };
        self.or_away(committed.boxed())
    }

    fn lanes(&self) -> BoxFuture<'_, Result<Vec<LaneCounts>, Error>> {
        self.or_away(self.inner.lanes())
    }

    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<Record>, Error>> {
        self.or_away(self.inner.get(id))
    }

    fn body(&self, id: JobId) -> BoxFuture<'_, Result<Option<Body>, Error>> {
        self.or_away(self.inner.body(id))
    }

    fn list(&self, filter: Filter, after: Option<JobId>, limit: usize) -> BoxFuture<'_, Result<Page, Error>> {
        self.or_away(self.inner.list(filter, after, limit))
    }

    fn leases_of(&self, server: ServerId) -> BoxFuture<'_, Result<Vec<Record>, Error>> {
        self.or_away(self.inner.leases_of(server))
    }

    fn overdue(&self, asked: Vec<Overdue>, limit: usize) -> BoxFuture<'_, Result<Vec<Vec<JobId>>, Error>> {
        self.or_away(self.inner.overdue(asked, limit))
    }

    fn beat(&self, published: Vec<u8>) -> BoxFuture<'_, Result<Beat, Error>> {
        self.or_away(self.inner.beat(published))
    }

    fn woken(&self) -> BoxFuture<'_, ()> {
        self.inner.woken()
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        self.inner.check()
    }

    fn id(&self) -> u64 {
        self.inner.id()
    }
}

/// The server and what gives it queues, time and storage.
pub(super) struct Rig {
    pub(super) server: JobServer,
    pub(super) store: Arc<TestStore>,
    pub(super) clock: Arc<TestClock>,
    queues: watch::Sender<Arc<Queues>>,
    settings: QueueSettings,
    running: JoinHandle<()>,
    keys: u64,
}

pub(super) const QUEUE: &str = "later";

/// Returns a rig whose queue waits exactly 1 s before each repeat.
pub(super) async fn rig(change: impl FnOnce(&mut QueueSettings)) -> Rig {
    let inner = Arc::new(RedbStore::open_backend(InMemoryBackend::new()).await.unwrap());
    let store = Arc::new(TestStore {
        inner,
        is_away: false.into(),
        is_silent: false.into(),
        loses_leases: false.into(),
        is_slow_to_claim: false.into(),
        calls: 0.into(),
    });
    let clock = Arc::new(TestClock { began: Instant::now(), shift_ms: AtomicI64::new(0) });
    let mut settings = QueueSettings::new(Mode::Enforce);
    let mut retry = settings.retry();
    retry.backoff = Backoff::Always(Waits::Fixed { delay: Duration::from_secs(1), jitter: Jitter::None });
    settings.policy.retry = Some(retry);
    settings.workers = vec![service("orders")];
    settings.submitters = vec![service("*")];
    change(&mut settings);
    let queues = watch::channel(Arc::new(queues(&settings, Vec::new()))).0;
    let (server, running) = open(&store, &queues, &clock).await;
    Rig { server, store, clock, queues, settings, running, keys: 0 }
}

async fn open(
    store: &Arc<TestStore>,
    queues: &watch::Sender<Arc<Queues>>,
    clock: &Arc<TestClock>,
) -> (JobServer, JoinHandle<()>) {
    let (server, running) = JobServer::open(store.clone(), queues.subscribe(), clock.clone()).await.unwrap();
    (server, tokio::spawn(running))
}

fn queues(settings: &QueueSettings, kills: Vec<KillUntil>) -> Queues {
    let queue = Queue::new(QUEUE.to_owned(), settings.clone(), String::new(), 1).unwrap();
    Queues::new([Arc::new(queue)], kills)
}

impl Rig {
    /// Puts other settings in force.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut QueueSettings)) {
        change(&mut self.settings);
        self.kill(Vec::new());
    }

    /// Puts kills in force.
    pub(super) fn kill(&self, kills: Vec<KillUntil>) {
        self.queues.send_replace(Arc::new(queues(&self.settings, kills)));
    }

    /// Deletes all queues.
    pub(super) fn delete_queue(&self) {
        self.queues.send_replace(Arc::default());
    }

    /// Ends the source of queues and kills.
    pub(super) fn lose_source(&mut self) {
        self.queues = watch::channel(Arc::default()).0;
    }

    /// Ends the server as kill -9 does, and starts another one over the same store.
    pub(super) async fn restart(&mut self) {
        self.running.abort();
        let _ = (&mut self.running).await;
        (self.server, self.running) = open(&self.store, &self.queues, &self.clock).await;
    }

    pub(super) fn now(&self) -> Wall {
        self.clock.wall()
    }

    /// Returns a job with the next key.
    pub(super) fn job(&mut self) -> NewJob {
        self.keys += 1;
        NewJob {
            queue: QUEUE.to_owned(),
            key: format!("key {}", self.keys),
            callee_service: "stock".to_owned(),
            callee_method: "stock.Stock/Reserve".to_owned(),
            body: Body { content: self.keys.to_be_bytes().to_vec(), metadata: Vec::new() },
            ..NewJob::default()
        }
    }

    pub(super) async fn submit_job(&self, job: NewJob) -> SubmitResult {
        self.submit_as("shop", job).await
    }

    pub(super) async fn submit_as(&self, service: &str, job: NewJob) -> SubmitResult {
        let by = Submitter { service: service.to_owned(), cluster: "eu".to_owned() };
        self.server.submit(&by, vec![job]).await.unwrap().pop().unwrap()
    }

    /// Submits jobs and returns their ids.
    pub(super) async fn submit(&mut self, count: usize) -> Vec<JobId> {
        let jobs: Vec<NewJob> = (0..count).map(|_| self.job()).collect();
        let mut ids = Vec::new();
        for chunk in jobs.chunks(500) {
            let by = Submitter { service: "shop".to_owned(), cluster: "eu".to_owned() };
            let stored = self.server.submit(&by, chunk.to_vec()).await.unwrap();
            ids.extend(stored.into_iter().map(|result| stored_id(&result)));
        }
        ids
    }

    pub(super) async fn record(&self, id: JobId) -> Record {
        self.store.inner.get(id).await.unwrap().expect("the job is there")
    }

    pub(super) async fn state(&self, id: JobId) -> StateKind {
        self.record(id).await.state.kind()
    }

    /// Connects a worker of the service `orders`.
    pub(super) async fn worker(&self, credits: u32) -> Worker {
        self.worker_with(credits, Vec::new()).await
    }

    pub(super) async fn worker_with(&self, credits: u32, leases: Vec<LeaseId>) -> Worker {
        let identity = WorkerIdentity {
            service: "orders".to_owned(),
            cluster: "eu".to_owned(),
            instance: "orders-1".to_owned(),
        };
        let queues = vec![(QUEUE.to_owned(), credits)];
        let mut work = self.server.connect_worker(identity, queues, leases).await.unwrap();
        let lost = match work.deliveries.recv().await {
            Some(ToWorker::Welcome(lost)) => lost,
            other => panic!("{other:?}"),
        };
        Worker { work, lost, early: VecDeque::new() }
    }

    /// Returns why the only lane is held; empty: it is not.
    pub(super) fn held(&self) -> &'static str {
        let stats = self.server.stats(QUEUE).remove(0);
        stats.lanes.first().and_then(|lane| lane.held).map_or("", |held| held.why)
    }
}

pub(super) fn stored_id(result: &SubmitResult) -> JobId {
    match result {
        SubmitResult::Stored { id, .. } => *id,
        other => panic!("{other:?}"),
    }
}

pub(super) fn rejected(result: SubmitResult) -> (Code, String) {
    match result {
        SubmitResult::Rejected(rejected) => (rejected.code, rejected.message),
        other => panic!("{other:?}"),
    }
}

/// A worker driven by a test.
pub(super) struct Worker {
    pub(super) work: Work,
    /// Leases that the server did not confirm.
    pub(super) lost: Vec<LeaseId>,
    /// Messages that arrived before the result of a settlement.
    early: VecDeque<ToWorker>,
}

impl Worker {
    /// Returns the next message.
    pub(super) async fn next(&mut self) -> ToWorker {
        match self.early.pop_front() {
            Some(message) => message,
            None => self.work.deliveries.recv().await.expect("the stream goes on"),
        }
    }

    /// Returns the next delivery, which has not started.
    pub(super) async fn receive(&mut self) -> Delivery {
        match self.next().await {
            ToWorker::Delivery(delivery) => *delivery,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the next delivery and starts it.
    pub(super) async fn start(&mut self) -> Delivery {
        let delivery = self.receive().await;
        self.send(FromWorker::Started(vec![delivery.lease])).await;
        delivery
    }

    /// Returns the deliveries of a time.
    pub(super) async fn deliveries(&mut self, within: Duration) -> Vec<Delivery> {
        let (end, mut all) = (Instant::now() + within, Vec::new());
        while let Ok(message) = timeout_at(end, self.next()).await {
            if let ToWorker::Delivery(delivery) = message {
                all.push(*delivery);
            }
        }
        all
    }

    pub(super) async fn send(&self, message: FromWorker) {
        self.work.events.send(message).await.expect("the stream goes on");
    }

    pub(super) async fn credit(&self, more: u32) {
        self.send(FromWorker::Credits(QUEUE.to_owned(), more)).await;
    }

    /// Settles a delivery; true: the job had been delivered again.
    pub(super) async fn settle(&mut self, lease: LeaseId, how: Settle) -> bool {
        self.send(FromWorker::Settle(lease, how)).await;
        loop {
            let message = self.work.deliveries.recv().await.expect("the stream goes on");
            match message {
                ToWorker::Settled { lease: settled, lost } if settled == lease => return lost,
                other => self.early.push_back(other),
            }
        }
    }

    pub(super) async fn fail(&mut self, lease: LeaseId) -> bool {
        self.settle(lease, failed(Code::Unavailable)).await
    }
}

pub(super) fn failed(code: Code) -> Settle {
    Settle::Failed { failure: Failure::new(code), took: Duration::from_millis(5), detail: "down".to_owned() }
}

pub(super) fn released() -> Settle {
    Settle::Released { why: "budget".to_owned(), not_before: None }
}

pub(super) fn service(name: &str) -> ServiceName {
    ServiceName::parse("", name, &mut Faults::none())
}
