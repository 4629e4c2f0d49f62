//! Deletes expired kills from the store.
//!
//! Nothing waits for the deletion: readers of kills compare the expiry with the clock. Every replica deletes,
//! and only the expired version of a kill, so a kill that is set again at the same moment stays. The second
//! replica finds nothing to do.
//!
//! A deletion ends the kill for the whole fleet, and the wall clock of one replica may be ahead. So a replica
//! must also have held the kill for its whole duration by the monotonic clock. After a restart that takes as
//! long again, at most a day after the expiry.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use damper_proto::v1;
use damper_store::writer::ProposedEdit;
use tokio::time::{sleep, timeout};

use crate::state::error::ApiError;
use crate::state::kills::{KillTable, StoredKill};
use crate::state::resource_key::ResourceKey;
use crate::write::Writes;
use crate::write::request::{CompletedWrite, WriteRequest, write};

/// Delay between the expiry of a kill and its deletion. A random share of `SPREAD` is added, so that replicas
/// rarely collide.
const DELETE_DELAY: Duration = Duration::from_secs(2);
/// No clock is this far ahead, so a kill is expired by then in any case.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(24 * 60 * 60);
const SPREAD: Duration = Duration::from_millis(500);
/// Longest time between two reads of the wall clock, which may be set.
const CLOCK_INTERVAL: Duration = Duration::from_secs(60);
const RETRY_DELAY: Duration = Duration::from_secs(5);

const AUTHOR: &str = "damper";
const REASON: &str = "expired";

/// Deletes expired kills until the server stops.
pub(crate) async fn run(writes: Arc<Writes>) {
    let mut table = writes.fleet.state.table.clone();
    loop {
        let view = table.borrow_and_update().clone();
        let due = due(view.kills(), ClockPair::read()).map(|due| due + SPREAD.mul_f64(fastrand::f64()));
        match timeout(due.unwrap_or(CLOCK_INTERVAL).min(CLOCK_INTERVAL), table.changed()).await {
            Ok(Ok(())) => continue,
            // The server is stopping, and this task with it.
            Ok(Err(_)) => std::future::pending().await,
            Err(_) => {}
        }
        if let Err(error) = delete(&writes, |stored, now| until_deleted(stored, now).is_zero()).await {
            tracing::warn!(%error, "deleting expired kills failed; retrying");
            sleep(RETRY_DELAY).await;
        }
    }
}

/// The current time of both clocks.
#[derive(Clone, Copy)]
struct ClockPair {
    wall: SystemTime,
    steady: Instant,
}

impl ClockPair {
    fn read() -> Self {
        Self { wall: SystemTime::now(), steady: Instant::now() }
    }
}

/// Returns the time until the first deletion.
fn due(kills: &KillTable, now: ClockPair) -> Option<Duration> {
    kills.all().map(|stored| until_deleted(stored, now)).min()
}

/// Returns the time until a kill is deleted.
fn until_deleted(stored: &StoredKill, now: ClockPair) -> Duration {
    let until = |at: SystemTime| at.duration_since(now.wall).unwrap_or_default();
    let held = stored.still_to_hold(now.steady);
    until(stored.expires_at + DELETE_DELAY).max(held.min(until(stored.expires_at + MAX_CLOCK_SKEW)))
}

/// Deletes all kills that are expired by this replica's clock, to make room for new ones.
pub(crate) async fn make_room(writes: &Writes) -> Result<(), ApiError> {
    delete(writes, |stored, now| stored.remaining(now.wall).is_none()).await
}

/// Deletes kills from the store.
async fn delete(
    writes: &Writes,
    is_expired: impl Fn(&StoredKill, ClockPair) -> bool,
) -> Result<(), ApiError> {
    let now = ClockPair::read();
    let table = writes.fleet.table();
    let expired: Vec<&Arc<StoredKill>> =
        table.kills().all().filter(|stored| is_expired(stored, now)).collect();
    if expired.is_empty() {
        return Ok(());
    }
    let edits = expired.iter().map(|stored| ProposedEdit {
        key: ResourceKey::Kill(stored.kill.pattern().clone()).key(),
        value: None,
        expected: Some(stored.wire.revision),
    });
    let options =
        v1::WriteOptions { author: AUTHOR.to_owned(), reason: REASON.to_owned(), ..Default::default() };
    match write(writes, &WriteRequest::internal(options), &table, now.wall, edits.collect()).await {
        Ok(CompletedWrite { committed, .. }) => {
            for stored in expired {
                let kill = stored.kill.pattern();
                tracing::warn!(%kill, reason = stored.kill.reason(), revision = committed.revision, "kill expired");
            }
            Ok(())
        }
        // Another replica was faster, or one of the kills was set again: the snapshot will show it.
        Err(ApiError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::snapshot::Snapshot;
    use damper_core::Pattern;
    use damper_store::{Entry, StoreContents};

    const START: SystemTime = SystemTime::UNIX_EPOCH;

    fn kills(ends_after: &[(&str, u64)]) -> KillTable {
        let entry = |(callee, seconds): &(&str, u64)| {
            let pattern = Pattern::parse("*", "*", callee, "*").unwrap();
            let expires_at = Some((START + Duration::from_secs(*seconds)).into());
            let (updated_at, reason) = (Some(START.into()), "r".to_owned());
            let kill = v1::KillSwitch { reason, expires_at, updated_at, ..Default::default() };
            let value = StoredKill::value(&kill).into();
            (ResourceKey::Kill(pattern).key(), Entry { revision: 1, value })
        };
        let entries = ends_after.iter().map(entry).collect();
        Snapshot::of(&StoreContents {
            epoch: "e".to_owned(),
            revision: 1,
            entries,
            ..StoreContents::default()
        })
        .kills()
        .clone()
    }

    #[test]
    fn kill_is_deleted_after_its_expiry_earliest_first() {
        let held_from = Instant::now();
        let both = kills(&[("a", 60), ("b", 10)]);
        let at = |seconds| {
            let since = Duration::from_secs(seconds);
            ClockPair { wall: START + since, steady: held_from + since }
        };
        assert!(due(&kills(&[]), at(0)).is_none());
        assert_eq!(due(&both, at(0)), Some(Duration::from_secs(10) + DELETE_DELAY));
        assert_eq!(
            due(&both, at(11)),
            Some(Duration::from_secs(1)),
            "the clock of the accepting server may be behind"
        );
        assert_eq!(due(&both, at(12)), Some(Duration::ZERO));
    }

    #[test]
    fn clock_ahead_deletes_no_kill_before_its_duration() {
        let held_from = Instant::now();
        let kills = kills(&[("a", 60)]);
        let left = |wall: u64, held: u64| {
            let (wall, steady) = (START + Duration::from_secs(wall), held_from + Duration::from_secs(held));
            due(&kills, ClockPair { wall, steady }).unwrap().as_secs_f64().round()
        };
        const DAY: u64 = 24 * 3600;
        // Seconds by the wall clock since the kill was set, seconds held, seconds left.
        for (wall, held, expected) in
            [(3_600, 0, 60.0), (3_600, 59, 1.0), (3_600, 61, 0.0), (0, 61, 62.0), (DAY + 61, 0, 0.0)]
        {
            assert_eq!(left(wall, held), expected, "{wall} {held}");
        }
    }
}
