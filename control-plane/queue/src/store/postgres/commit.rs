//! A batch as one transaction.
//!
//! All locks are taken at the start, in one order in every server: jobs without an order key by id, heads of
//! order keys, then jobs with one by id; also those that a batch names by their keys. So two batches wait for
//! each other only where a row that neither knew appears in between, and PostgreSQL then ends one of them.
//! Leases wait for other servers only in a queue with bounds. The operations run over memory; a row that one
//! of them misses is loaded.
//!
//! Leases are selected by their index, so what came before them is written first. Without order keys a batch
//! takes three round trips: it locks and loads, leases, writes and commits.

use std::sync::Arc;

use super::connection::Stop;
use super::flow::{Flows, Shown};
use super::flush::{flush, flush_heads};
use super::lease;
use super::load::{Loader, Named, add_lanes};
use super::pipeline::{Pipeline, parameters};
use super::workspace::{Miss, Workspace};
use crate::store::apply;
use crate::store::batch::{Batch, Committed, Evidence, Settled};
use crate::store::error::Error;
use crate::store::record::{Lane, ServerId};

/// Errors if another server has taken this one for dead: further leases would be watched by none. The lock
/// makes an observer wait that finds this server dead meanwhile. Both take it before all others.
const WATCHED: &str = "select 1 from server where id = $1 for key share";

/// Runs a batch in a transaction. Returns also the number of dead rows that it leaves. On an error the
/// transaction may still be open.
pub(super) async fn commit(
    loader: &Loader,
    batch: &Batch,
    server: ServerId,
) -> Result<(Committed, u64), Stop> {
    let Batch { settlements, claims, leases, submissions, changes } = batch;
    // Outside of the transaction: a lane stays when the batch is repeated.
    add_lanes(&loader.connection, &loader.lanes, submissions.iter().map(|(job, _)| &job.lane)).await?;
    let mut work = Workspace::default();
    let mut committed = Committed::default();

    begin(loader, &mut work, batch, server).await?;
    committed.settlements = each(loader, &mut work, settlements, apply::settle).await?;
    committed.claims = each(loader, &mut work, claims, apply::claim).await?;

    let shown = shown(&work, batch, &committed.settlements);
    let shown: Vec<Shown<'_>> = shown.iter().map(|(lane, evidence)| (&**lane, evidence)).collect();
    let ((leased, refused), flows) = if leases.is_empty() {
        (Default::default(), Flows::of_evidence(loader, &shown).await?)
    } else {
        lease::lease(loader, &mut work, leases, &shown, server).await?
    };
    committed.refused = refused;

    let mut last = Pipeline::default();
    let bodies = lease::ask_bodies(&leased, &mut last);
    let next = (!leases.is_empty()).then(|| {
        // Of what the leases leave: new jobs wake their lanes.
        flush(loader, &mut work, server, &mut last);
        lease::ask_next_due(loader, leases, &mut last)
    });
    let submit = |work: &mut Workspace, (job, body): &_| apply::submit(work, job, body, None);
    committed.submissions = each(loader, &mut work, submissions, submit).await?;
    committed.changes = each(loader, &mut work, changes, apply::change).await?;

    flush(loader, &mut work, server, &mut last);
    work.is_changed |= flows.save(&mut last);
    committed.due = work.woken.drain().map(|(_, woken)| woken).collect();
    let results = if work.is_changed {
        flush_heads(&work, &mut last);
        last.commit(&loader.connection).await?
    } else {
        let results = last.run(&loader.connection).await?;
        loader.connection.batch("rollback").await?;
        results
    };
    committed.leases = lease::deliveries(leased, bodies.map_or(&[], |bodies| results.rows(bodies)))?;
    if let Some(next) = next {
        committed.next_due = lease::next_due(results.rows(next))?;
    }
    Ok((committed, work.dead_rows))
}

/// Begins the transaction, and locks and loads the rows that a batch names.
async fn begin(loader: &Loader, work: &mut Workspace, batch: &Batch, server: ServerId) -> Result<(), Stop> {
    let Batch { settlements, claims, leases, submissions, changes } = batch;
    let mut first = Pipeline::default();
    let is_watched = !leases.is_empty() || !claims.is_empty();
    let watched = is_watched.then(|| first.add(WATCHED, parameters![server.0.cast_signed()]));
    let mut named = Named::default();
    named.ids.extend(settlements.iter().map(|end| end.id));
    named.ids.extend(claims.iter().map(|claim| claim.id));
    named.ids.extend(changes.iter().map(|change| change.id));
    for (job, _) in submissions {
        let scope = job.lane.scope();
        named.new.insert(job.id);
        named.keys.insert((scope, job.key.clone()));
        named.order_keys.extend(job.order_key.clone().map(|order_key| (scope, order_key)));
    }
    let results = loader.begin(work, first, named).await?;
    if watched.is_some_and(|watched| results.rows(watched).is_empty()) {
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
