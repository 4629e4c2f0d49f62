//! Clears away what is left in the store of kills that are over.
//!
//! Nothing waits for it: who reads kills looks at the clock. Every replica does it, each kill in the version that was
//! over only, so that one which is set anew in the same moment stays; who comes second finds it done.
//!
//! What one replica clears away ends for the whole fleet, so none does by its wall clock alone, which may be ahead of
//! the one by which the kill was set: it must also have held the kill for all of its time by its own steady clock. After
//! a restart that takes so long again, up to a day after the end; until then what is over only lies there.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use damper_proto::v1;
use tokio::time::{sleep, timeout};

use crate::state::error::ApiError;
use crate::state::kills::{KillTable, StoredKill};
use crate::state::resource_key::ResourceKey;
use crate::write::Writes;
use crate::write::request::{CompletedWrite, WriteRequest, write};
use damper_store::writer::ProposedEdit;

/// How long after its end a kill is cleared away, and up to how much more, so that replicas seldom meet.
const LATE: Duration = Duration::from_secs(2);
/// No clock is so far ahead that a kill is not over by then, whoever held it.
const OVER_FOR_CERTAIN: Duration = Duration::from_secs(24 * 60 * 60);
const SPREAD: Duration = Duration::from_millis(500);
/// The longest time without a look at the clock, which may be set.
const LOOK_EVERY: Duration = Duration::from_secs(60);
const AGAIN_AFTER: Duration = Duration::from_secs(5);

const AUTHOR: &str = "damper";
const REASON: &str = "expired";

/// Clears away for ever.
pub(crate) async fn run(writes: Arc<Writes>) {
    let mut table = writes.fleet.state.table.clone();
    loop {
        let view = table.borrow_and_update().clone();
        let due = due(view.kills(), ClockPair::read()).map(|due| due + SPREAD.mul_f64(fastrand::f64()));
        match timeout(due.unwrap_or(LOOK_EVERY).min(LOOK_EVERY), table.changed()).await {
            Ok(Ok(())) => continue,
            // The server is ending, and this task with it.
            Ok(Err(_)) => std::future::pending().await,
            Err(_) => {}
        }
        if let Err(error) = clear(&writes, |stored, now| until_cleared(stored, now).is_zero()).await {
            tracing::warn!(%error, "kills that are over could not be cleared away; trying again later");
            sleep(AGAIN_AFTER).await;
        }
    }
}

/// The present by both clocks.
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

/// How long until the first kill is to be cleared away.
fn due(kills: &KillTable, now: ClockPair) -> Option<Duration> {
    kills.all().map(|stored| until_cleared(stored, now)).min()
}

/// How long until a kill is to be cleared away.
fn until_cleared(stored: &StoredKill, now: ClockPair) -> Duration {
    let until = |at: SystemTime| at.duration_since(now.wall).unwrap_or_default();
    let held = stored.still_to_hold(now.steady);
    until(stored.expires_at + LATE).max(held.min(until(stored.expires_at + OVER_FOR_CERTAIN)))
}

/// Makes room where there is none: removes all kills that are over by this replica's clock.
pub(crate) async fn make_room(writes: &Writes) -> Result<(), ApiError> {
    clear(writes, |stored, now| stored.remaining(now.wall).is_none()).await
}

/// Removes kills from the store.
async fn clear(writes: &Writes, is_over: impl Fn(&StoredKill, ClockPair) -> bool) -> Result<(), ApiError> {
    let now = ClockPair::read();
    let table = writes.fleet.table();
    let over: Vec<&Arc<StoredKill>> = table.kills().all().filter(|stored| is_over(stored, now)).collect();
    if over.is_empty() {
        return Ok(());
    }
    let edits = over.iter().map(|stored| ProposedEdit {
        key: ResourceKey::Kill(stored.kill.pattern().clone()).key(),
        value: None,
        expected: Some(stored.wire.revision),
    });
    let options =
        v1::WriteOptions { author: AUTHOR.to_owned(), reason: REASON.to_owned(), ..Default::default() };
    match write(writes, &WriteRequest::by_itself(options), &table, now.wall, edits.collect()).await {
        Ok(CompletedWrite { committed, .. }) => {
            for stored in over {
                let kill = stored.kill.pattern();
                tracing::warn!(%kill, reason = stored.kill.reason(), revision = committed.revision, "a kill has expired");
            }
            Ok(())
        }
        // Another replica was faster, or somebody has set one of them anew: the table will show it.
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
    fn a_kill_is_cleared_away_a_little_after_its_end_and_the_first_one_first() {
        let held_from = Instant::now();
        let both = kills(&[("a", 60), ("b", 10)]);
        let at = |seconds| {
            let since = Duration::from_secs(seconds);
            ClockPair { wall: START + since, steady: held_from + since }
        };
        assert!(due(&kills(&[]), at(0)).is_none());
        assert_eq!(due(&both, at(0)), Some(Duration::from_secs(10) + LATE));
        assert_eq!(
            due(&both, at(11)),
            Some(Duration::from_secs(1)),
            "the clock of who took it may be behind"
        );
        assert_eq!(due(&both, at(12)), Some(Duration::ZERO));
    }

    #[test]
    fn a_clock_that_is_ahead_or_jumps_clears_nothing_away_before_it_was_held_for_its_time() {
        let held_from = Instant::now();
        let kills = kills(&[("a", 60)]);
        let left = |wall: u64, held: u64| {
            let (wall, steady) = (START + Duration::from_secs(wall), held_from + Duration::from_secs(held));
            due(&kills, ClockPair { wall, steady }).unwrap().as_secs_f64().round()
        };
        const DAY: u64 = 24 * 3600;
        // Seconds by this replica's wall clock since the kill was set, for how long it has held it, what is left.
        for (wall, held, expected) in
            [(3_600, 0, 60.0), (3_600, 59, 1.0), (3_600, 61, 0.0), (0, 61, 62.0), (DAY + 61, 0, 0.0)]
        {
            assert_eq!(left(wall, held), expected, "{wall} {held}");
        }
    }
}
