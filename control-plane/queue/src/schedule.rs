//! The scheduler: asks the store for due jobs and sends them to workers.
//!
//! One task. It sleeps until the earliest lane that is due, admitted and wanted, asks for as many jobs as
//! credits, pace, rate and `max_in_flight` allow, and sends them after the commit. A store that several
//! servers share may give fewer: it keeps the bounds over all of them. Jobs that wait are in the store alone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{sleep, sleep_until, timeout};

use crate::shared::Inner;
use crate::state::State;
use crate::state::lease::{Ended, HowEnded, Lease};
use crate::state::plan::Ask;
use crate::store::{self, LeaseRequest, Record};

/// Time between two requests while the store does not respond.
const STORE_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Bytes that a lane can get in one request in any case.
const LEAST_BYTES: u64 = 1 << 20;
/// Time between two comparisons of the leases here with those of the store.
const RECLAIM_EVERY: Duration = Duration::from_secs(60);
/// Failed requests that are remembered.
const MAX_UNSURE: usize = 1_024;

/// Requests for due jobs that failed, by the seeds of their tokens. The outcome of each is unknown: its
/// commit may even follow later.
#[derive(Default)]
struct Unsure(VecDeque<u64>);

impl Unsure {
    fn add(&mut self, seed: u64) {
        self.0.truncate(MAX_UNSURE - 1);
        self.0.push_front(seed);
    }

    /// Returns true if one of the requests made this lease: it was not sent to a worker.
    fn made(&self, lease: &Lease) -> bool {
        let (id, delivery) = lease.key();
        self.0.iter().any(|seed| store::token(*seed, id, delivery) == lease.token)
    }
}

impl Inner {
    /// Delivers jobs for ever.
    pub(crate) async fn deliver(self: &Arc<Self>) {
        let mut reclaimed = self.now().instant;
        let (mut is_unsure, mut unsure) = (false, Unsure::default());
        loop {
            if is_unsure || reclaimed.elapsed() >= RECLAIM_EVERY {
                is_unsure = self.reclaim(&unsure).await.is_err();
                reclaimed = self.now().instant;
            }
            let plan = {
                let mut state = self.state();
                if state.is_stopping {
                    return;
                }
                state.plan(self.now())
            };
            if plan.asks.is_empty() {
                // Returns at once if it was notified since the plan was made.
                let _ = timeout(plan.wait, self.wake.notified()).await;
            } else if let Err(seed) = self.lease(plan.asks).await {
                is_unsure = true;
                unsure.add(seed);
                sleep(STORE_AGAIN_AFTER).await;
            }
        }
    }

    /// Asks the store for jobs and sends them. Errors with the seed of the request if the outcome is unknown.
    async fn lease(self: &Arc<Self>, asks: Vec<Ask>) -> Result<(), u64> {
        let (now, server, seed) = (self.now(), self.server(), random());
        let is_shared = self.store.is_shared();
        let request = |ask: &Ask| LeaseRequest {
            lane: ask.lane.clone(),
            count: u32::try_from(ask.workers.len()).unwrap_or(u32::MAX),
            // The workers' bounds were checked with the mean size of the lane's jobs.
            max_bytes: (2 * ask.bytes * ask.workers.len() as u64).max(LEAST_BYTES),
            first_only: ask.first_only,
            bounds: is_shared.then_some(ask.bounds),
            server,
            now: now.wall,
            seed,
        };
        let leased = self.writer.lease(asks.iter().map(request).collect()).await;
        self.note_commit(now.instant.elapsed());
        let mut state = self.state();
        let now = self.now();
        let ended: Vec<Ended> = match leased {
            Ok(leased) => {
                // From the last one on: of the lanes that were refused, the first one is next.
                let sent = asks.iter().zip(leased).rev();
                sent.flat_map(|(ask, leased)| state.dispatch(ask, leased, now)).collect()
            }
            Err(error) => {
                tracing::debug!(%error, "no jobs were leased");
                asks.iter().for_each(|ask| state.cancel(ask, now));
                return Err(seed);
            }
        };
        drop(state);
        self.ends.notify_one();
        self.end_all(ended);
        Ok(())
    }

    /// Takes in the leases of this server that only the store knows. Those of requests that failed are given
    /// back: they were not sent. All others came from another server, by a commit whose outcome was unknown:
    /// their workers may name them.
    async fn reclaim(&self, unsure: &Unsure) -> Result<(), store::Error> {
        let leases = self.store.leases_of(self.server()).await?;
        let kept =
            |state: &State, record: &Record| state.leases.get((record.id, record.job.deliveries)).is_some();
        let unknown: Vec<Record> = {
            let state = self.state();
            leases.into_iter().filter(|record| !kept(&state, record)).collect()
        };
        // One that ended while they were read has gone from memory after its commit, so it is not read again.
        let mut left = Vec::new();
        for record in unknown {
            left.extend(self.store.get(record.id).await?.filter(|now| now.state == record.state));
        }
        let now = self.now();
        let given_back: Vec<Ended> = {
            let mut state = self.state();
            left.retain(|record| !kept(&state, record));
            let unknown: Vec<Lease> =
                left.into_iter().filter_map(|record| state.lease_of(record, now)).collect();
            let mut given_back = Vec::new();
            for lease in unknown {
                let (key, was_sent) = (lease.key(), !unsure.made(&lease));
                state.adopt(lease, now);
                if let Some(lease) = state.leases.get_mut(key).filter(|_| !was_sent) {
                    lease.is_settling = true;
                    given_back.push(Ended { key, how: HowEnded::Released(Duration::ZERO) });
                }
            }
            given_back
        };
        self.ends.notify_one();
        join_all(given_back.into_iter().map(|ended| self.end(ended))).await;
        Ok(())
    }

    /// Ends deliveries without waiting for the store.
    pub(crate) fn end_all(self: &Arc<Self>, ended: Vec<Ended>) {
        for ended in ended {
            let inner = self.clone();
            tokio::spawn(async move { inner.end(ended).await });
        }
    }

    /// Ends leases whose time has run out, for ever.
    pub(crate) async fn watch_leases(self: &Arc<Self>) {
        loop {
            let next = self.state().leases.next_end();
            tokio::select! {
                () = self.ends.notified() => {}
                () = async { match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                } } => {}
            }
            let ended = {
                let mut state = self.state();
                if state.is_stopping {
                    return;
                }
                state.ended(self.now())
            };
            self.end_all(ended);
        }
    }
}

/// Returns random bits that no worker can predict.
fn random() -> u64 {
    getrandom::u64().expect("the system has random numbers")
}
