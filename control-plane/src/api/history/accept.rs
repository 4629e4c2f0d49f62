//! Accepts the current contents of the store after it was emptied, replaced or restored.
//!
//! One change records the author and the reason. With `refill` the same change also writes the snapshot of
//! this replica into the store. The store then gets a new epoch, whose lineage contains every known epoch: of
//! this snapshot, of the store, of clients with a later revision, and of the peers. All of them continue from
//! the new epoch.
//!
//! After a failure between the two steps the store is still not accepted, and the request can be repeated.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use damper_core::Faults;
use damper_proto::v1;
use damper_store::{Change, Edit, StoreContents};
use tonic::Request;

use crate::cluster::Cluster;
use crate::state::error::ApiError;
use crate::state::snapshot::Snapshot;
use crate::write::request::{WriteRequest, check_options};

/// Longest wait for a snapshot of the accepted store.
const REACHED_WITHIN: Duration = Duration::from_secs(20);

pub(crate) async fn accept(
    cluster: &Cluster,
    request: Request<v1::AcceptStoreRequest>,
) -> Result<v1::AcceptStoreResponse, ApiError> {
    let (asked, request) = WriteRequest::read("accept store", request, |request| request.options.take());
    let mut faults = Faults::none();
    check_options("options", &asked.options, &mut faults);
    if asked.options.reason.is_empty() {
        faults.add("options.reason", "is required");
    }
    faults.or(()).map_err(ApiError::Faults)?;
    let table = cluster.fleet.table();
    let found = found(cluster, &table)?;
    if request.refill
        && let Some(replica) = table.unaccepted.as_ref().and_then(|found| found.known_by.as_ref())
    {
        return Err(ApiError::Unmet(format!(
            "this replica does not have the earlier contents of the store, so it cannot refill the store; send the request to replica {replica}"
        )));
    }
    if found != (request.found_epoch.clone(), request.found_revision) {
        return Err(ApiError::Moved { head: found.1 });
    }
    if asked.options.validate_only {
        let (epoch, revision) = found;
        return Ok(v1::AcceptStoreResponse { epoch, revision, entries: count(table.entries()) });
    }
    if found.0.is_empty() {
        cluster.fleet.state.found.create().await?;
    }
    let state = cluster.fleet.state.found.load().await?;
    if !found.0.is_empty() && found != (state.epoch.clone(), state.revision) {
        return Err(ApiError::Moved { head: state.revision });
    }
    let edits =
        if request.refill { crate::state::values::edits_to(&table, &state.entries) } else { Vec::new() };
    let change = record(&asked, &table, &state, edits);
    cluster.fleet.state.found.commit(state.revision, std::slice::from_ref(&change)).await?;
    let epoch =
        cluster.fleet.state.found.renew_epoch(&state.epoch, &predecessors(cluster, &table, &state)).await?;
    tracing::warn!(epoch, change.revision, change.author, change.principal, change.reason, "accepted");
    reached(cluster, &epoch).await
}

/// Returns the epoch and revision to accept: those of the replaced store, or of the known store if clients
/// have a later revision.
fn found(cluster: &Cluster, table: &Snapshot) -> Result<(String, u64), ApiError> {
    if let Some(found) = &table.unaccepted {
        return Ok((found.epoch.clone(), found.revision));
    }
    if cluster.fleet.hub.held() == 0 {
        return Err(ApiError::Unmet(
            "nothing to accept: the store was not replaced, and no client has later rules than the store"
                .to_owned(),
        ));
    }
    Ok((table.epoch().to_string(), table.revision()))
}

/// Returns the change that records the acceptance.
fn record(asked: &WriteRequest, table: &Snapshot, state: &StoreContents, edits: Vec<Edit>) -> Change {
    let proposal = asked.proposal(SystemTime::now(), Vec::new());
    let (known, at) = (table.epoch(), table.revision());
    let found = match state.revision {
        0 => "an empty store".to_owned(),
        revision => format!("a store at revision {revision}"),
    };
    let what = if edits.is_empty() { "accepted" } else { "refilled and accepted" };
    let reason = format!("{what}: {found} in place of revision {at} of {known}: {}", proposal.reason);
    Change {
        revision: state.revision + 1,
        commit: 0,
        at: proposal.at,
        author: proposal.author,
        reason,
        peer: proposal.peer,
        principal: proposal.principal,
        request_id: String::new(),
        request_digest: 0,
        edits,
    }
}

/// Returns every epoch that the new epoch succeeds, the most important first.
fn predecessors(cluster: &Cluster, table: &Snapshot, state: &StoreContents) -> Vec<String> {
    let mut epochs = vec![table.epoch().to_string(), state.epoch.clone()];
    let mut seen: BTreeSet<String> = epochs.iter().cloned().collect();
    let replicas = cluster.peers.all_others().into_iter().map(|replica| replica.epoch);
    let clients = cluster.fleet.hub.held_epochs();
    for epoch in replicas.chain(clients).chain(table.lineage().iter().cloned()) {
        if seen.insert(epoch.clone()) {
            epochs.push(epoch);
        }
    }
    epochs
}

/// Waits until this replica serves the accepted store.
async fn reached(cluster: &Cluster, epoch: &str) -> Result<v1::AcceptStoreResponse, ApiError> {
    let mut tables = cluster.fleet.state.table.clone();
    let _ = cluster.fleet.state.refresh.try_send(());
    let went_on = tables.wait_for(|view| **view.epoch() == *epoch && view.unaccepted.is_none());
    let Ok(Ok(view)) = tokio::time::timeout(REACHED_WITHIN, went_on).await else {
        return Err(damper_store::StoreError::Unavailable {
            reason: "the store is accepted, but not read by this replica yet; try again".to_owned(),
        }
        .into());
    };
    let (epoch, revision) = (view.epoch().to_string(), view.revision());
    Ok(v1::AcceptStoreResponse { epoch, revision, entries: count(view.entries()) })
}

fn count(entries: usize) -> u32 {
    u32::try_from(entries).unwrap_or(u32::MAX)
}
