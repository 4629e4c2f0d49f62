//! Damper's job stores without the server: the commits that its writer makes at most, one after the other.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow, bail, ensure};
use damper_core::job::{Job, QueueSettings, Submission, Wall};
use damper_core::{Mode, RouteKey};
use damper_queue::store::{
    After, Batch, Body, JobId, Lane, LeaseRequest, Record, ServerId, SettledBy, Settlement, State, Store,
};

use super::{Answer, BODY_BYTES, Order, What};

/// Jobs of one commit: the writer's limit is 512 operations, and each job has at most three in a life.
const COMMIT: usize = 170;

/// A store.
pub type RawStore = Arc<dyn Store>;

/// A store that is driven.
pub struct Raw {
    store: RawStore,
    lane: Arc<Lane>,
    server: ServerId,
    next: u128,
}

impl std::fmt::Debug for Raw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Raw").finish_non_exhaustive()
    }
}

impl Raw {
    /// Of a store that is empty.
    ///
    /// # Errors
    /// It does not take part.
    pub async fn new(store: RawStore) -> Result<Self> {
        let server = store.beat(Vec::new()).await?.server;
        let route = RouteKey::new("bench", "default", "callee", "bench.Jobs/Do0");
        let route = route.map_err(|faults| anyhow!("{faults:?}"))?;
        let lane = Arc::new(Lane { queue: "bench".to_owned(), route });
        Ok(Self { store, lane, server, next: 0 })
    }

    pub(super) async fn order(&mut self, order: &Order) -> Result<Answer> {
        let begun = Instant::now();
        match order.what {
            What::Submit => {
                // What all submitters send at once is one commit.
                let size = (order.submitters * order.batch).clamp(1, 3 * COMMIT);
                for first in (0..order.count).step_by(size) {
                    let submissions = self.jobs(size.min(order.count - first), Duration::from_secs(3_600));
                    self.store.commit(Batch { submissions, ..Batch::default() }).await?;
                }
            }
            What::Lives => self.lives(order.count).await?,
            other => bail!("a store has no {other:?}"),
        }
        Ok(Answer { seconds: begun.elapsed().as_secs_f64(), milliseconds: None })
    }

    /// Each commit submits jobs, leases those of the one before and settles those that it leased.
    async fn lives(&mut self, count: usize) -> Result<()> {
        let (mut settlements, mut settled, mut left) = (Vec::new(), 0, count);
        while settled < count {
            settled += settlements.len();
            let submissions = self.jobs(left.min(COMMIT), Duration::ZERO);
            left -= submissions.len();
            let leases = vec![self.lease()];
            let committed =
                self.store.commit(Batch { settlements, leases, submissions, ..Batch::default() }).await?;
            let leased = committed.leases.into_iter().flatten();
            settlements = leased.map(|(job, _)| done(&job)).collect::<Result<_>>()?;
            ensure!(settled >= count || left > 0 || !settlements.is_empty(), "a job is not delivered");
        }
        Ok(())
    }

    fn jobs(&mut self, count: usize, after: Duration) -> Vec<(Record, Body)> {
        (0..count).map(|_| self.job(after)).collect()
    }

    fn job(&mut self, after: Duration) -> (Record, Body) {
        let now = now();
        self.next += 1;
        let id = (u128::from(now.0) << 80) | self.next;
        let submission = Submission {
            failed: None,
            stop: false,
            sends_before: 0,
            not_before: None,
            expires_after: Duration::from_secs(7 * 24 * 3_600),
        };
        let settings = QueueSettings::new(Mode::Enforce);
        let (job, due) =
            Job::submit(&settings, &submission, now, 0).expect("a job that was not tried is accepted");
        let record = Record {
            id: JobId(id.to_be_bytes()),
            lane: Arc::clone(&self.lane),
            state: State::Waiting,
            at: due + after,
            submitted: now,
            job,
            booked: None,
            key: self.next.to_string(),
            digest: [7; 32],
            order_key: None,
            call_id: String::new(),
            body_key_id: String::new(),
            body_bytes: 0,
            ended: String::new(),
            failures: Vec::new(),
        };
        (record, Body { content: vec![7; BODY_BYTES], metadata: Vec::new() })
    }

    fn lease(&self) -> LeaseRequest {
        LeaseRequest {
            lane: Arc::clone(&self.lane),
            count: u32::try_from(COMMIT).unwrap_or(u32::MAX),
            max_bytes: u64::MAX >> 1,
            first_only: false,
            bounds: None,
            server: self.server,
            now: now() + Duration::from_secs(1),
            seed: fastrand::u64(..),
        }
    }
}

fn done(job: &Record) -> Result<Settlement> {
    let State::Leased { token, .. } = job.state else { bail!("{:?} is not leased", job.id) };
    let mut counters = job.job;
    counters.done();
    Ok(Settlement {
        id: job.id,
        delivery: job.job.deliveries,
        token,
        by: SettledBy::Worker,
        to: After::Done,
        at: now(),
        job: counters,
        ended: "done".to_owned(),
        failure: None,
        evidence: None,
    })
}

fn now() -> Wall {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Wall(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}
