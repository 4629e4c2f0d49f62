//! Rows of one transaction in memory: what was loaded, and what it has become.
//!
//! The rules of a commit run over memory. A row that they need and that is not loaded ends the operation with
//! a [`Miss`]; it is loaded, with a lock, and the operation runs again from its start. So an operation writes
//! into a stage of its own, which joins the workspace when the operation has succeeded.

use std::collections::HashMap;
use std::sync::Arc;

use damper_core::job::Wall;

use crate::store::apply::Rows;
use crate::store::record::{Body, JobId, Lane, Record, State};

/// A scope, and a key or order key.
pub(super) type Scoped = (u128, String);

/// A row that must be loaded.
#[derive(Debug)]
pub(super) enum Miss {
    Job(JobId),
    Key(Scoped),
    Head(Scoped),
    Behind(Scoped),
}

/// A row before and after the transaction so far.
#[derive(Clone, Debug)]
pub(super) struct Slot<T> {
    pub(super) stored: Option<T>,
    pub(super) now: Option<T>,
}

/// The rows.
#[derive(Default)]
pub(super) struct Workspace {
    pub(super) jobs: HashMap<JobId, Slot<Record>>,
    /// Bodies of new jobs that are not written yet.
    pub(super) bodies: HashMap<JobId, Body>,
    pub(super) keys: HashMap<Scoped, Option<JobId>>,
    pub(super) heads: HashMap<Scoped, Slot<JobId>>,
    /// Lanes in which jobs now wait that did not before, by number, each with the earliest time.
    pub(super) woken: HashMap<u32, (Arc<Lane>, Wall)>,
    /// Something was written.
    pub(super) is_changed: bool,
    /// Rows of jobs that were replaced or deleted.
    pub(super) dead_rows: u64,
    /// First of the jobs behind that were not loaded before it; `None`: all are loaded.
    behind: HashMap<Scoped, Option<JobId>>,
    stage: Stage,
}

#[derive(Default)]
struct Stage {
    jobs: Vec<(JobId, Option<Record>)>,
    bodies: Vec<(JobId, Body)>,
    heads: Vec<(Scoped, Option<JobId>)>,
}

impl Workspace {
    /// Runs an operation: its writes count if it succeeds.
    pub(super) fn run<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, Miss>) -> Result<T, Miss> {
        self.stage = Stage::default();
        let result = work(self)?;
        let Stage { jobs, bodies, heads } = std::mem::take(&mut self.stage);
        for (id, new) in jobs {
            let slot = self.jobs.entry(id).or_insert(Slot { stored: None, now: None });
            if let Some(job) = slot.now.as_ref().or(new.as_ref()) {
                let is_there = new.is_some().then_some(id);
                self.keys.insert((job.lane.scope(), job.key.clone()), is_there);
            }
            slot.now = new;
        }
        self.bodies.extend(bodies);
        for (order_key, id) in heads {
            self.heads.entry(order_key).or_insert(Slot { stored: None, now: None }).now = id;
        }
        Ok(result)
    }

    /// Adds a job as it is stored; a job that is there already stays.
    pub(super) fn loaded(&mut self, id: JobId, job: Option<Record>) {
        self.jobs.entry(id).or_insert_with(|| Slot { stored: job.clone(), now: job });
    }

    pub(super) fn loaded_head(&mut self, order_key: Scoped, head: Option<JobId>) {
        self.heads.entry(order_key).or_insert(Slot { stored: head, now: head });
    }

    /// Adds the first of the jobs behind that were not loaded.
    pub(super) fn loaded_behind(&mut self, order_key: Scoped, first: Option<JobId>) {
        self.behind.insert(order_key, first);
    }

    fn job(&self, id: JobId) -> Option<Option<&Record>> {
        let staged = self.stage.jobs.iter().rev().find(|(staged, _)| *staged == id);
        let staged = staged.map(|(_, job)| job.as_ref());
        staged.or_else(|| self.jobs.get(&id).map(|slot| slot.now.as_ref()))
    }

    /// Returns true if a job is behind others with this order key.
    fn is_behind(&self, id: JobId, order_key: &Scoped) -> bool {
        self.job(id).flatten().is_some_and(|job| {
            job.state == State::Behind
                && job.order_key.as_ref() == Some(&order_key.1)
                && job.lane.scope() == order_key.0
        })
    }
}

impl Rows for Workspace {
    type Stop = Miss;

    fn get(&mut self, id: JobId) -> Result<Option<Record>, Miss> {
        self.job(id).map(|job| job.cloned()).ok_or(Miss::Job(id))
    }

    fn put(&mut self, old: &Record, new: Option<&Record>) -> Result<(), Miss> {
        self.stage.jobs.push((old.id, new.cloned()));
        Ok(())
    }

    fn insert(&mut self, record: &Record, body: &Body) -> Result<(), Miss> {
        self.stage.jobs.push((record.id, Some(record.clone())));
        self.stage.bodies.push((record.id, body.clone()));
        Ok(())
    }

    fn keyed(&mut self, lane: &Arc<Lane>, key: &str) -> Result<Option<JobId>, Miss> {
        let key = (lane.scope(), key.to_owned());
        self.keys.get(&key).copied().ok_or(Miss::Key(key))
    }

    fn head(&mut self, lane: &Arc<Lane>, order_key: &str) -> Result<Option<JobId>, Miss> {
        let order_key = (lane.scope(), order_key.to_owned());
        if let Some((_, id)) = self.stage.heads.iter().rev().find(|(staged, _)| *staged == order_key) {
            return Ok(*id);
        }
        self.heads.get(&order_key).map(|slot| slot.now).ok_or(Miss::Head(order_key))
    }

    fn set_head(&mut self, lane: &Arc<Lane>, order_key: &str, id: Option<JobId>) -> Result<(), Miss> {
        self.stage.heads.push(((lane.scope(), order_key.to_owned()), id));
        Ok(())
    }

    fn first_behind(&mut self, lane: &Arc<Lane>, order_key: &str) -> Result<Option<JobId>, Miss> {
        let order_key = (lane.scope(), order_key.to_owned());
        // Later than a loaded one that is still behind are all that are not loaded.
        match self.behind.get(&order_key) {
            Some(None) => {}
            Some(Some(first)) if self.is_behind(*first, &order_key) => {}
            _ => return Err(Miss::Behind(order_key)),
        }
        let behind = self.jobs.keys().filter(|id| self.is_behind(**id, &order_key));
        let first = behind.filter_map(|id| self.job(*id).flatten()).min_by_key(|job| (job.job.began, job.id));
        Ok(first.map(|job| job.id))
    }
}
