//! A set of changes to rules and guards, all or nothing, in one revision.
//!
//! What belongs to whom, and what goes because the set does not name it, is decided where the set is written over
//! the newest entries (`claim`). Whether guards allow its rules is judged by this replica's table, as in any write.
//! `what_if` predicts what a set would do instead of writing it.

pub(crate) mod predicted;
pub(crate) mod quota;
pub(crate) mod read;
pub(crate) mod what_if;

use std::sync::Arc;
use std::time::SystemTime;

use damper_proto::v1;
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
use crate::write::request::{CompletedWrite, WriteRequest, commit, first_answer};
use damper_store::writer::Proposal;

/// An apply as it was read.
pub(crate) struct Apply {
    asked: WriteRequest,
    claim: OwnershipClaim,
    set: ChangeSet,
}

pub(crate) async fn apply(
    writes: &Arc<Writes>,
    rooms: &ApplyQuota,
    stopping: &CancellationToken,
    request: Request<ApplyStream>,
) -> Result<v1::ApplyRulesResponse, ApiError> {
    // The room is the set's until it is written.
    let (Apply { asked, claim, set }, _room) = tokio::select! {
        read = read::read(writes, rooms, request) => read?,
        () = stopping.cancelled() => return Err(ApiError::unavailable("the server is stopping")),
    };
    let over = over_table(writes, &asked, claim, set);
    if let Some(first) = first_answer(writes, &asked).await? {
        return again(writes, over, &first).await;
    }
    let (settled, chain) = permitted(writes, &asked, &over).await?;
    let DeferredSet { set, table: before, .. } = &over;
    if asked.options.validate_only {
        holds(writes, &asked, &over, &settled)?;
        let ResolvedSet { outcome: changes, pruned } = settled;
        let came_to = ChangeSetResult { revision: before.revision(), changes, pruned, chain, by_hand: None };
        return set.clone().response(writes, before, came_to).await;
    }
    let done = write(writes, &asked, &over, &settled).await?;
    if done.committed.repeated {
        return again(writes, over, &done).await;
    }
    response(writes, set, &done, chain).await
}

/// A set with this replica's table.
fn over_table(writes: &Writes, asked: &WriteRequest, claim: OwnershipClaim, set: ChangeSet) -> DeferredSet {
    let (author, at) = (asked.options.author.clone(), SystemTime::now());
    DeferredSet { set: Arc::new(set), claim, table: writes.fleet.table(), author, at }
}

/// The answer to a request that was carried out before: what the set came to over what was there then.
async fn again(
    writes: &Arc<Writes>,
    over: DeferredSet,
    first: &CompletedWrite,
) -> Result<v1::ApplyRulesResponse, ApiError> {
    let over = DeferredSet { table: first.before.clone(), ..over };
    let chain = match over.claim.settle(&over.set, &over.table) {
        Ok(settled) => {
            chain_limit::judge(writes, &over.table, &over.edits_over(&over.table, &settled)).await?
        }
        // What was there then is no longer known.
        Err(_) => ChainCheck::default(),
    };
    response(writes, &over.set, first, chain).await
}

/// What would become of the set, were nothing written meanwhile; or why it is refused.
async fn permitted(
    writes: &Arc<Writes>,
    asked: &WriteRequest,
    at_commit: &DeferredSet,
) -> Result<(ResolvedSet, ChainCheck), ApiError> {
    let DeferredSet { set, claim, table, .. } = at_commit;
    asked.permit(set.0.iter().map(|change| &change.subject))?;
    let settled =
        claim.settle(set, table).map_err(|refused| crate::write::conflict::owned_in(set, table, refused))?;
    asked.permit(&settled.pruned)?;
    let guards = set.guards_after(table, &settled.pruned);
    if !claim.is_everything() {
        set.judge(&guards, &settled.outcome).map_err(ApiError::Faults)?;
    }
    let chain = chain_limit::judge(writes, table, &at_commit.edits_over(table, &settled)).await?;
    chain.permit(&asked.options, |subject| set.place_of(subject)).map_err(ApiError::Faults)?;
    Ok((settled, chain))
}

/// Refuses a set that the writer would refuse for what is there now.
fn holds(
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
    settled: &ResolvedSet,
) -> Result<CompletedWrite, ApiError> {
    let edits = over.edits_over(&over.table, settled);
    let proposal = Proposal {
        expected_head: asked.options.expected_head,
        judge: Some(Arc::new(over.clone())),
        ..asked.proposal(over.at, edits)
    };
    match commit(writes, asked, &over.table, proposal).await {
        Err(ApiError::Judged(entries)) => {
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
    let came_to = ChangeSetResult { revision: committed.revision, changes, pruned, chain, by_hand: None };
    set.clone().response(writes, before, came_to).await
}
