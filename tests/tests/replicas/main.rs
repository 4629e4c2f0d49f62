//! Several control planes over one real etcd: what each knows of the others' clients, what happens when one goes, and
//! rolling restarts under load.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

mod crowd;
mod fail_static;
mod fleet;
mod hostile;
mod once;
mod proxy;
mod rolling;
mod world;
