//! Contradictions in the content of a store: what every commit must keep true.
//!
//! Each store reads all its rows into [`Contents`]; its own indexes it compares itself.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::record::{JobId, Lane, MAX_FAILURES, Record, StateKind};
use super::tally::Tally;

/// All rows of a store.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) jobs: BTreeMap<JobId, Record>,
    /// Bytes of each body.
    pub(super) bodies: HashMap<JobId, u32>,
    /// Job of each scope and key.
    pub(super) keys: HashMap<(u128, String), JobId>,
    /// Job of each scope and order key.
    pub(super) heads: HashMap<(u128, String), JobId>,
    pub(super) tallies: HashMap<Arc<Lane>, Tally>,
}

impl Contents {
    /// Returns the contradictions; empty: none.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for job in self.jobs.values() {
            self.check_job(job, &mut problems);
        }
        for (job, _) in self.bodies.iter().filter(|(job, _)| !self.jobs.contains_key(job)) {
            problems.push(format!("body of {}, which does not exist", name(*job)));
        }
        if self.keys.len() != self.jobs.len() {
            problems.push(format!("{} keys of {} jobs", self.keys.len(), self.jobs.len()));
        }
        self.check_turns(&mut problems);
        self.check_tallies(&mut problems);
        problems
    }

    fn check_job(&self, job: &Record, problems: &mut Vec<String>) {
        let mut problem = |text: String| problems.push(format!("{}: {text}", name(job.id)));
        let kind = job.state.kind();
        let body = self.bodies.get(&job.id);
        if body.is_some() != kind.has_body() || body.copied().unwrap_or(0) != job.body_bytes {
            problem(format!("{kind:?} with body {body:?}, {} bytes by its record", job.body_bytes));
        }
        if self.keys.get(&(job.lane.scope(), job.key.clone())) != Some(&job.id) {
            problem(format!("not found by its key {:?}", job.key));
        }
        if kind == StateKind::Behind && job.order_key.is_none() {
            problem("behind without an order key".to_owned());
        }
        if kind.is_live() != job.ended.is_empty() && kind != StateKind::Done {
            problem(format!("{kind:?}, ended {:?}", job.ended));
        }
        if job.failures.len() > MAX_FAILURES {
            problem(format!("{} failures", job.failures.len()));
        }
    }

    /// Of the jobs with one order key, one has its turn, and it is the head.
    fn check_turns(&self, problems: &mut Vec<String>) {
        let mut turns = HashMap::new();
        for job in self.jobs.values().filter(|job| job.state.kind().is_live()) {
            if let Some(order_key) = &job.order_key {
                let of_key: &mut Vec<&Record> =
                    turns.entry((job.lane.scope(), order_key.clone())).or_default();
                of_key.push(job);
            }
        }
        for (order_key, head) in self.heads.iter().filter(|(order_key, _)| !turns.contains_key(*order_key)) {
            problems.push(format!("head {} of {order_key:?}, which no job has", name(*head)));
        }
        for (order_key, jobs) in turns {
            let has_turn = |job: &&&Record| job.state.kind() != StateKind::Behind;
            let with_turn: Vec<JobId> = jobs.iter().filter(has_turn).map(|job| job.id).collect();
            let head = self.heads.get(&order_key);
            if with_turn.len() != 1 || with_turn.first() != head {
                let with_turn: Vec<String> = with_turn.into_iter().map(name).collect();
                let head = head.copied().map(name);
                problems.push(format!("{order_key:?}: turn of {with_turn:?}, head {head:?}"));
            }
        }
    }

    fn check_tallies(&self, problems: &mut Vec<String>) {
        let mut recounted: HashMap<Arc<Lane>, Tally> = HashMap::new();
        for job in self.jobs.values() {
            recounted.entry(job.lane.clone()).or_default().count(job, 1);
        }
        for (lane, tally) in &recounted {
            if self.tallies.get(lane) != Some(tally) {
                problems.push(format!(
                    "{lane:?} has the counters {:?}, but its jobs give {tally:?}",
                    self.tallies.get(lane)
                ));
            }
        }
        for (lane, tally) in &self.tallies {
            if !recounted.contains_key(lane) && *tally != Tally::default() {
                problems.push(format!(
                    "the job store is inconsistent: {lane:?} has the counters {tally:?}, but no stored jobs"
                ));
            }
        }
    }
}

pub(super) fn name(job: JobId) -> String {
    format!("job {:032x}", u128::from_be_bytes(job.0))
}
