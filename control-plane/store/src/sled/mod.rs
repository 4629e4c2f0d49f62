//! Embedded store: one folder, one process, nothing to install.
//!
//! All data is in sled's default tree, so one batch, which sled recovers whole or not at all, carries a
//! commit. The head and the epoch are in memory under a lock: exclusive for commits, shared for reads. The
//! database needs no compare, since sled's file lock keeps other processes out. A commit is acknowledged, and
//! shown to watchers, once its bytes are synced to the disk (`disk`).
//!
//! After an error or a panic the state of a commit on disk is unknown, and sled refuses all operations. The
//! database is then opened again and read. If that fails, each later request tries again.
//!
//! All database work runs on blocking threads. sled's own subscriber is not used, because a slow reader of it
//! blocks writers: a `watch` channel carries the head, and each watcher reads the changes it lacks.

mod disk;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sled::{Batch, Db};
use tokio::sync::watch;

use crate::membership::Membership;
use crate::open_error::OpenError;
use crate::record;
use crate::record::{COMPACTED, EPOCH, HEAD, Head, LINEAGE, damaged};
use crate::sled::disk::Disk;
use crate::{Change, Identity, MAX_READ_BYTES, Position, Store, StoreContents, StoreError, Watch};

/// Size above which a record is written in parts: sled rewrites a value with up to 15 neighbours.
const INLINE_BYTES: usize = 64 << 10;

/// Cache size of sled; its default is 1 GiB. Sled checks it at every 64th access to one of 256 groups of
/// pages, so with large values it may hold as much as the history.
const CACHE_BYTES: u64 = 32 << 20;

/// Changes per read; commits proceed between two pages.
const PAGE: u64 = 64;

/// Changes per step of a compaction: sled rewrites the neighbours of a removed record.
const STEP_BYTES: u64 = 256 << 10;
const STEP_RECORDS: usize = 1_000;

/// Pause of a watcher before it reads a failed disk again.
const PAUSE: Duration = Duration::from_secs(1);

/// Time that sled may take to close its files before they are opened again, and the number of tries.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);
const CLOSED_LOOK_AFTER: Duration = Duration::from_millis(5);

/// Time of a flush after which sled is asked whether it has failed.
const FLUSHED_WITHIN: Duration = Duration::from_secs(1);

/// A store in a folder of this machine.
pub struct SledStore {
    inner: Arc<SledInner>,
}

struct SledInner {
    path: PathBuf,
    /// Exclusive while the database is changed or opened again.
    gate: RwLock<Held>,
    /// Bytes of the last ordinary write, if it had no room; else 0.
    refused: AtomicU64,
    /// Durable head, for watchers and for the comparison of a commit.
    seen: watch::Sender<SledHead>,
}

struct Held {
    /// `None` only while it is opened again.
    db: Option<Db>,
    /// True if nothing has failed since it was opened.
    is_sound: bool,
    disk: Disk,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SledHead {
    epoch: String,
    head: u64,
}

/// Atomic write.
struct Write {
    batch: Batch,
    /// Key and new value that identify the write after a failed attempt.
    mark: (&'static str, String),
    /// Bytes of its values.
    bytes: u64,
    /// True if the write may use the reserve.
    is_urgent: bool,
}

impl Write {
    fn new(mark: &'static str, value: String, is_urgent: bool) -> Self {
        let mut batch = Batch::default();
        batch.insert(mark, value.as_str());
        Self { batch, mark: (mark, value), bytes: 0, is_urgent }
    }

    fn insert(&mut self, key: &str, value: &[u8]) {
        self.bytes += (key.len() + value.len()) as u64;
        self.batch.insert(key, value);
    }
}

impl SledStore {
    /// Opens the store in this folder, or creates it.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self, OpenError> {
        let path = path.into();
        let join = path.clone();
        let opened = tokio::task::spawn_blocking(move || SledInner::open(&path)).await;
        let inner = opened.unwrap_or_else(|panic| {
            Err(OpenError::Damaged { path: join, reason: format!("reading it failed: {panic}") })
        })?;
        Ok(Self { inner: Arc::new(inner) })
    }

    async fn reading<T: Send + 'static>(
        &self,
        work: impl FnOnce(&SledInner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.blocking(work).await.unwrap_or_else(|reason| Err(StoreError::Unavailable { reason }))
    }

    async fn writing<T: Send + 'static>(
        &self,
        work: impl FnOnce(&SledInner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.blocking(work).await.unwrap_or_else(|reason| Err(StoreError::Uncertain { reason }))
    }

    /// Runs work on a thread that may block on the disk; errors only if it ends without a result.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&SledInner) -> T + Send + 'static,
    ) -> Result<T, String> {
        let inner = self.inner.clone();
        let worked = tokio::task::spawn_blocking(move || work(&inner)).await;
        worked.map_err(|error| format!("the database failed: {error}"))
    }
}

#[tonic::async_trait]
impl Store for SledStore {
    /// Opening has created it: the folder is this process's alone.
    async fn create(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn identity(&self, revision: u64) -> Result<Identity, StoreError> {
        self.reading(move |inner| inner.identity(revision)).await
    }

    async fn load(&self) -> Result<StoreContents, StoreError> {
        self.reading(SledInner::load).await
    }

    async fn commit(&self, expected_head: u64, changes: &[Change]) -> Result<(), StoreError> {
        record::check(expected_head, changes)?;
        let changes = changes.to_vec();
        self.writing(move |inner| inner.commit(expected_head, &changes)).await
    }

    fn watch(&self, after: &Position) -> Watch {
        let seen = self.inner.seen.subscribe();
        let epoch = if after.epoch.is_empty() { seen.borrow().epoch.clone() } else { after.epoch.clone() };
        // No other process can change the history while the folder is open.
        let after = after.revision;
        let store = Self { inner: self.inner.clone() };
        let watcher = SledWatcher { store, seen, epoch, after, ready: VecDeque::new() };
        Box::pin(futures_util::stream::unfold(Some(watcher), |watcher| async {
            let mut watcher = watcher?;
            match watcher.next().await {
                Ok(change) => Some((Ok(change), Some(watcher))),
                Err(error) => Some((Err(error), None)),
            }
        }))
    }

    async fn changes(&self, after: u64, upto: u64) -> Result<Vec<Change>, StoreError> {
        self.reading(move |inner| inner.changes(after, upto)).await
    }

    async fn compact(&self, revision: u64) -> Result<(), StoreError> {
        self.writing(move |inner| inner.compact(revision)).await
    }

    fn is_full(&self) -> bool {
        disk::is_full(&self.inner.path, self.inner.refused.load(Ordering::Relaxed))
    }

    fn join(&self, _id: &str, _value: Bytes) -> Option<Membership> {
        None
    }

    async fn renew_epoch(&self, current: &str, predecessors: &[String]) -> Result<String, StoreError> {
        let (current, predecessors) = (current.to_owned(), predecessors.to_vec());
        self.writing(move |inner| inner.renew_epoch(&current, &predecessors)).await
    }
}

impl SledInner {
    fn open(path: &Path) -> Result<Self, OpenError> {
        let failed = |error| open_error(path, error);
        let mut disk = Disk::prepare(path).map_err(|error| failed(error.into()))?;
        let db = open_db(path, &mut disk).map_err(failed)?;
        let seen = read_seen(&db)
            .map_err(|error| OpenError::Damaged { path: path.to_owned(), reason: error.to_string() })?;
        let gate = RwLock::new(Held { db: Some(db), is_sound: true, disk });
        let refused = AtomicU64::new(0);
        Ok(Self { path: path.to_owned(), gate, refused, seen: watch::Sender::new(seen) })
    }

    /// Locks the database for reading.
    fn shared(&self) -> Result<RwLockReadGuard<'_, Held>, StoreError> {
        loop {
            if let Ok(held) = self.gate.read()
                && held.is_sound
            {
                return Ok(held);
            }
            drop(self.alone()?);
        }
    }

    /// Locks the database for writing.
    fn alone(&self) -> Result<RwLockWriteGuard<'_, Held>, StoreError> {
        let mut held = self.gate.write().unwrap_or_else(|panicked| {
            // The database may be ahead of the disk, and the head behind the database.
            self.gate.clear_poison();
            let mut held = panicked.into_inner();
            held.is_sound = false;
            held
        });
        if !held.is_sound {
            self.open_again(&mut held)?;
        }
        Ok(held)
    }

    /// Opens the database after a failure and reads its state.
    fn open_again(&self, held: &mut Held) -> Result<(), StoreError> {
        held.is_sound = false;
        // Sled may wait forever for a failed write.
        let old = held.db.take();
        std::thread::spawn(move || drop(old));
        let again = |error: sled::Error| StoreError::Unavailable {
            reason: format!("the store cannot be opened again after a failure: {error}"),
        };
        let deadline = Instant::now() + CLOSED_WITHIN;
        let db = loop {
            held.disk.sync_all().map_err(|error| again(error.into()))?;
            match open_db(&self.path, &mut held.disk) {
                Err(error) if is_locked(&error) && Instant::now() < deadline => {
                    std::thread::sleep(CLOSED_LOOK_AFTER);
                }
                opened => break opened.map_err(again)?,
            }
        };
        let found = read_seen(&db)?;
        tracing::info!(revision = found.head, "store reopened after a failure");
        self.seen.send_if_modified(|seen| {
            *seen != found && {
                *seen = found;
                true
            }
        });
        (held.db, held.is_sound) = (Some(db), true);
        Ok(())
    }

    fn identity(&self, revision: u64) -> Result<Identity, StoreError> {
        let held = self.shared()?;
        let seen = self.seen.borrow().clone();
        held.identity(seen, revision)
    }

    fn load(&self) -> Result<StoreContents, StoreError> {
        let held = self.shared()?;
        let seen = self.seen.borrow().clone();
        let head = seen.head;
        let Identity { epoch, revision, commit, lineage } = held.identity(seen, head)?;
        let commit = commit.unwrap_or_default();
        let mut state = StoreContents { epoch, revision, commit, lineage, ..StoreContents::default() };
        for range in record::around_history() {
            for pair in held.db()?.range::<&str, _>(range) {
                let (key, value) = pair.map_err(failed)?;
                let key = text(&key)?;
                if record::is_entry(key) {
                    state.entries.insert(key.to_owned(), record::decode_entry(key, &value)?);
                }
            }
        }
        Ok(state)
    }

    fn commit(&self, expected_head: u64, changes: &[Change]) -> Result<(), StoreError> {
        let mut held = self.alone()?;
        let head = self.seen.borrow().head;
        if head != expected_head {
            return Err(StoreError::Conflict { head });
        }
        let commit = fastrand::u64(..);
        let head = expected_head + changes.len() as u64;
        let edits = changes.iter().flat_map(|change| &change.edits);
        let edits = edits.map(|edit| (edit.key.as_str(), edit.value.as_ref()));
        let mut write = Write::new(HEAD, Head::at(head).text(), crate::is_urgent(edits));
        for change in changes {
            let encoded = record::encode(change, commit, INLINE_BYTES);
            for (number, part) in encoded.parts.iter().enumerate() {
                write.insert(&record::part_key(change.revision, commit, number), part);
            }
            write.insert(&record::change_key(change.revision), &encoded.record);
        }
        for (key, entry) in record::effect(changes) {
            match entry {
                Some(entry) => {
                    write.insert(&key, &record::encode_entry(entry.revision, &entry.value));
                }
                None => write.batch.remove(key.as_str()),
            }
        }
        self.write(&mut held, &write)?;
        self.seen.send_modify(|seen| seen.head = head);
        Ok(())
    }

    /// Reads the changes after `after` up to `upto`, page by page, so a commit waits for one page at most.
    fn changes(&self, after: u64, upto: u64) -> Result<Vec<Change>, StoreError> {
        let seen = self.seen.borrow().clone();
        if after > seen.head {
            return Err(StoreError::Replaced { epoch: seen.epoch });
        }
        let upto = upto.min(seen.head);
        let mut changes: Vec<Change> = Vec::new();
        let (mut reached, mut room) = (after, MAX_READ_BYTES);
        while reached < upto && room > 0 {
            let to = upto.min(reached + PAGE);
            let page = self.shared()?.changes(reached, to, &mut room)?;
            let is_gap = page.first().is_none_or(|first| first.revision != reached + 1);
            if is_gap {
                // The changes read before were dropped meanwhile.
                changes.clear();
            }
            changes.extend(page);
            reached = to;
        }
        if changes.is_empty() && after < upto {
            return Err(StoreError::Compacted { oldest: self.compacted()? });
        }
        Ok(changes)
    }

    /// Works in steps, so a commit waits for one step and the disk needs room for one. The next compaction
    /// removes the rest if the process ends.
    fn compact(&self, revision: u64) -> Result<(), StoreError> {
        let revision = revision.min(self.seen.borrow().head);
        if revision <= self.compacted()? {
            return Ok(());
        }
        let mut first = None;
        while let Some(removed) = self.remove_some(revision)? {
            // The mark of the previous step would make a failed step look written.
            if first.as_ref() == Some(&removed) {
                return Err(StoreError::Unavailable { reason: "old changes cannot be removed".to_owned() });
            }
            first = Some(removed);
        }
        Ok(())
    }

    /// Removes changes up to this one with a mark; returns the first key if there may be more.
    fn remove_some(&self, revision: u64) -> Result<Option<sled::IVec>, StoreError> {
        let mut held = self.alone()?;
        let mut write = Write::new(COMPACTED, revision.to_string(), true);
        let db = held.db()?;
        let changes = db.range(record::CHANGES.to_owned()..=record::change_key(revision));
        let parts = db.range(record::PARTS.to_owned()..record::parts_of(revision + 1));
        let (mut records, mut first) = (0, None);
        let mut is_last = true;
        for pair in changes.chain(parts) {
            let (key, value) = pair.map_err(failed)?;
            first.get_or_insert_with(|| key.clone());
            write.bytes += (key.len() + value.len()) as u64;
            write.batch.remove(key);
            records += 1;
            if write.bytes >= STEP_BYTES || records == STEP_RECORDS {
                is_last = false;
                break;
            }
        }
        self.write(&mut held, &write)?;
        Ok(first.filter(|_| !is_last))
    }

    fn renew_epoch(&self, current: &str, predecessors: &[String]) -> Result<String, StoreError> {
        let mut held = self.alone()?;
        let seen = self.seen.borrow().clone();
        if seen.epoch != current {
            return Ok(seen.epoch);
        }
        let epoch = record::new_epoch();
        let mut write = Write::new(EPOCH, epoch.clone(), true);
        let lineage = record::lineage_text(predecessors, &held.lineage()?);
        write.insert(LINEAGE, lineage.as_bytes());
        self.write(&mut held, &write)?;
        self.seen.send_modify(|seen| seen.epoch.clone_from(&epoch));
        Ok(epoch)
    }

    fn compacted(&self) -> Result<u64, StoreError> {
        self.shared()?.compacted()
    }

    /// Writes durably. After a failure the state is read from disk again, so the result is certain unless
    /// that fails too.
    fn write(&self, held: &mut Held, write: &Write) -> Result<(), StoreError> {
        let unavailable = |reason: String| StoreError::Unavailable { reason };
        match held.disk.has_room(write.bytes, write.is_urgent) {
            Ok(true) if write.is_urgent => {}
            Ok(true) => self.refused.store(0, Ordering::Relaxed),
            Ok(false) => {
                self.refused.store(write.bytes, Ordering::Relaxed);
                return Err(unavailable(
                    "its disk is full; free space or enlarge the volume. Until then only kills and removals \
                     are written"
                        .to_owned(),
                ));
            }
            Err(error) => {
                return Err(unavailable(format!(
                    "cannot determine how much space is free on the disk of the store: {error}"
                )));
            }
        }
        let Err(error) = held.write(&write.batch) else { return Ok(()) };
        let reason = format!("writing to its disk failed: {error}");
        tracing::error!(%error, "writing to the store's disk failed; reopening the store");
        if let Err(again) = self.open_again(held) {
            return Err(StoreError::Uncertain { reason: format!("{reason}; {again}") });
        }
        let (key, value) = &write.mark;
        let found = held.db()?.get(key).map_err(failed)?;
        if found.is_some_and(|found| *found == *value.as_bytes()) { Ok(()) } else { Err(unavailable(reason)) }
    }
}

impl Held {
    fn db(&self) -> Result<&Db, StoreError> {
        self.db
            .as_ref()
            .ok_or_else(|| StoreError::Unavailable { reason: "its files are not open".to_owned() })
    }

    fn write(&mut self, batch: &Batch) -> Result<(), sled::Error> {
        if let Some(db) = &self.db {
            db.apply_batch(batch.clone())?;
            flush(db)?;
        }
        Ok(self.disk.sync()?)
    }

    fn lineage(&self) -> Result<Vec<String>, StoreError> {
        Ok(record::lineage(self.db()?.get(LINEAGE).map_err(failed)?.as_deref()))
    }

    fn identity(
        &self,
        SledHead { epoch, head, .. }: SledHead,
        revision: u64,
    ) -> Result<Identity, StoreError> {
        let record = self.db()?.get(record::change_key(revision)).map_err(failed)?;
        let commit = record.map(|record| record::decode_record(revision, &record)).transpose()?;
        let commit = commit.map(|record| record.commit);
        Ok(Identity { epoch, revision: head, commit, lineage: self.lineage()? })
    }

    fn compacted(&self) -> Result<u64, StoreError> {
        let value = self.db()?.get(COMPACTED).map_err(failed)?;
        value.map_or(Ok(0), |value| record::number(&value, COMPACTED))
    }

    /// Reads changes until `room` is used up.
    fn changes(&self, after: u64, upto: u64, room: &mut usize) -> Result<Vec<Change>, StoreError> {
        let db = self.db()?;
        let mut changes = Vec::new();
        for pair in db.range(record::change_key(after + 1)..=record::change_key(upto)) {
            let (key, value) = pair.map_err(failed)?;
            let key = text(&key)?;
            let revision = record::revision_of(key).ok_or_else(|| damaged(format!("the key {key:?}")))?;
            let record = record::decode_record(revision, &value)?;
            let mut parts = Vec::new();
            for number in 0..record.parts as usize {
                let part = db.get(record::part_key(revision, record.commit, number)).map_err(failed)?;
                parts.extend(part.map(|part| Bytes::copy_from_slice(&part)));
            }
            let change = record::decode_change(revision, &record, &parts)?;
            *room = room.saturating_sub(change.bytes());
            changes.push(change);
            if *room == 0 {
                break;
            }
        }
        Ok(changes)
    }
}

/// Watcher of the head.
struct SledWatcher {
    store: SledStore,
    seen: watch::Receiver<SledHead>,
    epoch: String,
    after: u64,
    ready: VecDeque<Change>,
}

impl SledWatcher {
    async fn next(&mut self) -> Result<Change, StoreError> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                self.after = change.revision;
                return Ok(change);
            }
            let seen = self.seen.borrow_and_update().clone();
            if seen.epoch != self.epoch || seen.head < self.after {
                return Err(StoreError::Replaced { epoch: seen.epoch });
            }
            if seen.head == self.after {
                // The watcher's store holds the sender.
                let _ = self.seen.changed().await;
                continue;
            }
            let (after, upto) = (self.after, seen.head.min(self.after + PAGE));
            let changes = match self.store.changes(after, upto).await {
                Ok(changes) => changes,
                Err(StoreError::Unavailable { .. }) => {
                    // A failing disk is retried, as an unreachable etcd is.
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if changes.first().is_none_or(|first| first.revision != after + 1) {
                let oldest = self.store.reading(SledInner::compacted).await?;
                return Err(StoreError::Compacted { oldest });
            }
            self.ready = changes.into();
        }
    }
}

/// Opens the database and initialises a new one. On a full disk that uses the reserve.
fn open_db(path: &Path, disk: &mut Disk) -> Result<Db, sled::Error> {
    if !disk.has_room(0, true)? {
        tracing::warn!("the store's disk is full; opening it may fail");
    }
    let db = sled::Config::new().path(path).flush_every_ms(None).cache_capacity(CACHE_BYTES).open()?;
    if db.get(EPOCH)?.is_none() {
        let mut batch = Batch::default();
        batch.insert(EPOCH, record::new_epoch().as_str());
        batch.insert(HEAD, Head::at(0).text().as_str());
        db.apply_batch(batch)?;
        flush(&db)?;
    }
    disk.sync_all()?;
    Ok(db)
}

/// Flushes sled to the operating system. Sled may not wake a waiter of a failed write; another flush does.
fn flush(db: &Db) -> Result<(), sled::Error> {
    std::thread::scope(|scope| {
        let (done, flushed) = mpsc::channel::<()>();
        scope.spawn(move || {
            while flushed.recv_timeout(FLUSHED_WITHIN) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = db.flush();
            }
        });
        let result = db.flush();
        drop(done);
        result.map(drop)
    })
}

fn read_seen(db: &Db) -> Result<SledHead, StoreError> {
    let read = |key| db.get(key).map_err(failed)?.ok_or_else(|| damaged(format!("{key} is missing")));
    let epoch = read(EPOCH)?;
    let head = Head::parse(&read(HEAD)?)?;
    Ok(SledHead { epoch: text(&epoch)?.to_owned(), head: head.revision })
}

fn text(bytes: &[u8]) -> Result<&str, StoreError> {
    std::str::from_utf8(bytes).map_err(|_| damaged("a key or value is not UTF-8"))
}

fn failed(error: sled::Error) -> StoreError {
    match error {
        sled::Error::Io(error) => {
            StoreError::Unavailable { reason: format!("reading from disk failed: {error}") }
        }
        error => damaged(error.to_string()),
    }
}

fn open_error(path: &Path, error: sled::Error) -> OpenError {
    let path = path.to_owned();
    match error {
        error if is_locked(&error) => OpenError::Locked { path },
        sled::Error::Io(source) => OpenError::Unusable { path, source },
        error => OpenError::Damaged { path, reason: error.to_string() },
    }
}

fn is_locked(error: &sled::Error) -> bool {
    matches!(error, sled::Error::Io(source) if source.to_string().contains("could not acquire lock"))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::Edit;

    fn change(revision: u64) -> Change {
        Change {
            revision,
            commit: 0,
            at: SystemTime::UNIX_EPOCH,
            author: String::new(),
            reason: String::new(),
            peer: String::new(),
            principal: String::new(),
            request_id: String::new(),
            request_digest: 0,
            edits: vec![Edit {
                key: "rules/a".to_owned(),
                value: Some(Bytes::from_static(b"1")),
                before: None,
            }],
        }
    }

    #[tokio::test]
    async fn what_a_panic_left_on_disk_is_the_truth_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = SledStore::open(folder.path()).await.unwrap();
        store.commit(0, &[change(1)]).await.unwrap();
        let fails = |inner: &SledInner| {
            let mut held = inner.alone()?;
            let mut write = Write::new(HEAD, Head::at(2).text(), false);
            write.insert(&record::change_key(2), &record::encode(&change(2), 7, INLINE_BYTES).record);
            held.write(&write.batch).unwrap();
            if held.is_sound {
                panic!("as sled may");
            }
            Ok(())
        };
        let failed = store.writing(fails).await;
        assert!(matches!(failed, Err(StoreError::Uncertain { .. })), "{failed:?}");
        let again = store.commit(1, &[change(2)]).await;
        assert!(matches!(again, Err(StoreError::Conflict { head: 2 })), "{again:?}");
        assert_eq!(store.load().await.unwrap().revision, 2);
        assert_eq!(store.changes(0, 9).await.unwrap().len(), 2);
        store.commit(2, &[change(3)]).await.unwrap();
    }
}
