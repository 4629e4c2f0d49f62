//! What Damper costs, measured against its peers in the same run.
//!
//! `rows` has one file for each row of the table, `calls`, `fleet` and `queue` what several of them call
//! and connect, `rounds` how variants take turns, `figure` what is reported of them, `report` how that is written down, `process`
//! the other processes, `patience` how long anything is waited for. `cargo xtask bench` builds everything and runs the
//! program `bench`; `count` counts allocations, with an allocator that would slow down what is timed.
//!
//! Times are of the machine that they were measured on; only ratios and counts can be compared. Nothing here fails
//! because something took long.

pub mod calls;
pub mod figure;
pub mod fleet;
pub mod patience;
pub mod process;
pub mod queue;
pub mod report;
pub mod rounds;
pub mod rows;
