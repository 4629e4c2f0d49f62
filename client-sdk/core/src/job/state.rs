//! What is kept of a job between its deliveries: plain integers, stored by the driver.

use crate::call::backoff::Sequence;

/// Milliseconds since 1970, by the clock of the job store.
///
/// A type of its own: jobs outlive the processes whose monotonic [`Time`](crate::Time) measures everything
/// else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall(pub u64);

/// Counters of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Deliveries so far, released ones included. Only grows; the number of the current delivery.
    pub deliveries: u32,
    /// Deliveries that used an attempt.
    pub attempts: u32,
    /// Attempts made before the submission.
    pub sends_before: u32,
    /// Lost deliveries in a row.
    pub lost: u32,
    /// Position in the sequence of waits.
    pub waits: Sequence,
    /// Time of the submission, or of the last replay.
    pub began: Wall,
    /// No delivery begins after this.
    pub expires: Wall,
}
