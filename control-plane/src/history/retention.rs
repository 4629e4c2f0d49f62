//! How much of the history is kept.
//!
//! Changes serve those who resume, repeated requests and whoever asks what happened; without end they would fill
//! the disk. From time to time those older than the settled time are dropped, but never the latest ones, so
//! that a store with few changes keeps all of them. Rules stay: only what led to them is forgotten. Every
//! replica does this by itself; doing it twice is harmless.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::past::{PAGE, oldest};
use crate::settings::HistoryRetention;
use crate::store::{Change, Error, Store};
use crate::table::TableView;

const EVERY: Duration = Duration::from_secs(3600);
/// The latest changes are kept however old they are.
const KEEP_LATEST: u64 = 1000;

/// Drops old changes for ever, first after a while.
pub(crate) async fn run(
    store: Arc<dyn Store>,
    table: watch::Receiver<Arc<TableView>>,
    retention: HistoryRetention,
    first_after: Duration,
) {
    let mut due = interval_at(Instant::now() + first_after, EVERY);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        let Some(before) = SystemTime::now().checked_sub(retention.length()) else { continue };
        let head = table.borrow().revision();
        match drop_older(&*store, head, before).await {
            Ok(None) => {}
            Ok(Some(revision)) => tracing::info!(revision, "the history up to this revision was dropped"),
            Err(error) => tracing::warn!(%error, "old history could not be dropped; trying again later"),
        }
    }
}

/// Drops what was changed before a time; answers up to which revision.
async fn drop_older(store: &dyn Store, head: u64, before: SystemTime) -> Result<Option<u64>, Error> {
    let mut upto = None;
    let mut after = oldest(store).await?;
    while after < head {
        let page = store.changes(after, after + PAGE).await?;
        let Some(old) = last_old(&page, head, before) else { break };
        upto = Some(old);
        if page.last().is_none_or(|last| last.revision != old) {
            break;
        }
        after = old;
    }
    if let Some(revision) = upto {
        store.compact(revision).await?;
    }
    Ok(upto)
}

/// The last of the leading changes that were made before a time and are not among the latest.
fn last_old(changes: &[Change], head: u64, before: SystemTime) -> Option<u64> {
    let droppable = head.saturating_sub(KEEP_LATEST);
    let old = changes.iter().take_while(|change| change.at < before && change.revision <= droppable);
    old.last().map(|change| change.revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn change(revision: u64, day: u32) -> Change {
        Change {
            revision,
            at: SystemTime::UNIX_EPOCH + DAY * day,
            author: String::new(),
            reason: String::new(),
            peer: String::new(),
            principal: String::new(),
            request_id: String::new(),
            request_digest: 0,
            edits: Vec::new(),
        }
    }

    #[test]
    fn changes_are_dropped_up_to_the_first_that_is_young_enough_or_among_the_latest() {
        let changes = [change(7, 1), change(8, 5), change(9, 2), change(10, 6)];
        let last = |head, day| last_old(&changes, head, SystemTime::UNIX_EPOCH + DAY * day);
        assert_eq!(last(5000, 5), Some(7), "an older one behind a young one stays");
        assert_eq!(last(5000, 9), Some(10));
        assert_eq!(last(5000, 1), None);
        assert_eq!(last(KEEP_LATEST + 8, 9), Some(8));
        assert_eq!(last(KEEP_LATEST, 9), None);
        assert_eq!(last_old(&[], 5000, SystemTime::now()), None);
    }
}
