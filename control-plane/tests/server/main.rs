//! The server over real sockets, with a real store in a temporary folder: what operators, services and the page
//! can rely on. Every wait is for an event; a time limit only ends a test that has failed.
#![allow(clippy::unwrap_used, reason = "a test that can not go on has failed")]

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
mod kills;
mod lint;
mod monitoring;
mod outage;
mod port;
mod propose;
mod rules;
mod stats;
mod what_if;
