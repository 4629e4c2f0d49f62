//! Random batches from one seed: valid ones, late ones, repeated ones and wrong ones.
//!
//! A small world: two queues, four lanes of which two share their keys, few keys and order keys, three
//! servers. So jobs collide often.

use std::sync::Arc;

use damper_core::backoff::Sequence;
use damper_core::job::{Job, Wall};
use damper_core::{Code, RouteKey};
use damper_queue::store::{
    After, Batch, Body, Change, ChangeTo, FailedDelivery, Filter, JobId, Lane, LeaseClaim, LeaseRequest,
    Record, ServerId, SettledBy, Settlement, State, StateKind,
};
use fastrand::Rng;

use crate::model::Model;

pub(crate) const QUEUES: [&str; 2] = ["orders", "mails"];
pub(crate) const SERVERS: [ServerId; 3] = [ServerId(1), ServerId(2), ServerId(3)];

/// Generator of batches.
pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) now: Wall,
    pub(crate) lanes: Vec<Arc<Lane>>,
    /// Leases given so far: job, delivery, token, keeper.
    given: Vec<(JobId, u32, u64, ServerId)>,
    next_id: u64,
    /// Submits ids again that are known.
    repeats_ids: bool,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let lane = |queue: &str, cluster: &str, method: &str| {
            let route = RouteKey::new("web", cluster, "stock", method).expect("valid names");
            Arc::new(Lane { queue: queue.to_owned(), route })
        };
        let lanes = vec![
            lane("orders", "eu", "stock.Stock/Reserve"),
            lane("orders", "us", "stock.Stock/Reserve"),
            lane("orders", "eu", "stock.Stock/Release"),
            lane("mails", "eu", "stock.Stock/Reserve"),
        ];
        let now = Wall(1_700_000_000_000);
        Self { rng: Rng::with_seed(seed), now, lanes, given: Vec::new(), next_id: 0, repeats_ids: true }
    }

    /// Returns the next batch. The more operations, the more of them meet in one commit.
    pub(crate) fn batch(&mut self, model: &Model, operations: usize) -> Batch {
        self.now.0 += self.rng.u64(0..2_000);
        let mut batch = Batch::default();
        for _ in 0..operations {
            match self.rng.u32(0..100) {
                0..25 => batch.submissions.push(self.submission(model)),
                25..45 => batch.leases.push(self.lease_request()),
                45..80 => batch.settlements.extend(self.settlement(model)),
                80..85 => batch.claims.extend(self.claim()),
                _ => batch.changes.extend(self.change(model)),
            }
        }
        batch
    }

    /// Remembers leases, so that later batches settle them.
    pub(crate) fn leased(&mut self, leases: &[Vec<(Record, Body)>]) {
        for (job, _) in leases.iter().flatten() {
            if let State::Leased { server, token } = job.state {
                self.given.push((job.id, job.job.deliveries, token, server));
            }
        }
    }

    pub(crate) fn lane(&mut self) -> Arc<Lane> {
        let index = self.rng.usize(0..self.lanes.len());
        self.lanes[index].clone()
    }

    fn known_id(&mut self, model: &Model) -> Option<JobId> {
        let count = model.jobs.len();
        (count > 0).then(|| *model.jobs.keys().nth(self.rng.usize(0..count)).expect("in range"))
    }

    /// Draws ids that no other world draws, each once: another server may delete a known job at any time,
    /// and its deliveries would begin again.
    pub(crate) fn numbered(mut self, number: u64) -> Self {
        self.next_id = number << 32;
        self.repeats_ids = false;
        self
    }

    fn new_id(&mut self) -> JobId {
        self.next_id += 1;
        let high = u128::from(self.now.0) << 80;
        JobId((high | u128::from(self.rng.u32(0..4)) << 64 | u128::from(self.next_id)).to_be_bytes())
    }

    /// Returns a time around now: due or not.
    pub(crate) fn time(&mut self) -> Wall {
        Wall(self.now.0 + self.rng.u64(0..4_000) - 2_000)
    }

    fn counters(&mut self) -> Job {
        Job {
            deliveries: 0,
            attempts: self.rng.u32(0..2),
            sends_before: self.rng.u32(0..8) / 7,
            lost: self.rng.u32(0..3),
            waits: Sequence::from_parts(self.rng.u32(0..9), self.rng.u64(..)),
            began: self.time(),
            expires: Wall(self.now.0 + self.rng.u64(0..60_000)),
        }
    }

    pub(crate) fn submission(&mut self, model: &Model) -> (Record, Body) {
        let id = match self.rng.u32(0..10) {
            0 if self.repeats_ids => self.known_id(model).unwrap_or_else(|| self.new_id()),
            _ => self.new_id(),
        };
        let key = match self.rng.u32(0..20) {
            0 => "with\0zero".to_owned(),
            1..6 => format!("key-{}", self.rng.u32(0..6)),
            _ => format!("key-{}", self.next_id),
        };
        let order_key = (self.rng.u32(0..2) == 0).then(|| format!("order-{}", self.rng.u32(0..4)));
        let began = self.time();
        let first = self.rng.u32(0..4) == 0;
        let job = Job { attempts: 0, sends_before: u32::from(first), began, ..self.counters() };
        let record = Record {
            id,
            lane: self.lane(),
            state: State::Waiting,
            at: self.time(),
            submitted: began,
            job,
            booked: None,
            key,
            digest: [self.rng.u8(0..2); 32],
            order_key,
            call_id: ["", "0123456789abcdef0123456789abcdef"][self.rng.usize(0..2)].to_owned(),
            body_key_id: ["", "a-key"][usize::from(self.rng.u32(0..5) == 0)].to_owned(),
            body_bytes: 0,
            ended: String::new(),
            failures: Vec::new(),
        };
        let size = [0, 1, 40, 300, 5_000][self.rng.usize(0..5)];
        let content = std::iter::repeat_with(|| self.rng.u8(..)).take(size).collect();
        let metadata = (0..self.rng.u32(0..3)).map(|i| (format!("name-{i}"), "v\u{e4}lue".to_owned()));
        (record, Body { content, metadata: metadata.collect() })
    }

    pub(crate) fn lease_request(&mut self) -> LeaseRequest {
        LeaseRequest {
            lane: self.lane(),
            count: self.rng.u32(0..4),
            max_bytes: [0, 1, 300, 1 << 20][self.rng.usize(0..4)],
            first_only: self.rng.u32(0..3) == 0,
            bounds: None,
            server: SERVERS[self.rng.usize(0..3)],
            now: self.now,
            seed: self.rng.u64(..),
        }
    }

    /// Returns a lease that was given: mostly a recent one, sometimes with a part that is wrong.
    fn given(&mut self) -> Option<(JobId, u32, u64, ServerId)> {
        let count = self.given.len();
        let recent = count.min(if self.rng.u32(0..4) == 0 { 60 } else { 8 });
        let (id, mut delivery, mut token, mut server) =
            *self.given.get(count.checked_sub(1 + self.rng.usize(0..recent.max(1)))?)?;
        match self.rng.u32(0..16) {
            0 => delivery += 1,
            1 => token ^= 1,
            2 => server = SERVERS[self.rng.usize(0..3)],
            _ => {}
        }
        Some((id, delivery, token, server))
    }

    fn settlement(&mut self, model: &Model) -> Option<Settlement> {
        let (id, delivery, token, server) = self.given()?;
        let (current, booked) = model
            .jobs
            .get(&id)
            .map_or((delivery, false), |(job, _)| (job.job.deliveries, job.booked.is_some()));
        let is_late = booked && current == delivery;
        let is_server = !is_late && self.rng.u32(0..5) < 2;
        let to = [After::Waiting, After::Waiting, After::Done, After::Dead, After::Cancelled, After::Expired];
        let kinds = if self.rng.u32(0..3) == 0 { 6 } else { 4 };
        let to = to[self.rng.usize(0..kinds)];
        let failed = (self.rng.u32(0..2) == 0).then(|| FailedDelivery {
            at: self.now,
            delivery,
            code: Code::ALL[self.rng.usize(0..17)],
            took_ms: self.rng.u64(0..99),
            worker: "orders/1".to_owned(),
            detail: "out of \u{1f4e6}".to_owned(),
        });
        Some(Settlement {
            id,
            delivery,
            token,
            by: if is_server { SettledBy::Server(server) } else { SettledBy::Worker },
            to,
            at: self.time(),
            job: self.counters(),
            ended: "over".to_owned(),
            failure: failed,
            evidence: None,
        })
    }

    fn claim(&mut self) -> Option<LeaseClaim> {
        let (id, delivery, token, _) = self.given()?;
        Some(LeaseClaim { id, delivery, token, server: SERVERS[self.rng.usize(0..3)] })
    }

    fn change(&mut self, model: &Model) -> Option<Change> {
        let id = self.known_id(model)?;
        let state = model.jobs[&id].0.state.kind();
        let replay = Job { attempts: 0, ..self.counters() };
        // Mostly one that the state allows.
        let to = match (state, self.rng.u32(0..6)) {
            _ if self.rng.u32(0..40) == 0 => ChangeTo::Removed,
            (StateKind::Dead, 0..4) | (_, 0) => ChangeTo::Replayed(self.time(), replay),
            (StateKind::Done | StateKind::Cancelled | StateKind::Expired, _) | (_, 1) => ChangeTo::Deleted,
            (_, 2) => ChangeTo::Cancelled("by the operator".to_owned()),
            (_, 3) => ChangeTo::Expired("too late".to_owned()),
            _ => ChangeTo::Due,
        };
        Some(Change { id, to, now: self.now })
    }

    pub(crate) fn filter(&mut self) -> Filter {
        const STATES: [StateKind; 7] = [
            StateKind::Waiting,
            StateKind::Behind,
            StateKind::Leased,
            StateKind::Done,
            StateKind::Dead,
            StateKind::Cancelled,
            StateKind::Expired,
        ];
        let mut states: Vec<StateKind> = Vec::new();
        for _ in 0..self.rng.u32(0..4) {
            states.push(STATES[self.rng.usize(0..7)]);
        }
        let lane = (*self.lane()).clone();
        let mut sometimes = |times: u32| self.rng.u32(0..times) == 0;
        let (has_lanes, has_code, has_key) = (sometimes(3), sometimes(5), sometimes(5));
        let (has_after, has_before) = (sometimes(4), sometimes(4));
        Filter {
            queue: QUEUES[self.rng.usize(0..2)].to_owned(),
            states,
            lanes: has_lanes.then(|| vec![lane]),
            code: has_code.then(|| Code::ALL[self.rng.usize(0..17)]),
            key: if has_key { format!("key-{}", self.rng.u32(0..6)) } else { String::new() },
            submitted_after: has_after.then(|| Wall(self.now.0 - self.rng.u64(0..40_000))),
            submitted_before: has_before.then(|| Wall(self.now.0 - self.rng.u64(0..40_000))),
        }
    }
}
