//! Loads rows into the workspace, locked until the end of the transaction.
//!
//! Rows are locked in the order of their ids. Where two transactions lock in different orders all the same,
//! PostgreSQL ends one of them, and its batch is repeated.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio_postgres::Row;

use super::connection::{Connection, Stop};
use super::pipeline::{Pipeline, Place, Results, parameters};
use super::workspace::{Miss, Scoped, Workspace};
use crate::store::encoding::{damaged, decode};
use crate::store::error::Error;
use crate::store::lanes::{SharedLanes, lane};
use crate::store::record::{JobId, Lane, Record};

/// Jobs by their keys. Without a lock: a key that is taken in between shows when the job is written.
const KEYS: &str = "select scope, key, id, order_key from job where (scope, key) in (select * from \
     unnest($1::bytea[], $2::bytea[]))";

/// Order keys of jobs, which never change.
const ORDER_KEYS: &str = "select scope, order_key from job where id = any($1) and order_key is not null";

/// Jobs by id or key.
const JOBS_WITHOUT_ORDER: &str = "select id, record from job where id = any($1 || array(select id from job where \
     (scope, key) in (select * from unnest($2::bytea[], $3::bytea[])))) and order_key is null order by id for update";

/// Rows that a batch names.
#[derive(Default)]
pub(super) struct Named {
    /// Jobs that it changes.
    pub(super) ids: BTreeSet<JobId>,
    /// Ids of new jobs.
    pub(super) new: BTreeSet<JobId>,
    /// Their keys.
    pub(super) keys: BTreeSet<Scoped>,
    /// Their order keys.
    pub(super) order_keys: BTreeSet<Scoped>,
}

/// A connection with the numbers of lanes.
#[derive(Clone)]
pub(super) struct Loader {
    pub(super) connection: Arc<Connection>,
    pub(super) lanes: SharedLanes,
}

impl Loader {
    /// Loads what an operation missed.
    pub(super) async fn miss(&self, work: &mut Workspace, miss: Miss) -> Result<(), Stop> {
        match miss {
            Miss::Job(id) => self.jobs(work, [id]).await,
            Miss::Key(key) => {
                let (keys, mut one) = (BTreeSet::from([key]), Pipeline::default());
                let asked = ask_keys(&mut one, &keys);
                let results = one.run(&self.connection).await?;
                loaded_keys(work, keys, results.rows(asked)).map(|_| ())
            }
            Miss::Head(order_key) => self.heads(work, [order_key]).await,
            Miss::Behind(order_key) => self.behind(work, [order_key]).await,
        }
    }

    /// Begins the transaction: locks and loads the rows that a batch names. `first` has what comes before.
    ///
    /// Jobs without an order key come first, by id; then heads; then jobs with one, by id. Whether their ids
    /// or their keys name them makes no difference.
    pub(super) async fn begin(
        &self,
        work: &mut Workspace,
        mut first: Pipeline<'_>,
        named: Named,
    ) -> Result<Results, Stop> {
        let Named { ids, new, keys, mut order_keys } = named;
        let asked_keys = (!keys.is_empty()).then(|| ask_keys(&mut first, &keys));
        let all: BTreeSet<JobId> = ids.into_iter().chain(new).collect();
        let asked_order_keys = (!all.is_empty()).then(|| first.add(ORDER_KEYS, parameters![bytes(&all)]));
        let asked_jobs = (!all.is_empty()).then(|| {
            let (scopes, texts) = owned_columns(&keys);
            first.add(JOBS_WITHOUT_ORDER, parameters![bytes(&all), scopes, texts])
        });
        let results = first.begin(&self.connection).await?;

        let mut found = BTreeSet::new();
        if let Some(asked) = asked_keys {
            for (id, order_key) in loaded_keys(work, keys, results.rows(asked))? {
                found.insert(id);
                order_keys.extend(order_key);
            }
        }
        if let Some(asked) = asked_order_keys {
            for row in results.rows(asked) {
                order_keys.insert(scoped(row)?);
            }
        }
        if let Some(asked) = asked_jobs {
            for job in self.records(results.rows(asked)).await? {
                work.loaded(job.id, Some(job));
            }
        }
        let named = all.into_iter().chain(found);
        if order_keys.is_empty() {
            named.for_each(|id| work.loaded(id, None));
            return Ok(results);
        }
        self.heads(work, order_keys.iter().cloned()).await?;
        self.jobs(work, named).await?;
        let may_end = |order_key: &Scoped| {
            let head = work.heads.get(order_key).and_then(|slot| slot.now);
            head.is_some_and(|head| work.jobs.contains_key(&head))
        };
        let next: Vec<Scoped> = order_keys.into_iter().filter(may_end).collect();
        self.behind(work, next).await?;
        Ok(results)
    }

    /// Loads jobs that are not loaded.
    pub(super) async fn jobs(
        &self,
        work: &mut Workspace,
        ids: impl IntoIterator<Item = JobId>,
    ) -> Result<(), Stop> {
        let ids: BTreeSet<JobId> = ids.into_iter().filter(|id| !work.jobs.contains_key(id)).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let sql = "select id, record from job where id = any($1) order by id for update";
        let rows = self.connection.query(sql, &[&bytes(&ids)]).await?;
        for job in self.records(&rows).await? {
            work.loaded(job.id, Some(job));
        }
        for id in ids {
            work.loaded(id, None);
        }
        Ok(())
    }

    /// Loads the jobs that have the turn of these order keys. An order key without one gets a row, so that it
    /// can be locked.
    pub(super) async fn heads(
        &self,
        work: &mut Workspace,
        order_keys: impl IntoIterator<Item = Scoped>,
    ) -> Result<(), Stop> {
        let new = order_keys.into_iter().filter(|order_key| !work.heads.contains_key(order_key));
        let order_keys: BTreeSet<Scoped> = new.collect();
        if order_keys.is_empty() {
            return Ok(());
        }
        let (scopes, texts) = columns(&order_keys);
        let sql = "insert into head (scope, order_key) select * from unnest($1::bytea[], $2::bytea[]) \
                   on conflict do nothing";
        self.connection.execute(sql, &[&scopes, &texts]).await?;
        let sql = "select scope, order_key, job from head where (scope, order_key) in (select * from \
                   unnest($1::bytea[], $2::bytea[])) order by scope, order_key for update";
        let rows = self.connection.query(sql, &[&scopes, &texts]).await?;
        if rows.len() < order_keys.len() {
            // Another server has deleted one in between.
            return Err(Stop::Again);
        }
        for row in rows {
            let head: Option<&[u8]> = row.try_get(2)?;
            work.loaded_head(scoped(&row)?, head.map(job_id).transpose()?);
        }
        Ok(())
    }

    /// Loads the first job behind, of each of these order keys, that is not loaded.
    pub(super) async fn behind(
        &self,
        work: &mut Workspace,
        order_keys: impl IntoIterator<Item = Scoped>,
    ) -> Result<(), Stop> {
        let order_keys: BTreeSet<Scoped> = order_keys.into_iter().collect();
        if order_keys.is_empty() {
            return Ok(());
        }
        let (scopes, texts) = columns(&order_keys);
        let ids: Vec<Vec<u8>> = work.jobs.keys().map(|id| id.0.to_vec()).collect();
        let sql = "select k.scope, k.order_key, j.id, j.record from unnest($1::bytea[], $2::bytea[]) k (scope, \
                   order_key) cross join lateral (select id, record from job where scope = k.scope and order_key \
                   = k.order_key and state = 'b' and not (id = any($3)) order by began, id limit 1 for update) j";
        let rows = self.connection.query(sql, &[&scopes, &texts, &ids]).await?;
        let mut without = order_keys;
        let first: Vec<Record> = self.records_from(&rows, 2).await?;
        for (row, job) in rows.iter().zip(first) {
            let order_key = scoped(row)?;
            without.remove(&order_key);
            work.loaded_behind(order_key, Some(job.id));
            work.loaded(job.id, Some(job));
        }
        if without.is_empty() {
            return Ok(());
        }
        // A row that another transaction changed while this one waited for its lock is missing from the
        // result, and hides those after it.
        let (scopes, texts) = columns(&without);
        let ids: Vec<Vec<u8>> = work.jobs.keys().map(|id| id.0.to_vec()).collect();
        let sql = "select count(*) from job where state = 'b' and (scope, order_key) in (select * from \
                   unnest($1::bytea[], $2::bytea[])) and not (id = any($3))";
        let rows = self.connection.query(sql, &[&scopes, &texts, &ids]).await?;
        if rows.first().is_none_or(|row| row.get::<_, i64>(0) > 0) {
            return Err(Stop::Again);
        }
        for order_key in without {
            work.loaded_behind(order_key, None);
        }
        Ok(())
    }

    /// Returns the jobs of rows that begin with id and record.
    pub(super) async fn records(&self, rows: &[Row]) -> Result<Vec<Record>, Stop> {
        self.records_from(rows, 0).await
    }

    /// Returns the jobs of rows that have id and record from this column on. Lanes that another server has
    /// added are loaded.
    pub(super) async fn records_from(&self, rows: &[Row], column: usize) -> Result<Vec<Record>, Stop> {
        let decode_all = || rows.iter().map(|row| self.record(row, column)).collect::<Result<Vec<_>, _>>();
        match decode_all() {
            Err(Stop::Store(Error::Damaged(_))) => {
                load_lanes(&self.connection, &self.lanes).await?;
                decode_all()
            }
            decoded => decoded,
        }
    }

    fn record(&self, row: &Row, column: usize) -> Result<Record, Stop> {
        let id = job_id(row.try_get(column)?)?;
        Ok(decode(id, row.try_get(column + 1)?, |number| self.lanes.read().lane(number))?)
    }
}

/// Loads the lanes that other servers have added. A lane is never deleted.
pub(super) async fn load_lanes(connection: &Connection, lanes: &SharedLanes) -> Result<(), Stop> {
    let sql = "select id, queue, caller_service, caller_cluster, callee_service, callee_method from lane";
    for row in connection.query(sql, &[]).await? {
        let number: i32 = row.try_get(0)?;
        let number = number.cast_unsigned();
        if lanes.read().lane(number).is_none() {
            let names = (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?, row.try_get(4)?, row.try_get(5)?);
            lanes.write().insert(number, lane(number, names)?);
        }
    }
    Ok(())
}

/// Gives numbers to lanes that have none.
pub(super) async fn add_lanes(
    connection: &Connection,
    lanes: &SharedLanes,
    wanted: impl Iterator<Item = &Arc<Lane>>,
) -> Result<(), Stop> {
    let sql = "insert into lane (queue, caller_service, caller_cluster, callee_service, callee_method) \
               values ($1, $2, $3, $4, $5) on conflict do nothing";
    let unknown: Vec<&Arc<Lane>> = wanted.filter(|lane| lanes.read().number(lane).is_none()).collect();
    for lane in &unknown {
        let (queue, caller, cluster, callee, method) = crate::store::lanes::names(lane);
        connection.execute(sql, &[&queue, &caller, &cluster, &callee, &method]).await?;
    }
    if unknown.is_empty() { Ok(()) } else { load_lanes(connection, lanes).await }
}

fn ask_keys(pipeline: &mut Pipeline<'_>, keys: &BTreeSet<Scoped>) -> Place {
    let (scopes, texts) = owned_columns(keys);
    pipeline.add(KEYS, parameters![scopes, texts])
}

/// Adds the ids of the jobs with these keys, and returns them with their order keys.
fn loaded_keys(
    work: &mut Workspace,
    keys: BTreeSet<Scoped>,
    rows: &[Row],
) -> Result<Vec<(JobId, Option<Scoped>)>, Stop> {
    let mut found = Vec::new();
    for row in rows {
        let id = job_id(row.try_get(2)?)?;
        let key = scoped(row)?;
        let order_key: Option<&[u8]> = row.try_get(3)?;
        let order_key = order_key.map(|text| Ok::<_, Stop>((key.0, utf8(id, text)?))).transpose()?;
        work.keys.insert(key, Some(id));
        found.push((id, order_key));
    }
    for key in keys {
        work.keys.entry(key).or_insert(None);
    }
    Ok(found)
}

fn bytes(ids: &BTreeSet<JobId>) -> Vec<Vec<u8>> {
    ids.iter().map(|id| id.0.to_vec()).collect()
}

pub(super) fn job_id(bytes: &[u8]) -> Result<JobId, Stop> {
    let id = bytes.try_into().map(JobId);
    id.map_err(|_| Stop::Store(Error::Damaged(format!("job: id of {} bytes", bytes.len()))))
}

/// Returns scope and key of a row that begins with them.
fn scoped(row: &Row) -> Result<Scoped, Stop> {
    let (scope, text): (&[u8], &[u8]) = (row.try_get(0)?, row.try_get(1)?);
    let id = JobId(scope.try_into().unwrap_or_default());
    Ok((u128::from_be_bytes(id.0), utf8(id, text)?))
}

fn utf8(id: JobId, text: &[u8]) -> Result<String, Stop> {
    let text = std::str::from_utf8(text).map_err(|_| damaged(id, "key: not UTF-8"))?;
    Ok(text.to_owned())
}

/// Returns scopes and keys as two columns.
fn columns<'k>(keys: impl IntoIterator<Item = &'k Scoped>) -> (Vec<Vec<u8>>, Vec<&'k [u8]>) {
    keys.into_iter().map(|(scope, text)| (scope.to_be_bytes().to_vec(), text.as_bytes())).unzip()
}

/// Returns the columns for a pipeline, which is sent later.
fn owned_columns(keys: &BTreeSet<Scoped>) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (scopes, texts) = columns(keys);
    (scopes, texts.into_iter().map(<[u8]>::to_vec).collect())
}
