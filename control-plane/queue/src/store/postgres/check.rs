//! Reads all tables in one snapshot and compares them.

use std::collections::HashMap;

use super::connection::Stop;
use super::flush::{state, time};
use super::load::{Loader, job_id, load_lanes};
use super::reads::tally;
use crate::store::consistency::{Contents, name};
use crate::store::encoding::decode_body;
use crate::store::error::Error;
use crate::store::record::{Record, State};

/// Columns of a job, apart from its record.
type Columns = (i8, bool, i64, i64, i64, Option<i64>);

/// Returns what contradicts itself.
pub(super) async fn check(loader: &Loader) -> Result<Vec<String>, Stop> {
    let connection = &loader.connection;
    connection.batch("begin isolation level repeatable read read only").await?;
    load_lanes(connection, &loader.lanes).await?;
    let mut contents = Contents::default();
    let mut problems = Vec::new();
    let sql =
        "select id, record, scope, key, order_key, state, repeat, at, began, expires, server, lane from job";
    let rows = connection.query(sql, &[]).await?;
    for (row, job) in rows.iter().zip(loader.records(&rows).await?) {
        let text = |column| row.try_get::<_, Option<Vec<u8>>>(column).map(Option::unwrap_or_default);
        let (scope, key, order_key) = (text(2)?, text(3)?, text(4)?);
        let columns: Columns = (
            row.try_get(5)?,
            row.try_get(6)?,
            row.try_get(7)?,
            row.try_get(8)?,
            row.try_get(9)?,
            row.try_get(10)?,
        );
        let lane = loader.lanes.read().number(&job.lane).map(|lane| lane.number.cast_signed());
        let same = columns == columns_of(&job)
            && scope == job.lane.scope().to_be_bytes()
            && order_key == job.order_key.as_deref().unwrap_or_default().as_bytes()
            && lane == Some(row.try_get(11)?);
        if !same {
            problems.push(format!("{}: columns {columns:?} of {job:?}", name(job.id)));
        }
        contents.keys.insert((job.lane.scope(), String::from_utf8_lossy(&key).into_owned()), job.id);
        contents.jobs.insert(job.id, job);
    }
    for row in connection.query("select id, body from body", &[]).await? {
        let id = job_id(row.try_get(0)?)?;
        contents.bodies.insert(id, decode_body(id, row.try_get(1)?)?.bytes());
    }
    for row in connection.query("select scope, order_key, job from head", &[]).await? {
        let scope: &[u8] = row.try_get(0)?;
        let order_key = String::from_utf8_lossy(row.try_get(1)?).into_owned();
        let head: Option<&[u8]> = row.try_get(2)?;
        match (scope.try_into().map(u128::from_be_bytes), head) {
            (Ok(scope), Some(head)) => drop(contents.heads.insert((scope, order_key), job_id(head)?)),
            _ => problems.push(format!("head of {order_key:?} without a job")),
        }
    }
    read_tallies(loader, &mut contents).await?;
    connection.commit().await?;
    problems.extend(contents.problems());
    Ok(problems)
}

async fn read_tallies(loader: &Loader, contents: &mut Contents) -> Result<(), Stop> {
    let sql = "select lane, sum(waiting)::bigint, sum(behind)::bigint, sum(leased)::bigint, sum(dead)::bigint, \
               sum(ended)::bigint, sum(bytes)::bigint from tally group by lane";
    let mut tallies = HashMap::new();
    for row in loader.connection.query(sql, &[]).await? {
        let number = row.try_get::<_, i32>(0)?.cast_unsigned();
        let lane = loader.lanes.read().lane(number);
        let lane = lane.ok_or_else(|| Error::Damaged(format!("lane {number}: not in the table of lanes")))?;
        tallies.insert(lane, tally(&row)?);
    }
    contents.tallies = tallies;
    Ok(())
}

fn columns_of(job: &Record) -> Columns {
    let server = match job.state {
        State::Leased { server, .. } => Some(server.0.cast_signed()),
        _ => None,
    };
    let (began, expires) = (time(job.job.began), time(job.job.expires));
    (state(job.state), !job.is_first(), time(job.at), began, expires, server)
}
