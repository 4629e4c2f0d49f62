//! Leases: due jobs of many lanes in one statement.
//!
//! `skip locked`: servers that lease from one lane at the same time get different jobs. Jobs that were never
//! sent and others have an index each; of both the request takes those due longest. What was locked and not
//! taken is free again after the commit. Bodies are read of the taken ones alone: what is due can be many
//! times the bytes of the request.

use std::collections::{HashMap, HashSet};

use tokio_postgres::Row;

use super::connection::Stop;
use super::flow::{Flows, Shown};
use super::flush::{flush, time};
use super::load::{Loader, job_id};
use super::pipeline::{Pipeline, Place, parameters};
use super::reads::wall;
use super::workspace::Workspace;
use crate::store::apply;
use crate::store::batch::{Deliveries, LeaseRequest, NextDue, Refused};
use crate::store::encoding::{damaged, decode_body};
use crate::store::record::{JobId, Record, ServerId};

const DUE: &str = "with request as (select * from unnest($1::int[], $2::bool[], $3::bigint[], $4::bigint[]) with \
     ordinality as r (lane, first_only, now, most, number)), \
     first as (select r.number, j.* from request r cross join lateral (select id, record from job where lane = \
     r.lane and state = 'w' and not repeat and at <= r.now order by at, id limit r.most for update skip locked) j), \
     again as (select r.number, j.* from request r cross join lateral (select id, record from job where lane = \
     r.lane and state = 'w' and repeat and at <= r.now and not r.first_only order by at, id limit r.most for update \
     skip locked) j) \
     select id, record, number from first union all select id, record, number from again";

const BODIES: &str = "select id, body from body where id = any($1)";

const NEXT_DUE: &str = "select (select at from job where lane = r.lane and state = 'w' and not repeat order by at, id \
     limit 1), (select at from job where lane = r.lane and state = 'w' and repeat order by at, id limit 1) from \
     unnest($1::int[]) with ordinality as r (lane, number) order by r.number";

/// Jobs of each request, and why one got fewer than it asked for.
type Answers = (Vec<Vec<Record>>, Vec<Option<Refused>>);

/// Leases jobs. Requests of the same lane are separate statements, since each depends on the one before.
///
/// The first ones are sent with what was changed before and with the bounds, which may then give fewer jobs
/// than were read.
pub(super) async fn lease(
    loader: &Loader,
    work: &mut Workspace,
    requests: &[LeaseRequest],
    shown: &[Shown<'_>],
    server: ServerId,
) -> Result<(Answers, Flows), Stop> {
    let wanted = Flows::wanted(loader, requests, shown).await?;
    let (mut leased, mut refused) = (Vec::with_capacity(requests.len()), Vec::new());
    let mut flows: Option<Flows> = None;
    let mut rest = requests;
    while !rest.is_empty() {
        let mut lanes = HashSet::new();
        let independent = rest.iter().take_while(|request| lanes.insert(&request.lane)).count();
        let (now, later) = rest.split_at(independent);
        rest = later;

        let mut pipeline = Pipeline::default();
        // The counts of leases must be without the ones that have ended.
        flush(loader, work, server, &mut pipeline);
        let asked = if flows.is_none() { wanted.ask(&mut pipeline, true, true) } else { None };
        let most = now.iter().map(|request| match &flows {
            Some(flows) => flows.room(request).unwrap_or(0),
            None => request.count,
        });
        let due = ask_due(loader, now, most, &mut pipeline);
        let results = pipeline.run(&loader.connection).await?;
        if flows.is_none() {
            let mut loaded = Flows::loaded(&wanted, asked, &results)?;
            loaded.show(shown);
            flows = Some(loaded);
        }
        let Some(flows) = &mut flows else { continue };
        let (jobs, why) = share_out(loader, work, flows, now, results.rows(due)).await?;
        leased.extend(jobs);
        refused.extend(why);
    }
    Ok(((leased, refused), flows.unwrap_or_default()))
}

/// Gives due jobs to the requests.
async fn share_out(
    loader: &Loader,
    work: &mut Workspace,
    flows: &mut Flows,
    requests: &[LeaseRequest],
    rows: &[Row],
) -> Result<Answers, Stop> {
    // Before any of them is given: together they can use up a bound.
    let most: Vec<u64> = requests.iter().map(|request| u64::from(flows.room(request).unwrap_or(0))).collect();
    let mut due = due(loader, rows).await?;
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
    Ok((leased, refused))
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

fn ask_due(
    loader: &Loader,
    requests: &[LeaseRequest],
    most: impl Iterator<Item = u32>,
    pipeline: &mut Pipeline<'_>,
) -> Place {
    let lanes = numbers(loader, requests);
    let first: Vec<bool> = requests.iter().map(|request| request.first_only).collect();
    let now: Vec<i64> = requests.iter().map(|request| time(request.now)).collect();
    let most: Vec<i64> = most.map(i64::from).collect();
    pipeline.add(DUE, parameters![lanes, first, now, most])
}

/// Returns due jobs by the index of their request, in no order.
async fn due(loader: &Loader, rows: &[Row]) -> Result<HashMap<usize, Vec<Record>>, Stop> {
    let jobs = loader.records(rows).await?;
    let mut due: HashMap<usize, Vec<Record>> = HashMap::new();
    for (row, job) in rows.iter().zip(jobs) {
        let number: i64 = row.try_get(2)?;
        due.entry(usize::try_from(number - 1).unwrap_or_default()).or_default().push(job);
    }
    Ok(due)
}

/// Asks for the bodies of leased jobs, if there are any. Later changes of the batch can delete them.
pub(super) fn ask_bodies(leased: &[Vec<Record>], pipeline: &mut Pipeline<'_>) -> Option<Place> {
    let ids: Vec<Vec<u8>> = leased.iter().flatten().map(|job| job.id.0.to_vec()).collect();
    (!ids.is_empty()).then(|| pipeline.add(BODIES, parameters![ids]))
}

/// Returns leased jobs with their bodies. The leases are stored by then: if a body cannot be read, the
/// scheduler gives them back, like leases of unknown outcome.
pub(super) fn deliveries(leased: Vec<Vec<Record>>, rows: &[Row]) -> Result<Vec<Deliveries>, Stop> {
    let mut bodies: HashMap<JobId, &[u8]> = HashMap::with_capacity(rows.len());
    for row in rows {
        bodies.insert(job_id(row.try_get(0)?)?, row.try_get(1)?);
    }
    let delivery = |job: Record| {
        let body = bodies.get(&job.id).ok_or_else(|| damaged(job.id, "no body"))?;
        let body = decode_body(job.id, body)?;
        Ok((job, body))
    };
    leased.into_iter().map(|jobs| jobs.into_iter().map(delivery).collect()).collect()
}

/// Asks when the next job of each request's lane is due.
pub(super) fn ask_next_due(loader: &Loader, requests: &[LeaseRequest], pipeline: &mut Pipeline<'_>) -> Place {
    pipeline.add(NEXT_DUE, parameters![numbers(loader, requests)])
}

/// Returns when the next job of each request's lane is due.
pub(super) fn next_due(rows: &[Row]) -> Result<Vec<NextDue>, Stop> {
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
