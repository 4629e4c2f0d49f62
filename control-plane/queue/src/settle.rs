//! The end of a delivery: by its worker, or by the server if the worker is gone.
//!
//! What becomes of the job the engine decides from the counters of the lease. A worker may settle after the
//! end of its lease: as long as the job was not delivered again, its result replaces what the server had
//! booked. A settlement is repeated until the store has answered; the store recognises a repetition by its
//! token.

use std::time::Duration;

use damper_core::Code;
use damper_core::job::{Job, JobEnd, Next, Outcome, SharedBounds, Wall};
use tokio::time::sleep;

use crate::clock::Now;
use crate::id::LeaseId;
use crate::shared::Inner;
use crate::state::State;
use crate::state::lease::{Ended, HowEnded};
use crate::state::worker::WorkerNo;
use crate::store::{After, Error, Evidence, FailedDelivery, Record, Settled, SettledBy, Settlement};
use crate::worker::{Settle, ToWorker};

/// Length of a worker's description.
pub const MAX_DETAIL_BYTES: usize = 200;
/// Waits between two attempts to reach the store.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// What becomes of a job.
#[derive(Clone, Copy, Debug)]
struct Decided {
    to: After,
    at: Wall,
    job: Job,
    ended: &'static str,
}

impl Decided {
    fn new(job: Job, next: Next, now: Wall) -> Self {
        match next {
            Next::At(at) => Self { to: After::Waiting, at, job, ended: "" },
            Next::End(end) => {
                let to = match end {
                    JobEnd::Done => After::Done,
                    JobEnd::Expired => After::Expired,
                    JobEnd::Cancelled => After::Cancelled,
                    JobEnd::Dead(_) | JobEnd::Lost | JobEnd::Refused => After::Dead,
                };
                Self { to, at: now, job, ended: end.name() }
            }
        }
    }
}

impl Inner {
    /// Settles a delivery for its worker. Returns true if the job had been delivered again, or is gone.
    pub(crate) async fn settle(&self, no: WorkerNo, id: LeaseId, how: Settle) -> bool {
        if id.store != self.store.id() {
            return true;
        }
        let key = (id.job, id.delivery);
        let known = {
            let mut state = self.state();
            let lease = state.leases.named(id);
            lease.map(|lease| {
                lease.is_settling = true;
                lease.record.clone()
            })
        };
        let is_known = known.is_some();
        let record = match known {
            Some(record) => Some(record),
            None => self.read(id).await,
        };
        let Some(record) = record else { return true };
        let now = self.now();
        let outcome = outcome(&how, &record, now.wall);
        let (decided, failure, evidence) = {
            let mut state = self.state();
            if let Some(worker) = state.workers.get_mut(&no) {
                // Before the commit, after which the job can be due.
                match how {
                    Settle::Released { not_before, .. } => {
                        worker.block(&record.lane, not_before, now.instant)
                    }
                    Settle::Done | Settle::Failed { .. } | Settle::Dead { .. } => {
                        worker.unblock(&record.lane)
                    }
                }
            }
            let decided = state.decide(&record, id.token, &how, now);
            (
                decided,
                failure_of(&how, &record, state.name_of(no), now.wall),
                state.evidence(&record, outcome).filter(|_| self.store.is_shared()),
            )
        };
        let by = SettledBy::Worker;
        let settlement = Settlement { failure, evidence, ..settlement(id, by, decided) };
        let settled = self.commit_settlement(settlement).await;
        let mut state = self.state();
        state.book(&record, &how, decided.to, settled);
        if is_known {
            state.settled(key, &outcome, self.now());
        }
        drop(state);
        self.wake.notify_one();
        settled == Settled::Lost
    }

    /// Ends a delivery whose worker is gone.
    pub(crate) async fn end(&self, Ended { key, how }: Ended) {
        let now = self.now();
        let (settlement, worker) = {
            let state = self.state();
            let Some(lease) = state.leases.get(key) else { return };
            let policy = state.policy(&lease.record.lane.queue);
            let mut job = lease.record.job;
            let (settings, is_alone, random) = (policy.settings(), lease.is_alone, fastrand::u64(..));
            let next = match how {
                HowEnded::Lost => job.lost(settings, is_alone, now.wall, random),
                HowEnded::Unknown => job.unknown(settings, is_alone, now.wall, random),
                HowEnded::Released(wait) => job.released(now.wall + wait),
                HowEnded::Over(end) => Next::End(end),
            };
            let id = LeaseId { store: self.store.id(), job: key.0, delivery: key.1, token: lease.token };
            let by = SettledBy::Server(self.server());
            (settlement(id, by, Decided::new(job, next, now.wall)), lease.worker.zip(Some(id)))
        };
        let to = settlement.to;
        let settled = self.commit_settlement(settlement).await;
        let mut state = self.state();
        let Some(lease) = state.settled(key, &Outcome::Unknown, self.now()) else { return };
        if settled != Settled::Lost {
            let totals = &mut state.queue(&lease.record.lane.queue).totals;
            match how {
                HowEnded::Lost | HowEnded::Unknown => totals.lost += 1,
                HowEnded::Released(_) => totals.released += 1,
                HowEnded::Over(_) => {}
            }
            totals.count_end(to);
        }
        // Its worker is there, but silent or too slow.
        if let Some((no, id)) = worker
            && let Some(worker) = state.workers.get(&no)
        {
            // A stream that does not read is closed by its owner.
            let _ = worker.out.try_send(ToWorker::Cancelled(id));
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Commits a settlement, again and again while the store does not respond.
    async fn commit_settlement(&self, settlement: Settlement) -> Settled {
        let mut wait = FIRST_WAIT;
        loop {
            match self.writer.settle(settlement.clone()).await {
                Ok(settled) => return settled,
                // Repeating it would not help.
                Err(Error::Invalid(reason)) => {
                    tracing::error!(job = %settlement.id, reason, "the job store rejected the result of a delivery");
                    return Settled::Lost;
                }
                Err(error) => {
                    tracing::debug!(job = %settlement.id, %error, "the result of a delivery cannot be stored yet; waiting for the job store")
                }
            }
            sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Returns the job of a lease that is not kept here; `None` if it is gone.
    async fn read(&self, id: LeaseId) -> Option<Record> {
        let mut wait = FIRST_WAIT;
        loop {
            match self.store.get(id.job).await {
                Ok(record) => return record.filter(|record| record.job.deliveries == id.delivery),
                Err(error) => {
                    tracing::debug!(job = %id.job, %error, "the result of a delivery cannot be stored yet; waiting for the job store")
                }
            }
            sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }
}

impl State {
    /// Returns what a settlement makes of a job, given the counters of its lease.
    fn decide(&self, record: &Record, token: u64, how: &Settle, now: Now) -> Decided {
        let lane = &record.lane;
        let policy = self.policy(&lane.queue);
        let mut job = counters(record, token);
        let next = match how {
            Settle::Done => job.done(),
            Settle::Failed { failure, took, .. } => {
                let queue = self.by_name.get(&*lane.queue);
                let stop = queue.is_some_and(|queue| queue.stops(&policy, &lane.route, *took, now.time));
                job.failed(policy.settings(), failure, stop, now.wall, fastrand::u64(..))
            }
            Settle::Released { .. } => job.released(now.wall),
            Settle::Dead { .. } => job.refused(),
        };
        Decided::new(job, next, now.wall)
    }

    /// Returns what the end of a delivery shows, for the bounds over all servers.
    fn evidence(&self, record: &Record, outcome: Outcome) -> Option<Evidence> {
        let policy = self.policy(&record.lane.queue);
        let evidence = Evidence { bounds: SharedBounds::from(policy.settings()), outcome };
        (outcome != Outcome::Unknown).then_some(evidence)
    }

    /// Returns `service/instance` of a worker; empty if its stream has ended.
    fn name_of(&self, no: WorkerNo) -> String {
        let worker = self.workers.get(&no).map(|worker| &worker.identity);
        worker.map(|worker| format!("{}/{}", worker.service, worker.instance)).unwrap_or_default()
    }

    /// Counts a settlement of a worker.
    fn book(&mut self, record: &Record, how: &Settle, to: After, settled: Settled) {
        let totals = &mut self.queue(&record.lane.queue).totals;
        match settled {
            Settled::Repeated => return,
            Settled::Lost => {
                totals.late += 1;
                return;
            }
            Settled::Applied | Settled::Replaced => {}
        }
        match how {
            Settle::Done => {}
            Settle::Failed { .. } | Settle::Dead { .. } => totals.failed += 1,
            Settle::Released { .. } => totals.released += 1,
        }
        totals.count_end(to);
    }
}

/// Returns the counters of a lease, before a server has ended it.
fn counters(record: &Record, token: u64) -> Job {
    let booked = record.booked.filter(|booked| booked.token == token);
    booked.and_then(|booked| booked.before).unwrap_or(record.job)
}

fn settlement(id: LeaseId, by: SettledBy, decided: Decided) -> Settlement {
    let LeaseId { job: job_id, delivery, token, store: _ } = id;
    let Decided { to, at, job, ended } = decided;
    let ended = ended.to_owned();
    Settlement { id: job_id, delivery, token, by, to, at, job, ended, failure: None, evidence: None }
}

/// Returns what is kept of a failed delivery.
fn failure_of(how: &Settle, record: &Record, worker: String, now: Wall) -> Option<FailedDelivery> {
    let (code, took, detail) = match how {
        Settle::Failed { failure, took, detail } => (failure.code, *took, detail),
        Settle::Dead { reason } => (Code::Unknown, now.since(record.at), reason),
        Settle::Done | Settle::Released { .. } => return None,
    };
    Some(FailedDelivery {
        at: now,
        delivery: record.job.deliveries,
        code,
        took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        worker,
        detail: detail[..detail.floor_char_boundary(MAX_DETAIL_BYTES)].to_owned(),
    })
}

/// Returns the evidence that a settlement is about the callee.
fn outcome(how: &Settle, record: &Record, now: Wall) -> Outcome {
    match how {
        Settle::Done => Outcome::Done { took: now.since(record.at) },
        Settle::Failed { failure, .. } => Outcome::Failed(*failure),
        Settle::Released { .. } | Settle::Dead { .. } => Outcome::Unknown,
    }
}
