//! A batch as one transaction of the file.

use ::redb::{Database, Durability};

use super::lanes::SharedLanes;
use super::rows::Transaction;
use crate::store::apply::{self, Rows as _};
use crate::store::batch::{Batch, Committed, LeaseRequest};
use crate::store::encoding::damaged;
use crate::store::error::Error;
use crate::store::record::{Body, Record};

/// Commits a batch. `full` is why there is no room for further jobs. Without a change nothing is written: all
/// that the results rest on is durable already.
pub(super) fn commit(
    database: &Database,
    lanes: &SharedLanes,
    batch: &Batch,
    full: Option<&str>,
) -> Result<Committed, Error> {
    let mut transaction = database.begin_write()?;
    transaction
        .set_durability(Durability::Immediate)
        .map_err(|error| Error::Unavailable(error.to_string()))?;
    // Saves the allocator's state with each commit: the file opens at once after kill -9.
    transaction.set_quick_repair(true);
    let mut rows = Transaction::new(&transaction, lanes.clone())?;
    let mut committed = apply_batch(&mut rows, batch, full)?;
    if rows.finish(&mut committed)? {
        transaction.commit()?;
    } else {
        transaction.abort()?;
    }
    Ok(committed)
}

fn apply_batch(rows: &mut Transaction<'_>, batch: &Batch, full: Option<&str>) -> Result<Committed, Error> {
    let Batch { settlements, claims, leases, submissions, changes } = batch;
    Ok(Committed {
        settlements: settlements.iter().map(|end| apply::settle(rows, end)).collect::<Result<_, _>>()?,
        claims: claims.iter().map(|claim| apply::claim(rows, claim)).collect::<Result<_, _>>()?,
        leases: leases.iter().map(|request| lease(rows, request)).collect::<Result<_, _>>()?,
        next_due: leases.iter().map(|request| rows.next_due(&request.lane)).collect::<Result<_, _>>()?,
        submissions: submissions
            .iter()
            .map(|(job, body)| apply::submit(rows, job, body, full))
            .collect::<Result<_, _>>()?,
        changes: changes.iter().map(|change| apply::change(rows, change)).collect::<Result<_, _>>()?,
        due: Vec::new(),
    })
}

fn lease(rows: &mut Transaction<'_>, request: &LeaseRequest) -> Result<Vec<(Record, Body)>, Error> {
    let (mut leased, mut bytes) = (Vec::new(), 0);
    for id in rows.due(request)? {
        if bytes >= request.max_bytes {
            break;
        }
        let old = rows.get(id)?.ok_or_else(|| damaged(id, "due, but there is no such job"))?;
        let new = apply::lease(rows, &old, request)?;
        bytes += u64::from(new.body_bytes);
        leased.push((new, rows.body(id)?));
    }
    Ok(leased)
}
