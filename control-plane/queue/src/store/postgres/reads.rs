//! Reads, each one statement on a connection that they share.

use std::collections::BTreeSet;
use std::time::Duration;

use damper_core::job::Wall;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::connection::Stop;
use super::flush::time;
use super::load::{Loader, job_id, load_lanes};
use crate::store::encoding::decode_body;
use crate::store::error::Error;
use crate::store::interface::{Burden, Filter, LaneCounts, Overdue, OverdueKind, Page};
use crate::store::lanes::LaneNumber;
use crate::store::record::{Body, JobId, Lane, Record, ServerId, StateKind};
use crate::store::tally::Tally;

/// Jobs that a page of a list reads.
const MOST_READ: usize = 10_000;

/// Jobs that one statement of a list reads.
const CHUNK: usize = 1_000;

/// Jobs whose time is over: one range of an index per question, lane and state.
const OVERDUE: &str = "select q.number, j.id from unnest($1::bigint[], $2::text[], $3::\"char\"[], $4::bigint[]) q \
     (number, queue, state, before) cross join lateral (select j.id from lane l cross join lateral (select id from \
     job where lane = l.id and state = q.state and state in ('d', 'f', 'c', 'x') and at < q.before order by at \
     limit $8) j where l.queue = q.queue limit $8) j union all select q.number, j.id from unnest($5::bigint[], \
     $6::text[], $7::bigint[]) q (number, queue, before) cross join lateral (select j.id from lane l cross join \
     lateral (select id from job where lane = l.id and state in ('w', 'b') and expires < q.before order by expires \
     limit $8) j where l.queue = q.queue limit $8) j";

impl Loader {
    pub(super) async fn lanes(&self) -> Result<Vec<LaneCounts>, Stop> {
        let sql = "select t.*, (select at from job where lane = t.lane and state = 'w' and not repeat order by at, \
                   id limit 1), (select at from job where lane = t.lane and state = 'w' and repeat order by at, id \
                   limit 1) from (select lane, sum(waiting)::bigint, sum(behind)::bigint, sum(leased)::bigint, \
                   sum(dead)::bigint, sum(ended)::bigint, sum(bytes)::bigint from tally group by lane) t";
        let rows = self.connection.query(sql, &[]).await?;
        let mut lanes = Vec::with_capacity(rows.len());
        for row in &rows {
            let tally = tally(row)?;
            if tally.is_empty() {
                continue;
            }
            let due = |column| Ok::<_, Stop>(row.try_get::<_, Option<i64>>(column)?.map(wall));
            let (first, again): (Option<Wall>, Option<Wall>) = (due(7)?, due(8)?);
            let number = row.try_get::<_, i32>(0)?.cast_unsigned();
            if self.lanes.read().lane(number).is_none() {
                load_lanes(&self.connection, &self.lanes).await?;
            }
            let lane = self.lanes.read().lane(number);
            let lane =
                lane.ok_or_else(|| Error::Damaged(format!("lane {number}: not in the table of lanes")))?;
            lanes.push(tally.of_lane(lane, first.into_iter().chain(again).min(), first));
        }
        Ok(lanes)
    }

    pub(super) async fn burden(&self) -> Result<Burden, Stop> {
        let sql = "select (select coalesce(max(extract(epoch from clock_timestamp() - began) * 1000), 0)::bigint \
                   from (select xact_start from pg_stat_activity where backend_type = 'client backend' and \
                   datname = current_database() and pid <> pg_backend_pid() and (backend_xmin is not null or \
                   backend_xid is not null) union all select prepared from pg_prepared_xacts where database = \
                   current_database()) t (began)), coalesce(sum(n_live_tup), 0)::bigint, \
                   coalesce(sum(n_dead_tup), 0)::bigint from pg_stat_user_tables where schemaname = 'damper_queue'";
        let mut burden = Burden::default();
        for row in self.connection.query(sql, &[]).await? {
            let number = |column| Ok::<_, Stop>(u64::try_from(row.try_get::<_, i64>(column)?).unwrap_or(0));
            burden.oldest_transaction = Duration::from_millis(number(0)?);
            (burden.live_rows, burden.dead_rows) = (number(1)?, number(2)?);
        }
        Ok(burden)
    }

    pub(super) async fn get(&self, id: JobId) -> Result<Option<Record>, Stop> {
        let rows = self.connection.query("select id, record from job where id = $1", &[&&id.0[..]]).await?;
        Ok(self.records(&rows).await?.pop())
    }

    pub(super) async fn body(&self, id: JobId) -> Result<Option<Body>, Stop> {
        let rows = self.connection.query("select body from body where id = $1", &[&&id.0[..]]).await?;
        rows.first().map(|row| Ok(decode_body(id, row.try_get(0)?)?)).transpose()
    }

    pub(super) async fn leases_of(&self, server: ServerId) -> Result<Vec<Record>, Stop> {
        let sql = "select id, record from job where server = $1 and state = 'l' order by id";
        let rows = self.connection.query(sql, &[&server.0.cast_signed()]).await?;
        self.records(&rows).await
    }

    pub(super) async fn overdue(&self, asked: &[Overdue], limit: usize) -> Result<Vec<Vec<JobId>>, Stop> {
        let mut ended = Questions::default();
        let mut expired = Questions::default();
        for (number, asked) in asked.iter().enumerate() {
            match asked.kind {
                OverdueKind::Expired => expired.push(number, asked, b' '),
                OverdueKind::Ended => b"fcx".iter().for_each(|state| ended.push(number, asked, *state)),
                OverdueKind::Dead => ended.push(number, asked, b'd'),
            }
        }
        let limit_in_sql = limit_of(limit);
        let parameters: [&(dyn ToSql + Sync); 8] = [
            &ended.numbers,
            &ended.queues,
            &ended.states,
            &ended.before,
            &expired.numbers,
            &expired.queues,
            &expired.before,
            &limit_in_sql,
        ];
        let mut found = vec![Vec::new(); asked.len()];
        for row in self.connection.query(OVERDUE, &parameters).await? {
            let number = usize::try_from(row.try_get::<_, i64>(0)?).unwrap_or(usize::MAX);
            // A question of several states gets as many for each.
            if let Some(found) = found.get_mut(number).filter(|found| found.len() < limit) {
                found.push(job_id(row.try_get(1)?)?);
            }
        }
        Ok(found)
    }

    pub(super) async fn list(
        &self,
        filter: &Filter,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Page, Stop> {
        load_lanes(&self.connection, &self.lanes).await?;
        let lanes = self.selected(filter);
        let (mut page, mut last, mut read) = (Page::default(), after, 0);
        loop {
            let jobs = self.chunk(filter, &lanes, last).await?;
            let is_end = jobs.len() < CHUNK;
            for job in jobs {
                if page.jobs.len() == limit || read == MOST_READ {
                    page.next = last;
                    return Ok(page);
                }
                read += 1;
                last = Some(job.id);
                if filter.selects(&job) {
                    page.jobs.push(job);
                }
            }
            if is_end {
                return Ok(page);
            }
        }
    }

    fn selected(&self, filter: &Filter) -> Vec<LaneNumber> {
        let lanes = self.lanes.read().of_queue(&filter.queue);
        let is_wanted = |lane: &Lane| filter.lanes.as_ref().is_none_or(|lanes| lanes.contains(lane));
        lanes.into_iter().filter(|(lane, _)| is_wanted(lane)).map(|(_, number)| number).collect()
    }

    /// Returns the next jobs of these lanes, by id. What the columns do not have, the caller checks.
    async fn chunk(
        &self,
        filter: &Filter,
        lanes: &[LaneNumber],
        after: Option<JobId>,
    ) -> Result<Vec<Record>, Stop> {
        let after: &[u8] = after.as_ref().map_or(&[], |after| &after.0);
        let numbers: Vec<i32> = lanes.iter().map(|lane| lane.number.cast_signed()).collect();
        let states = states(&filter.states);
        let chunk = limit_of(CHUNK);
        let rows = if filter.key.is_empty() {
            let sql = "select id, record from job where id > $1 and lane = any($2) and state = any($3) order by id \
                       limit $4";
            self.connection.query(sql, &[&after, &numbers, &states, &chunk]).await?
        } else {
            let scopes: BTreeSet<Vec<u8>> =
                lanes.iter().map(|lane| lane.scope.to_be_bytes().to_vec()).collect();
            let scopes: Vec<Vec<u8>> = scopes.into_iter().collect();
            let sql = "select id, record from job where id > $1 and lane = any($2) and state = any($3) and scope = \
                       any($5) and key = $6 order by id limit $4";
            let key = filter.key.as_bytes();
            self.connection.query(sql, &[&after, &numbers, &states, &chunk, &scopes, &key]).await?
        };
        self.records(&rows).await
    }
}

/// Returns the letters of these states, of all if none is given.
fn states(states: &[StateKind]) -> Vec<i8> {
    let letter = |state: &StateKind| match state {
        StateKind::Waiting => "w",
        StateKind::Behind => "b",
        StateKind::Leased => "l",
        StateKind::Dead => "d",
        StateKind::Done => "f",
        StateKind::Cancelled => "c",
        StateKind::Expired => "x",
    };
    if states.is_empty() {
        letters("wbldfcx")
    } else {
        letters(&states.iter().map(letter).collect::<String>())
    }
}

fn letters(letters: &str) -> Vec<i8> {
    letters.bytes().map(u8::cast_signed).collect()
}

/// Returns the counts of a row that has them after its lane.
pub(super) fn tally(row: &Row) -> Result<Tally, Stop> {
    Ok(Tally {
        waiting: row.try_get(1)?,
        behind: row.try_get(2)?,
        leased: row.try_get(3)?,
        dead: row.try_get(4)?,
        ended: row.try_get(5)?,
        bytes: row.try_get(6)?,
    })
}

pub(super) fn wall(at: i64) -> Wall {
    Wall(at.cast_unsigned())
}

fn limit_of(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Questions of [`OVERDUE`] as columns.
#[derive(Default)]
struct Questions<'a> {
    numbers: Vec<i64>,
    queues: Vec<&'a str>,
    states: Vec<i8>,
    before: Vec<i64>,
}

impl<'a> Questions<'a> {
    fn push(&mut self, number: usize, asked: &'a Overdue, state: u8) {
        self.numbers.push(limit_of(number));
        self.queues.push(&asked.queue);
        self.states.push(state.cast_signed());
        self.before.push(time(asked.before));
    }
}
