//! The listeners: TLS, deadlines and limits against hostile peers over real sockets, with certificates made
//! for each test.
//!
//! A separate process, because descriptors and memory are counted. Every wait is for an event; a time limit
//! only ends a failed test.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod certificates;
mod crowd;
mod harness;
mod hostile;
mod limits;
mod reload;
mod tls;
