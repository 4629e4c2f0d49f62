//! A batch as one transaction of the file.

use ::redb::{Database, Durability};

use super::rows::Transaction;
use crate::store::apply::{self, Rows as _};
use crate::store::batch::{Batch, Committed, Deliveries, LeaseRequest};
use crate::store::encoding::damaged;
use crate::store::error::Error;
use crate::store::lanes::SharedLanes;

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
        refused: Vec::new(),
        next_due: leases.iter().map(|request| rows.next_due(&request.lane)).collect::<Result<_, _>>()?,
        submissions: submissions
            .iter()
            .map(|(job, body)| apply::submit(rows, job, body, full))
            .collect::<Result<_, _>>()?,
        changes: changes.iter().map(|change| apply::change(rows, change)).collect::<Result<_, _>>()?,
        due: Vec::new(),
    })
}

fn lease(rows: &mut Transaction<'_>, request: &LeaseRequest) -> Result<Deliveries, Error> {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ::redb::backends::InMemoryBackend;
    use damper_core::RouteKey;
    use damper_core::backoff::Sequence;
    use damper_core::job::{Job, Wall};

    use super::super::open::open_backend;
    use super::*;
    use crate::store::batch::{After, Settled, SettledBy, Settlement, Submitted};
    use crate::store::record::{Body, JobId, Lane, Record, ServerId, State};

    fn job(number: u8) -> (Record, Body) {
        let route = RouteKey::new("web", "eu", "stock", "stock.Stock/Reserve").unwrap();
        let record = Record {
            id: JobId([number; 16]),
            lane: Arc::new(Lane { queue: "orders".to_owned(), route }),
            state: State::Waiting,
            at: Wall(1),
            submitted: Wall(1),
            job: Job {
                deliveries: 0,
                attempts: 0,
                sends_before: 0,
                lost: 0,
                waits: Sequence::default(),
                began: Wall(1),
                expires: Wall(9),
            },
            booked: None,
            key: number.to_string(),
            digest: [0; 32],
            order_key: None,
            call_id: String::new(),
            body_key_id: String::new(),
            body_bytes: 0,
            ended: String::new(),
            failures: Vec::new(),
        };
        (record, Body::default())
    }

    fn lease() -> LeaseRequest {
        LeaseRequest {
            lane: job(1).0.lane,
            count: 1,
            max_bytes: 1,
            first_only: false,
            bounds: None,
            server: ServerId(1),
            now: Wall(2),
            seed: 3,
        }
    }

    #[test]
    fn full_disk_refuses_new_jobs_and_settles_old_ones() {
        let opened = open_backend(InMemoryBackend::new(), "memory").unwrap();
        let commit = |batch: Batch, full| commit(&opened.database, &opened.lanes, &batch, full).unwrap();
        commit(Batch { submissions: vec![job(1)], ..Batch::default() }, None);
        let leased = commit(Batch { leases: vec![lease()], ..Batch::default() }, None);
        let (record, _) = &leased.leases[0][0];
        let State::Leased { token, .. } = record.state else { panic!("{record:?}") };
        let settlement = Settlement {
            id: record.id,
            delivery: 1,
            token,
            by: SettledBy::Worker,
            to: After::Done,
            at: Wall(3),
            job: record.job,
            ended: String::new(),
            failure: None,
            evidence: None,
        };
        let settlements = vec![settlement];
        let batch = Batch { settlements, submissions: vec![job(1), job(2)], ..Batch::default() };
        let committed = commit(batch, Some("1 MiB free"));
        assert_eq!(committed.settlements, [Settled::Applied]);
        assert!(matches!(&committed.submissions[0], Submitted::Existing(job) if job.state == State::Done));
        assert_eq!(committed.submissions[1], Submitted::Refused(Error::Full("1 MiB free".to_owned())));
    }
}
