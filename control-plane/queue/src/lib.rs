//! Durable jobs: the store, the scheduler and the leases.
//!
//! The crate knows no gRPC and no policy store: the server gives it queues and kills, and carries submissions
//! and deliveries. When a job may be delivered and how its end counts is decided by `damper_core::job`.
//!
//! [`JobServer`] is its face. All that it knows of waiting jobs is one entry per lane (queue and route); the
//! jobs themselves are in the [`store`]. Every change passes through one writer, which commits many at once.

mod clock;
mod figures;
mod forget;
mod id;
mod operate;
mod queues;
mod schedule;
mod server;
mod settle;
mod shared;
mod state;
pub mod store;
mod submit;
#[cfg(test)]
mod tests;
mod work;
mod worker;
pub mod writer;

pub use clock::{Clock, SystemClock};
pub use figures::{LaneStats, Ledger, QueueStats};
pub use id::LeaseId;
pub use operate::{Cancellation, Changed, JobChange, Selection};
pub use queues::{KillUntil, Queues};
pub use server::SUBMIT_WITHIN;
pub use settle::MAX_DETAIL_BYTES;
pub use shared::JobServer;
pub use state::lane::{Counts, Held};
pub use state::totals::Totals;
pub use submit::{
    EarlierFailure, MAX_AHEAD, MAX_JOBS_A_REQUEST, MAX_KEY_BYTES, NewJob, Rejected, SubmitResult, Submitter,
};
pub use work::Work;
pub use worker::{
    Delivery, FromWorker, MAX_BYTES_IN_FLIGHT, MAX_DELIVERIES, Settle, ToWorker, WorkerIdentity,
};
