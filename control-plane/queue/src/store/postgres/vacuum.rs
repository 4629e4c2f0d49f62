//! Gives back the room of replaced and deleted rows.
//!
//! A job is a new row version in each of its states, and PostgreSQL by itself looks once a minute whether a
//! table has dead rows. At thousands of jobs per second the tables would grow to many times their content. So
//! each server counts what its commits leave behind, and cleans up when that is as much as the jobs that
//! exist.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Shared;
use super::connection::{Connection, Stop};
use crate::store::error::Error;

/// Dead rows below which nothing is cleaned up.
const LEAST: u64 = 10_000;

/// A clean-up without an end by then counts as failed: the database may be out of reach.
const WITHIN: Duration = Duration::from_secs(10 * 60);

/// Least time until another try after a failure.
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

    /// Runs a clean-up. Returns also the time until the next: at least as long as this one, since an open
    /// transaction can hold the rows back, and then one after the other would be in vain.
    async fn clean_up(
        &self,
        vacuum: impl Future<Output = Result<(), Stop>>,
    ) -> (Result<(), Error>, Duration) {
        let dead_rows = self.dead_rows.swap(0, Ordering::Relaxed);
        let began = Instant::now();
        let late = |_| Err(Stop::Store(Error::Unavailable(format!("not done within {WITHIN:?}"))));
        let cleaned = tokio::time::timeout(WITHIN, vacuum).await.unwrap_or_else(late);
        let took = began.elapsed();
        match cleaned {
            Ok(()) => (Ok(()), took),
            Err(stop) => {
                self.add(dead_rows);
                (Err(stop.into()), took.max(AGAIN_AFTER))
            }
        }
    }
}

/// Cleans up whenever it is due, until the store is dropped.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut connection = None;
    loop {
        shared.remains.due.notified().await;
        let (cleaned, pause) = shared.remains.clean_up(vacuum(&shared, &mut connection)).await;
        if let Err(error) = cleaned {
            connection = None;
            tracing::debug!(%error, "dead rows are not cleaned up");
        }
        tokio::time::sleep(pause).await;
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
    use std::future::{pending, ready};

    use futures_util::FutureExt as _;
    use tokio::time::sleep;

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

    #[tokio::test(start_paused = true)]
    async fn failed_clean_up_is_due_again() {
        let remains = Remains::default();
        let is_due = || remains.due.notified().now_or_never().is_some();
        remains.add(LEAST);
        assert!(is_due());
        let (cleaned, pause) = remains.clean_up(ready(Err(Stop::Again))).await;
        assert!(cleaned.is_err() && pause == AGAIN_AFTER && is_due(), "{cleaned:?} {pause:?}");
        let (cleaned, pause) = remains.clean_up(pending()).await;
        assert!(cleaned.is_err() && pause >= WITHIN && is_due(), "{cleaned:?} {pause:?}");
        let (cleaned, _) = remains.clean_up(ready(Ok(()))).await;
        assert!(cleaned.is_ok() && !is_due());
        remains.add(LEAST - 1);
        assert!(!is_due(), "they count from zero");
    }

    #[tokio::test(start_paused = true)]
    async fn pause_is_as_long_as_the_clean_up() {
        let long = async {
            sleep(Duration::from_secs(90)).await;
            Ok(())
        };
        let (_, pause) = Remains::default().clean_up(long).await;
        assert!(pause >= Duration::from_secs(90), "{pause:?}");
    }
}
