//! Durable jobs: the store, the scheduler and the leases.
//!
//! The crate knows no gRPC and no policy store: the server gives it queues and kills, and carries submissions
//! and deliveries. When a job may be delivered and how its end counts is decided by `damper_core::job`.

pub mod store;
pub mod writer;
