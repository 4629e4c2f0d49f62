//! One transaction's rows: tables, numbers of lanes, and the counts that change.
//!
//! Every write of a row goes through `put` or `insert`, which keep all indexes and counts. The counts are
//! written once, at the end.

use std::collections::HashMap;
use std::sync::Arc;

use ::redb::{ReadableTable as _, Table, WriteTransaction};
use damper_core::job::Wall;

use super::tables::{
    BEHIND, BODY, COUNT, DUE, EXPIRY, HEAD, JOB, KEY, LANE, LEASED, META, OVER, Place, count_row, counts,
    expiry, id, number,
};
use crate::store::apply::Rows;
use crate::store::batch::{Committed, LeaseRequest, NextDue};
use crate::store::encoding::{damaged, decode, decode_body, encode, encode_body};
use crate::store::error::Error;
use crate::store::lanes::{LaneNumber, SharedLanes, lane, names};
use crate::store::record::{Body, JobId, Lane, Record, State};
use crate::store::tally::Tally;

/// Lanes above which those without jobs are removed before another is added.
const LANES_KEPT: usize = 20_000;

/// Rows of a write transaction.
pub(super) struct Transaction<'t> {
    job: Table<'t, u128, &'static [u8]>,
    body: Table<'t, u128, &'static [u8]>,
    due: Table<'t, (u32, u8, u64, u128), ()>,
    behind: Table<'t, (u128, &'static str, u64, u128), ()>,
    leased: Table<'t, (u64, u128), ()>,
    over: Table<'t, (u32, u8, u64, u128), ()>,
    expiry: Table<'t, (u32, u64, u128), ()>,
    key: Table<'t, (u128, &'static str), u128>,
    head: Table<'t, (u128, &'static str), u128>,
    lane: Table<'t, u32, (&'static str, &'static str, &'static str, &'static str, &'static str)>,
    count: Table<'t, u32, (u64, u64, u64, u64, u64, u64)>,
    meta: Table<'t, &'static str, u64>,
    lanes: SharedLanes,
    changes: HashMap<u32, (Arc<Lane>, Tally)>,
    woken: HashMap<u32, (Arc<Lane>, Wall)>,
    is_changed: bool,
}

impl<'t> Transaction<'t> {
    pub(super) fn new(transaction: &'t WriteTransaction, lanes: SharedLanes) -> Result<Self, Error> {
        Ok(Self {
            job: transaction.open_table(JOB)?,
            body: transaction.open_table(BODY)?,
            due: transaction.open_table(DUE)?,
            behind: transaction.open_table(BEHIND)?,
            leased: transaction.open_table(LEASED)?,
            over: transaction.open_table(OVER)?,
            expiry: transaction.open_table(EXPIRY)?,
            key: transaction.open_table(KEY)?,
            head: transaction.open_table(HEAD)?,
            lane: transaction.open_table(LANE)?,
            count: transaction.open_table(COUNT)?,
            meta: transaction.open_table(META)?,
            lanes,
            changes: HashMap::new(),
            woken: HashMap::new(),
            is_changed: false,
        })
    }

    /// Writes the counts, and adds the lanes to wake up to the results. Returns true if anything has changed.
    pub(super) fn finish(mut self, committed: &mut Committed) -> Result<bool, Error> {
        for (number, (lane, change)) in &self.changes {
            let tally = tally(&self.count, *number)?.plus(*change);
            self.count.insert(number, count_row(&tally, lane)?)?;
        }
        committed.due.extend(self.woken.into_values());
        Ok(self.is_changed)
    }

    /// Returns the ids of due jobs for a request, the ones due longest first.
    pub(super) fn due(&self, request: &LeaseRequest) -> Result<Vec<JobId>, Error> {
        let Some(LaneNumber { number, .. }) = self.lanes.read().number(&request.lane) else {
            return Ok(Vec::new());
        };
        let most = usize::try_from(request.count).unwrap_or(usize::MAX);
        let mut found = Vec::new();
        for repeat in 0..=u8::from(!request.first_only) {
            let range = (number, repeat, 0, 0)..=(number, repeat, request.now.0, u128::MAX);
            for entry in self.due.range(range)?.take(most) {
                let (_, _, at, id) = entry?.0.value();
                found.push((at, id));
            }
        }
        found.sort_unstable();
        Ok(found.into_iter().take(most).map(|(_, number)| id(number)).collect())
    }

    /// Returns when the next job of a lane is due.
    pub(super) fn next_due(&self, lane: &Lane) -> Result<NextDue, Error> {
        let Some(LaneNumber { number, .. }) = self.lanes.read().number(lane) else {
            return Ok(NextDue::default());
        };
        let next = |repeat: u8| -> Result<Option<Wall>, Error> {
            let range = (number, repeat, 0, 0)..=(number, repeat, u64::MAX, u128::MAX);
            let entry = self.due.range(range)?.next().transpose()?;
            Ok(entry.map(|(key, _)| Wall(key.value().2)))
        };
        let (first, repeat) = (next(0)?, next(1)?);
        Ok(NextDue { any: first.into_iter().chain(repeat).min(), first })
    }

    pub(super) fn body(&self, job: JobId) -> Result<Body, Error> {
        let row = self.body.get(number(job))?.ok_or_else(|| damaged(job, "no body"))?;
        decode_body(job, row.value())
    }

    /// Returns the number of a lane, which gets one if it has none.
    fn lane_number(&mut self, of: &Arc<Lane>) -> Result<LaneNumber, Error> {
        if let Some(found) = self.lanes.read().number(of) {
            return Ok(found);
        }
        if self.lanes.read().len() >= LANES_KEPT {
            self.remove_empty_lanes()?;
        }
        let next = self.meta.get("next_lane")?.map_or(0, |row| row.value());
        let number = u32::try_from(next).map_err(|_| Error::Full("no lane numbers left".to_owned()))?;
        self.meta.insert("next_lane", next + 1)?;
        self.lane.insert(number, names(of))?;
        Ok(self.lanes.write().insert(number, of.clone()))
    }

    fn scope(&self, of: &Arc<Lane>) -> u128 {
        self.lanes.read().number(of).map_or_else(|| of.scope(), |found| found.scope)
    }

    fn remove_empty_lanes(&mut self) -> Result<(), Error> {
        let mut empty = Vec::new();
        for row in self.count.iter()? {
            let (number, count) = row?;
            if counts(count.value()).is_empty() && !self.changes.contains_key(&number.value()) {
                empty.push(number.value());
            }
        }
        for number in empty {
            self.count.remove(number)?;
            self.lane.remove(number)?;
            self.lanes.write().remove(number);
        }
        Ok(())
    }

    fn count(&mut self, lane: &Arc<Lane>, number: u32, record: &Record, times: i64) {
        self.changes.entry(number).or_insert_with(|| (lane.clone(), Tally::default())).1.count(record, times);
    }

    fn enter(&mut self, record: &Record, lane: u32) -> Result<(), Error> {
        match Place::of(record, lane) {
            Place::Due(key) => drop(self.due.insert(key, ())?),
            Place::Behind(scope, order, at, id) => {
                self.behind.insert((scope, order.as_str(), at, id), ())?;
            }
            Place::Leased(key) => drop(self.leased.insert(key, ())?),
            Place::Over(key) => drop(self.over.insert(key, ())?),
        }
        if record.state == State::Waiting {
            let woken = self.woken.entry(lane).or_insert_with(|| (record.lane.clone(), record.at));
            woken.1 = woken.1.min(record.at);
        }
        Ok(())
    }

    fn leave(&mut self, record: &Record, lane: u32) -> Result<(), Error> {
        let was_there = match Place::of(record, lane) {
            Place::Due(key) => self.due.remove(key)?.is_some(),
            Place::Behind(scope, order, at, id) => {
                self.behind.remove((scope, order.as_str(), at, id))?.is_some()
            }
            Place::Leased(key) => self.leased.remove(key)?.is_some(),
            Place::Over(key) => self.over.remove(key)?.is_some(),
        };
        if was_there { Ok(()) } else { Err(damaged(record.id, "not in the index of its state")) }
    }

    fn move_expiry(&mut self, old: Option<&Record>, new: Option<&Record>, lane: u32) -> Result<(), Error> {
        let (old, new) = (old.and_then(|old| expiry(old, lane)), new.and_then(|new| expiry(new, lane)));
        if old != new {
            if let Some(old) = old {
                self.expiry.remove(old)?;
            }
            if let Some(new) = new {
                self.expiry.insert(new, ())?;
            }
        }
        Ok(())
    }
}

impl Rows for Transaction<'_> {
    type Stop = Error;

    fn get(&mut self, id: JobId) -> Result<Option<Record>, Error> {
        let Some(row) = self.job.get(number(id))? else { return Ok(None) };
        let find = |number| self.lanes.read().lane(number);
        decode(id, row.value(), find).map(Some)
    }

    fn put(&mut self, old: &Record, new: Option<&Record>) -> Result<(), Error> {
        let LaneNumber { number: lane, scope } = self.lane_number(&old.lane)?;
        let id = number(old.id);
        self.is_changed = true;
        self.leave(old, lane)?;
        self.count(&old.lane, lane, old, -1);
        self.move_expiry(Some(old), new, lane)?;
        if let Some(new) = new {
            self.job.insert(id, &*encode(new, lane))?;
            self.enter(new, lane)?;
            self.count(&old.lane, lane, new, 1);
        } else {
            self.job.remove(id)?;
            self.key.remove((scope, &*old.key))?;
        }
        let has_body = |record: &Record| record.state.kind().has_body();
        if has_body(old) && !new.is_some_and(has_body) {
            self.body.remove(id)?;
        }
        Ok(())
    }

    fn insert(&mut self, record: &Record, body: &Body) -> Result<(), Error> {
        let LaneNumber { number: lane, scope } = self.lane_number(&record.lane)?;
        let id = number(record.id);
        self.is_changed = true;
        self.job.insert(id, &*encode(record, lane))?;
        self.body.insert(id, &*encode_body(body))?;
        self.key.insert((scope, &*record.key), id)?;
        self.enter(record, lane)?;
        self.count(&record.lane, lane, record, 1);
        self.move_expiry(None, Some(record), lane)
    }

    fn keyed(&mut self, lane: &Arc<Lane>, key: &str) -> Result<Option<JobId>, Error> {
        let scope = self.scope(lane);
        Ok(self.key.get((scope, key))?.map(|row| id(row.value())))
    }

    fn head(&mut self, lane: &Arc<Lane>, order_key: &str) -> Result<Option<JobId>, Error> {
        let scope = self.scope(lane);
        Ok(self.head.get((scope, order_key))?.map(|row| id(row.value())))
    }

    fn set_head(&mut self, lane: &Arc<Lane>, order_key: &str, id: Option<JobId>) -> Result<(), Error> {
        let scope = self.scope(lane);
        match id {
            Some(id) => self.head.insert((scope, order_key), number(id))?,
            None => self.head.remove((scope, order_key))?,
        };
        Ok(())
    }

    fn first_behind(&mut self, lane: &Arc<Lane>, order_key: &str) -> Result<Option<JobId>, Error> {
        let scope = self.scope(lane);
        let range = (scope, order_key, 0, 0)..=(scope, order_key, u64::MAX, u128::MAX);
        let first = self.behind.range(range)?.next().transpose()?;
        Ok(first.map(|(key, _)| id(key.value().3)))
    }
}

fn tally(table: &Table<'_, u32, (u64, u64, u64, u64, u64, u64)>, number: u32) -> Result<Tally, Error> {
    Ok(table.get(number)?.map(|row| counts(row.value())).unwrap_or_default())
}

/// Loads the lanes of the file.
pub(super) fn load_lanes(transaction: &WriteTransaction) -> Result<SharedLanes, Error> {
    let lanes = SharedLanes::default();
    for row in transaction.open_table(LANE)?.iter()? {
        let (number, row) = row?;
        lanes.write().insert(number.value(), lane(number.value(), row.value())?);
    }
    Ok(lanes)
}
