//! The simulator against theory, against the rules' bounds, and against itself.

mod bounds;
mod examples;
mod faults;
mod file;
mod golden;
mod harness;
mod properties;
mod queues;
mod what_if;
