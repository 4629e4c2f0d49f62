//! A batch as one transaction.
//!
//! All locks are taken at the start, in one order in every server: heads of order keys, then jobs by id. So
//! two batches wait for each other only where a row that neither knew appears in between, and PostgreSQL then
//! ends one of them. Leases wait for other servers only in a queue with bounds. The operations run over
//! memory; a row that one of them misses is loaded.
//!
//! Leases are selected by their index, so what came before them is written first.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::connection::Stop;
use super::flow::{Flows, Shown};
use super::flush::{flush, flush_heads};
use super::lease;
use super::load::{Loader, add_lanes};
use super::workspace::{Miss, Scoped, Workspace};
use crate::store::apply;
use crate::store::batch::{Batch, Committed, Evidence, Settled};
use crate::store::error::Error;
use crate::store::record::{JobId, Lane, ServerId};

/// Runs a batch in a transaction. On an error the transaction is still open.
pub(super) async fn commit(loader: &Loader, batch: &Batch, server: ServerId) -> Result<Committed, Stop> {
    let Batch { settlements, claims, leases, submissions, changes } = batch;
    // Outside of the transaction: a lane stays when the batch is repeated.
    add_lanes(&loader.connection, &loader.lanes, submissions.iter().map(|(job, _)| &job.lane)).await?;
    loader.connection.batch("begin").await?;
    let mut work = Workspace::default();
    let mut committed = Committed::default();

    if !leases.is_empty() || !claims.is_empty() {
        check_watched(loader, server).await?;
    }
    lock(loader, &mut work, batch).await?;
    committed.settlements = each(loader, &mut work, settlements, apply::settle).await?;
    committed.claims = each(loader, &mut work, claims, apply::claim).await?;

    let shown = shown(&work, batch, &committed.settlements);
    let shown: Vec<Shown<'_>> = shown.iter().map(|(lane, evidence)| (&**lane, evidence)).collect();
    if !leases.is_empty() {
        // The counts of leases must be without the ones that have ended.
        flush(loader, &mut work, server).await?;
    }
    let mut flows = Flows::open(loader, leases, &shown).await?;

    if !leases.is_empty() {
        (committed.leases, committed.refused) =
            lease::lease(loader, &mut work, &mut flows, leases, server).await?;
        flush(loader, &mut work, server).await?;
        committed.next_due = lease::next_due(loader, leases).await?;
    }

    let submit = |work: &mut Workspace, (job, body): &_| apply::submit(work, job, body, None);
    committed.submissions = each(loader, &mut work, submissions, submit).await?;

    committed.changes = each(loader, &mut work, changes, apply::change).await?;

    flush(loader, &mut work, server).await?;
    work.is_changed |= flows.save(loader).await?;
    committed.due = work.woken.drain().map(|(_, woken)| woken).collect();
    if work.is_changed {
        flush_heads(loader, &work).await?;
        loader.connection.commit().await?;
    } else {
        loader.connection.batch("rollback").await?;
    }
    Ok(committed)
}

/// Errors if another server has taken this one for dead: further leases would be watched by none. The lock
/// makes an observer wait that finds this server dead meanwhile. Both take it before all others.
async fn check_watched(loader: &Loader, server: ServerId) -> Result<(), Stop> {
    let sql = "select 1 from server where id = $1 for key share";
    let rows = loader.connection.query(sql, &[&server.0.cast_signed()]).await?;
    if rows.is_empty() {
        return Err(Stop::Store(taken_for_dead()));
    }
    Ok(())
}

/// Returns the error until this server has a new number.
pub(super) fn taken_for_dead() -> Error {
    Error::Unavailable("another server has taken this one for dead".to_owned())
}

/// Returns what the settlements that count show of their callees.
fn shown(work: &Workspace, batch: &Batch, settled: &[Settled]) -> Vec<(Arc<Lane>, Evidence)> {
    let ends = batch.settlements.iter().zip(settled);
    let counts = ends.filter(|(_, settled)| matches!(settled, Settled::Applied | Settled::Replaced));
    let shown = counts.filter_map(|(end, _)| {
        let job = work.jobs.get(&end.id)?.now.as_ref()?;
        Some((job.lane.clone(), end.evidence?))
    });
    shown.collect()
}

/// Runs the operations of a part, and loads what one misses.
async fn each<T, O>(
    loader: &Loader,
    work: &mut Workspace,
    operations: &[O],
    apply: impl Fn(&mut Workspace, &O) -> Result<T, Miss>,
) -> Result<Vec<T>, Stop> {
    let mut results = Vec::with_capacity(operations.len());
    for operation in operations {
        loop {
            match work.run(|work| apply(work, operation)) {
                Ok(result) => break results.push(result),
                Err(miss) => loader.miss(work, miss).await?,
            }
        }
    }
    Ok(results)
}

/// Locks and loads the rows that a batch names: jobs, those with the keys of new ones, the turns of their
/// order keys, and who is next.
async fn lock(loader: &Loader, work: &mut Workspace, batch: &Batch) -> Result<(), Stop> {
    let Batch { settlements, claims, leases: _, submissions, changes } = batch;
    let mut ids: BTreeSet<JobId> = settlements.iter().map(|end| end.id).collect();
    ids.extend(claims.iter().map(|claim| claim.id));
    ids.extend(changes.iter().map(|change| change.id));
    let keys = submissions.iter().map(|(job, _)| (job.lane.scope(), job.key.clone()));
    ids.extend(loader.keys(work, keys).await?);
    let mut order_keys = loader.order_keys(&ids).await?;
    order_keys.extend(submissions.iter().filter_map(|(job, _)| {
        let order_key = job.order_key.clone()?;
        Some((job.lane.scope(), order_key))
    }));
    loader.heads(work, order_keys.iter().cloned()).await?;
    ids.extend(submissions.iter().map(|(job, _)| job.id));
    loader.jobs(work, ids).await?;
    let may_end = |order_key: &Scoped| {
        let head = work.heads.get(order_key).and_then(|slot| slot.now);
        head.is_some_and(|head| work.jobs.contains_key(&head))
    };
    let next: Vec<Scoped> = order_keys.into_iter().filter(may_end).collect();
    loader.behind(work, next).await
}
