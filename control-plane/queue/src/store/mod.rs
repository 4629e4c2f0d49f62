//! The job store: one write method, a few reads.
//!
//! Every write is a [`Batch`], committed as one atomic and durable transaction: after `commit` returns,
//! everything in it survives kill -9 and a loss of power. What a job's next state is, the caller has decided
//! with `damper_core::job`; the store compares the fence of each settlement and keeps its indexes.
//!
//! A job that has not ended is in exactly one of: waiting (due at a time), behind (waits for a job with the
//! same order key), leased. Its body is removed in the commit that ends it; that of a dead job is kept for a
//! replay.

use damper_core::job::{Job, Wall};
use damper_core::{Code, RouteKey};
use futures_util::future::BoxFuture;

/// 128 bits, ordered by time of submission in its first 48 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub [u8; 16]);

/// A process that holds leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerId(pub u64);

/// The jobs of one queue with one route.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// Name of the queue.
    pub queue: String,
    /// Route of its jobs.
    pub route: RouteKey,
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Due at `Record::at`.
    Waiting,
    /// Behind another job with the same order key.
    Behind,
    /// Delivered to a worker of this server.
    Leased {
        /// The server that keeps the lease.
        server: ServerId,
        /// 64 random bits of this lease.
        token: u64,
    },
    /// A worker finished it.
    Done,
    /// Given up and kept.
    Dead,
    /// Cancelled before a delivery.
    Cancelled,
    /// Its time ran out before a delivery.
    Expired,
}

/// A job without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Id of the job.
    pub id: JobId,
    /// Queue and route.
    pub lane: Lane,
    /// State.
    pub state: State,
    /// Waiting or behind: when it is due. Leased: when it was leased. Ended: when it ended.
    pub at: Wall,
    /// Time of the submission.
    pub submitted: Wall,
    /// Counters.
    pub job: Job,
    /// Key of the submitter, unique within the lane.
    pub key: String,
    /// Hash of what two submissions with the same key must share.
    pub digest: [u8; 32],
    /// Jobs of a lane with the same order key are delivered one after the other.
    pub order_key: Option<String>,
    /// `damper-call` of the original call; empty: none.
    pub call_id: String,
    /// Name of the key that the body is encrypted under; empty: not encrypted.
    pub body_key_id: String,
    /// Bytes of body and metadata, 0 once they are removed.
    pub body_bytes: u32,
    /// Why it ended; empty: it has not.
    pub ended: String,
    /// The last [`MAX_FAILURES`], oldest first.
    pub failures: Vec<FailedDelivery>,
}

/// Failed deliveries kept per job.
pub const MAX_FAILURES: usize = 8;

/// A failed delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedDelivery {
    /// When it ended.
    pub at: Wall,
    /// Number of the delivery.
    pub delivery: u32,
    /// Status code.
    pub code: Code,
    /// Duration in milliseconds.
    pub took_ms: u64,
    /// `service/instance`
    pub worker: String,
    /// Worker's description, at most 200 bytes.
    pub detail: String,
}

/// Body and metadata of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// Content as submitted.
    pub content: Vec<u8>,
    /// Metadata as submitted, sorted by name.
    pub metadata: Vec<(String, String)>,
}

/// One atomic commit. Its parts are applied in the order of the fields.
#[derive(Debug, Default)]
pub struct Batch {
    /// Ends of deliveries.
    pub settlements: Vec<Settlement>,
    /// Requests for due jobs.
    pub leases: Vec<LeaseRequest>,
    /// New jobs.
    pub submissions: Vec<(Record, Body)>,
    /// Changes of jobs that are not leased.
    pub changes: Vec<Change>,
}

/// The end of a delivery. Applied if the job is leased under this delivery number and token, or is waiting or
/// dead because that delivery was booked as lost. Then what the loss booked is replaced.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// Id of the job.
    pub id: JobId,
    /// Number of the delivery.
    pub delivery: u32,
    /// Token of the lease.
    pub token: u64,
    /// True if the server books a loss: applied only to the lease itself.
    pub is_loss: bool,
    /// State after it: waiting, done, dead or expired.
    pub state: State,
    /// When it is due, or when it ended.
    pub at: Wall,
    /// Counters after it.
    pub job: Job,
    /// Why it ended; empty: it has not.
    pub ended: String,
    /// Appended to the failures.
    pub failure: Option<FailedDelivery>,
}

/// Leases due jobs of a lane, the ones due longest first.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// Lane.
    pub lane: Lane,
    /// At most this many.
    pub count: u32,
    /// Only jobs that were never sent: a kill stops retries.
    pub first_only: bool,
    /// Keeper of the leases.
    pub server: ServerId,
    /// Present time of the store's clock.
    pub now: Wall,
    /// Random bits, of which the token of each lease is drawn.
    pub seed: u64,
}

/// A change of one job that is not leased.
#[derive(Clone, Debug)]
pub struct Change {
    /// Id of the job.
    pub id: JobId,
    /// Applied only if the job is still in a state that the change applies to.
    pub to: ChangeTo,
    /// Present time.
    pub now: Wall,
}

/// What a change makes of a job.
#[derive(Clone, Debug)]
pub enum ChangeTo {
    /// A waiting job becomes due.
    Due,
    /// A waiting job, or one behind, ends with this state (cancelled or expired) and reason.
    Ended(State, String),
    /// A dead job waits again, due at this time, with these counters. One with an order key goes to the end.
    Replayed(Wall, Job),
    /// An ended or dead job is deleted.
    Deleted,
}

/// Results of a batch, in the order of its parts.
#[derive(Debug, Default)]
pub struct Committed {
    /// False: the fence did not match.
    pub settlements: Vec<bool>,
    /// Leased jobs with their bodies, per request.
    pub leases: Vec<Vec<(Record, Body)>>,
    /// Result per submission.
    pub submissions: Vec<Submitted>,
    /// False: the job was gone or in another state.
    pub changes: Vec<bool>,
    /// Lanes in which a job has become due, with its time: the scheduler's wake-up.
    pub due: Vec<(Lane, Wall)>,
}

/// Result of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// Stored; waiting or behind.
    Stored(State),
    /// There is a job with this key and content.
    Existing(Box<Record>),
    /// There is a job with this key and another content.
    Conflict(JobId),
}

/// Counts of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneCounts {
    /// Lane.
    pub lane: Lane,
    /// Jobs by state.
    pub waiting: u64,
    /// Behind another job.
    pub behind: u64,
    /// Leased, by any server.
    pub leased: u64,
    /// Dead.
    pub dead: u64,
    /// Done, cancelled or expired.
    pub ended: u64,
    /// Bytes of all records and bodies.
    pub bytes: u64,
    /// When the next waiting job is due.
    pub next_due: Option<Wall>,
    /// The same among jobs that were never sent.
    pub next_first_due: Option<Wall>,
}

/// Selection of jobs. Set parts must all match.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Name of the queue.
    pub queue: String,
    /// States by their discriminant; empty: all.
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

/// A state without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StateKind {
    /// See [`State::Waiting`].
    Waiting,
    /// See [`State::Behind`].
    Behind,
    /// See [`State::Leased`].
    Leased,
    /// See [`State::Done`].
    Done,
    /// See [`State::Dead`].
    Dead,
    /// See [`State::Cancelled`].
    Cancelled,
    /// See [`State::Expired`].
    Expired,
}

/// An error of the store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not enough room on disk for further jobs; settlements still work.
    #[error("job store full: {0}")]
    Full(String),
    /// The outcome of the commit is unknown, or the store does not respond.
    #[error("job store unavailable: {0}")]
    Unavailable(String),
    /// The store has damaged or unknown content.
    #[error("job store damaged: {0}")]
    Damaged(String),
    /// Another server has the store open, or it belongs to a newer version.
    #[error("job store cannot be opened: {0}")]
    Open(String),
}

/// A job store.
pub trait Store: Send + Sync + 'static {
    /// Commits a batch. On an error nothing of it is stored, except for [`Error::Unavailable`] with an unknown
    /// outcome.
    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Committed, Error>>;
    /// Returns all lanes with their counts.
    fn lanes(&self) -> BoxFuture<'_, Result<Vec<LaneCounts>, Error>>;
    /// Returns a job.
    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<Record>, Error>>;
    /// Returns body and metadata; `None` if they were removed.
    fn body(&self, id: JobId) -> BoxFuture<'_, Result<Option<Body>, Error>>;
    /// Returns at most `limit` jobs of a selection with ids greater than `after`, by id.
    fn list(
        &self,
        filter: Filter,
        after: Option<JobId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, Error>>;
    /// Returns the leases that a server keeps, for its restart.
    fn leases_of(&self, server: ServerId) -> BoxFuture<'_, Result<Vec<Record>, Error>>;
    /// Returns at most `limit` ids of ended jobs (`dead`: of dead ones) of a queue that ended before `before`.
    fn ended_before(
        &self,
        queue: String,
        dead: bool,
        before: Wall,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<JobId>, Error>>;
    /// Returns at most `limit` ids of waiting jobs and jobs behind that expired before `now`.
    fn expired_before(&self, now: Wall, limit: usize) -> BoxFuture<'_, Result<Vec<JobId>, Error>>;
    /// Returns the identity of the store: leases of another one are void.
    fn id(&self) -> u64;
}
