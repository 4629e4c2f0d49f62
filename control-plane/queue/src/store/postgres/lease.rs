//! Leases: due jobs of many lanes in one statement.
//!
//! `skip locked`: servers that lease from one lane at the same time get different jobs. Jobs that were never
//! sent and others have an index each; of both the request takes those due longest. What was locked and not
//! taken is free again after the commit.

use std::collections::{HashMap, HashSet};

use damper_core::job::Wall;
use sha2::{Digest as _, Sha256};
use tokio_postgres::Row;

use super::connection::Stop;
use super::flush::{flush, time};
use super::load::{Loader, job_id};
use super::reads::wall;
use super::workspace::Workspace;
use crate::store::apply;
use crate::store::batch::{Deliveries, LeaseRequest, NextDue};
use crate::store::encoding::{damaged, decode_body};
use crate::store::record::{Body, JobId, Record, ServerId};

const DUE: &str = "with request as (select * from unnest($1::int[], $2::bool[], $3::bigint[], $4::bigint[]) with \
     ordinality as r (lane, first_only, now, most, number)), \
     first as (select r.number, j.* from request r cross join lateral (select id, record from job where lane = \
     r.lane and state = 'w' and not repeat and at <= r.now order by at, id limit r.most for update skip locked) j), \
     again as (select r.number, j.* from request r cross join lateral (select id, record from job where lane = \
     r.lane and state = 'w' and repeat and at <= r.now and not r.first_only order by at, id limit r.most for update \
     skip locked) j) \
     select id, record, number from first union all select id, record, number from again";

/// Leases jobs. Requests that depend on the ones before are separate statements: those of the same lane, and
/// those with a bound of their queue.
pub(super) async fn lease(
    loader: &Loader,
    work: &mut Workspace,
    requests: &[LeaseRequest],
    server: ServerId,
) -> Result<Vec<Deliveries>, Stop> {
    let mut results = Vec::with_capacity(requests.len());
    let mut rest = requests;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(independent(rest));
        rest = later;
        let allowed = match now {
            [request] => allowed(loader, request).await?,
            _ => u64::MAX,
        };
        results.extend(lease_together(loader, work, now, allowed).await?);
        if !rest.is_empty() {
            flush(loader, work, server).await?;
        }
    }
    Ok(results)
}

/// Returns how many requests from the first on can share a statement.
fn independent(requests: &[LeaseRequest]) -> usize {
    let mut lanes = HashSet::new();
    let alone = |request: &LeaseRequest| request.max_in_flight.is_some();
    let together =
        requests.iter().take_while(|request| !alone(request) && lanes.insert(&request.lane)).count();
    together.max(1)
}

/// Returns how many leases the bound of the queue leaves. The lock makes the count exact over all servers.
async fn allowed(loader: &Loader, request: &LeaseRequest) -> Result<u64, Stop> {
    let Some(most) = request.max_in_flight else { return Ok(u64::MAX) };
    let queue = &request.lane.queue;
    let digest: [u8; 32] = Sha256::digest(format!("damper queue {queue}")).into();
    let lock = i64::from_be_bytes(*digest.first_chunk().expect("a SHA-256 has 32 bytes"));
    loader.connection.query("select pg_advisory_xact_lock($1)", &[&lock]).await?;
    let sql = "select coalesce(sum(leased), 0)::bigint from tally join lane on lane.id = tally.lane where queue = $1";
    let rows = loader.connection.query(sql, &[queue]).await?;
    let leased: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
    Ok(u64::from(most).saturating_sub(leased.cast_unsigned()))
}

async fn lease_together(
    loader: &Loader,
    work: &mut Workspace,
    requests: &[LeaseRequest],
    allowed: u64,
) -> Result<Vec<Deliveries>, Stop> {
    let most = |request: &LeaseRequest| u64::from(request.count).min(allowed);
    let mut due = due(loader, requests, most).await?;
    let mut leased: Vec<Vec<Record>> = Vec::with_capacity(requests.len());
    for (index, request) in requests.iter().enumerate() {
        let mut jobs = due.remove(&index).unwrap_or_default();
        jobs.sort_by_key(|job| (job.at, job.id));
        jobs.truncate(usize::try_from(most(request)).unwrap_or(usize::MAX));
        let (mut taken, mut bytes) = (Vec::new(), 0);
        for old in jobs {
            if bytes >= request.max_bytes {
                break;
            }
            bytes += u64::from(old.body_bytes);
            work.loaded(old.id, Some(old.clone()));
            let new = work.run(|work| apply::lease(work, &old, request));
            taken.push(new.map_err(|miss| damaged(old.id, &format!("lease needs {miss:?}")))?);
        }
        leased.push(taken);
    }
    let mut bodies = bodies(loader, leased.iter().flatten()).await?;
    let mut with_body = |job: Record| {
        let body = bodies.remove(&job.id).ok_or_else(|| damaged(job.id, "no body"))?;
        Ok((job, body))
    };
    leased.into_iter().map(|jobs| jobs.into_iter().map(&mut with_body).collect()).collect()
}

/// Returns due jobs by the index of their request, in no order.
async fn due(
    loader: &Loader,
    requests: &[LeaseRequest],
    most: impl Fn(&LeaseRequest) -> u64,
) -> Result<HashMap<usize, Vec<Record>>, Stop> {
    let lanes = numbers(loader, requests);
    let first: Vec<bool> = requests.iter().map(|request| request.first_only).collect();
    let now: Vec<i64> = requests.iter().map(|request| time(request.now)).collect();
    let most: Vec<i64> = requests.iter().map(|request| time(Wall(most(request)))).collect();
    let rows = loader.connection.query(DUE, &[&lanes, &first, &now, &most]).await?;
    let jobs = loader.records(&rows).await?;
    let mut due: HashMap<usize, Vec<Record>> = HashMap::new();
    for (row, job) in rows.iter().zip(jobs) {
        let number: i64 = row.try_get(2)?;
        due.entry(usize::try_from(number - 1).unwrap_or_default()).or_default().push(job);
    }
    Ok(due)
}

/// Returns when the next job of each request's lane is due.
pub(super) async fn next_due(loader: &Loader, requests: &[LeaseRequest]) -> Result<Vec<NextDue>, Stop> {
    let sql = "select (select at from job where lane = r.lane and state = 'w' and not repeat order by at, id \
               limit 1), (select at from job where lane = r.lane and state = 'w' and repeat order by at, id \
               limit 1) from unnest($1::int[]) with ordinality as r (lane, number) order by r.number";
    let rows = loader.connection.query(sql, &[&numbers(loader, requests)]).await?;
    let due = |row: &Row| {
        let (first, repeat): (Option<i64>, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
        let any = first.into_iter().chain(repeat).min();
        Ok(NextDue { any: any.map(wall), first: first.map(wall) })
    };
    rows.iter().map(due).collect()
}

/// Returns the numbers of the requests' lanes. A lane without a number has no jobs; 0 is none.
fn numbers(loader: &Loader, requests: &[LeaseRequest]) -> Vec<i32> {
    let lanes = loader.lanes.read();
    let number = |lane| lanes.number(lane).map_or(0, |known| known.number.cast_signed());
    requests.iter().map(|request| number(&request.lane)).collect()
}

async fn bodies(loader: &Loader, jobs: impl Iterator<Item = &Record>) -> Result<HashMap<JobId, Body>, Stop> {
    let ids: Vec<&[u8]> = jobs.map(|job| &job.id.0[..]).collect();
    let mut bodies = HashMap::new();
    if !ids.is_empty() {
        for row in loader.connection.query("select id, body from body where id = any($1)", &[&ids]).await? {
            let id = job_id(row.try_get(0)?)?;
            bodies.insert(id, decode_body(id, row.try_get(1)?)?);
        }
    }
    Ok(bodies)
}
