//! One contract suite for every job store: random operations against a model, and faults below the store.

#![allow(clippy::unwrap_used, reason = "a test fails by its panic")]

mod bounds;
mod cluster;
mod disk;
mod faults;
mod model;
mod operations;
mod postgres;
mod power;
mod redb;
mod relay;
mod schedulers;
mod suite;
