//! What happens to jobs once the store has leased them: each is sent to the worker whose slot was reserved,
//! or to another one if that has gone meanwhile.
//!
//! A job that was lost twice in a row may be what kills its workers. It is sent to a worker without other
//! deliveries. If there is none, a worker gets no further deliveries until its present ones have ended, and
//! then this one.

use std::sync::Arc;
use std::time::Duration;

use damper_core::job::Queue;

use crate::clock::Now;
use crate::id::LeaseId;
use crate::state::lease::{Ended, HowEnded};
use crate::state::lease::{GRACE, Lease, LeaseKey};
use crate::state::plan::Ask;
use crate::state::server_state::State;
use crate::state::worker::{Worker, WorkerNo};
use crate::store::{self, Body, Lane};
use crate::worker::{Delivery, ToWorker};
use crate::writer::Leased;

/// Time for a worker to become free for a job that it gets alone.
const FREE_WITHIN: Duration = Duration::from_secs(60);
/// Wait of a job that must be delivered alone and finds no worker for that.
const ALONE_AGAIN_AFTER: Duration = Duration::from_secs(5);

impl State {
    /// Sends the leased jobs of a request. Returns the leases that must be ended at once.
    pub(crate) fn dispatch(&mut self, ask: &Ask, leased: Leased, now: Now) -> Vec<Ended> {
        let Leased { jobs, next, refused } = leased;
        let policy = self.policy(&ask.lane.queue);
        let count = jobs.len();
        let unused = ask.workers.get(count..).unwrap_or_default().to_vec();
        let mut ended = Vec::new();
        for ((record, body), no) in jobs.into_iter().zip(&ask.workers) {
            self.unreserve(*no, ask, false);
            let store::State::Leased { token, .. } = record.state else { continue };
            let end = self.end_of(&ask.lane.queue, now);
            let lease = Lease::new(record, token, u64::from(body.bytes()), end);
            let key = lease.key();
            self.leases.insert(lease, None);
            if let Err(how) = self.begin(key, body, *no, &policy, now) {
                if let Some(lease) = self.leases.get_mut(key) {
                    lease.is_settling = true;
                }
                ended.push(Ended { key, how });
            }
        }
        self.give_back(ask, &unused, now);
        let queue = self.queue(&ask.lane.queue);
        if let Some(lane) = queue.lanes.get_mut(&ask.lane.route) {
            lane.answered(ask.request, next);
        }
        if let Some(refused) = refused {
            queue.refused(&ask.lane.route, refused, count == 0, now.time);
        }
        ended
    }

    /// Gives back what a failed request had reserved.
    pub(crate) fn cancel(&mut self, ask: &Ask, now: Now) {
        self.give_back(ask, &ask.workers, now);
    }

    fn give_back(&mut self, ask: &Ask, unused: &[WorkerNo], now: Now) {
        let policy = self.policy(&ask.lane.queue);
        for no in unused {
            self.unreserve(*no, ask, true);
            let queue = self.queue(&ask.lane.queue);
            queue.unused(&policy, &ask.lane.route, ask.is_probe, now.time);
        }
        // A worker that was reserved for more jobs than there are is free now.
        for no in &ask.workers {
            self.send_alone(*no, now);
        }
    }

    fn unreserve(&mut self, no: WorkerNo, ask: &Ask, unused: bool) {
        if let Some(worker) = self.workers.get_mut(&no) {
            worker.unreserve(&ask.lane.queue, ask.bytes, unused);
        }
    }

    /// Sends a leased job to this worker, or to another. Errors with how the delivery ends instead.
    fn begin(
        &mut self,
        key: LeaseKey,
        body: Body,
        no: WorkerNo,
        policy: &Arc<Queue>,
        now: Now,
    ) -> Result<(), HowEnded> {
        let lease = self.leases.get_mut(key).expect("it was inserted");
        let (job, lane) = (lease.record.job, lease.record.lane.clone());
        job.deliver(policy.settings(), now.wall).map_err(HowEnded::Over)?;
        if job.is_suspect(policy.settings()) {
            return self.begin_alone(key, body, no, policy, now);
        }
        let no = self.place(no, &lane, policy, now).ok_or(HowEnded::Released(Duration::ZERO))?;
        self.send(key, body, no, policy, now)
    }

    /// Returns this worker if it can still take the job, else another one with a slot.
    fn place(&mut self, no: WorkerNo, lane: &Lane, policy: &Queue, now: Now) -> Option<WorkerNo> {
        if self.workers.get(&no).is_some_and(Worker::is_available) {
            return Some(no);
        }
        let submitter = lane.route.caller_service();
        let other = self.queue(&lane.queue).workers.clone().into_iter().find(|no| {
            self.workers.get(no).is_some_and(|worker| {
                worker.credits(&lane.queue) > 0
                    && worker.blocked(lane, now.instant).is_none()
                    && policy.delivers_to(&worker.identity.service, submitter)
            })
        })?;
        let worker = self.workers.get_mut(&other)?;
        worker.reserve(&lane.queue, 0);
        worker.unreserve(&lane.queue, 0, false);
        Some(other)
    }

    /// Sends a job to a worker that has no other one, or reserves a worker for it.
    fn begin_alone(
        &mut self,
        key: LeaseKey,
        body: Body,
        no: WorkerNo,
        policy: &Arc<Queue>,
        now: Now,
    ) -> Result<(), HowEnded> {
        let lane = self.leases.get(key).expect("it was inserted").record.lane.clone();
        let submitter = lane.route.caller_service();
        let all = [no].into_iter().chain(self.queue(&lane.queue).workers.iter().copied()).collect::<Vec<_>>();
        let free = all.into_iter().filter(|no| {
            self.workers.get(no).is_some_and(|worker| {
                worker.is_available() && policy.delivers_to(&worker.identity.service, submitter)
            })
        });
        let busy = |no: &WorkerNo| self.workers[no].leases.len() + self.workers[no].reserved;
        let Some(no) = free.min_by_key(busy) else { return Err(HowEnded::Released(ALONE_AGAIN_AFTER)) };
        let lease = self.leases.get_mut(key).expect("it was inserted");
        lease.is_alone = true;
        lease.unsent = Some(body);
        lease.end.deadline = now.instant + FREE_WITHIN;
        lease.end.without_worker = now.instant + FREE_WITHIN;
        self.leases.relist(key, None);
        self.workers.get_mut(&no).expect("it was found").alone = Some(key);
        self.send_alone(no, now);
        Ok(())
    }

    /// Sends the job that waits for a worker, if the worker has become free.
    pub(crate) fn send_alone(&mut self, no: WorkerNo, now: Now) {
        let Some(worker) = self.workers.get(&no) else { return };
        let Some(key) = worker.alone.filter(|_| worker.leases.is_empty() && worker.reserved == 0) else {
            return;
        };
        // A silent one gets it once it sends something, or it goes back after its time.
        if worker.is_silent {
            return;
        }
        let Some(lease) = self.leases.get_mut(key).filter(|lease| !lease.is_settling) else { return };
        let Some(body) = lease.unsent.take() else { return };
        let lane = lease.record.lane.clone();
        let policy = self.policy(&lane.queue);
        if self.send(key, body, no, &policy, now).is_err() {
            // It ends by itself, at once.
            if let Some(lease) = self.leases.get_mut(key) {
                (lease.end.deadline, lease.worker) = (now.instant, None);
            }
            self.leases.relist(key, None);
        }
    }

    fn send(
        &mut self,
        key: LeaseKey,
        body: Body,
        no: WorkerNo,
        policy: &Queue,
        now: Now,
    ) -> Result<(), HowEnded> {
        let store = self.store;
        let lease = self.leases.get_mut(key).expect("it was inserted");
        let send = lease.record.job.deliver(policy.settings(), now.wall).map_err(HowEnded::Over)?;
        let Some(worker) = self.workers.get_mut(&no) else { return Err(HowEnded::Released(Duration::ZERO)) };
        let record = &lease.record;
        let delivery = Delivery {
            lease: LeaseId { store, job: key.0, delivery: key.1, token: lease.token },
            job: key.0,
            lane: record.lane.clone(),
            number: send.number,
            sends_before: send.sends_before,
            body,
            limit: send.limit,
            call_id: record.call_id.clone(),
            body_key_id: record.body_key_id.clone(),
        };
        let is_first = record.is_first();
        if worker.out.try_send(ToWorker::Delivery(Box::new(delivery))).is_err() {
            // Its stream has ended or is not read.
            worker.is_leaving = true;
            return Err(HowEnded::Released(Duration::ZERO));
        }
        worker.leases.insert(key);
        worker.bytes += lease.bytes;
        (lease.worker, lease.was_sent) = (Some(no), true);
        lease.end.deadline = now.instant + send.limit + GRACE;
        let last_message = worker.last_message;
        let totals =
            &mut self.queue(&self.leases.get(key).expect("it was sent").record.lane.queue.clone()).totals;
        if is_first {
            totals.delivered_first += 1
        } else {
            totals.delivered_again += 1
        }
        self.leases.relist(key, Some(last_message));
        Ok(())
    }
}
