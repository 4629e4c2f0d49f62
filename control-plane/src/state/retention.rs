//! Retention of the history.
//!
//! Changes serve resuming clients, repeated requests and the audit; unlimited they would fill the disk.
//! Changes older than the configured time are dropped regularly, except the latest ones, so a store with few
//! changes keeps all. Over [`MAX_BYTES`] the oldest are dropped at any age. Entries stay: only their history
//! is dropped. Each replica does this independently, and repeating it is harmless.
//!
//! Each change is read once, for its time and size.

use damper_store::writer::REMEMBER_REQUESTS;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::state::history::{PAGE, oldest};
use crate::state::snapshot::Snapshot;
use damper_store::{Change, Store, StoreError};

/// Retention time of changes, at least that of request ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryRetention(Duration);

/// The time is too short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the history must be kept for at least {} h, because request ids are kept that long", REMEMBER_REQUESTS.as_secs() / 3600)]
pub struct RetentionTooShort;

impl HistoryRetention {
    /// Returns the time.
    #[must_use]
    pub fn length(self) -> Duration {
        self.0
    }
}

impl Default for HistoryRetention {
    /// 30 days.
    fn default() -> Self {
        Self(Duration::from_secs(30 * 24 * 3600))
    }
}

impl TryFrom<Duration> for HistoryRetention {
    type Error = RetentionTooShort;

    fn try_from(length: Duration) -> Result<Self, RetentionTooShort> {
        if length < REMEMBER_REQUESTS { Err(RetentionTooShort) } else { Ok(Self(length)) }
    }
}

/// Interval between two checks of new changes. The limits of writers bound what is written meanwhile.
const EVERY: Duration = Duration::from_secs(10);
/// Latest changes that are kept at any age.
const KEEP_LATEST: u64 = 1000;
/// Maximum bytes of kept changes, previous entries included. Nothing is dropped for size below 7/8 of it, so
/// one removal lasts for a while.
pub(crate) const MAX_BYTES: u64 = 32 << 20;
/// Overhead of a change in addition to its texts and values, estimated.
const CHANGE_BYTES: usize = 128;

/// Drops old changes regularly, first after a delay; never returns.
pub(crate) async fn run(
    store: Arc<dyn Store>,
    table: watch::Receiver<Arc<Snapshot>>,
    retention: HistoryRetention,
    first_after: Duration,
) {
    let mut due = interval_at(Instant::now() + first_after, EVERY);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ledger = Ledger::new(MAX_BYTES);
    let started = Instant::now();
    let head = table.borrow().revision();
    let mut newest = newest_at(&*store, head).await;
    loop {
        due.tick().await;
        let view = table.borrow().clone();
        let elapsed = started.elapsed();
        if newest.is_none() {
            newest = newest_at(&*store, view.revision()).await;
        }
        let Some(before) = trusted_now(SystemTime::now(), newest, elapsed).checked_sub(retention.length())
        else {
            continue;
        };
        match ledger.settle(&*store, view.epoch(), view.revision(), before).await {
            Ok(None) => {}
            Ok(Some(revision)) => tracing::info!(revision, "dropped the history up to this revision"),
            Err(error) => {
                tracing::warn!(%error, "dropping old history failed; trying again later");
                ledger = Ledger::new(MAX_BYTES);
            }
        }
    }
}

/// Returns the time of a revision's change; `None` without one, or if the store does not answer.
async fn newest_at(store: &dyn Store, head: u64) -> Option<SystemTime> {
    let changes = store.changes(head.checked_sub(1)?, head).await.ok()?;
    changes.first().map(|change| change.at)
}

/// Returns a time not after the present one whatever the wall clock shows: a clock that is ahead would drop
/// history for all replicas. The newest change at the start of this process was made before it.
fn trusted_now(wall: SystemTime, newest: Option<SystemTime>, elapsed: Duration) -> SystemTime {
    newest.map_or(wall, |newest| wall.min(newest + elapsed))
}

/// Kept changes, oldest first.
struct Ledger {
    max_bytes: u64,
    epoch: String,
    kept: VecDeque<Kept>,
    /// Revision up to which changes were read.
    reached: u64,
    bytes: u64,
}

/// A kept change.
struct Kept {
    revision: u64,
    at: SystemTime,
    bytes: u64,
}

impl Ledger {
    fn new(max_bytes: u64) -> Self {
        Self { max_bytes, epoch: String::new(), kept: VecDeque::new(), reached: 0, bytes: 0 }
    }

    /// Drops changes from before a time and those over the size limit; returns up to which revision.
    async fn settle(
        &mut self,
        store: &dyn Store,
        epoch: &str,
        head: u64,
        before: SystemTime,
    ) -> Result<Option<u64>, StoreError> {
        if self.epoch != epoch {
            *self =
                Self { epoch: epoch.to_owned(), reached: oldest(store).await?, ..Self::new(self.max_bytes) };
        }
        while self.reached < head {
            let page = store.changes(self.reached, self.reached + PAGE).await?;
            let Some(last) = page.last() else { break };
            self.reached = last.revision;
            page.iter().for_each(|change| self.add(change));
        }
        let upto = self.droppable(head, before);
        if let Some(revision) = upto {
            store.compact(revision).await?;
            while let Some(kept) = self.kept.pop_front_if(|kept| kept.revision <= revision) {
                self.bytes -= kept.bytes;
            }
        }
        Ok(upto)
    }

    fn add(&mut self, change: &Change) {
        let bytes = size(change);
        self.bytes += bytes;
        self.kept.push_back(Kept { revision: change.revision, at: change.at, bytes });
    }

    /// Returns the last leading change that is over the size limit, or from before a time and not among the
    /// latest.
    fn droppable(&self, head: u64, before: SystemTime) -> Option<u64> {
        let not_latest = head.saturating_sub(KEEP_LATEST);
        let enough = self.max_bytes / 8 * 7;
        let mut too_much = if self.bytes > self.max_bytes { self.bytes - enough } else { 0 };
        let dropped = self.kept.iter().take_while(|kept| {
            let is_too_much = too_much > 0 && kept.revision < head;
            too_much = too_much.saturating_sub(kept.bytes);
            is_too_much || (kept.at < before && kept.revision <= not_latest)
        });
        dropped.last().map(|kept| kept.revision)
    }
}

/// Returns the estimated bytes of a change in the store.
fn size(change: &Change) -> u64 {
    let Change { author, reason, peer, principal, request_id, .. } = change;
    let texts = [author, reason, peer, principal, request_id].map(String::len);
    (CHANGE_BYTES + texts.iter().sum::<usize>() + change.bytes()) as u64
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use damper_store::sled::SledStore;
    use damper_store::{Edit, Entry};

    const DAY: Duration = Duration::from_secs(86_400);

    fn change(revision: u64, day: u32, bytes: usize) -> Change {
        let value = Bytes::from(vec![b'x'; bytes]);
        let before = Some(Entry { revision: 1, value: value.clone() });
        Change {
            revision,
            commit: 0,
            at: SystemTime::UNIX_EPOCH + DAY * day,
            author: String::new(),
            reason: String::new(),
            peer: String::new(),
            principal: String::new(),
            request_id: String::new(),
            request_digest: 0,
            edits: vec![Edit { key: "rules/a".to_owned(), value: Some(value), before }],
        }
    }

    #[test]
    fn clock_that_is_ahead_drops_no_history() {
        let newest = SystemTime::UNIX_EPOCH + 20_000 * DAY;
        let trusted = |wall, elapsed| trusted_now(wall, Some(newest), elapsed);
        assert_eq!(trusted(newest + 30_000 * DAY, DAY), newest + DAY);
        assert_eq!(trusted(newest - DAY, 5 * DAY), newest - DAY);
        assert_eq!(trusted_now(newest, None, DAY), newest);
    }

    #[test]
    fn drops_changes_up_to_the_first_young_or_latest_one() {
        let mut ledger = Ledger::new(MAX_BYTES);
        [(7, 1), (8, 5), (9, 2), (10, 6)].iter().for_each(|&(at, day)| ledger.add(&change(at, day, 1)));
        let last = |head, day| ledger.droppable(head, SystemTime::UNIX_EPOCH + DAY * day);
        assert_eq!(last(5000, 5), Some(7), "an older one behind a young one stays");
        assert_eq!(last(5000, 9), Some(10));
        assert_eq!(last(5000, 1), None);
        assert_eq!(last(KEEP_LATEST + 8, 9), Some(8));
        assert_eq!(last(KEEP_LATEST, 9), None);
        assert_eq!(Ledger::new(MAX_BYTES).droppable(5000, SystemTime::now()), None);
    }

    #[tokio::test]
    async fn the_oldest_changes_go_when_all_have_too_many_bytes() {
        const MOST: u64 = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        let store = SledStore::open(folder.path()).await.unwrap();
        let epoch = store.load().await.unwrap().epoch;
        let mut ledger = Ledger::new(MOST);
        let mut seen = 0;
        for round in 1..=4 {
            for revision in (round - 1) * 10 + 1..=round * 10 {
                store.commit(revision - 1, &[change(revision, 1, 64 << 10)]).await.unwrap();
            }
            let dropped = ledger.settle(&store, &epoch, round * 10, SystemTime::UNIX_EPOCH).await.unwrap();
            let kept = store.changes(dropped.unwrap_or(seen), u64::MAX).await.unwrap();
            let bytes = kept.iter().map(size).sum::<u64>();
            assert_eq!((bytes, kept.len()), (ledger.bytes, ledger.kept.len()));
            assert!(bytes <= MOST, "{bytes} bytes in round {round}");
            seen = dropped.unwrap_or(seen);
        }
        assert!(seen > 20, "{seen}");
        assert_eq!(store.load().await.unwrap().entries.len(), 1);
        let alone = change(41, 1, 1 << 20);
        store.commit(40, std::slice::from_ref(&alone)).await.unwrap();
        assert_eq!(ledger.settle(&store, &epoch, 41, SystemTime::UNIX_EPOCH).await.unwrap(), Some(40));
        assert_eq!(store.changes(40, 41).await.unwrap(), [alone], "the newest stays however large it is");
    }
}
