//! Writes the changed rows of the workspace, each table with one statement.

use std::collections::BTreeMap;

use damper_core::job::Wall;

use super::load::Loader;
use super::pipeline::{Pipeline, parameters};
use super::workspace::{Slot, Workspace};
use crate::store::encoding::{encode, encode_body};
use crate::store::record::{Body, JobId, Record, ServerId, State};
use crate::store::tally::Tally;

/// Columns of the rows of `job`.
#[derive(Default)]
struct Columns {
    ids: Vec<Vec<u8>>,
    lanes: Vec<i32>,
    states: Vec<i8>,
    repeats: Vec<bool>,
    times: Vec<i64>,
    began: Vec<i64>,
    expires: Vec<i64>,
    scopes: Vec<Vec<u8>>,
    keys: Vec<Vec<u8>>,
    order_keys: Vec<Option<Vec<u8>>>,
    servers: Vec<Option<i64>>,
    records: Vec<Vec<u8>>,
}

impl Columns {
    fn push(&mut self, job: &Record, lane: u32) {
        self.ids.push(job.id.0.to_vec());
        self.lanes.push(lane.cast_signed());
        self.states.push(state(job.state));
        self.repeats.push(!job.is_first());
        self.times.push(time(job.at));
        self.began.push(time(job.job.began));
        self.expires.push(time(job.job.expires));
        self.scopes.push(job.lane.scope().to_be_bytes().to_vec());
        self.keys.push(job.key.as_bytes().to_vec());
        self.order_keys.push(job.order_key.as_ref().map(|key| key.as_bytes().to_vec()));
        self.servers.push(match job.state {
            State::Leased { server, .. } => Some(server.0.cast_signed()),
            _ => None,
        });
        self.records.push(encode(job, lane));
    }
}

/// Returns the letter of a state in its column.
#[allow(clippy::cast_possible_wrap, reason = "ASCII letters are below 128")]
pub(super) fn state(state: State) -> i8 {
    let letter = match state {
        State::Waiting => b'w',
        State::Behind => b'b',
        State::Leased { .. } => b'l',
        State::Done => b'f',
        State::Dead => b'd',
        State::Cancelled => b'c',
        State::Expired => b'x',
    };
    letter as i8
}

/// Returns a time for a column, which only orders rows: the record has the exact one.
pub(super) fn time(time: Wall) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

/// What changed since the last flush.
#[derive(Default)]
struct Changes {
    inserted: Columns,
    updated: Columns,
    deleted: Vec<Vec<u8>>,
    bodies: (Vec<Vec<u8>>, Vec<Vec<u8>>),
    deleted_bodies: Vec<Vec<u8>>,
    tallies: BTreeMap<u32, Tally>,
}

impl Changes {
    fn add(
        &mut self,
        id: JobId,
        stored: Option<&Record>,
        now: Option<&Record>,
        body: Option<&Body>,
        lane: u32,
    ) {
        match (stored, now) {
            (None, Some(now)) => self.inserted.push(now, lane),
            (Some(_), Some(now)) => self.updated.push(now, lane),
            (Some(_), None) => self.deleted.push(id.0.to_vec()),
            (None, None) => return,
        }
        let has_body = |job: Option<&Record>| job.is_some_and(|job| job.state.kind().has_body());
        match body {
            Some(body) if has_body(now) => {
                self.bodies.0.push(id.0.to_vec());
                self.bodies.1.push(encode_body(body));
            }
            _ if has_body(stored) && !has_body(now) => self.deleted_bodies.push(id.0.to_vec()),
            _ => {}
        }
        let tally = self.tallies.entry(lane).or_default();
        stored.into_iter().for_each(|job| tally.count(job, -1));
        now.into_iter().for_each(|job| tally.count(job, 1));
    }
}

/// Writes jobs, bodies and counts.
pub(super) fn flush(loader: &Loader, work: &mut Workspace, server: ServerId, pipeline: &mut Pipeline<'_>) {
    let mut changes = Changes::default();
    let mut slots: Vec<_> = work.jobs.iter_mut().filter(|(_, slot)| slot.stored != slot.now).collect();
    // Two servers that insert the same keys wait for each other in one direction.
    slots.sort_by_cached_key(|(id, slot)| {
        let job = slot.stored.as_ref().or(slot.now.as_ref());
        (job.map(|job| (job.lane.scope(), job.key.clone())), **id)
    });
    for (id, slot) in slots {
        let job = slot.stored.as_ref().or(slot.now.as_ref()).expect("they differ, so one is there");
        let lane = loader.lanes.read().number(&job.lane).expect("lanes are loaded before their jobs").number;
        let body = work.bodies.remove(id);
        changes.add(*id, slot.stored.as_ref(), slot.now.as_ref(), body.as_ref(), lane);
        if let Some(now) = newly_waiting(slot) {
            let woken = work.woken.entry(lane).or_insert_with(|| (now.lane.clone(), now.at));
            woken.1 = now.at.min(woken.1);
        }
        slot.stored.clone_from(&slot.now);
    }
    if !changes.tallies.is_empty() {
        work.is_changed = true;
        work.dead_rows += (changes.updated.ids.len() + changes.deleted.len()) as u64;
        write(changes, server, pipeline);
    }
}

/// Returns a job that waits and did not, or not until the same time.
fn newly_waiting(slot: &Slot<Record>) -> Option<&Record> {
    let now = slot.now.as_ref().filter(|job| job.state == State::Waiting)?;
    let is_known = slot.stored.as_ref().is_some_and(|old| old.state == State::Waiting && old.at == now.at);
    (!is_known).then_some(now)
}

fn write(changes: Changes, server: ServerId, pipeline: &mut Pipeline<'_>) {
    let Changes { inserted, updated, deleted, bodies, deleted_bodies, tallies } = changes;
    // A deleted job and a new one can have the same key.
    if !deleted.is_empty() {
        pipeline.add("delete from job where id = any($1)", parameters![deleted]);
    }
    if !deleted_bodies.is_empty() {
        pipeline.add("delete from body where id = any($1)", parameters![deleted_bodies]);
    }
    if !updated.ids.is_empty() {
        update(updated, pipeline);
    }
    if !inserted.ids.is_empty() {
        insert(inserted, pipeline);
        let sql = "insert into body select * from unnest($1::bytea[], $2::bytea[])";
        pipeline.add(sql, parameters![bodies.0, bodies.1]);
    }
    count(&tallies, server, pipeline);
}

fn insert(rows: Columns, pipeline: &mut Pipeline<'_>) {
    let sql = "insert into job (id, lane, state, repeat, at, began, expires, scope, key, order_key, server, \
               record) select * from unnest($1::bytea[], $2::int[], $3::\"char\"[], $4::bool[], $5::bigint[], \
               $6::bigint[], $7::bigint[], $8::bytea[], $9::bytea[], $10::bytea[], $11::bigint[], $12::bytea[])";
    let Columns {
        ids,
        lanes,
        states,
        repeats,
        times,
        began,
        expires,
        scopes,
        keys,
        order_keys,
        servers,
        records,
    } = rows;
    let parameters = parameters![
        ids, lanes, states, repeats, times, began, expires, scopes, keys, order_keys, servers, records
    ];
    pipeline.add(sql, parameters);
}

fn update(rows: Columns, pipeline: &mut Pipeline<'_>) {
    let sql = "update job set state = u.state, repeat = u.repeat, at = u.at, began = u.began, expires = \
               u.expires, server = u.server, record = u.record from unnest($1::bytea[], $2::\"char\"[], \
               $3::bool[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bytea[]) u (id, state, \
               repeat, at, began, expires, server, record) where job.id = u.id";
    let Columns { ids, states, repeats, times, began, expires, servers, records, .. } = rows;
    let parameters = parameters![ids, states, repeats, times, began, expires, servers, records];
    pipeline.add(sql, parameters);
}

/// Adds the changes of counts to those of this server.
fn count(tallies: &BTreeMap<u32, Tally>, server: ServerId, pipeline: &mut Pipeline<'_>) {
    let lanes: Vec<i32> = tallies.keys().map(|lane| lane.cast_signed()).collect();
    let column = |part: fn(&Tally) -> i64| tallies.values().map(part).collect::<Vec<i64>>();
    let sql = "insert into tally select lane, $2, waiting, behind, leased, dead, ended, bytes from \
               unnest($1::int[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], \
               $8::bigint[]) t (lane, waiting, behind, leased, dead, ended, bytes) on conflict (lane, server) do \
               update set waiting = tally.waiting + excluded.waiting, behind = tally.behind + excluded.behind, \
               leased = tally.leased + excluded.leased, dead = tally.dead + excluded.dead, ended = tally.ended + \
               excluded.ended, bytes = tally.bytes + excluded.bytes";
    let parameters = parameters![
        lanes,
        server.0.cast_signed(),
        column(|tally| tally.waiting),
        column(|tally| tally.behind),
        column(|tally| tally.leased),
        column(|tally| tally.dead),
        column(|tally| tally.ended),
        column(|tally| tally.bytes),
    ];
    pipeline.add(sql, parameters);
}

/// Writes who has the turn of each order key, at the end of the transaction.
pub(super) fn flush_heads(work: &Workspace, pipeline: &mut Pipeline<'_>) {
    let (mut kept, mut gone) = (<(Vec<_>, Vec<_>, Vec<_>)>::default(), <(Vec<_>, Vec<_>)>::default());
    for ((scope, order_key), slot) in &work.heads {
        let (scope, order_key) = (scope.to_be_bytes().to_vec(), order_key.as_bytes().to_vec());
        match slot.now {
            Some(head) if slot.stored != slot.now => {
                kept.0.push(scope);
                kept.1.push(order_key);
                kept.2.push(head.0.to_vec());
            }
            Some(_) => {}
            None => {
                gone.0.push(scope);
                gone.1.push(order_key);
            }
        }
    }
    if !kept.0.is_empty() {
        let sql = "update head set job = u.job from unnest($1::bytea[], $2::bytea[], $3::bytea[]) u (scope, \
                   order_key, job) where head.scope = u.scope and head.order_key = u.order_key";
        pipeline.add(sql, parameters![kept.0, kept.1, kept.2]);
    }
    if !gone.0.is_empty() {
        let sql =
            "delete from head where (scope, order_key) in (select * from unnest($1::bytea[], $2::bytea[]))";
        pipeline.add(sql, parameters![gone.0, gone.1]);
    }
}
