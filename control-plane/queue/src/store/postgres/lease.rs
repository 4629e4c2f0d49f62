//! Leases: due jobs of many lanes in one statement.
//!
//! `skip locked`: servers that lease from one lane at the same time get different jobs. Jobs that were never
//! sent and others have an index each; of both the request takes those due longest. What was locked and not
//! taken is free again after the commit.

use std::collections::{HashMap, HashSet};

use damper_core::job::Wall;
use tokio_postgres::Row;

use super::connection::Stop;
use super::flow::Flows;
use super::flush::{flush, time};
use super::load::{Loader, job_id};
use super::reads::wall;
use super::workspace::Workspace;
use crate::store::apply;
use crate::store::batch::{Deliveries, LeaseRequest, NextDue, Refused};
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

/// Jobs of each request, and why one got fewer than it asked for.
type Answers = (Vec<Deliveries>, Vec<Option<Refused>>);

/// Leases jobs. Requests of the same lane are separate statements, since each depends on the one before.
pub(super) async fn lease(
    loader: &Loader,
    work: &mut Workspace,
    flows: &mut Flows,
    requests: &[LeaseRequest],
    server: ServerId,
) -> Result<Answers, Stop> {
    let (mut results, mut refused) = (Vec::with_capacity(requests.len()), Vec::new());
    let mut rest = requests;
    while !rest.is_empty() {
        let mut lanes = HashSet::new();
        let independent = rest.iter().take_while(|request| lanes.insert(&request.lane)).count();
        let (now, later) = rest.split_at(independent);
        rest = later;
        let (jobs, why) = lease_together(loader, work, flows, now).await?;
        results.extend(jobs);
        refused.extend(why);
        if !rest.is_empty() {
            flush(loader, work, server).await?;
        }
    }
    Ok((results, refused))
}

async fn lease_together(
    loader: &Loader,
    work: &mut Workspace,
    flows: &mut Flows,
    requests: &[LeaseRequest],
) -> Result<Answers, Stop> {
    let most: Vec<u64> = requests.iter().map(|request| u64::from(flows.room(request).unwrap_or(0))).collect();
    let mut due = due(loader, requests, &most).await?;
    let mut leased: Vec<Vec<Record>> = Vec::with_capacity(requests.len());
    let mut refused = Vec::with_capacity(requests.len());
    for (index, (request, most)) in requests.iter().zip(most).enumerate() {
        let mut jobs = due.remove(&index).unwrap_or_default();
        jobs.sort_by_key(|job| (job.at, job.id));
        jobs.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        let (taken, why) = take(work, flows, request, jobs)?;
        let is_short = taken.len() as u64 == most && most < u64::from(request.count);
        let why = why.or_else(|| flows.room(request).err().filter(|_| is_short));
        if let Some(Refused { why, .. }) = why {
            flows.refused(request, why);
        }
        leased.push(taken);
        refused.push(why);
    }
    let mut bodies = bodies(loader, leased.iter().flatten()).await?;
    let mut with_body = |job: Record| {
        let body = bodies.remove(&job.id).ok_or_else(|| damaged(job.id, "no body"))?;
        Ok((job, body))
    };
    let with_bodies = leased.into_iter().map(|jobs| jobs.into_iter().map(&mut with_body).collect());
    Ok((with_bodies.collect::<Result<_, Stop>>()?, refused))
}

/// Leases due jobs as far as the bytes of the request and the bounds of the queue allow, of which the
/// requests before have used a part. Returns the bound that ended it.
fn take(
    work: &mut Workspace,
    flows: &mut Flows,
    request: &LeaseRequest,
    jobs: Vec<Record>,
) -> Result<(Vec<Record>, Option<Refused>), Stop> {
    let (mut taken, mut bytes) = (Vec::new(), 0);
    for old in jobs {
        if bytes >= request.max_bytes {
            break;
        }
        if let Err(refused) = flows.room(request) {
            return Ok((taken, Some(refused)));
        }
        bytes += u64::from(old.body_bytes);
        work.loaded(old.id, Some(old.clone()));
        let new = work.run(|work| apply::lease(work, &old, request));
        taken.push(new.map_err(|miss| damaged(old.id, &format!("lease needs {miss:?}")))?);
        flows.begins(request);
    }
    Ok((taken, None))
}

/// Returns due jobs by the index of their request, in no order.
async fn due(
    loader: &Loader,
    requests: &[LeaseRequest],
    most: &[u64],
) -> Result<HashMap<usize, Vec<Record>>, Stop> {
    let lanes = numbers(loader, requests);
    let first: Vec<bool> = requests.iter().map(|request| request.first_only).collect();
    let now: Vec<i64> = requests.iter().map(|request| time(request.now)).collect();
    let most: Vec<i64> = most.iter().map(|most| time(Wall(*most))).collect();
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
