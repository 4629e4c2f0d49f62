//! The ports: TLS, deadlines and limits against hostile peers over real sockets, with certificates made for each test.
//!
//! A process of its own, because descriptors and memory are counted. Every wait is for an event; a time limit only
//! ends a test that has failed.
#![allow(clippy::unwrap_used, reason = "a test that can not go on has failed")]

mod certificates;
mod crowd;
mod harness;
mod hostile;
mod limits;
mod reload;
mod tls;
