//! The simulator against theory, against the rules' bounds, and against itself.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

mod bounds;
mod callers;
mod examples;
mod faults;
mod file;
mod fleets;
mod golden;
mod harness;
mod jobs;
mod properties;
mod queues;
mod what_if;
