//! The store as a map: each rule in the plainest way, without indexes.
//!
//! What a delivery was and how it ended is in a list of deliveries, not in the job. A turn is not kept: the
//! job that has it is the one that is neither ended nor behind.

use std::collections::{BTreeMap, HashMap};

use damper_core::job::{Job, Wall};
use damper_queue::store::{
    After, Batch, Body, Booking, Change, ChangeTo, Committed, Error, Filter, JobId, Lane, LaneCounts,
    LeaseClaim, LeaseRequest, NextDue, Overdue, OverdueKind, Record, ServerId, Settled, SettledBy,
    Settlement, State, StateKind, Submitted,
};

/// Jobs with their bodies, and all deliveries.
#[derive(Clone, Default)]
pub(crate) struct Model {
    pub(crate) jobs: BTreeMap<JobId, (Record, Option<Body>)>,
    pub(crate) deliveries: HashMap<(JobId, u32), Delivery>,
}

#[derive(Clone)]
pub(crate) struct Delivery {
    pub(crate) token: u64,
    /// Counters while it was leased.
    pub(crate) job: Job,
    end: Option<SettledBy>,
}

impl Model {
    /// Applies a batch. `leased` has the store's leases, whose tokens the model cannot know.
    pub(crate) fn commit(&mut self, batch: &Batch, leased: &[Vec<(Record, Body)>]) -> Committed {
        Committed {
            settlements: batch.settlements.iter().map(|end| self.settle(end)).collect(),
            claims: batch.claims.iter().map(|claim| self.claim(claim)).collect(),
            leases: batch
                .leases
                .iter()
                .zip(leased)
                .map(|(request, leased)| self.lease(request, leased))
                .collect(),
            refused: Vec::new(),
            next_due: batch.leases.iter().map(|request| self.next_due(&request.lane)).collect(),
            submissions: batch.submissions.iter().map(|(job, body)| self.submit(job, body)).collect(),
            changes: batch.changes.iter().map(|change| self.change(change)).collect(),
            due: Vec::new(),
        }
    }

    fn settle(&mut self, end: &Settlement) -> Settled {
        let Some((mut job, mut body)) = self.jobs.get(&end.id).cloned() else { return Settled::Lost };
        let Some(delivery) = self.deliveries.get_mut(&(end.id, end.delivery)) else { return Settled::Lost };
        if delivery.token != end.token || job.job.deliveries != end.delivery {
            return Settled::Lost;
        }
        let settled = match (delivery.end, end.by, job.state) {
            (None, SettledBy::Worker, State::Leased { .. }) => Settled::Applied,
            (None, SettledBy::Server(by), State::Leased { server, .. }) if by == server => Settled::Applied,
            (Some(SettledBy::Worker), SettledBy::Worker, _) if job.booked.is_some() => {
                return Settled::Repeated;
            }
            (Some(SettledBy::Server(_)), SettledBy::Worker, State::Waiting | State::Behind | State::Dead)
                if job.booked.is_some() =>
            {
                Settled::Replaced
            }
            _ => return Settled::Lost,
        };
        delivery.end = Some(end.by);
        let before = delivery.job;
        let before = if end.by == SettledBy::Worker { None } else { Some(before) };
        job.booked = Some(Booking { token: end.token, before });
        job.job = Job { deliveries: end.delivery, ..end.job };
        job.at = end.at;
        job.failures.retain(|failure| failure.delivery != end.delivery);
        job.failures.extend(end.failure.clone());
        while job.failures.len() > 8 {
            job.failures.remove(0);
        }
        job.ended = if end.to == After::Waiting { String::new() } else { end.ended.clone() };
        job.state = match end.to {
            After::Waiting => self.waiting_or_behind(&job),
            After::Done => State::Done,
            After::Dead => State::Dead,
            After::Cancelled => State::Cancelled,
            After::Expired => State::Expired,
        };
        if matches!(job.state, State::Done | State::Cancelled | State::Expired) {
            job.body_bytes = 0;
            body = None;
        }
        self.jobs.insert(job.id, (job.clone(), body));
        self.next_turn(&job);
        settled
    }

    fn claim(&mut self, claim: &LeaseClaim) -> Option<Record> {
        let (job, _) = self.jobs.get_mut(&claim.id)?;
        let State::Leased { token, .. } = job.state else { return None };
        if token != claim.token || job.job.deliveries != claim.delivery {
            return None;
        }
        job.state = State::Leased { server: claim.server, token };
        Some(job.clone())
    }

    fn lease(&mut self, request: &LeaseRequest, leased: &[(Record, Body)]) -> Vec<(Record, Body)> {
        let mut due: Vec<Record> = self.jobs.values().map(|(job, _)| job.clone()).collect();
        due.retain(|job| job.state == State::Waiting && job.lane == request.lane && job.at <= request.now);
        due.retain(|job| !request.first_only || (job.job.sends_before == 0 && job.job.attempts == 0));
        due.sort_by_key(|job| (job.at, job.id));
        due.truncate(request.count as usize);
        let mut bytes = 0;
        due.retain(|job| {
            let has_room = bytes < request.max_bytes;
            bytes += u64::from(job.body_bytes);
            has_room
        });
        let mut result = Vec::new();
        for (index, mut job) in due.into_iter().enumerate() {
            let token = leased.get(index).and_then(|(job, _)| match job.state {
                State::Leased { token, .. } => Some(token),
                _ => None,
            });
            let token = token.unwrap_or_default();
            job.job.deliveries += 1;
            let known = self.deliveries.values().any(|delivery| delivery.token == token);
            assert!(!known, "token given twice");
            self.deliveries.insert((job.id, job.job.deliveries), Delivery { token, job: job.job, end: None });
            job.state = State::Leased { server: request.server, token };
            job.at = request.now;
            job.booked = None;
            let body =
                self.jobs.get(&job.id).and_then(|(_, body)| body.clone()).expect("waiting jobs have a body");
            self.jobs.insert(job.id, (job.clone(), Some(body.clone())));
            result.push((job, body));
        }
        result
    }

    fn submit(&mut self, job: &Record, body: &Body) -> Submitted {
        if job.key.contains('\0') {
            return Submitted::Refused(Error::Invalid("key: contains U+0000; remove it".to_owned()));
        }
        let same =
            self.jobs.values().find(|(known, _)| known.key == job.key && share(&known.lane, &job.lane));
        if let Some((same, _)) = same {
            let is_same = same.body_key_id != job.body_key_id || same.digest == job.digest;
            return if is_same {
                Submitted::Existing(Box::new(same.clone()))
            } else {
                Submitted::Conflict(same.id)
            };
        }
        if self.jobs.contains_key(&job.id) {
            return Submitted::Conflict(job.id);
        }
        let mut job = job.clone();
        job.body_bytes = body.bytes();
        job.state = self.waiting_or_behind(&job);
        let state = job.state;
        self.jobs.insert(job.id, (job, Some(body.clone())));
        Submitted::Stored(state)
    }

    fn change(&mut self, change: &Change) -> bool {
        let Some((mut job, mut body)) = self.jobs.get(&change.id).cloned() else { return false };
        let kind = job.state.kind();
        let is_before = matches!(kind, StateKind::Waiting | StateKind::Behind);
        match &change.to {
            ChangeTo::Due if kind == StateKind::Waiting => job.at = job.at.min(change.now),
            ChangeTo::Cancelled(why) | ChangeTo::Expired(why) if is_before => {
                let is_cancelled = matches!(change.to, ChangeTo::Cancelled(_));
                job.state = if is_cancelled { State::Cancelled } else { State::Expired };
                job.at = change.now;
                job.ended = why.clone();
                job.body_bytes = 0;
                body = None;
            }
            ChangeTo::Replayed(at, counters) if kind == StateKind::Dead => {
                job.at = *at;
                job.job = Job { deliveries: job.job.deliveries, ..*counters };
                job.booked = None;
                job.ended = String::new();
                job.state = self.waiting_or_behind(&job);
            }
            ChangeTo::Deleted if !kind.is_live() => {
                self.jobs.remove(&change.id);
                return true;
            }
            ChangeTo::Removed => {
                self.jobs.remove(&change.id);
                job.state = State::Cancelled;
                self.next_turn(&job);
                return true;
            }
            _ => return false,
        }
        self.jobs.insert(job.id, (job.clone(), body));
        self.next_turn(&job);
        true
    }

    /// Returns the others with the same order key that have not ended.
    fn same_order<'a>(&'a self, job: &'a Record) -> impl Iterator<Item = &'a Record> {
        let others = self.jobs.values().map(|(other, _)| other).filter(|other| other.id != job.id);
        others.filter(|other| {
            job.order_key.is_some()
                && other.order_key == job.order_key
                && share(&other.lane, &job.lane)
                && other.state.kind().is_live()
        })
    }

    fn waiting_or_behind(&self, job: &Record) -> State {
        let mut others = self.same_order(job);
        if others.any(|other| other.state != State::Behind) { State::Behind } else { State::Waiting }
    }

    /// Gives the turn on, if the job that ended had it.
    fn next_turn(&mut self, ended: &Record) {
        if ended.state.kind().is_live() || self.same_order(ended).any(|other| other.state != State::Behind) {
            return;
        }
        let next = self.same_order(ended).min_by_key(|other| (other.job.began, other.id)).map(|next| next.id);
        if let Some(next) = next {
            self.jobs.get_mut(&next).expect("it is there").0.state = State::Waiting;
        }
    }

    fn next_due(&self, lane: &Lane) -> NextDue {
        let counts = self.lanes().into_iter().find(|counts| *counts.lane == *lane);
        let next = |counts: LaneCounts| NextDue { any: counts.next_due, first: counts.next_first_due };
        counts.map(next).unwrap_or_default()
    }

    pub(crate) fn lanes(&self) -> Vec<LaneCounts> {
        let mut lanes: Vec<LaneCounts> = Vec::new();
        for (job, _) in self.jobs.values() {
            let position = lanes.iter().position(|counts| counts.lane == job.lane);
            let position = position.unwrap_or_else(|| {
                lanes.push(LaneCounts {
                    lane: job.lane.clone(),
                    waiting: 0,
                    behind: 0,
                    leased: 0,
                    dead: 0,
                    ended: 0,
                    bytes: 0,
                    next_due: None,
                    next_first_due: None,
                });
                lanes.len() - 1
            });
            let counts = &mut lanes[position];
            counts.bytes += job.bytes();
            match job.state {
                State::Waiting => {
                    counts.waiting += 1;
                    let earlier = |known: Option<Wall>| Some(known.map_or(job.at, |known| known.min(job.at)));
                    counts.next_due = earlier(counts.next_due);
                    if job.job.sends_before == 0 && job.job.attempts == 0 {
                        counts.next_first_due = earlier(counts.next_first_due);
                    }
                }
                State::Behind => counts.behind += 1,
                State::Leased { .. } => counts.leased += 1,
                State::Dead => counts.dead += 1,
                State::Done | State::Cancelled | State::Expired => counts.ended += 1,
            }
        }
        lanes
    }

    pub(crate) fn list(&self, filter: &Filter) -> Vec<Record> {
        let all = self.jobs.values().map(|(job, _)| job);
        let selected = all.filter(|job| {
            job.lane.queue == filter.queue
                && (filter.states.is_empty() || filter.states.contains(&job.state.kind()))
                && filter.lanes.as_ref().is_none_or(|lanes| lanes.iter().any(|lane| *lane == *job.lane))
                && (filter.key.is_empty() || filter.key == job.key)
                && (filter.code.is_none() || filter.code == job.failures.last().map(|failure| failure.code))
                && filter.submitted_after.is_none_or(|after| after <= job.submitted)
                && filter.submitted_before.is_none_or(|before| before > job.submitted)
        });
        selected.cloned().collect()
    }

    pub(crate) fn leases_of(&self, server: ServerId) -> Vec<Record> {
        let all = self.jobs.values().map(|(job, _)| job);
        all.filter(|job| matches!(job.state, State::Leased { server: of, .. } if of == server))
            .cloned()
            .collect()
    }

    pub(crate) fn overdue(&self, asked: &Overdue) -> Vec<JobId> {
        let Overdue { queue, kind, before } = asked;
        match kind {
            OverdueKind::Expired => self.expired_before(queue, *before),
            OverdueKind::Ended => self.ended_before(queue, false, *before),
            OverdueKind::Dead => self.ended_before(queue, true, *before),
        }
    }

    fn ended_before(&self, queue: &str, dead: bool, before: Wall) -> Vec<JobId> {
        let all = self.jobs.values().map(|(job, _)| job).filter(|job| job.lane.queue == queue);
        let ended = all.filter(|job| !job.state.kind().is_live() && (job.state == State::Dead) == dead);
        ended.filter(|job| job.at < before).map(|job| job.id).collect()
    }

    fn expired_before(&self, queue: &str, now: Wall) -> Vec<JobId> {
        let all = self.jobs.values().map(|(job, _)| job).filter(|job| job.lane.queue == queue);
        let waiting = all.filter(|job| matches!(job.state, State::Waiting | State::Behind));
        waiting.filter(|job| job.job.expires < now).map(|job| job.id).collect()
    }
}

/// Lanes that differ at most in the caller's cluster.
fn share(one: &Lane, other: &Lane) -> bool {
    one.queue == other.queue
        && one.route.caller_service() == other.route.caller_service()
        && one.route.callee_service() == other.route.callee_service()
        && one.route.callee_method() == other.route.callee_method()
}
