//! The job store: one write method, a few reads.
//!
//! Every write is a [`Batch`], committed as one atomic and durable transaction: after `commit` returns,
//! everything in it survives kill -9 and a loss of power. What a job's next state is, the caller has decided
//! with `damper_core::job`; the store compares the fence of each settlement and keeps its indexes.
//!
//! A job that has not ended is in exactly one of: waiting (due at a time), behind (waits for a job with the
//! same order key), leased. Its body is removed in the commit that ends it; that of a dead job is kept for a
//! replay.

mod apply;
mod batch;
mod clock;
mod consistency;
mod encoding;
mod error;
mod interface;
mod lanes;
pub mod postgres;
mod record;
pub mod redb;
mod tally;

pub(crate) use apply::token;
pub use batch::{
    After, Batch, Change, ChangeTo, Committed, Deliveries, Evidence, LeaseClaim, LeaseRequest, NextDue,
    Refused, Settled, SettledBy, Settlement, Submitted,
};
pub(crate) use clock::now;
pub use error::Error;
pub use interface::{Beat, Burden, Filter, LaneCounts, Overdue, OverdueKind, Page, Store};
pub use record::{
    Body, Booking, FailedDelivery, JobId, Lane, MAX_FAILURES, Record, ServerId, State, StateKind,
};
