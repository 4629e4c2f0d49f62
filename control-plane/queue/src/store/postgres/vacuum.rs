//! Gives back the room of replaced and deleted rows.
//!
//! A job is a new row version in each of its states, and PostgreSQL by itself looks once a minute whether a
//! table has dead rows. At thousands of jobs per second the tables would grow to many times their content. So
//! each server counts what its commits leave behind, and cleans up when that is as much as the jobs that
//! exist.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::Shared;
use super::connection::{Connection, Stop};

/// Dead rows below which nothing is cleaned up.
const LEAST: u64 = 10_000;

/// Time until another try after a failure.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Several servers do not wait for each other.
const VACUUM: &str = "vacuum (skip_locked) damper_queue.job, damper_queue.body, damper_queue.tally";

/// What the commits of this server have left behind.
#[derive(Default)]
pub(super) struct Remains {
    dead_rows: AtomicU64,
    /// Jobs of the store when they were counted last.
    jobs: AtomicU64,
    due: Notify,
}

impl Remains {
    /// Adds the dead rows of a commit.
    pub(super) fn add(&self, dead_rows: u64) {
        let all = self.dead_rows.fetch_add(dead_rows, Ordering::Relaxed) + dead_rows;
        if all >= self.jobs.load(Ordering::Relaxed).max(LEAST) {
            self.due.notify_one();
        }
    }

    pub(super) fn set_jobs(&self, jobs: u64) {
        self.jobs.store(jobs, Ordering::Relaxed);
    }
}

/// Cleans up whenever it is due, until the store is dropped.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut connection = None;
    loop {
        shared.remains.due.notified().await;
        shared.remains.dead_rows.store(0, Ordering::Relaxed);
        if let Err(stop) = vacuum(&shared, &mut connection).await {
            connection = None;
            tracing::debug!(error = %crate::store::Error::from(stop), "dead rows are not cleaned up");
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}

async fn vacuum(shared: &Shared, held: &mut Option<Connection>) -> Result<(), Stop> {
    let connection = match held.take() {
        Some(connection) if !connection.is_closed() => connection,
        _ => {
            let connection = shared.connect(|_| {}).await?;
            // A large table takes its time.
            connection.batch("set statement_timeout to 0").await?;
            connection
        }
    };
    held.insert(connection).batch(VACUUM).await
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn remains_are_due_when_they_are_as_many_as_the_jobs() {
        let is_due = |remains: &Remains| remains.due.notified().now_or_never().is_some();
        let remains = Remains::default();
        remains.add(LEAST - 1);
        assert!(!is_due(&remains));
        remains.add(1);
        assert!(is_due(&remains));
        remains.set_jobs(LEAST * 3);
        remains.add(LEAST);
        assert!(!is_due(&remains));
        remains.add(LEAST);
        assert!(is_due(&remains));
    }
}
