//! Group commit: many operations share one transaction, and each waits for one at most two.
//!
//! No timer: what arrives while a commit is in flight goes into the next one, at most 512 operations or 1
//! MiB. An operation is answered after its commit, in the order of arrival within its room.
//!
//! Three rooms wait for the commit. Ends of deliveries and leases go first and are never refused: their
//! number is bounded by the leases that exist. Submissions follow; beyond the bounds of their room they are
//! refused at once. Changes of operators go last, but a few go with each commit, so that load does not stop
//! them.
//!
//! An operation whose caller has gone is carried out all the same. A commit that the store rejects for its
//! content is halved until the one operation is found; that one alone fails.

mod rooms;
#[cfg(test)]
mod tests;
mod wakeups;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

pub use self::rooms::Leased;
use self::rooms::{Answer, Answers, First, Rooms};
pub use self::wakeups::{Waker, Wakeups, wakeups};
use crate::store::{
    Batch, Body, Change, Error, LeaseClaim, LeaseRequest, Record, Settled, Settlement, Store, Submitted,
};

/// The writer of a store. Dropped or closed, it still commits what waits.
pub struct Writer {
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    rooms: Mutex<Rooms>,
    arrived: Notify,
}

impl Writer {
    /// Starts the writer's task. `due` receives the lanes in which a commit made jobs wait.
    #[must_use]
    pub fn start(store: Arc<dyn Store>, due: Waker) -> Self {
        let shared = Arc::new(Shared { rooms: Mutex::default(), arrived: Notify::new() });
        let task = tokio::spawn(shared.clone().run(store, due));
        Self { shared, task: Mutex::new(Some(task)) }
    }

    /// Ends a delivery.
    pub fn settle(&self, settlement: Settlement) -> BoxFuture<'static, Result<Settled, Error>> {
        self.enqueue(|rooms, answer| rooms.add_first(First::Settle(Box::new(settlement), answer)))
    }

    /// Moves a lease to the server at which its worker named it.
    pub fn claim(&self, claim: LeaseClaim) -> BoxFuture<'static, Result<Option<Record>, Error>> {
        self.enqueue(move |rooms, answer| rooms.add_first(First::Claim(claim, answer)))
    }

    /// Leases due jobs, all in one commit. Returns the jobs per request.
    pub fn lease(&self, requests: Vec<LeaseRequest>) -> BoxFuture<'static, Result<Vec<Leased>, Error>> {
        self.enqueue(|rooms, answer| rooms.add_first(First::Lease(requests, answer)))
    }

    /// Stores a new job. Never returns [`Submitted::Refused`], but its error.
    pub fn submit(&self, job: Record, body: Body) -> BoxFuture<'static, Result<Submitted, Error>> {
        self.enqueue(|rooms, answer| rooms.add_submission(job, body, answer))
    }

    /// Changes a job.
    pub fn change(&self, change: Change) -> BoxFuture<'static, Result<bool, Error>> {
        self.enqueue(|rooms, answer| rooms.add_change(change, answer))
    }

    /// Commits what waits and ends. Later operations fail with [`Error::Unavailable`].
    pub async fn close(&self) {
        self.shared.close();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // Its panic has already failed the operations that waited.
            let _ = task.await;
        }
    }

    /// Adds an operation before it returns: the order of calls is the order in the room.
    fn enqueue<T: Send + 'static>(
        &self,
        add: impl FnOnce(&mut Rooms, Answer<T>),
    ) -> BoxFuture<'static, Result<T, Error>> {
        let (answer, result) = oneshot::channel();
        add(&mut self.shared.rooms(), answer);
        self.shared.arrived.notify_one();
        let ended = |_| Err(Error::Unavailable("the writer has ended".to_owned()));
        async move { result.await.unwrap_or_else(ended) }.boxed()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Shared {
    /// A room holds whole operations only, so it is usable after a panic elsewhere.
    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.rooms().close();
        self.arrived.notify_one();
    }

    async fn run(self: Arc<Self>, store: Arc<dyn Store>, due: Waker) {
        let ended = FailAllOnDrop(self.clone());
        while let Some((batch, answers)) = self.next().await {
            commit(&*store, &due, batch, answers).await;
            // Those who were answered run first: what they ask for now goes into the next commit, not
            // into the one behind it.
            tokio::task::yield_now().await;
        }
        drop(ended);
    }

    /// Waits for operations; `None` once the writer is closed and all have been taken.
    async fn next(&self) -> Option<(Batch, Answers)> {
        loop {
            {
                let mut rooms = self.rooms();
                if let Some(next) = rooms.take() {
                    return Some(next);
                }
                if rooms.is_closed() {
                    return None;
                }
            }
            self.arrived.notified().await;
        }
    }
}

/// Commits operations and answers them.
async fn commit(store: &dyn Store, due: &Waker, batch: Batch, answers: Answers) {
    let mut parts = vec![(batch, answers)];
    while let Some((mut batch, mut answers)) = parts.pop() {
        match store.commit(batch.clone()).await {
            Ok(mut committed) => {
                due.wake(std::mem::take(&mut committed.due));
                answers.send(committed);
            }
            Err(Error::Invalid(_)) if answers.operations() > 1 => {
                let second = answers.halve(&mut batch);
                parts.extend([second, (batch, answers)]);
            }
            // Only new jobs need room, or most of it: ends of deliveries go on without them.
            Err(error @ Error::Full(_)) if answers.fail_submissions(&error) => {
                batch.submissions.clear();
                parts.push((batch, answers));
            }
            Err(error) => answers.fail(&error),
        }
    }
}

/// Fails all operations when the task ends, also by a panic of the store.
struct FailAllOnDrop(Arc<Shared>);

impl Drop for FailAllOnDrop {
    fn drop(&mut self) {
        let mut rooms = self.0.rooms();
        rooms.close();
        *rooms = Rooms::closed();
    }
}
