//! The trait of job stores, and what its reads select and return.

use std::sync::Arc;
use std::time::Duration;

use damper_core::Code;
use damper_core::job::Wall;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::batch::{Batch, Committed};
use super::error::Error;
use super::record::{Body, JobId, Lane, Record, ServerId, StateKind};

/// Counts of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneCounts {
    /// Lane.
    pub lane: Arc<Lane>,
    /// Waiting for their time, or due.
    pub waiting: u64,
    /// Behind another job.
    pub behind: u64,
    /// Leased, by any server.
    pub leased: u64,
    /// Dead.
    pub dead: u64,
    /// Done, cancelled or expired.
    pub ended: u64,
    /// Bytes of all jobs by [`Record::bytes`].
    pub bytes: u64,
    /// When the next waiting job is due.
    pub next_due: Option<Wall>,
    /// The same among jobs that were never sent.
    pub next_first_due: Option<Wall>,
}

impl LaneCounts {
    /// Returns the number of jobs, in whatever state.
    #[must_use]
    pub fn jobs(&self) -> u64 {
        self.waiting + self.behind + self.leased + self.dead + self.ended
    }
}

/// Selection of jobs. Set parts must all match.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Name of the queue.
    pub queue: String,
    /// States; empty: all.
    pub states: Vec<StateKind>,
    /// Lanes; `None`: all lanes of the queue.
    pub lanes: Option<Vec<Lane>>,
    /// Code of the last failure.
    pub code: Option<Code>,
    /// Exact key; empty: any.
    pub key: String,
    /// Submitted at or after this.
    pub submitted_after: Option<Wall>,
    /// Submitted before this.
    pub submitted_before: Option<Wall>,
}

impl Filter {
    /// Returns true if all set parts match.
    #[must_use]
    pub fn selects(&self, job: &Record) -> bool {
        let Self { queue, states, lanes, code, key, submitted_after, submitted_before } = self;
        *queue == job.lane.queue
            && (states.is_empty() || states.contains(&job.state.kind()))
            && lanes.as_ref().is_none_or(|lanes| lanes.contains(&job.lane))
            && code.is_none_or(|code| job.failures.last().is_some_and(|failure| failure.code == code))
            && (key.is_empty() || *key == job.key)
            && submitted_after.is_none_or(|after| job.submitted >= after)
            && submitted_before.is_none_or(|before| job.submitted < before)
    }
}

/// A page of a list, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Selected jobs.
    pub jobs: Vec<Record>,
    /// Where the next page begins; `None`: this is the last one. A page reads a bounded number of jobs, so it
    /// can have fewer than requested, or none, though more follow.
    pub next: Option<JobId>,
}

/// A question for jobs of a queue whose time is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// Name of the queue.
    pub queue: String,
    /// Which of its jobs.
    pub kind: OverdueKind,
    /// Their time is before this.
    pub before: Wall,
}

/// Which jobs, and which time of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverdueKind {
    /// Waiting, or behind: their expiry.
    Expired,
    /// Done, cancelled or expired: their end.
    Ended,
    /// Dead: their end.
    Dead,
}

/// Result of a sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// This process. It changes when the others took it for dead: then all leases before are void.
    pub server: ServerId,
    /// All live servers by id, this one included, with what each published.
    pub servers: Vec<(ServerId, Vec<u8>)>,
    /// Leases taken over from dead servers: each gets its full time.
    pub adopted: Vec<Record>,
    /// Present time of the store's clock.
    pub now: Wall,
}

/// What slows a database down: rows that were deleted or replaced, and transactions that keep them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Burden {
    /// Age of the oldest transaction that is open. Of other database users only if they are visible.
    pub oldest_transaction: Duration,
    /// Rows of all tables.
    pub live_rows: u64,
    /// Rows that were deleted or replaced, and whose space is not free yet.
    pub dead_rows: u64,
}

/// A job store.
pub trait Store: Send + Sync + 'static {
    /// Commits a batch. On an error nothing of it is stored, except for [`Error::Unavailable`] with an
    /// unknown outcome. [`Error::Invalid`]: one operation has content that the store cannot keep.
    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Committed, Error>>;
    /// Returns all lanes that have jobs, with their counts. In no order.
    fn lanes(&self) -> BoxFuture<'_, Result<Vec<LaneCounts>, Error>>;
    /// Returns a job.
    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<Record>, Error>>;
    /// Returns body and metadata; `None` if they were removed.
    fn body(&self, id: JobId) -> BoxFuture<'_, Result<Option<Body>, Error>>;
    /// Returns at most `limit` jobs of a selection with ids greater than `after`, by id.
    fn list(&self, filter: Filter, after: Option<JobId>, limit: usize) -> BoxFuture<'_, Result<Page, Error>>;
    /// Returns the leases that a server keeps, by id.
    fn leases_of(&self, server: ServerId) -> BoxFuture<'_, Result<Vec<Record>, Error>>;
    /// Returns at most `limit` ids per question, in the order of the questions. All are asked at once: a
    /// server asks every second, of all its queues.
    fn overdue(&self, asked: Vec<Overdue>, limit: usize) -> BoxFuture<'_, Result<Vec<Vec<JobId>>, Error>>;
    /// Gives a sign of life, publishes a few bytes for the other servers, and takes over the leases of dead
    /// servers. A server calls it every 5 s; one that has not for 15 s is dead to the others.
    fn beat(&self, published: Vec<u8>) -> BoxFuture<'_, Result<Beat, Error>>;
    /// Returns after another server has committed a job that is due soon. Only a hint: a server also reads
    /// [`Store::lanes`] once a second.
    fn woken(&self) -> BoxFuture<'_, ()>;
    /// Reads everything and returns what contradicts itself, for tests and for doctor. Takes long.
    fn check(&self) -> BoxFuture<'_, Result<Vec<String>, Error>>;
    /// Returns what slows the store down, as far as it has such things.
    fn burden(&self) -> BoxFuture<'_, Result<Burden, Error>> {
        async { Ok(Burden::default()) }.boxed()
    }
    /// Returns the identity of the store: leases of another one are void.
    fn id(&self) -> u64;
    /// Returns true if several servers can use the store: then it keeps the bounds of the queues over all.
    fn is_shared(&self) -> bool {
        false
    }
}
