//! Watch on etcd: one per reader over the keys of changes, none over the entries.
//!
//! The range `changes/` to `head` holds the records, the epoch and the head. A record that arrives whole and
//! in sequence is passed on. On anything else (the connection ends, etcd has compacted, a record is in parts,
//! a revision is missing) the watch is dropped: the changes after the last one are read from the keys at one
//! etcd revision, and a new watch starts at the next. The records are keys and not etcd's history, so a
//! compaction of etcd loses none.

use std::collections::VecDeque;
use std::time::Duration;

use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};
use tokio::time::sleep;

use crate::etcd::{CHANGES_PAGE, EtcdStore, ReadError};
use crate::record;
use crate::record::{CHANGES, EPOCH, HEAD, Head};
use crate::{Change, MAX_READ_BYTES, Position, StoreError, Watch};

/// Pause before the watch is opened again: initial and maximum, with full jitter.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// Streams the changes after a position.
pub(crate) fn open(store: EtcdStore, after: Position) -> Watch {
    let (ready, stream) = (VecDeque::new(), None);
    let watcher = EtcdWatcher { store, last: after, ready, stream, pause: PAUSE.0 };
    Box::pin(futures_util::stream::unfold(Some(watcher), |watcher| async {
        let mut watcher = watcher?;
        match watcher.next().await {
            Ok(change) => Some((Ok(change), Some(watcher))),
            Err(error) => Some((Err(error), None)),
        }
    }))
}

struct EtcdWatcher {
    store: EtcdStore,
    /// Position of the last change passed on or ready.
    last: Position,
    ready: VecDeque<Change>,
    stream: Option<WatchStream>,
    pause: Duration,
}

impl EtcdWatcher {
    async fn next(&mut self) -> Result<Change, StoreError> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return Ok(change);
            }
            let Some(stream) = self.stream.as_mut() else {
                self.catch_up().await?;
                continue;
            };
            match stream.message().await {
                Ok(Some(response)) if !response.canceled() => self.take(&response)?,
                ended => {
                    tracing::debug!(?ended, "watch on etcd ended; opening it again");
                    self.stream = None;
                    self.rest().await;
                }
            }
        }
    }

    /// Reads missed changes; opens the watch once there are none.
    async fn catch_up(&mut self) -> Result<(), StoreError> {
        match self.try_catch_up().await {
            Ok(()) => Ok(()),
            Err(ReadError::Store(StoreError::Unavailable { reason })) => {
                tracing::debug!(reason, "opening the watch on etcd failed; retrying");
                self.rest().await;
                Ok(())
            }
            Err(ReadError::Gone) => Ok(()),
            Err(ReadError::Store(error)) => Err(error),
        }
    }

    async fn try_catch_up(&mut self) -> Result<(), ReadError> {
        let revision = self.last.revision;
        let tip = self.store.tip_and_commit(revision).await?.ok_or_else(|| replaced(""))?;
        if self.last.epoch.is_empty() {
            self.last.epoch = self.store.known_epoch().unwrap_or_else(|| tip.epoch.clone());
        }
        // The connection may now reach another etcd with a diverged copy.
        if self.last.epoch != tip.epoch || tip.head.revision < revision || !self.last.is_made_by(tip.commit) {
            return Err(replaced(&tip.epoch).into());
        }
        if tip.head.revision > revision {
            let upto = tip.head.revision.min(revision + CHANGES_PAGE.unsigned_abs());
            let changes = self.store.changes_at(revision, upto, tip.at, MAX_READ_BYTES).await?;
            if changes.first().is_none_or(|first| first.revision != revision + 1) {
                return Err(StoreError::Compacted { oldest: tip.compacted }.into());
            }
            if let Some(last) = changes.last() {
                (self.last.revision, self.last.commit) = (last.revision, last.commit);
            }
            self.ready.extend(changes);
            return Ok(());
        }
        let options = WatchOptions::new()
            .with_range(self.store.full(&format!("{HEAD}\0")))
            .with_start_revision(tip.at + 1)
            .with_fragment();
        self.stream = Some(self.store.link().watch(&self.store.full(CHANGES), options).await?);
        Ok(())
    }

    /// Handles the events of one message.
    fn take(&mut self, response: &WatchResponse) -> Result<(), StoreError> {
        if !response.events().is_empty() {
            self.pause = PAUSE.0;
        }
        for event in response.events() {
            let Some(pair) = event.kv() else { continue };
            let removed = matches!(event.event_type(), EventType::Delete);
            let key = self.store.own(pair.key())?.to_owned();
            if !match key.as_str() {
                EPOCH => self.take_epoch((!removed).then_some(pair.value()))?,
                HEAD => self.take_head((!removed).then_some(pair.value()))?,
                _ if removed => true,
                key => match record::revision_of(key) {
                    Some(revision) => self.take_record(revision, pair.value())?,
                    None => true,
                },
            } {
                // A required key was not delivered: restart from the keys.
                self.stream = None;
                return Ok(());
            }
        }
        Ok(())
    }

    fn take_epoch(&self, value: Option<&[u8]>) -> Result<bool, StoreError> {
        let epoch = String::from_utf8_lossy(value.unwrap_or_default());
        if self.last.epoch == epoch { Ok(true) } else { Err(replaced(&epoch)) }
    }

    /// A head beyond the last change means that a record was missed.
    fn take_head(&self, value: Option<&[u8]>) -> Result<bool, StoreError> {
        let Some(value) = value else { return Err(replaced("")) };
        let head = Head::parse(value)?;
        if head.revision < self.last.revision {
            return Err(replaced(&self.last.epoch));
        }
        Ok(head.revision == self.last.revision)
    }

    fn take_record(&mut self, revision: u64, value: &[u8]) -> Result<bool, StoreError> {
        if revision <= self.last.revision {
            return Err(replaced(&self.last.epoch));
        }
        let record = record::decode_record(revision, value)?;
        if revision != self.last.revision + 1 || record.parts > 0 {
            return Ok(false);
        }
        self.ready.push_back(record::decode_change(revision, &record, &[])?);
        (self.last.revision, self.last.commit) = (revision, record.commit);
        Ok(true)
    }

    async fn rest(&mut self) {
        sleep(self.pause.mul_f64(fastrand::f64())).await;
        self.pause = (self.pause * 2).min(PAUSE.1);
    }
}

fn replaced(epoch: &str) -> StoreError {
    StoreError::Replaced { epoch: epoch.to_owned() }
}
