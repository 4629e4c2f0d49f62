//! The face of the crate: a job server over a store.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::clock::Clock;
use crate::figures::{Ledger, QueueStats};
use crate::id::LeaseId;
use crate::queues::Queues;
use crate::shared::{Inner, JobServer};
use crate::state::State;
use crate::store::{Beat, Burden, Error, Record, Store};
use crate::submit::{NewJob, SubmitResult, Submitter};
use crate::work::Work;
use crate::worker::{ToWorker, WorkerIdentity};
use crate::writer::{Wakeups, Writer, wakeups};

/// Time between two readings of all lanes.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// Time between two signs of life.
const BEAT_EVERY: Duration = Duration::from_secs(5);
/// Without a sign of life for this time, workers go to another server.
const ALONE_AFTER: Duration = Duration::from_secs(10);
/// Time for the store to answer a submission.
pub const SUBMIT_WITHIN: Duration = Duration::from_secs(5);

impl JobServer {
    /// Opens a server over a store. The future runs it: it ends after [`Self::shutdown`].
    ///
    /// # Errors
    /// The store does not respond or is damaged.
    pub async fn open(
        store: Arc<dyn Store>,
        queues: watch::Receiver<Arc<Queues>>,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, impl Future<Output = ()> + Send + 'static), Error> {
        let beat = store.beat(Vec::new()).await?;
        let leases = store.leases_of(beat.server).await?;
        let (waker, due) = wakeups();
        let writer = Writer::start(store.clone(), waker);
        let state = State::new(store.id(), queues.borrow().clone());
        let inner = Arc::new(Inner {
            store,
            writer,
            wake: Notify::new(),
            ends: Notify::new(),
            clock,
            started: Instant::now(),
            server: AtomicU64::new(beat.server.0),
            state: Mutex::new(state),
            reading: tokio::sync::Mutex::new(()),
            health: Mutex::default(),
            at_start: AtomicU64::new(0),
        });
        inner.adopt(leases.into_iter().chain(beat.adopted));
        inner.refresh().await?;
        let ledger = inner.state().ledger(0);
        inner.at_start.store(ledger.present, Ordering::Relaxed);
        let running = inner.clone();
        let tasks = async move { running.run(queues, due).await };
        Ok((Self { inner }, tasks))
    }

    /// Checks and stores jobs. Results are in the order of the jobs.
    ///
    /// # Errors
    /// The store does not respond in time, or too much waits for it. The outcome can be unknown: a submission
    /// with the same keys repeats it safely.
    pub async fn submit(&self, by: &Submitter, jobs: Vec<NewJob>) -> Result<Vec<SubmitResult>, Error> {
        let (inner, by) = (self.inner.clone(), by.clone());
        // Goes on if the caller does not wait: what it has reserved must be counted or given back.
        let storing = tokio::spawn(async move { inner.submit(&by, jobs).await });
        match timeout(SUBMIT_WITHIN, storing).await {
            Ok(Ok(stored)) => stored,
            Ok(Err(_)) => Err(Error::Unavailable("the submission panicked".to_owned())),
            Err(_) => Err(Error::Unavailable(format!("no answer within {} s", SUBMIT_WITHIN.as_secs()))),
        }
    }

    /// Connects a worker: credits by queue, and leases of an earlier stream that it still works on.
    ///
    /// # Errors
    /// The store does not respond, so the leases cannot be confirmed.
    pub async fn connect_worker(
        &self,
        identity: WorkerIdentity,
        queues: Vec<(String, u32)>,
        leases: Vec<LeaseId>,
    ) -> Result<Work, Error> {
        self.inner.connect(identity, queues, leases).await
    }

    /// Returns the statistics of a queue; of all, if the name is empty.
    #[must_use]
    pub fn stats(&self, queue: &str) -> Vec<QueueStats> {
        self.inner.state().stats(queue, self.inner.now().wall)
    }

    /// Returns the ledger as of the last reading of all lanes.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.inner.state().ledger(self.inner.at_start.load(Ordering::Relaxed))
    }

    /// Returns by how many jobs the store has too few, or too many if negative, compared with what this
    /// server has submitted and deleted.
    ///
    /// # Errors
    /// It cannot be computed, for this reason.
    pub async fn ledger_gap(&self) -> Result<i64, &'static str> {
        const BUSY: &str = "jobs were submitted or deleted meanwhile";
        if self.inner.store.is_shared() {
            return Err("other servers submit and delete jobs in the same store");
        }
        let before = self.ledger();
        let mut gap = None;
        // Twice: a commit may be in the store and not counted yet.
        for _ in 0..2 {
            self.inner.refresh().await.map_err(|_| "the job store does not respond")?;
            let now = self.ledger();
            let is_quiet = (now.submitted, now.deleted) == (before.submitted, before.deleted);
            if !is_quiet || gap.is_some_and(|gap| gap != now.gap()) {
                return Err(BUSY);
            }
            gap = Some(now.gap());
        }
        gap.ok_or(BUSY)
    }

    /// Returns what slows the store down.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn burden(&self) -> Result<Burden, Error> {
        self.inner.store.burden().await
    }

    /// Returns the number of leases that this server keeps.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.inner.state().leases.iter().count()
    }

    /// Returns true if a queue has a policy.
    #[must_use]
    pub fn has_policy(&self, queue: &str) -> bool {
        self.inner.state().queues.get(queue).is_some()
    }

    /// Commits what waits. Later requests fail.
    pub async fn close(&self) {
        self.inner.writer.close().await;
    }

    /// Stops delivering and sends all workers a Goodbye. Their leases stay in the store.
    pub fn shutdown(&self) {
        let mut state = self.inner.state();
        state.is_stopping = true;
        state.goodbye("this server of the control plane is stopping");
        drop(state);
        self.inner.wake.notify_one();
        self.inner.ends.notify_one();
    }
}

impl Inner {
    /// Runs all tasks until the server stops.
    async fn run(self: Arc<Self>, queues: watch::Receiver<Arc<Queues>>, due: Wakeups) {
        let others = async {
            tokio::join!(
                self.follow(queues),
                self.wake_lanes(due),
                self.look(),
                self.beat(),
                self.forget(),
                self.other_servers()
            )
        };
        tokio::select! {
            _ = async { tokio::join!(self.deliver(), self.watch_leases()) } => {}
            _ = others => {}
        }
    }

    /// Puts each new set of queues in force.
    async fn follow(&self, mut queues: watch::Receiver<Arc<Queues>>) {
        while queues.changed().await.is_ok() {
            let current = queues.borrow_and_update().clone();
            self.state().replace(current);
            self.wake.notify_one();
        }
        // The server that gives them has ended; the last ones stay in force.
        std::future::pending::<()>().await;
    }

    /// Wakes the lanes in which commits have made jobs due.
    async fn wake_lanes(&self, mut due: Wakeups) {
        loop {
            let due = due.next().await;
            self.state().wakes(&due, self.now());
            self.wake.notify_one();
        }
    }

    /// Reads all lanes once a second.
    async fn look(&self) {
        let mut ticks = interval(REFRESH_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let read = self.refresh().await;
            self.note_read(read.as_ref().copied());
            if let Err(error) = read {
                tracing::debug!(%error, "the lanes of the job store cannot be read");
            }
        }
    }

    /// Reads all lanes.
    pub(crate) async fn refresh(&self) -> Result<(), Error> {
        let _one_at_a_time = self.reading.lock().await;
        let read = {
            let mut state = self.state();
            state.asked.reads += 1;
            state.asked.reads
        };
        let lanes = self.store.lanes().await?;
        self.state().refresh(&lanes, read, self.now());
        self.wake.notify_one();
        Ok(())
    }

    /// Reads all lanes when another server has committed a job that is due soon.
    async fn other_servers(&self) {
        loop {
            self.store.woken().await;
            if let Err(error) = self.refresh().await {
                tracing::debug!(%error, "the lanes of the job store cannot be read");
            }
        }
    }

    /// Gives a sign of life every 5 s.
    async fn beat(&self) {
        let mut ticks = interval(BEAT_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Instant::now();
        loop {
            ticks.tick().await;
            match timeout(BEAT_EVERY, self.store.beat(Vec::new())).await {
                Ok(Ok(beat)) => {
                    last = Instant::now();
                    self.beaten(beat);
                }
                _ if last.elapsed() >= ALONE_AFTER => {
                    self.state().goodbye("the job store does not respond");
                }
                _ => {}
            }
        }
    }

    fn beaten(&self, Beat { server, adopted, .. }: Beat) {
        if self.server.swap(server.0, Ordering::Relaxed) != server.0 {
            tracing::warn!(
                "another server took this one for dead and has its leases now; jobs that were delivered here may run again"
            );
            self.state().drop_leases(self.now());
        }
        if !adopted.is_empty() {
            tracing::info!(leases = adopted.len(), "took over the leases of a dead server");
        }
        self.adopt(adopted);
        self.ends.notify_one();
    }

    /// Keeps leases that no stream has yet.
    fn adopt(&self, leases: impl IntoIterator<Item = Record>) {
        let mut state = self.state();
        let now = self.now();
        for record in leases {
            if let Some(lease) = state.lease_of(record, now) {
                state.adopt(lease, now);
            }
        }
    }
}

impl State {
    /// Asks all workers to go to another server.
    fn goodbye(&mut self, reason: &'static str) {
        for worker in self.workers.values_mut() {
            worker.is_leaving = true;
            // A stream that does not read is closed by its owner.
            let _ = worker.out.try_send(ToWorker::Goodbye(reason));
        }
    }
}
