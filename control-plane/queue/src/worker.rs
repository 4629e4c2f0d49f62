//! What passes between the server and a worker.
//!
//! A worker gives credits, free slots for jobs of a queue, gets deliveries for them and settles each. How
//! these messages are carried, the crate does not know.

use std::sync::Arc;
use std::time::Duration;

use damper_core::Failure;

use crate::id::LeaseId;
use crate::store::{Body, JobId, Lane};

/// Deliveries in flight per stream, and credits per stream.
pub const MAX_DELIVERIES: usize = 1_000;
/// Bytes in flight per stream. A batch is planned by the mean size of a lane's jobs, so that larger ones can
/// exceed it once.
pub const MAX_BYTES_IN_FLIGHT: u64 = 16 << 20;
/// Messages that may wait for a stream: all deliveries, and the results of all settlements.
pub(crate) const MAX_UNSENT: usize = 2 * MAX_DELIVERIES + 64;

/// A worker process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerIdentity {
    /// Service, as authenticated.
    pub service: String,
    /// Deployment group.
    pub cluster: String,
    /// Name of the process.
    pub instance: String,
}

/// A message of a worker.
#[derive(Clone, Debug)]
pub enum FromWorker {
    /// Further free slots for jobs of a queue.
    Credits(String, u32),
    /// The handlers of these deliveries have started.
    Started(Vec<LeaseId>),
    /// The end of a delivery.
    Settle(LeaseId, Settle),
    /// The worker is there.
    Alive,
    /// The worker wants no further jobs.
    Bye,
}

/// How a delivery ended.
#[derive(Clone, Debug)]
pub enum Settle {
    /// The job is done.
    Done,
    /// The delivery failed.
    Failed {
        /// Code and hints.
        failure: Failure,
        /// Duration.
        took: Duration,
        /// Worker's description.
        detail: String,
    },
    /// The job was not tried.
    Released {
        /// Reason of the worker.
        why: String,
        /// No delivery of this lane to this stream before this; `None`: a second.
        not_before: Option<Duration>,
    },
    /// The job must never be delivered again.
    Dead {
        /// Reason of the worker.
        reason: String,
    },
}

/// A message to a worker.
#[derive(Clone, Debug)]
pub enum ToWorker {
    /// The first message: leases that the worker named and no longer has.
    Welcome(Vec<LeaseId>),
    /// A job.
    Delivery(Box<Delivery>),
    /// The settlement is durable. `lost`: the job had been delivered again, or is gone.
    Settled {
        /// The lease.
        lease: LeaseId,
        /// False: the settlement counts.
        lost: bool,
    },
    /// The lease has ended: the handler stops.
    Cancelled(LeaseId),
    /// The server ends the stream.
    Goodbye(&'static str),
}

/// One transfer of a job.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The lease.
    pub lease: LeaseId,
    /// The job.
    pub job: JobId,
    /// Its queue and route.
    pub lane: Arc<Lane>,
    /// Number of this delivery, from 1.
    pub number: u32,
    /// Attempts made before.
    pub sends_before: u32,
    /// Body and metadata.
    pub body: Body,
    /// Time limit of the handler.
    pub limit: Duration,
    /// Id of the original call; empty: none.
    pub call_id: String,
    /// Key of an encrypted body; empty: not encrypted.
    pub body_key_id: String,
}
