//! One pass of the scheduler: which lanes get how many deliveries now, and to which workers.
//!
//! A lane is a candidate if a job of it is due and nothing holds it. The candidates of a queue get their
//! turns one after the other, at most [`TURN`] jobs each time, until credits, pace, rate or `max_in_flight`
//! are used up. The next pass begins behind the last lane that got a turn. So a lane with one due job is
//! served as soon as one with a million (deficit round robin of Shreedhar and Varghese, 1995, with jobs of
//! equal cost).

use std::collections::HashMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::Duration;

use damper_core::Mode;
use damper_core::job::{Queue, SharedBounds};
use tokio::time::Instant;

use crate::clock::Now;
use crate::queues::Queues;
use crate::state::lane::Held;
use crate::state::queue::QueueState;
use crate::state::server_state::State;
use crate::state::worker::{Worker, WorkerNo};
use crate::store::Lane;

/// Lanes of one request to the store.
const MOST_LANES: usize = 64;
/// Jobs of one request to the store.
const MOST_JOBS: u32 = 512;
/// Bytes of their bodies, by the mean sizes.
const MOST_BYTES: u64 = 4 << 20;
/// Jobs that a lane gets in a turn.
const TURN: u32 = 16;
/// Longest time without a pass.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The requests of one pass.
pub(crate) struct Plan {
    pub(crate) asks: Vec<Ask>,
    /// Time until the next pass, if nothing happens before.
    pub(crate) wait: Duration,
}

/// A request for jobs of one lane, with a reserved slot for each.
pub(crate) struct Ask {
    pub(crate) lane: Arc<Lane>,
    pub(crate) workers: Vec<WorkerNo>,
    pub(crate) first_only: bool,
    /// Number of the request.
    pub(crate) request: u64,
    /// Bounds of the queue.
    pub(crate) bounds: SharedBounds,
    /// Reserved bytes per job.
    pub(crate) bytes: u64,
    /// The callee fails: one job, to find out whether it still does.
    pub(crate) is_probe: bool,
}

/// Room of one request to the store.
struct Batch {
    lanes: usize,
    jobs: u32,
    bytes: u64,
}

/// A lane with a due job that nothing holds.
struct Candidate {
    place: usize,
    ask: Ask,
    /// Workers that may get its jobs.
    eligible: Vec<WorkerNo>,
    /// The next one of them.
    next: usize,
}

impl State {
    /// Plans the next request to the store, and reserves what it needs.
    pub(crate) fn plan(&mut self, now: Now) -> Plan {
        self.asked.requests += 1;
        let mut batch = Batch { lanes: MOST_LANES, jobs: MOST_JOBS, bytes: MOST_BYTES };
        let mut asks = Vec::new();
        let mut wake = now.wall + LONGEST_WAIT;
        for name in self.in_turn() {
            let Some(queue) = self.by_name.get_mut(&name) else { continue };
            if queue.needs_pass(now.wall) && !batch.is_full() {
                let policy = self.queues.get(&name).cloned();
                let (queues, workers) = (&self.queues, &mut self.workers);
                let planned = Pass { queues, workers, request: self.asked.requests, now }
                    .queue(queue, policy, &mut batch);
                if !planned.is_empty() {
                    self.cursor = name;
                }
                asks.extend(planned);
            }
            wake = wake.min(if queue.is_dirty { now.wall } else { queue.wake });
        }
        Plan { asks, wait: wake.since(now.wall) }
    }

    /// Returns all queues, beginning behind the last one served.
    fn in_turn(&self) -> Vec<Arc<str>> {
        let behind = self.by_name.range((Excluded(self.cursor.clone()), Unbounded));
        let others = self.by_name.range(..=self.cursor.clone());
        behind.chain(others).map(|(name, _)| name.clone()).collect()
    }
}

impl Batch {
    fn is_full(&self) -> bool {
        self.lanes == 0 || self.jobs == 0 || self.bytes == 0
    }
}

/// Returns the policy of a queue that delivers, or why it does not.
pub(crate) fn deliverable(policy: Option<Arc<Queue>>) -> Result<Arc<Queue>, &'static str> {
    let Some(policy) = policy else { return Err("no_policy") };
    match policy.settings().policy.mode {
        Mode::Off => Err("off"),
        Mode::Observe | Mode::Enforce if !policy.settings().paused.is_empty() => Err("paused"),
        Mode::Observe | Mode::Enforce => Ok(policy),
    }
}

/// What the pass over one queue reads and reserves.
struct Pass<'a> {
    queues: &'a Arc<Queues>,
    workers: &'a mut HashMap<WorkerNo, Worker>,
    request: u64,
    now: Now,
}

impl Pass<'_> {
    fn queue(&mut self, queue: &mut QueueState, policy: Option<Arc<Queue>>, batch: &mut Batch) -> Vec<Ask> {
        (queue.is_dirty, queue.wake) = (false, self.now.wall + LONGEST_WAIT);
        let policy = match deliverable(policy) {
            Ok(policy) => policy,
            Err(why) => {
                queue.held = why;
                return Vec::new();
            }
        };
        queue.held = "";
        queue.policy = Some(policy.clone());
        if let Err(held) = queue.own_room(&policy, self.now) {
            queue.wakes(held.until);
            queue.hold_due(held, self.now.wall);
            return Vec::new();
        }
        let mut candidates = self.candidates(queue, &policy, batch.lanes);
        self.share_out(queue, &policy, &mut candidates, batch);
        candidates.retain(|candidate| !candidate.ask.workers.is_empty());
        batch.lanes -= candidates.len();
        if let Some(last) = candidates.last() {
            queue.lanes.cursor = last.place + 1;
            // More may be due than one request takes.
            queue.is_dirty = true;
        }
        candidates.into_iter().map(|candidate| candidate.ask).collect()
    }

    /// Returns up to `most` lanes that can be served, beginning behind the last one served.
    fn candidates(&mut self, queue: &mut QueueState, policy: &Queue, most: usize) -> Vec<Candidate> {
        let mut found = Vec::new();
        let count = queue.lanes.len();
        for step in 0..count {
            if found.len() == most {
                queue.is_dirty = true;
                break;
            }
            let place = (queue.lanes.cursor + step) % count;
            match self.candidate(queue, policy, place) {
                Ok(candidate) => found.extend(candidate),
                Err(held) => {
                    queue.wakes(held.until);
                    queue.lanes.at(place).held = Some(held);
                }
            }
        }
        found
    }

    /// Returns a lane that can be served; `None` if nothing is due.
    fn candidate(
        &self,
        queue: &mut QueueState,
        policy: &Queue,
        place: usize,
    ) -> Result<Option<Candidate>, Held> {
        let now = self.now;
        let lane = queue.lanes.at(place);
        lane.held = None;
        let Some(due) = lane.due(false) else { return Ok(None) };
        if due > now.wall {
            queue.wakes(Some(due));
            return Ok(None);
        }
        let stops = lane.stops(self.queues);
        if stops.calls_until > now.wall {
            return Err(Held::until("killed", stops.calls_until));
        }
        let first_only = stops.repeats_until > now.wall;
        if first_only && lane.due(true).is_none_or(|due| due > now.wall) {
            let until = lane.due(true).map_or(stops.repeats_until, |due| due.min(stops.repeats_until));
            return Err(Held::until("killed", until));
        }
        let (lane, bytes) = (lane.lane.clone(), lane.mean_bytes());
        let is_probe = queue.admit(policy, &lane.route, now)?;
        let eligible = self.eligible(queue, policy, &lane)?;
        let (request, bounds) = (self.request, SharedBounds::from(policy.settings()));
        let ask = Ask { lane, workers: Vec::new(), first_only, request, bounds, bytes, is_probe };
        Ok(Some(Candidate { place, ask, eligible, next: 0 }))
    }

    /// Returns the workers that may get jobs of a lane and have a slot for it.
    fn eligible(&self, queue: &mut QueueState, policy: &Queue, lane: &Lane) -> Result<Vec<WorkerNo>, Held> {
        let submitter = lane.route.caller_service();
        let (mut why, mut blocked_until) = ("no_worker", None::<Instant>);
        let mut found = Vec::new();
        for no in &queue.workers {
            let Some(worker) = self.workers.get(no) else { continue };
            if !policy.delivers_to(&worker.identity.service, submitter) {
                continue;
            }
            if why == "no_worker" {
                why = "no_credits";
            }
            if worker.credits(&lane.queue) == 0 {
                continue;
            }
            match worker.blocked(lane, self.now.instant) {
                None => found.push(*no),
                Some(until) => {
                    why = "released";
                    blocked_until = Some(blocked_until.map_or(until, |known| known.min(until)));
                }
            }
        }
        if !found.is_empty() {
            let shift = queue.next_worker % found.len();
            found.rotate_left(shift);
            queue.next_worker = queue.next_worker.wrapping_add(1);
            return Ok(found);
        }
        let until = blocked_until.map(|until| self.now.wall + (until - self.now.instant));
        Err(Held { why, until })
    }

    /// Gives the candidates their turns until nothing is left for them.
    fn share_out(
        &mut self,
        queue: &mut QueueState,
        policy: &Queue,
        candidates: &mut [Candidate],
        batch: &mut Batch,
    ) {
        let turn = self.turn(queue, candidates.len());
        let mut is_going_on = !candidates.is_empty();
        while is_going_on {
            is_going_on = false;
            for candidate in &mut *candidates {
                for _ in 0..turn {
                    match self.reserve(queue, policy, candidate, batch) {
                        Ok(()) => is_going_on = true,
                        Err(held) => {
                            queue.wakes(held.until);
                            if candidate.ask.workers.is_empty() {
                                queue.lanes.at(candidate.place).held = Some(held);
                            }
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Returns the jobs of a turn: fewer if there are few credits for many lanes.
    fn turn(&self, queue: &QueueState, lanes: usize) -> u32 {
        let workers = queue.workers.iter().filter_map(|no| self.workers.get(no));
        let credits: u32 = workers.map(|worker| worker.credits(&queue.name)).fold(0, u32::saturating_add);
        (credits / u32::try_from(lanes).unwrap_or(u32::MAX).max(1)).clamp(1, TURN)
    }

    /// Reserves what one delivery of a lane needs.
    fn reserve(
        &mut self,
        queue: &mut QueueState,
        policy: &Queue,
        candidate: &mut Candidate,
        batch: &mut Batch,
    ) -> Result<(), Held> {
        let Candidate { ask, eligible, next, .. } = candidate;
        if ask.is_probe && !ask.workers.is_empty() {
            return Err(Held::open("callee_failing"));
        }
        // The next pass follows at once.
        if batch.is_full() {
            queue.is_dirty = true;
            return Err(Held::open(""));
        }
        queue.admit(policy, &ask.lane.route, self.now)?;
        let worker = loop {
            let Some(no) = eligible.get(*next % eligible.len().max(1)).copied() else {
                return Err(Held::open("no_credits"));
            };
            match self.workers.get_mut(&no).filter(|worker| worker.credits(&queue.name) > 0) {
                Some(worker) => {
                    *next = (*next + 1) % eligible.len();
                    worker.reserve(&queue.name, ask.bytes);
                    break no;
                }
                None => {
                    eligible.retain(|other| *other != no);
                }
            }
        };
        ask.workers.push(worker);
        queue.begin(policy, &ask.lane.route, self.now.time);
        batch.jobs -= 1;
        batch.bytes = batch.bytes.saturating_sub(ask.bytes);
        Ok(())
    }
}
