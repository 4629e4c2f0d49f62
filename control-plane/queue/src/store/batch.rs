//! What one commit contains, and what it results in.
//!
//! What becomes of a job, the caller has decided with `damper_core::job`. The store decides only what depends
//! on its present content: whether a settlement still counts, whether a key is taken, and whether a job with
//! an order key waits behind another.

use std::sync::Arc;
use std::time::Duration;

use damper_core::job::{HoldReason, Job, Outcome, SharedBounds, Wall};

use super::error::Error;
use super::record::{Body, FailedDelivery, JobId, Lane, Record, ServerId, State};

/// One atomic commit. Its parts are applied in the order of the fields.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Ends of deliveries.
    pub settlements: Vec<Settlement>,
    /// Leases that workers name.
    pub claims: Vec<LeaseClaim>,
    /// Requests for due jobs.
    pub leases: Vec<LeaseRequest>,
    /// New jobs. The store sets `state`, `booked` and `body_bytes`.
    pub submissions: Vec<(Record, Body)>,
    /// Changes of jobs that are not leased.
    pub changes: Vec<Change>,
}

/// The end of a delivery.
///
/// Applied if the job is leased under this delivery number and token. A worker's is also applied if a server
/// has ended that very lease and the job is still waiting, behind or dead: it replaces what the server
/// booked, counters and failure included.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// Id of the job.
    pub id: JobId,
    /// Number of the delivery.
    pub delivery: u32,
    /// Token of the lease.
    pub token: u64,
    /// Who ends the delivery.
    pub by: SettledBy,
    /// State after it.
    pub to: After,
    /// When it is due, or when it ended.
    pub at: Wall,
    /// Counters after it, computed from those of the lease. The store keeps its own `deliveries`.
    pub job: Job,
    /// Why it ended; ignored for a waiting job.
    pub ended: String,
    /// Appended to the failures.
    pub failure: Option<FailedDelivery>,
    /// What the end shows of the callee; `None`: nothing, or the store is not shared.
    pub evidence: Option<Evidence>,
}

/// What the end of a delivery shows of its callee, for the bounds of the queue over all servers. Counted if
/// the settlement is applied, or replaces another.
#[derive(Clone, Copy, Debug)]
pub struct Evidence {
    /// Bounds of the queue.
    pub bounds: SharedBounds,
    /// How the delivery ended.
    pub outcome: Outcome,
}

/// Who ends a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettledBy {
    /// The worker that has the lease.
    Worker,
    /// The server that keeps the lease: lost, or released in the worker's absence.
    Server(ServerId),
}

/// State of a job after a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Due at a time. Behind, if the job has an order key and another one has taken its turn.
    Waiting,
    /// Finished.
    Done,
    /// Given up and kept.
    Dead,
    /// Cancelled during the delivery.
    Cancelled,
    /// Its time ran out.
    Expired,
}

/// A worker names a lease. If the job is leased under this delivery number and token, this server keeps the
/// lease from now on.
#[derive(Clone, Copy, Debug)]
pub struct LeaseClaim {
    /// Id of the job.
    pub id: JobId,
    /// Number of the delivery.
    pub delivery: u32,
    /// Token of the lease.
    pub token: u64,
    /// New keeper.
    pub server: ServerId,
}

/// Leases due jobs of a lane, the ones due longest first.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// Lane.
    pub lane: Arc<Lane>,
    /// At most this many.
    pub count: u32,
    /// No further job once the bodies have this many bytes together.
    pub max_bytes: u64,
    /// Only jobs that were never sent: a kill stops retries.
    pub first_only: bool,
    /// Bounds of the queue over all servers; `None`: not checked. Only a shared store checks them.
    pub bounds: Option<SharedBounds>,
    /// Keeper of the leases.
    pub server: ServerId,
    /// Present time of the store's clock.
    pub now: Wall,
    /// Random bits, of which the token of each lease is derived.
    pub seed: u64,
}

/// A change of one job. Only [`ChangeTo::Removed`] applies to a leased one.
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
    /// A waiting job, or one behind, is cancelled for this reason.
    Cancelled(String),
    /// A waiting job, or one behind, expires for this reason.
    Expired(String),
    /// A dead job waits again, due at this time, with these counters. One with an order key goes to the end:
    /// `began` is the time of the replay. The store keeps its own `deliveries`.
    Replayed(Wall, Job),
    /// An ended or dead job is deleted.
    Deleted,
    /// A job in any state is deleted. A delivery of it is lost.
    Removed,
}

/// Leased jobs with their bodies.
pub type Deliveries = Vec<(Record, Body)>;

/// Results of a batch, in the order of its parts.
#[derive(Debug, Default)]
pub struct Committed {
    /// Result per settlement.
    pub settlements: Vec<Settled>,
    /// The leased job per claim; `None`: the lease had ended.
    pub claims: Vec<Option<Record>>,
    /// Leased jobs per request.
    pub leases: Vec<Deliveries>,
    /// Why a request got fewer jobs than it asked for, per lease request; `None`: not by a bound. Empty: the
    /// store is not shared.
    pub refused: Vec<Option<Refused>>,
    /// When the next job of the lane is due, per lease request, after the leases of this batch.
    pub next_due: Vec<NextDue>,
    /// Result per submission.
    pub submissions: Vec<Submitted>,
    /// False: the job was gone or in another state.
    pub changes: Vec<bool>,
    /// Lanes in which a job now waits, each with the earliest such time: the scheduler's wake-up.
    pub due: Vec<(Arc<Lane>, Wall)>,
}

/// Why a request did not get all jobs that it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The bound.
    pub why: HoldReason,
    /// When to ask again; `None`: when a delivery of any server has ended.
    pub wait: Option<Duration>,
}

/// When the next waiting job of a lane is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextDue {
    /// Of all jobs.
    pub any: Option<Wall>,
    /// Of jobs that were never sent.
    pub first: Option<Wall>,
}

/// Result of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Ended the lease.
    Applied,
    /// Replaced what a server had booked for the same delivery.
    Replaced,
    /// The worker had settled this delivery before; nothing changed.
    Repeated,
    /// The fence did not match: delivered again, ended otherwise, or gone.
    Lost,
}

/// Result of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// Stored; waiting or behind.
    Stored(State),
    /// There is a job with this key and content.
    Existing(Box<Record>),
    /// There is a job with this key and another content, or another job with this id.
    Conflict(JobId),
    /// Not stored, for this reason: [`Error::Full`] or [`Error::Invalid`].
    Refused(Error),
}
