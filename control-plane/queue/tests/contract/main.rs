//! One contract suite for every job store: random operations against a model, and faults below the store.

mod disk;
mod model;
mod operations;
mod power;
mod redb;
mod suite;
