//! Expiry and forgetting: jobs whose time ran out end, and ended jobs are deleted after their time.
//!
//! In small chunks, after the settlements and submissions that wait. Jobs of a queue without a policy are
//! left as they are.

use std::sync::Arc;
use std::time::Duration;

use damper_core::job::{JobEnd, Queue};
use futures_util::future::try_join_all;
use tokio::time::{MissedTickBehavior, interval};

use crate::clock::before;
use crate::shared::Inner;
use crate::state::lane::Counts;
use crate::store::{Change, ChangeTo, Error, JobId};

/// Time between two passes.
const EVERY: Duration = Duration::from_secs(1);
/// Jobs of one commit.
pub(crate) const CHUNK: usize = 256;
/// Chunks of a queue in one pass.
const MOST_CHUNKS: usize = 8;

impl Inner {
    /// Expires and forgets jobs for ever.
    pub(crate) async fn forget(&self) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for (policy, counts) in self.governed() {
                if let Err(error) = self.forget_of(&policy, counts).await {
                    tracing::debug!(queue = policy.name(), %error, "jobs could not be forgotten");
                    break;
                }
            }
        }
    }

    /// Returns the queues with a policy and jobs.
    fn governed(&self) -> Vec<(Arc<Queue>, Counts)> {
        let state = self.state();
        let with_policy = state.by_name.values().filter_map(|queue| {
            let mut counts = Counts::default();
            queue.lanes.iter().for_each(|lane| counts.add(lane.counts));
            Some((state.queues.get(&queue.name)?.clone(), counts))
        });
        with_policy.collect()
    }

    async fn forget_of(&self, policy: &Queue, counts: Counts) -> Result<(), Error> {
        let (name, settings) = (policy.name(), policy.settings());
        let now = self.now().wall;
        if counts.waiting + counts.behind > 0 {
            let read = || self.store.expired_before(name.to_owned(), now, CHUNK);
            let expired =
                self.change_all(read, || ChangeTo::Expired(JobEnd::Expired.name().to_owned())).await?;
            self.state().queue(name).totals.expired += expired;
        }
        for (count, dead, keep) in
            [(counts.ended, false, settings.keep_done), (counts.dead, true, settings.keep_dead)]
        {
            if count > 0 {
                let read = || self.store.ended_before(name.to_owned(), dead, before(now, keep), CHUNK);
                let deleted = self.change_all(read, || ChangeTo::Deleted).await?;
                self.state().queue(name).totals.deleted += deleted;
            }
        }
        Ok(())
    }

    /// Changes the jobs that a read returns, chunk by chunk. Returns the number of changed ones.
    async fn change_all<R>(&self, read: impl Fn() -> R, to: impl Fn() -> ChangeTo) -> Result<u64, Error>
    where
        R: Future<Output = Result<Vec<JobId>, Error>>,
    {
        let mut all = 0;
        for _ in 0..MOST_CHUNKS {
            let ids = read().await?;
            let (found, now) = (ids.len(), self.now().wall);
            let changes = ids.into_iter().map(|id| self.writer.change(Change { id, to: to(), now }));
            let changed = try_join_all(changes).await?;
            let changed = changed.into_iter().filter(|changed| *changed).count();
            all += changed as u64;
            // Further ones wait for the next pass.
            if found < CHUNK || changed == 0 {
                break;
            }
        }
        Ok(all)
    }
}
