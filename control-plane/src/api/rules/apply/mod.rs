//! Applies a set of changes to rules, guards and queues, atomically in one revision.
//!
//! The writer resolves ownership and prune on the current entries ([`crate::write::claim`]). The snapshot of
//! this replica decides whether guards allow the rules, as for any write. `what_if` predicts the effects of a
//! set instead of writing it.

pub(crate) mod predicted;
pub(crate) mod quota;
pub(crate) mod read;
pub(crate) mod what_if;

use std::sync::Arc;
use std::time::SystemTime;

use damper_proto::v1;
use damper_store::writer::Proposal;
use tokio_util::sync::CancellationToken;
use tonic::Request;

pub(crate) use crate::api::rules::apply::quota::ApplyQuota;
use crate::api::rules::apply::read::ApplyStream;
pub(crate) use crate::api::rules::apply::what_if::what_if;
use crate::state::error::{ApiError, Current};
use crate::state::resource_key::ResourceKey;
use crate::write::Writes;
use crate::write::chain_limit;
use crate::write::chain_limit::ChainCheck;
use crate::write::change_set::{ChangeSet, ChangeSetResult};
use crate::write::claim::{DeferredSet, OwnershipClaim, ResolvedSet};
use crate::write::queue_jobs;
use crate::write::request::{CompletedWrite, WriteRequest, commit, stored_answer};

/// An apply request.
pub(crate) struct Apply {
    asked: WriteRequest,
    claim: OwnershipClaim,
    set: ChangeSet,
}

pub(crate) async fn apply(
    writes: &Arc<Writes>,
    quota: &ApplyQuota,
    stopping: &CancellationToken,
    request: Request<ApplyStream>,
) -> Result<v1::ApplyRulesResponse, ApiError> {
    // The reservation is kept until the set is written.
    let (Apply { asked, claim, set }, _reservation) = tokio::select! {
        read = read::read(writes, quota, request) => read?,
        () = stopping.cancelled() => return Err(ApiError::unavailable("this server of the control plane is stopping")),
    };
    let over = over_table(writes, &asked, claim, set);
    if let Some(first) = stored_answer(writes, &asked).await? {
        return answer_repeated(writes, &asked, over, &first).await;
    }
    let (resolved, chain) = check(writes, &asked, &over).await?;
    let DeferredSet { set, table: before, .. } = &over;
    if asked.options.validate_only {
        check_conditions(writes, &asked, &over, &resolved)?;
        let ResolvedSet { outcome: changes, pruned } = resolved;
        let set_result =
            ChangeSetResult { revision: before.revision(), changes, pruned, chain, author_owner: None };
        return set.clone().response(writes, before, set_result).await;
    }
    let done = write(writes, &asked, &over, &resolved).await?;
    if done.committed.repeated {
        return answer_repeated(writes, &asked, over, &done).await;
    }
    purge(writes, &asked, set, &done).await?;
    response(writes, set, &done, chain).await
}

/// Combines a set with the snapshot of this replica.
fn over_table(writes: &Writes, asked: &WriteRequest, claim: OwnershipClaim, set: ChangeSet) -> DeferredSet {
    let (author, at) = (asked.options.author.clone(), SystemTime::now());
    DeferredSet { set: Arc::new(set), claim, table: writes.fleet.table(), author, at }
}

/// Deletes the jobs of the queues that a set has deleted, if the request asks for it.
async fn purge(
    writes: &Arc<Writes>,
    asked: &WriteRequest,
    set: &ChangeSet,
    CompletedWrite { committed, .. }: &CompletedWrite,
) -> Result<(), ApiError> {
    let queues = set.deleted_queues(&set.not_named(committed));
    queue_jobs::purge(writes, asked, queues, committed.revision).await
}

/// Answers a request that was committed before, with its results at that time.
async fn answer_repeated(
    writes: &Arc<Writes>,
    asked: &WriteRequest,
    over: DeferredSet,
    first: &CompletedWrite,
) -> Result<v1::ApplyRulesResponse, ApiError> {
    purge(writes, asked, &over.set, first).await?;
    let over = DeferredSet { table: first.before.clone(), ..over };
    let chain = match over.claim.resolve(&over.set, &over.table) {
        Ok(resolved) => {
            chain_limit::check(writes, &over.table, &over.edits_over(&over.table, &resolved)).await?
        }
        // The state at that time is no longer known.
        Err(_) => ChainCheck::default(),
    };
    response(writes, &over.set, first, chain).await
}

/// Returns the expected result of the set on this snapshot. Errors if it is not allowed.
async fn check(
    writes: &Arc<Writes>,
    asked: &WriteRequest,
    at_commit: &DeferredSet,
) -> Result<(ResolvedSet, ChainCheck), ApiError> {
    let DeferredSet { set, claim, table, .. } = at_commit;
    asked.permit(set.0.iter().map(|change| &change.subject))?;
    let resolved = claim
        .resolve(set, table)
        .map_err(|forbidden| crate::write::conflict::owned_in(set, table, forbidden))?;
    asked.permit(&resolved.pruned)?;
    queue_jobs::check_deleted(&*writes.jobs, &asked.options, &set.deleted_queues(&resolved.pruned)).await?;
    let guards = set.guards_after(table, &resolved.pruned);
    if !claim.is_everything() {
        set.check_guards(&guards, &resolved.outcome).map_err(ApiError::Faults)?;
    }
    let chain = chain_limit::check(writes, table, &at_commit.edits_over(table, &resolved)).await?;
    chain.permit(&asked.options, |subject| set.path_of(subject)).map_err(ApiError::Faults)?;
    Ok((resolved, chain))
}

/// Errors if the writer would reject the set on this snapshot.
fn check_conditions(
    writes: &Writes,
    asked: &WriteRequest,
    DeferredSet { set, table, .. }: &DeferredSet,
    ResolvedSet { outcome, pruned }: &ResolvedSet,
) -> Result<(), ApiError> {
    if asked.options.expected_head.is_some_and(|head| head != table.revision()) {
        return Err(ApiError::Moved { head: table.revision() });
    }
    set.try_out(writes, table, outcome, pruned)
}

async fn write(
    writes: &Writes,
    asked: &WriteRequest,
    over: &DeferredSet,
    resolved: &ResolvedSet,
) -> Result<CompletedWrite, ApiError> {
    let edits = over.edits_over(&over.table, resolved);
    let proposal = Proposal {
        expected_head: asked.options.expected_head,
        planner: Some(Arc::new(over.clone())),
        ..asked.proposal(over.at, edits)
    };
    match commit(writes, asked, &over.table, proposal).await {
        Err(ApiError::PlannerRejected(entries)) => {
            let there = entries.into_iter().filter_map(|(key, entry)| {
                let subject = ResourceKey::of_key(&key)?;
                let current = entry.and_then(|entry| Current::read(&subject, entry));
                Some((subject, current))
            });
            Err(crate::write::conflict::owned(&over.set, there))
        }
        done => done,
    }
}

async fn response(
    writes: &Arc<Writes>,
    set: &Arc<ChangeSet>,
    CompletedWrite { committed, before, .. }: &CompletedWrite,
    chain: ChainCheck,
) -> Result<v1::ApplyRulesResponse, ApiError> {
    let (changes, pruned) = (set.outcome(before, committed), set.not_named(committed));
    let set_result =
        ChangeSetResult { revision: committed.revision, changes, pruned, chain, author_owner: None };
    set.clone().response(writes, before, set_result).await
}
