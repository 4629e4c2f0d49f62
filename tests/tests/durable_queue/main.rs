//! The durable queue as a whole: the server binary, workers and producers as processes, real stores.

#![allow(clippy::unwrap_used, reason = "a test fails by its panic")]

mod chain;
#[path = "../../../control-plane/queue/tests/contract/cluster.rs"]
#[allow(dead_code, reason = "the contract tests use all of it")]
mod cluster;
#[cfg(target_os = "linux")]
mod faults;
mod ledger;
mod outage;
mod peers;
#[path = "../replicas/proxy.rs"]
mod proxy;
mod servers;
