//! The server over real sockets, with a real store in a temporary folder, as operators, services and the web
//! UI use it. Every wait is for an event; a time limit only ends a failed test.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod bad_input;
mod chain;
mod convergence;
mod distribution;
mod doctor;
mod endings;
mod failures;
mod fleet;
mod guards;
mod harness;
mod history;
mod hostile;
mod job_ends;
mod jobs;
mod kills;
mod lint;
mod monitoring;
mod outage;
mod port;
mod propose;
mod queues;
mod rules;
mod stable_metrics;
mod stats;
mod stored;
mod what_if;
