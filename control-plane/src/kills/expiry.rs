//! Clears away what is left in the store of kills that are over.
//!
//! Nothing waits for it: who reads kills looks at the clock. Every replica does it, each kill in the version that was
//! over only, so that one which is set anew in the same moment stays; who comes second finds it done. It is a little
//! late, because the clock of the replica that took a kill may be behind.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_proto::v1;
use tokio::time::{sleep, timeout};

use crate::errors::Error;
use crate::paging::Digest;
use crate::requests::write;
use crate::shared::Shared;
use crate::table::{Kills, StoredKill, Subject};
use crate::writer::ProposedEdit;

/// How long after its end a kill is cleared away, and up to how much more, so that replicas seldom meet.
const LATE: Duration = Duration::from_secs(2);
const SPREAD: Duration = Duration::from_millis(500);
/// The longest time without a look at the clock, which may be set.
const LOOK_EVERY: Duration = Duration::from_secs(60);
const AGAIN_AFTER: Duration = Duration::from_secs(5);

const AUTHOR: &str = "damper";
const REASON: &str = "expired";

/// Clears away for ever.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut table = shared.table.clone();
    loop {
        let view = table.borrow_and_update().clone();
        let due = due(view.kills(), SystemTime::now()).map(|due| due + SPREAD.mul_f64(fastrand::f64()));
        match timeout(due.unwrap_or(LOOK_EVERY).min(LOOK_EVERY), table.changed()).await {
            Ok(Ok(())) => continue,
            // The server is ending, and this task with it.
            Ok(Err(_)) => std::future::pending().await,
            Err(_) => {}
        }
        if due_now(view.kills(), SystemTime::now())
            && let Err(error) = clear(&shared).await
        {
            tracing::warn!(%error, "kills that are over could not be cleared away; trying again later");
            sleep(AGAIN_AFTER).await;
        }
    }
}

/// How long until the first kill is to be cleared away.
fn due(kills: &Kills, now: SystemTime) -> Option<Duration> {
    let first = kills.all().map(|stored| stored.expires_at).min()?;
    Some((first + LATE).duration_since(now).unwrap_or_default())
}

fn due_now(kills: &Kills, now: SystemTime) -> bool {
    due(kills, now).is_some_and(|due| due.is_zero())
}

/// Removes all kills that are over from the store.
pub(super) async fn clear(shared: &Shared) -> Result<(), Error> {
    let at = SystemTime::now();
    let table = shared.table();
    let over: Vec<&Arc<StoredKill>> =
        table.kills().all().filter(|stored| stored.remaining(at).is_none()).collect();
    if over.is_empty() {
        return Ok(());
    }
    let edits = over.iter().map(|stored| ProposedEdit {
        key: Subject::Kill(stored.kill.pattern().clone()).key(),
        value: None,
        expected: Some(stored.wire.revision),
    });
    let options =
        v1::WriteOptions { author: AUTHOR.to_owned(), reason: REASON.to_owned(), ..Default::default() };
    match write(shared, &options, Digest::new(), at, edits.collect()).await {
        Ok((committed, _)) => {
            for stored in over {
                let kill = stored.kill.pattern();
                tracing::warn!(%kill, reason = stored.kill.reason(), committed.revision, "a kill has expired");
            }
            Ok(())
        }
        // Another replica was faster, or somebody has set one of them anew: the table will show it.
        Err(Error::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Entry, State};
    use crate::table::TableView;
    use damper_core::Pattern;

    #[test]
    fn a_kill_is_cleared_away_a_little_after_its_end_and_the_first_one_first() {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let entry = |callee: &str, ends_after: u64| {
            let pattern = Pattern::parse("*", "*", callee, "*").unwrap();
            let expires_at = Some((start + Duration::from_secs(ends_after)).into());
            let kill = v1::KillSwitch { reason: "r".to_owned(), expires_at, ..Default::default() };
            let value = StoredKill::value(&kill).into();
            (Subject::Kill(pattern).key(), Entry { revision: 1, value })
        };
        let kills = |entries: Vec<(String, Entry)>| {
            let entries = entries.into_iter().collect();
            TableView::of(&State { epoch: "e".to_owned(), revision: 1, entries }).kills().clone()
        };
        assert_eq!(due(&kills(vec![]), start), None);
        let both = kills(vec![entry("a", 60), entry("b", 10)]);
        assert_eq!(due(&both, start), Some(Duration::from_secs(10) + LATE));
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!due_now(&both, at(11)), "the clock of the one who took it may be behind");
        assert!(due_now(&both, at(12)) && due_now(&both, at(3600)));
    }
}
