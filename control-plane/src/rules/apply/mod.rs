//! A set of changes to rules and guards, all or nothing, in one revision.
//!
//! What belongs to whom, and what goes because the set does not name it, is decided where the set is written over
//! the newest entries (`claim`). Whether guards allow its rules is judged by this replica's table, as in any write.
//! `what_if` predicts what a set would do instead of writing it.

mod claim;
mod conflict;
mod predicted;
mod read;
mod room;
mod what_if;

use std::sync::Arc;
use std::time::SystemTime;

use damper_proto::v1;
use tonic::Request;

use self::claim::{AtCommit, Claim, Settled};
use self::read::Requests;
pub(super) use self::room::Rooms;
pub(super) use self::what_if::what_if;
use crate::chain::{self, Judged};
use crate::errors::{Current, Error};
use crate::requests::{Asked, Done, commit, first_answer};
use crate::set::{CameTo, Set};
use crate::shared::Shared;
use crate::table::Subject;
use crate::writer::Proposal;

/// An apply as it was read.
struct Apply {
    asked: Asked,
    claim: Claim,
    set: Set,
}

pub(super) async fn apply(
    shared: &Arc<Shared>,
    rooms: &Rooms,
    request: Request<Requests>,
) -> Result<v1::ApplyRulesResponse, Error> {
    // The room is the set's until it is written.
    let (Apply { asked, claim, set }, _room) = tokio::select! {
        read = read::read(shared, rooms, request) => read?,
        () = shared.stopping.cancelled() => return Err(Error::unavailable("the server is stopping")),
    };
    let over = over_table(shared, &asked, claim, set);
    if let Some(first) = first_answer(shared, &asked).await? {
        return again(shared, over, &first).await;
    }
    let (settled, chain) = permitted(shared, &asked, &over).await?;
    let AtCommit { set, table: before, .. } = &over;
    if asked.options.validate_only {
        holds(shared, &asked, &over, &settled)?;
        let Settled { outcome: changes, pruned } = settled;
        let came_to = CameTo { revision: before.revision(), changes, pruned, chain, by_hand: None };
        return set.clone().response(shared, before, came_to).await;
    }
    let done = write(shared, &asked, &over, &settled).await?;
    if done.committed.repeated {
        return again(shared, over, &done).await;
    }
    response(shared, set, &done, chain).await
}

/// A set with this replica's table.
fn over_table(shared: &Shared, asked: &Asked, claim: Claim, set: Set) -> AtCommit {
    let (author, at) = (asked.options.author.clone(), SystemTime::now());
    AtCommit { set: Arc::new(set), claim, table: shared.table(), author, at }
}

/// The answer to a request that was carried out before: what the set came to over what was there then.
async fn again(shared: &Arc<Shared>, over: AtCommit, first: &Done) -> Result<v1::ApplyRulesResponse, Error> {
    let over = AtCommit { table: first.before.clone(), ..over };
    let chain = match over.claim.settle(&over.set, &over.table) {
        Ok(settled) => chain::judge(shared, &over.table, &over.edits_over(&over.table, &settled)).await?,
        // What was there then is no longer known.
        Err(_) => Judged::default(),
    };
    response(shared, &over.set, first, chain).await
}

/// What would become of the set, were nothing written meanwhile; or why it is refused.
async fn permitted(
    shared: &Arc<Shared>,
    asked: &Asked,
    at_commit: &AtCommit,
) -> Result<(Settled, Judged), Error> {
    let AtCommit { set, claim, table, .. } = at_commit;
    asked.permit(set.0.iter().map(|change| &change.subject))?;
    let settled = claim.settle(set, table).map_err(|refused| conflict::owned_in(set, table, refused))?;
    asked.permit(&settled.pruned)?;
    let guards = set.guards_after(table, &settled.pruned);
    if !claim.is_everything() {
        set.judge(&guards, &settled.outcome).map_err(Error::Faults)?;
    }
    let chain = chain::judge(shared, table, &at_commit.edits_over(table, &settled)).await?;
    chain.permit(&asked.options, |subject| set.place_of(subject)).map_err(Error::Faults)?;
    Ok((settled, chain))
}

/// Refuses a set that the writer would refuse for what is there now.
fn holds(
    shared: &Shared,
    asked: &Asked,
    AtCommit { set, table, .. }: &AtCommit,
    Settled { outcome, pruned }: &Settled,
) -> Result<(), Error> {
    if asked.options.expected_head.is_some_and(|head| head != table.revision()) {
        return Err(Error::Moved { head: table.revision() });
    }
    set.try_out(shared, table, outcome, pruned)
}

async fn write(shared: &Shared, asked: &Asked, over: &AtCommit, settled: &Settled) -> Result<Done, Error> {
    let edits = over.edits_over(&over.table, settled);
    let proposal = Proposal {
        expected_head: asked.options.expected_head,
        judge: Some(Arc::new(over.clone())),
        ..asked.proposal(over.at, edits)
    };
    match commit(shared, asked, &over.table, proposal).await {
        Err(Error::Judged(entries)) => {
            let there = entries.into_iter().filter_map(|(key, entry)| {
                let subject = Subject::of_key(&key)?;
                let current = entry.and_then(|entry| Current::read(&subject, entry));
                Some((subject, current))
            });
            Err(conflict::owned(&over.set, there))
        }
        done => done,
    }
}

async fn response(
    shared: &Arc<Shared>,
    set: &Arc<Set>,
    Done { committed, before, .. }: &Done,
    chain: Judged,
) -> Result<v1::ApplyRulesResponse, Error> {
    let (changes, pruned) = (set.outcome(before, committed), set.not_named(committed));
    let came_to = CameTo { revision: committed.revision, changes, pruned, chain, by_hand: None };
    set.clone().response(shared, before, came_to).await
}
