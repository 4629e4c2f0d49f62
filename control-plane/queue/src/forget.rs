//! Expiry and forgetting: jobs whose time ran out end, and ended jobs are deleted after their time.
//!
//! In small chunks, after the settlements and submissions that wait. Jobs of a queue without a policy are
//! left as they are.

use std::time::Duration;

use damper_core::job::JobEnd;
use futures_util::future::try_join_all;
use tokio::time::{MissedTickBehavior, interval};

use crate::clock::before;
use crate::shared::Inner;
use crate::state::lane::Counts;
use crate::store::{Change, ChangeTo, Error, JobId, Overdue, OverdueKind};

/// Time between two passes.
const EVERY: Duration = Duration::from_secs(1);
/// Jobs of one commit.
pub(crate) const CHUNK: usize = 256;
/// Chunks of a queue in one pass: more jobs than a server ends in the time between two.
const MOST_CHUNKS: usize = 32;

impl Inner {
    /// Expires and forgets jobs for ever.
    pub(crate) async fn forget(&self) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.forget_once().await {
                tracing::debug!(%error, "jobs could not be forgotten");
            }
        }
    }

    /// Asks for all queues in one read, and again for those of which there may be more.
    async fn forget_once(&self) -> Result<(), Error> {
        let mut asked = self.questions();
        for _ in 0..MOST_CHUNKS {
            if asked.is_empty() {
                break;
            }
            let found = self.store.overdue(asked.clone(), CHUNK).await?;
            let mut more = Vec::new();
            for (asked, ids) in asked.into_iter().zip(found) {
                let is_full = ids.len() >= CHUNK;
                let changed = self.change_all(&asked, ids).await?;
                // Further ones wait for the next pass.
                if is_full && changed > 0 {
                    more.push(asked);
                }
            }
            asked = more;
        }
        Ok(())
    }

    /// Returns what to ask of the queues with a policy and jobs.
    fn questions(&self) -> Vec<Overdue> {
        let now = self.now().wall;
        let state = self.state();
        let mut asked = Vec::new();
        for queue in state.by_name.values() {
            let Some(policy) = state.queues.get(&queue.name) else { continue };
            let mut counts = Counts::default();
            queue.lanes.iter().for_each(|lane| counts.add(lane.counts));
            let (settings, waiting) = (policy.settings(), counts.waiting + counts.behind);
            for (count, kind, before) in [
                (waiting, OverdueKind::Expired, now),
                (counts.ended, OverdueKind::Ended, before(now, settings.keep_done)),
                (counts.dead, OverdueKind::Dead, before(now, settings.keep_dead)),
            ] {
                if count > 0 {
                    asked.push(Overdue { queue: policy.name().to_owned(), kind, before });
                }
            }
        }
        asked
    }

    /// Expires or deletes jobs. Returns the number of changed ones.
    async fn change_all(&self, asked: &Overdue, ids: Vec<JobId>) -> Result<u64, Error> {
        if ids.is_empty() {
            return Ok(0);
        }
        let now = self.now().wall;
        let to = || match asked.kind {
            OverdueKind::Expired => ChangeTo::Expired(JobEnd::Expired.name().to_owned()),
            OverdueKind::Ended | OverdueKind::Dead => ChangeTo::Deleted,
        };
        let changes = ids.into_iter().map(|id| self.writer.change(Change { id, to: to(), now }));
        let changed = try_join_all(changes).await?.into_iter().filter(|changed| *changed).count() as u64;
        let mut state = self.state();
        let totals = &mut state.queue(&asked.queue).totals;
        match asked.kind {
            OverdueKind::Expired => totals.expired += changed,
            OverdueKind::Ended | OverdueKind::Dead => totals.deleted += changed,
        }
        Ok(changed)
    }
}
