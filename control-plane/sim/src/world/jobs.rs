//! Queued loads: jobs wait, and workers deliver them when the engine admits it.
//!
//! [`Flow`] decides when, [`Job`] what follows, as in the scheduler of a server. This file keeps what waits
//! and the free slots of the workers. The loads of one queue take turns, one delivery each.
//!
//! Under `none` and `peer` a queue has its bounds, attempts and waits, but callees neither hold nor pace its
//! jobs. Not simulated: lost deliveries, several servers, and kills. A delivery that the worker's own rule
//! does not send is released, and due again after [`RELEASED_FOR`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use damper_core::job::{Admit, Flow, Job, JobEnd, Next, Outcome, Queue, Submission, Wall};
use damper_core::{Failure, RouteKey, Time};

use super::client::Parent;
use super::{Event, JobKey, World, key};
use crate::plan::Plan;
use crate::scenario::{Arrivals, Load, Queued, Strategy};

/// First wait of a worker that has released a delivery.
const RELEASED_FOR: Duration = Duration::from_secs(1);

/// A queue of the strategy.
pub(super) struct QueueState {
    queue: Queue,
    flow: Flow,
    lanes: Vec<Lane>,
    /// Next lane.
    turn: usize,
    /// Time of the next pass.
    wake_at: Option<Time>,
}

/// The jobs of one load.
struct Lane {
    load: usize,
    route: RouteKey,
    waiting: BinaryHeap<Reverse<Waiting>>,
    submitted: u64,
    /// Free slots by process, and the next process.
    free: Vec<u32>,
    turn: usize,
}

/// A waiting job, by its due time and then its number.
#[derive(PartialEq, Eq)]
struct Waiting {
    due: Wall,
    number: u64,
    submitted: Time,
    job: Job,
}

/// A delivery in flight.
pub(super) struct Delivery {
    queue: usize,
    lane: usize,
    process: usize,
    waiting: Waiting,
    began: Time,
}

/// How the call of a delivery ended.
pub(super) enum Delivered {
    Done,
    Failed(Failure),
    /// Nothing was sent.
    Released,
}

/// Returns the queues of a strategy that have loads.
pub(super) fn queues(plan: &Plan<'_>, strategy: &Strategy) -> Vec<QueueState> {
    let of = |queue: &Queue| {
        let loads = plan.scenario.load.iter().enumerate();
        let lanes: Vec<Lane> =
            loads.filter_map(|(index, load)| Lane::new(index, load, queue.name())).collect();
        (!lanes.is_empty()).then(|| QueueState {
            queue: queue.clone(),
            flow: Flow::default(),
            lanes,
            turn: 0,
            wake_at: None,
        })
    };
    strategy.queues.iter().filter_map(of).collect()
}

impl Lane {
    fn new(index: usize, load: &Load, queue: &str) -> Option<Self> {
        let Arrivals::Queued(queued) = &load.arrivals else { return None };
        let route = key(&load.caller, &load.call.service, &load.call.method)?;
        (queued.queue == queue).then(|| Self {
            load: index,
            route,
            waiting: BinaryHeap::new(),
            submitted: 0,
            free: vec![queued.concurrency; load.processes as usize],
            turn: 0,
        })
    }

    /// Returns a process with a free slot.
    fn free_process(&self) -> Option<usize> {
        let count = self.free.len();
        (0..count).map(|step| (self.turn + step) % count).find(|process| self.free[*process] > 0)
    }
}

impl QueueState {
    /// Returns the process that gets the next job of a lane; errors with the time of the next check, if it is
    /// known.
    fn next(&self, lane: usize, is_governed: bool, now: Time) -> Result<usize, Option<Time>> {
        let lane = &self.lanes[lane];
        let Some(Reverse(first)) = lane.waiting.peek() else { return Err(None) };
        let due = Time::from_micros(first.due.0.saturating_mul(1_000));
        if due > now {
            return Err(Some(due));
        }
        let settings = self.queue.settings();
        let admit = if is_governed {
            self.flow.admit(settings, &lane.route, now)
        } else {
            self.flow.room(settings, now)
        };
        match admit {
            Admit::Hold { until, .. } => Err(until),
            Admit::Deliver(_) | Admit::Probe => lane.free_process().ok_or(None),
        }
    }
}

impl World<'_> {
    /// Submits the backlog of a load.
    pub(super) fn backlog(&mut self, load: usize) {
        let Arrivals::Queued(Queued { backlog, .. }) = self.plan.scenario.load[load].arrivals else { return };
        (0..backlog).for_each(|_| self.submit(load));
    }

    /// Submits a job of a load.
    pub(super) fn submit(&mut self, load: usize) {
        let (now, random) = (self.now(), self.streams.engine.any());
        let Some((queue, lane)) = self.lane_of(load) else { return };
        let state = &mut self.queues[queue];
        let settings = state.queue.settings();
        let submission = Submission {
            failed: None,
            stop: false,
            sends_before: 0,
            not_before: None,
            expires_after: settings.expires_after,
        };
        self.ledger.jobs[load].submitted += 1;
        match Job::submit(settings, &submission, wall(now), random) {
            Ok((job, due)) => {
                let lane = &mut state.lanes[lane];
                lane.submitted += 1;
                let number = lane.submitted;
                lane.waiting.push(Reverse(Waiting { due, number, submitted: now, job }));
                self.wake_queue(queue, now);
            }
            Err(fate) => self.ledger.jobs[load].ended(JobEnd::Dead(fate), now, now),
        }
    }

    fn lane_of(&self, load: usize) -> Option<(usize, usize)> {
        let place = |state: &QueueState| state.lanes.iter().position(|lane| lane.load == load);
        self.queues.iter().enumerate().find_map(|(queue, state)| Some((queue, place(state)?)))
    }

    /// Makes a pass over a queue at this time, if there is none before.
    fn wake_queue(&mut self, queue: usize, at: Time) {
        let (at, state) = (at.max(self.agenda.now()), &mut self.queues[queue]);
        if state.wake_at.is_none_or(|known| known > at) {
            state.wake_at = Some(at);
            self.agenda.at(at, Event::Jobs(queue));
        }
    }

    /// Begins all deliveries of a queue that the engine admits now.
    pub(super) fn deliver_jobs(&mut self, queue: usize) {
        let now = self.now();
        if self.queues[queue].wake_at.is_none_or(|at| at > now) || now >= self.plan.end {
            return;
        }
        self.queues[queue].wake_at = None;
        let lanes = self.queues[queue].lanes.len();
        let mut idle = 0;
        while idle < lanes {
            let lane = self.queues[queue].turn % lanes;
            self.queues[queue].turn = lane + 1;
            idle = if self.deliver_job(queue, lane) { 0 } else { idle + 1 };
        }
    }

    /// Begins a delivery of a lane. Returns false if there is none.
    fn deliver_job(&mut self, queue: usize, lane: usize) -> bool {
        let now = self.now();
        let process = match self.queues[queue].next(lane, self.has_layer, now) {
            Ok(process) => process,
            Err(until) => {
                if let Some(at) = until {
                    self.wake_queue(queue, at);
                }
                return false;
            }
        };
        let QueueState { queue: policy, flow, lanes, .. } = &mut self.queues[queue];
        let (settings, state) = (policy.settings(), &mut lanes[lane]);
        let Some(Reverse(mut waiting)) = state.waiting.pop() else { return false };
        waiting.job.deliveries += 1;
        let load = state.load;
        let send = match waiting.job.deliver(settings, wall(now)) {
            Ok(send) => send,
            Err(end) => {
                self.ledger.jobs[load].ended(end, waiting.submitted, now);
                return true;
            }
        };
        flow.begins(settings, &state.route, now);
        state.free[process] -= 1;
        state.turn = process + 1;
        self.ledger.delivery(load, now);
        let delivery = self.deliveries.insert(Delivery { queue, lane, process, waiting, began: now });
        let route = self.route_of(load, process as u64);
        self.begin_call(route, Parent::Job(delivery, send.sends_before), Some(now + send.limit));
        true
    }

    /// Handles the end of a delivery.
    pub(super) fn delivered(&mut self, key: JobKey, how: &Delivered) {
        let Some(Delivery { queue, lane, process, mut waiting, began }) = self.deliveries.remove(key) else {
            return;
        };
        let (now, random) = (self.now(), self.streams.engine.any());
        let QueueState { queue: policy, flow, lanes, .. } = &mut self.queues[queue];
        let (settings, lane) = (policy.settings(), &mut lanes[lane]);
        let took = now.since(began);
        let (next, outcome) = match how {
            Delivered::Done => (waiting.job.done(), Outcome::Done { took }),
            Delivered::Failed(failure) => {
                let stop = flow.stops(settings, &lane.route, took, now);
                let next = waiting.job.failed(settings, failure, stop, wall(now), random);
                (next, Outcome::Failed(*failure))
            }
            Delivered::Released => (waiting.job.released(wall(now) + RELEASED_FOR), Outcome::Unknown),
        };
        flow.ended(settings, &lane.route, &outcome, now);
        lane.free[process] += 1;
        let count = &mut self.ledger.jobs[lane.load];
        match how {
            Delivered::Done => {}
            Delivered::Failed(_) => count.failed += 1,
            Delivered::Released => count.released += 1,
        }
        match next {
            Next::At(due) => lane.waiting.push(Reverse(Waiting { due, ..waiting })),
            Next::End(end) => count.ended(end, waiting.submitted, now),
        }
        self.wake_queue(queue, now);
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the time of the simulation as that of the job store.
fn wall(now: Time) -> Wall {
    Wall(now.as_micros() / 1_000)
}
