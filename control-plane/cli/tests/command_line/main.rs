//! The `damper` binary as a user has it in a terminal: real processes, a real server on a store of its own.
//!
//! Each file is one side of it: commands and what they print, input that must be refused, exit statuses, the
//! server as a process.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

mod adoption;
mod apply;
mod bad_input;
mod commands;
mod doctor;
mod endpoints;
mod exit_status;
mod failures;
mod guards;
mod harness;
mod history;
mod init;
mod jobs;
mod kills;
mod lint;
mod proxying;
mod queues;
mod replicas;
mod reporting;
mod serving;
mod simulate;
mod stats;
mod tls;
mod tokens;
mod translation;
mod what_if;
mod working;
