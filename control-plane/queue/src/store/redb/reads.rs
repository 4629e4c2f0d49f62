//! Reads, each of one state of the file.
//!
//! A read holds the pages of its state, so it is short: a list reads at most [`MOST_READ`] jobs a page.

use std::collections::{BTreeSet, BinaryHeap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use ::redb::{ReadOnlyTable, ReadTransaction, ReadableTable as _};
use damper_core::job::Wall;

use super::tables::{BODY, COUNT, DUE, EXPIRY, JOB, KEY, LANE, LEASED, OVER, counts, id, number};
use crate::store::encoding::{damaged, decode, decode_body};
use crate::store::error::Error;
use crate::store::interface::{Filter, LaneCounts, Overdue, OverdueKind, Page};
use crate::store::lanes::{LaneNumber, SharedLanes, lane};
use crate::store::record::{Body, JobId, Lane, Record, ServerId, StateKind};

/// Jobs that a page of a list reads.
const MOST_READ: usize = 10_000;

/// One state of the file.
pub(super) struct View {
    pub(super) transaction: ReadTransaction,
    pub(super) lanes: SharedLanes,
}

type Jobs = ReadOnlyTable<u128, &'static [u8]>;

impl View {
    pub(super) fn lanes(&self) -> Result<Vec<LaneCounts>, Error> {
        let count = self.transaction.open_table(COUNT)?;
        let due = self.transaction.open_table(DUE)?;
        let next = |lane: u32, repeat: u8| -> Result<Option<Wall>, Error> {
            let range = (lane, repeat, 0, 0)..=(lane, repeat, u64::MAX, u128::MAX);
            let first = due.range(range)?.next().transpose()?;
            Ok(first.map(|(key, _)| Wall(key.value().2)))
        };
        let mut lanes = Vec::new();
        for row in count.iter()? {
            let (number, row) = row?;
            let (number, tally) = (number.value(), counts(row.value()));
            if !tally.is_empty() {
                let (first, repeat) = (next(number, 0)?, next(number, 1)?);
                let earliest = first.into_iter().chain(repeat).min();
                lanes.push(tally.of_lane(self.lane(number)?, earliest, first));
            }
        }
        Ok(lanes)
    }

    pub(super) fn get(&self, id: JobId) -> Result<Option<Record>, Error> {
        self.job(&self.transaction.open_table(JOB)?, id)
    }

    pub(super) fn body(&self, job: JobId) -> Result<Option<Body>, Error> {
        let row = self.transaction.open_table(BODY)?.get(number(job))?;
        row.map(|row| decode_body(job, row.value())).transpose()
    }

    pub(super) fn leases_of(&self, server: ServerId) -> Result<Vec<Record>, Error> {
        let jobs = self.transaction.open_table(JOB)?;
        let leased = self.transaction.open_table(LEASED)?;
        let leases = leased.range((server.0, 0)..=(server.0, u128::MAX))?;
        leases.map(|entry| self.present(&jobs, id(entry?.0.value().1))).collect()
    }

    pub(super) fn overdue(&self, asked: &Overdue, limit: usize) -> Result<Vec<JobId>, Error> {
        let Overdue { queue, kind, before } = asked;
        match kind {
            OverdueKind::Expired => self.expired_before(queue, *before, limit),
            OverdueKind::Ended => self.ended_before(queue, false, *before, limit),
            OverdueKind::Dead => self.ended_before(queue, true, *before, limit),
        }
    }

    fn ended_before(&self, queue: &str, dead: bool, before: Wall, limit: usize) -> Result<Vec<JobId>, Error> {
        let over = self.transaction.open_table(OVER)?;
        let dead = u8::from(dead);
        let mut found = Vec::new();
        for (_, LaneNumber { number, .. }) in self.lanes.read().of_queue(queue) {
            let range = (number, dead, 0, 0)..(number, dead, before.0, 0);
            for entry in over.range(range)?.take(limit - found.len()) {
                found.push(id(entry?.0.value().3));
            }
        }
        Ok(found)
    }

    fn expired_before(&self, queue: &str, now: Wall, limit: usize) -> Result<Vec<JobId>, Error> {
        let jobs = self.transaction.open_table(JOB)?;
        let expiry = self.transaction.open_table(EXPIRY)?;
        let mut found = Vec::new();
        for (_, LaneNumber { number, .. }) in self.lanes.read().of_queue(queue) {
            for entry in expiry.range((number, 0, 0)..(number, now.0, 0))? {
                if found.len() == limit {
                    return Ok(found);
                }
                let job = self.present(&jobs, id(entry?.0.value().2))?;
                if job.state.kind() != StateKind::Leased {
                    found.push(job.id);
                }
            }
        }
        Ok(found)
    }

    pub(super) fn list(&self, filter: &Filter, after: Option<JobId>, limit: usize) -> Result<Page, Error> {
        let lanes = self.selected(filter);
        if !filter.key.is_empty() {
            return self.list_key(filter, &lanes, after, limit);
        }
        if filter.states.is_empty() || filter.states.iter().any(|state| state.is_live()) {
            return self.list_all(filter, &lanes, after, limit);
        }
        if self.are_rare(filter, &lanes)? {
            self.list_over(filter, &lanes, after, limit)
        } else {
            self.list_all(filter, &lanes, after, limit)
        }
    }

    /// Returns true if the selected states are few of all jobs, so that their index is faster.
    fn are_rare(&self, filter: &Filter, lanes: &[(Arc<Lane>, LaneNumber)]) -> Result<bool, Error> {
        let selected: HashSet<u32> = lanes.iter().map(|(_, lane)| lane.number).collect();
        let (mut wanted, mut all) = (0, 0);
        for row in self.transaction.open_table(COUNT)?.iter()? {
            let (lane, row) = row?;
            let tally = counts(row.value());
            all += tally.in_states(&[]);
            if selected.contains(&lane.value()) {
                wanted += tally.in_states(&filter.states);
            }
        }
        Ok(wanted < all / 8)
    }

    fn selected(&self, filter: &Filter) -> Vec<(Arc<Lane>, LaneNumber)> {
        let mut lanes = self.lanes.read().of_queue(&filter.queue);
        if let Some(wanted) = &filter.lanes {
            lanes.retain(|(lane, _)| wanted.contains(lane));
        }
        lanes
    }

    /// Lists the jobs with a key: at most one per scope.
    fn list_key(
        &self,
        filter: &Filter,
        lanes: &[(Arc<Lane>, LaneNumber)],
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Page, Error> {
        let keys = self.transaction.open_table(KEY)?;
        let mut found = BTreeSet::new();
        for scope in lanes.iter().map(|(_, lane)| lane.scope).collect::<BTreeSet<_>>() {
            found.extend(keys.get((scope, &*filter.key))?.map(|row| row.value()));
        }
        let after = after.map(number);
        self.page(filter, found.into_iter().filter(|id| Some(*id) > after), limit, false)
    }

    /// Lists by reading all jobs in turn.
    fn list_all(
        &self,
        filter: &Filter,
        lanes: &[(Arc<Lane>, LaneNumber)],
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Page, Error> {
        let mut page = Page::default();
        if lanes.is_empty() {
            return Ok(page);
        }
        let jobs = self.transaction.open_table(JOB)?;
        let begin = after.map_or(Bound::Unbounded, |after| Bound::Excluded(number(after)));
        let mut last = after;
        for (read, row) in jobs.range((begin, Bound::Unbounded))?.enumerate() {
            if page.jobs.len() == limit || read == MOST_READ {
                page.next = last;
                break;
            }
            let (key, row) = row?;
            let job = decode(id(key.value()), row.value(), |number| self.lane(number).ok())?;
            last = Some(job.id);
            if filter.selects(&job) {
                page.jobs.push(job);
            }
        }
        Ok(page)
    }

    /// Lists dead and ended jobs by their index.
    fn list_over(
        &self,
        filter: &Filter,
        lanes: &[(Arc<Lane>, LaneNumber)],
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Page, Error> {
        let over = self.transaction.open_table(OVER)?;
        let mut first = BinaryHeap::new();
        let mut is_cut = false;
        for (_, LaneNumber { number: lane, .. }) in lanes {
            for entry in over.range((*lane, 0, 0, 0)..=(*lane, 1, u64::MAX, u128::MAX))? {
                let job = entry?.0.value().3;
                if after.is_some_and(|after| job <= number(after)) {
                    continue;
                }
                first.push(job);
                if first.len() > MOST_READ {
                    first.pop();
                    is_cut = true;
                }
            }
        }
        self.page(filter, first.into_sorted_vec(), limit, is_cut)
    }

    /// Returns the selected ones of these jobs. `is_cut`: there are more than these.
    fn page(
        &self,
        filter: &Filter,
        ids: impl IntoIterator<Item = u128>,
        limit: usize,
        mut is_cut: bool,
    ) -> Result<Page, Error> {
        let jobs = self.transaction.open_table(JOB)?;
        let mut page = Page::default();
        let mut last = None;
        for job in ids {
            if page.jobs.len() == limit {
                is_cut = true;
                break;
            }
            let job = self.present(&jobs, id(job))?;
            last = Some(job.id);
            if filter.selects(&job) {
                page.jobs.push(job);
            }
        }
        page.next = last.filter(|_| is_cut);
        Ok(page)
    }

    /// Returns a lane by its number: also one that was removed since this state.
    pub(super) fn lane(&self, number: u32) -> Result<Arc<Lane>, Error> {
        if let Some(found) = self.lanes.read().lane(number) {
            return Ok(found);
        }
        let row = self.transaction.open_table(LANE)?.get(number)?;
        row.map_or_else(
            || Err(Error::Damaged(format!("lane {number}: not in the table of lanes"))),
            |row| lane(number, row.value()),
        )
    }

    fn job(&self, jobs: &Jobs, id: JobId) -> Result<Option<Record>, Error> {
        let Some(row) = jobs.get(number(id))? else { return Ok(None) };
        decode(id, row.value(), |number| self.lane(number).ok()).map(Some)
    }

    /// Returns a job that an index names.
    fn present(&self, jobs: &Jobs, id: JobId) -> Result<Record, Error> {
        self.job(jobs, id)?.ok_or_else(|| damaged(id, "in an index, but there is no such job"))
    }
}
