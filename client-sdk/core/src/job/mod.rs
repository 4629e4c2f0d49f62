//! Durable jobs: when a kept request may be sent again, and when it is given up.
//!
//! [`Call`](crate::Call) decides between two attempts of one process; the types here decide between two
//! deliveries of a job, across processes. A queue is a [`Policy`](crate::Policy) with other ranges, and no
//! retry breaker: if a callee fails, its jobs are held and use up no attempts.
//!
//! - [`Job`]: the counters of a job, and what follows each event: submission, end or loss of a delivery,
//!   replay.
//! - [`Callee`]: whether deliveries to a callee may begin: held while it fails, then at a rising pace.
//! - [`Flow`]: the same for all callees of a queue, within its bounds.
//! - [`SharedFlow`]: those bounds over several servers.

mod callee;
mod ending;
mod flow;
mod gate;
mod hold;
mod names;
mod pace;
mod queue;
mod rate;
mod shared;
mod state;
mod submission;

pub use callee::{Admit, Callee, HoldReason, Outcome};
pub use ending::{JobEnd, MAX_PUSHBACK, Next, PAUSE};
pub use flow::Flow;
pub use names::{ServiceName, Submittable};
pub use queue::{
    EXPIRES_AFTER, HOLD_AFTER, KEEP_DEAD, KEEP_DONE, LEASE, LIST_ENTRIES, MAX_ATTEMPTS, MAX_BODY, MAX_BYTES,
    MAX_DURATION, MAX_IN_FLIGHT, MAX_JOBS, MAX_LOST, METADATA_NAMES, NAME_BYTES, OnStop, PAUSED_BYTES,
    PER_ATTEMPT_TIMEOUT, Queue, QueueSettings, RATE, SUBMITTER_SHARE, check_queue_name,
};
pub use shared::{CalleeParts, QueueParts, SharedBounds, SharedFlow};
pub use state::{Job, JobSend, Wall};
pub use submission::Submission;

#[cfg(test)]
mod tests;
