//! A set of changes to rules and guards, all or nothing, in one revision.
//!
//! What belongs to whom, and what goes because the set does not name it, is decided where the set is written over
//! the newest entries (`claim`). Whether guards allow its rules is judged by this replica's table, as in any write.

mod claim;
mod conflict;
mod read;

use std::sync::Arc;
use std::time::SystemTime;

use damper_proto::v1;

use self::claim::{AtCommit, Claim, Settled};
use self::read::Requests;
use crate::chain::{self, Judged};
use crate::errors::{Current, Error};
use crate::paging::Digest;
use crate::requests::{first_answer, write_judged};
use crate::set::{CameTo, Set};
use crate::shared::Shared;
use crate::table::{Subject, TableView};
use crate::writer::Committed;

/// An apply as it was read.
struct Apply {
    options: v1::WriteOptions,
    claim: Claim,
    set: Set,
    digest: Digest,
}

pub(super) async fn apply(shared: &Arc<Shared>, requests: Requests) -> Result<v1::ApplyRulesResponse, Error> {
    let Apply { options, claim, set, digest } = tokio::select! {
        apply = read::read(shared, requests) => apply?,
        () = shared.stopping.cancelled() => return Err(Error::unavailable("the server is stopping")),
    };
    let before = shared.table();
    let set = Arc::new(set);
    let at_commit = AtCommit {
        set: set.clone(),
        claim,
        table: before.clone(),
        author: options.author.clone(),
        at: SystemTime::now(),
    };
    match permitted(shared, &options, &at_commit) {
        Err(refused) => match first_answer(shared, &options, digest).await? {
            Some((committed, _)) => Ok(response(shared, &set, &before, &committed, &Judged::default())),
            None => Err(refused),
        },
        Ok((Settled { outcome, pruned }, chain)) if options.validate_only => {
            set.try_out(shared, &before, &outcome, &pruned)?;
            let guards = set.guards_after(&before, &pruned);
            Ok(set.response(
                shared,
                &before,
                &guards,
                &CameTo { revision: before.revision(), changes: &outcome, pruned: &pruned, chain: &chain },
            ))
        }
        Ok((settled, chain)) => {
            let committed = write(shared, &options, digest, at_commit, &settled).await?;
            Ok(response(shared, &set, &before, &committed, &chain))
        }
    }
}

/// What would become of the set, were nothing written meanwhile; or why it is refused.
fn permitted(
    shared: &Shared,
    options: &v1::WriteOptions,
    at_commit: &AtCommit,
) -> Result<(Settled, Judged), Error> {
    let AtCommit { set, claim, table, .. } = at_commit;
    let settled = claim.settle(set, table).map_err(|refused| conflict::owned_in(set, table, refused))?;
    let guards = set.guards_after(table, &settled.pruned);
    if !claim.is_everything() {
        set.judge(&guards, &settled.outcome).map_err(Error::Faults)?;
    }
    let chain = chain::judge(shared, table, &at_commit.edits_over(table, &settled));
    chain.permit(options, |subject| set.place_of(subject)).map_err(Error::Faults)?;
    Ok((settled, chain))
}

async fn write(
    shared: &Shared,
    options: &v1::WriteOptions,
    digest: Digest,
    judge: AtCommit,
    settled: &Settled,
) -> Result<Committed, Error> {
    let (set, at) = (judge.set.clone(), judge.at);
    let edits = judge.edits_over(&judge.table, settled);
    let written = write_judged(shared, options, digest, at, edits, Arc::new(judge)).await;
    match written {
        Ok((committed, _)) => Ok(committed),
        Err(Error::Judged(entries)) => {
            let there = entries.into_iter().filter_map(|(key, entry)| {
                let subject = Subject::of_key(&key)?;
                let current = entry.and_then(|entry| Current::read(&subject, entry));
                Some((subject, current))
            });
            Err(conflict::owned(&set, there))
        }
        Err(error) => Err(error),
    }
}

fn response(
    shared: &Shared,
    set: &Set,
    before: &TableView,
    committed: &Committed,
    chain: &Judged,
) -> v1::ApplyRulesResponse {
    let outcome = set.outcome(before, committed);
    let pruned = set.not_named(committed);
    let guards = set.guards_after(before, &pruned);
    set.response(
        shared,
        before,
        &guards,
        &CameTo { revision: committed.revision, changes: &outcome, pruned: &pruned, chain },
    )
}
