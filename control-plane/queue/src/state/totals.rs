//! Counts of a queue since the server started.

use crate::store::After;

/// Counts of one queue since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Stored jobs.
    pub submitted: u64,
    /// Submissions of a job that was there.
    pub existing: u64,
    /// Submissions with the key of another job.
    pub conflicts: u64,
    /// Other submissions that were not stored.
    pub rejected: u64,
    /// Deliveries of jobs that were never sent before.
    pub delivered_first: u64,
    /// Other deliveries.
    pub delivered_again: u64,
    /// Jobs that a worker finished.
    pub done: u64,
    /// Failed deliveries.
    pub failed: u64,
    /// Deliveries that were not tried.
    pub released: u64,
    /// Deliveries whose worker disappeared.
    pub lost: u64,
    /// Settlements after the job had been delivered again.
    pub late: u64,
    /// Jobs that were given up.
    pub died: u64,
    /// Jobs whose time ran out.
    pub expired: u64,
    /// Cancelled jobs.
    pub cancelled: u64,
    /// Deleted jobs: forgotten or purged.
    pub deleted: u64,
    /// Dead jobs that wait again.
    pub replayed: u64,
}

impl Totals {
    /// Counts the end of a job, if it has ended.
    pub(crate) fn count_end(&mut self, to: After) {
        match to {
            After::Waiting => {}
            After::Done => self.done += 1,
            After::Dead => self.died += 1,
            After::Cancelled => self.cancelled += 1,
            After::Expired => self.expired += 1,
        }
    }
}
