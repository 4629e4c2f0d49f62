//! Kills while the store is unavailable or too slow: set and ended in memory, sent to clients and peers, and
//! written when the store is available again.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::Pattern;
use damper_core::kill::MAX_KILLS;
use damper_net::limits::Limit;
use damper_proto::v1;
use damper_store::writer::{Committed, Proposal, ProposedEdit};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::state::error::ApiError;
use crate::state::held_kills::{HeldKill, NotHeld};
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::state::watcher::Hold;
use crate::write::Writes;
use crate::write::request::{WriteRequest, too_many};

/// Longest time that the writer may be busy with earlier writes, so that a kill is answered within a second.
/// A large set can take many seconds.
pub(crate) const MAX_WRITER_WAIT: Duration = Duration::from_millis(500);
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Longest time for the store watcher to publish a kill.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);

/// True if writes are impossible: the store is unavailable, or is not the accepted one.
pub(crate) fn is_needed(table: &Snapshot) -> bool {
    table.stale_since.is_some() || table.unaccepted.is_some()
}

/// Sets kills in memory, or ends those with these keys, all or none. Returns the snapshot with the change.
pub(crate) async fn hold(
    writes: &Writes,
    asked: &WriteRequest,
    decisions: Vec<(&Pattern, Option<v1::KillSwitch>)>,
) -> Result<Arc<Snapshot>, ApiError> {
    let table = writes.fleet.table();
    let held = decisions.into_iter().map(|(pattern, kill)| decision(&table, asked, pattern, kill));
    let (answer, answered) = oneshot::channel();
    let hold = Hold::Take { kills: held.collect(), answer: Some(answer) };
    let holding = async {
        writes.fleet.state.hold.send(hold).await.ok()?;
        answered.await.ok()
    };
    match timeout(PUBLISH_TIMEOUT, holding).await.ok().flatten() {
        Some(Ok(table)) => Ok(table),
        Some(Err(NotHeld::Known)) => {
            Err(ApiError::unavailable("a later change of this kill exists; list the kills, then try again"))
        }
        Some(Err(NotHeld::Full)) => Err(too_many(Limit::Kills, MAX_KILLS + 1, MAX_KILLS)),
        Some(Err(NotHeld::Unreadable)) => Err(ApiError::unavailable("the kill cannot be read back")),
        None => Err(ApiError::unavailable("the server did not put the kill in force within 5 s; try again")),
    }
}

fn decision(
    table: &Snapshot,
    asked: &WriteRequest,
    pattern: &Pattern,
    kill: Option<v1::KillSwitch>,
) -> v1::HeldKill {
    let proposal = asked.proposal(SystemTime::now(), Vec::new());
    // Later than the replaced decision, which may come from a replica whose clock is ahead.
    let stored = table.kills().stored(pattern).map(|kill| kill.updated_at());
    let before = stored.max(table.held().decided_at(pattern));
    let at = before.map_or(proposal.at, |before| proposal.at.max(before + Duration::from_millis(1)));
    let Proposal { author, principal, reason, peer, .. } = proposal;
    let (subject, sets) = (ResourceKey::Kill(pattern.clone()), kill.is_some());
    tracing::warn!(%subject, author, principal, reason, sets, "kill switch changed in memory only, until the store is available");
    v1::HeldKill { key: Some(pattern.into()), kill, at: Some(at.into()), author, principal, reason, peer }
}

/// Writes held kills once the store is available. Every replica does so with the same request id, so a kill
/// is not written twice, even if it ended in between.
pub(crate) async fn run(writes: Arc<Writes>) {
    let mut tables = writes.fleet.state.table.clone();
    loop {
        let ready = |view: &Arc<Snapshot>| !is_needed(view) && !view.held().is_empty();
        let Ok(view) = tables.wait_for(ready).await.map(|view| view.clone()) else {
            // The server is stopping, and this task with it.
            return std::future::pending().await;
        };
        for held in view.held().iter() {
            match writes.fleet.state.writer.propose(proposal(held)).await {
                Ok(Committed { revision, .. }) => {
                    let (key, pattern, at) = (held.key(), held.pattern(), held.at());
                    tracing::info!(key, revision, "kill switch from memory written to the store");
                    let _ = writes.fleet.state.hold.send(Hold::Stored { pattern, at, revision }).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "writing a kill switch from memory to the store failed; retrying")
                }
            }
        }
        sleep(RETRY_DELAY.mul_f64(0.5 + fastrand::f64())).await;
    }
}

fn proposal(held: &HeldKill) -> Proposal {
    let value = held.value().map(Into::into);
    let v1::HeldKill { author, principal, reason, peer, .. } = held.wire.clone();
    let nanos = held.at().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    Proposal {
        author,
        reason,
        peer,
        principal,
        request_id: format!("held {} {nanos}", held.key()),
        request_digest: 0,
        at: held.at(),
        expected_head: None,
        edits: vec![ProposedEdit { key: held.key(), value, expected: None }],
        planner: None,
    }
}
