//! The embedded store: one folder, one process, nothing to install.
//!
//! Everything lies in sled's default tree, so that one batch, which sled recovers whole or not at all, carries
//! a commit. The head and the epoch are held in memory under a lock that commits take alone and reads share;
//! no compare is needed in the database, since sled's file lock keeps every other process out. A commit is
//! acknowledged, and shown to watchers, only after the flush.
//!
//! All database work runs on the blocking threads. sled's own subscriber is not used, because a slow reader of
//! it blocks writers: a `watch` channel carries the head, and each watcher reads the changes it lacks.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use sled::{Batch, Db};
use tokio::sync::watch;

use super::record::{self, COMPACTED, EPOCH, HEAD, Head, damaged};
use super::{Change, Error, OpenError, Presence, State, Store, Watch};

/// A record above this is written in parts: sled rewrites a value together with up to 15 neighbours.
const INLINE_BYTES: usize = 64 << 10;

/// How many changes a watcher reads at once.
const PAGE: u64 = 64;

/// How long a watcher waits before it reads again from a disk that failed.
const PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

/// A store in a folder of this machine.
pub struct SledStore {
    inner: Arc<Inner>,
}

struct Inner {
    db: Db,
    /// Held alone while the database is changed.
    gate: RwLock<()>,
    /// What is durable, for watchers and for the comparison of a commit.
    seen: watch::Sender<Seen>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    epoch: String,
    head: u64,
    /// Commits failed in a way that leaves open what is on disk; nothing more is written.
    broken: Option<String>,
}

impl SledStore {
    /// Opens the store in this folder, and creates it where there is none.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self, OpenError> {
        let path = path.into();
        let join = path.clone();
        let opened = tokio::task::spawn_blocking(move || Inner::open(&path)).await;
        let inner = opened.unwrap_or_else(|panic| {
            Err(OpenError::Damaged { path: join, reason: format!("reading it failed: {panic}") })
        })?;
        Ok(Self { inner: Arc::new(inner) })
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = self.inner.clone();
        match tokio::task::spawn_blocking(move || work(&inner)).await {
            Ok(result) => result,
            Err(error) => Err(Error::Uncertain { reason: format!("the database thread ended: {error}") }),
        }
    }
}

#[tonic::async_trait]
impl Store for SledStore {
    async fn load(&self) -> Result<State, Error> {
        self.blocking(Inner::load).await
    }

    async fn commit(&self, expected_head: u64, changes: &[Change]) -> Result<(), Error> {
        record::check(expected_head, changes)?;
        let changes = changes.to_vec();
        self.blocking(move |inner| inner.commit(expected_head, &changes)).await
    }

    fn watch(&self, after: u64) -> Watch {
        let seen = self.inner.seen.subscribe();
        let epoch = seen.borrow().epoch.clone();
        let store = Self { inner: self.inner.clone() };
        let watcher = Watcher { store, seen, epoch, after, ready: VecDeque::new() };
        Box::pin(futures_util::stream::unfold(Some(watcher), |watcher| async {
            let mut watcher = watcher?;
            match watcher.next().await {
                Ok(change) => Some((Ok(change), Some(watcher))),
                Err(error) => Some((Err(error), None)),
            }
        }))
    }

    async fn changes(&self, after: u64, upto: u64) -> Result<Vec<Change>, Error> {
        self.blocking(move |inner| inner.changes(after, upto)).await
    }

    async fn compact(&self, revision: u64) -> Result<(), Error> {
        self.blocking(move |inner| inner.compact(revision)).await
    }

    fn join(&self, _id: &str, _value: Bytes) -> Option<Presence> {
        None
    }

    async fn renew_epoch(&self, current: &str) -> Result<String, Error> {
        let current = current.to_owned();
        self.blocking(move |inner| inner.renew_epoch(&current)).await
    }
}

impl Inner {
    fn open(path: &Path) -> Result<Self, OpenError> {
        let unusable = |error| open_error(path, error);
        create_folder(path).map_err(|source| OpenError::Unusable { path: path.to_owned(), source })?;
        let db = sled::Config::new().path(path).flush_every_ms(None).open().map_err(unusable)?;
        if db.get(EPOCH).map_err(unusable)?.is_none() {
            let mut batch = Batch::default();
            batch.insert(EPOCH, record::new_epoch().as_str());
            batch.insert(HEAD, Head::at(0).text().as_str());
            db.apply_batch(batch).and_then(|()| db.flush()).map_err(unusable)?;
        }
        let seen = read_seen(&db)
            .map_err(|error| OpenError::Damaged { path: path.to_owned(), reason: error.to_string() })?;
        Ok(Self { db, gate: RwLock::new(()), seen: watch::Sender::new(seen) })
    }

    fn load(&self) -> Result<State, Error> {
        let _shared = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let seen = self.sound()?;
        let mut state = State { epoch: seen.epoch, revision: seen.head, entries: Default::default() };
        for pair in self.db.iter() {
            let (key, value) = pair.map_err(failed)?;
            let key = text(&key)?;
            if record::is_entry(key) {
                state.entries.insert(key.to_owned(), record::decode_entry(key, &value)?);
            }
        }
        Ok(state)
    }

    fn commit(&self, expected_head: u64, changes: &[Change]) -> Result<(), Error> {
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let head = self.sound()?.head;
        if head != expected_head {
            return Err(Error::Conflict { head });
        }
        let commit = fastrand::u64(..);
        let mut batch = Batch::default();
        for change in changes {
            let encoded = record::encode(change, commit, INLINE_BYTES);
            for (number, part) in encoded.parts.iter().enumerate() {
                batch.insert(record::part_key(change.revision, commit, number).as_str(), &part[..]);
            }
            batch.insert(record::change_key(change.revision).as_str(), &encoded.record[..]);
        }
        for (key, entry) in record::effect(changes) {
            match entry {
                Some(entry) => {
                    batch.insert(key.as_str(), &record::encode_entry(entry.revision, &entry.value)[..]);
                }
                None => batch.remove(key.as_str()),
            }
        }
        let head = expected_head + changes.len() as u64;
        batch.insert(HEAD, Head::at(head).text().as_str());
        self.write(batch)?;
        self.seen.send_modify(|seen| seen.head = head);
        Ok(())
    }

    fn changes(&self, after: u64, upto: u64) -> Result<Vec<Change>, Error> {
        let _shared = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let seen = self.sound()?;
        if after > seen.head {
            return Err(Error::Replaced { epoch: seen.epoch });
        }
        let upto = upto.min(seen.head);
        if upto == after {
            return Ok(Vec::new());
        }
        let mut changes = Vec::new();
        for pair in self.db.range(record::change_key(after + 1)..=record::change_key(upto)) {
            let (key, value) = pair.map_err(failed)?;
            let key = text(&key)?;
            let revision = record::revision_of(key).ok_or_else(|| damaged(format!("the key {key:?}")))?;
            let record = record::decode_record(revision, &value)?;
            let mut parts = Vec::new();
            for number in 0..record.parts as usize {
                let part = self.db.get(record::part_key(revision, record.commit, number)).map_err(failed)?;
                parts.extend(part.map(|part| Bytes::copy_from_slice(&part)));
            }
            changes.push(record::decode_change(revision, &record, &parts)?);
        }
        if changes.is_empty() {
            return Err(Error::Compacted { oldest: self.compacted()? });
        }
        Ok(changes)
    }

    fn compact(&self, revision: u64) -> Result<(), Error> {
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let revision = revision.min(self.sound()?.head);
        if revision <= self.compacted()? {
            return Ok(());
        }
        let mut batch = Batch::default();
        batch.insert(COMPACTED, revision.to_string().as_str());
        let changes = self.db.range(record::CHANGES.to_owned()..=record::change_key(revision)).keys();
        let parts = self.db.range(record::PARTS.to_owned()..record::parts_of(revision + 1)).keys();
        for key in changes.chain(parts) {
            batch.remove(key.map_err(failed)?);
        }
        self.write(batch)
    }

    fn renew_epoch(&self, current: &str) -> Result<String, Error> {
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let seen = self.sound()?;
        if seen.epoch != current {
            return Ok(seen.epoch);
        }
        let epoch = record::new_epoch();
        let mut batch = Batch::default();
        batch.insert(EPOCH, epoch.as_str());
        self.write(batch)?;
        self.seen.send_modify(|seen| seen.epoch.clone_from(&epoch));
        Ok(epoch)
    }

    fn compacted(&self) -> Result<u64, Error> {
        let value = self.db.get(COMPACTED).map_err(failed)?;
        value.map_or(Ok(0), |value| record::number(&value, COMPACTED))
    }

    /// Writes a batch durably. After a failure the disk may hold it or not, so that nothing is written or read
    /// any more until the store is opened anew.
    fn write(&self, batch: Batch) -> Result<(), Error> {
        self.db.apply_batch(batch).and_then(|()| self.db.flush()).map(|_| ()).map_err(|error| {
            let reason = format!("writing to disk failed: {error}");
            self.seen.send_modify(|seen| seen.broken = Some(reason.clone()));
            Error::Uncertain { reason }
        })
    }

    fn sound(&self) -> Result<Seen, Error> {
        let seen = self.seen.borrow().clone();
        match seen.broken {
            Some(reason) => Err(Error::Unavailable { reason: format!("{reason}; restart to read it again") }),
            None => Ok(seen),
        }
    }
}

/// One reader that follows the head.
struct Watcher {
    store: SledStore,
    seen: watch::Receiver<Seen>,
    epoch: String,
    after: u64,
    ready: VecDeque<Change>,
}

impl Watcher {
    async fn next(&mut self) -> Result<Change, Error> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                self.after = change.revision;
                return Ok(change);
            }
            let seen = self.seen.borrow_and_update().clone();
            if seen.epoch != self.epoch || seen.head < self.after {
                return Err(Error::Replaced { epoch: seen.epoch });
            }
            if seen.head == self.after {
                // The sender lives in the store this watcher holds.
                let _ = self.seen.changed().await;
                continue;
            }
            let (after, upto) = (self.after, seen.head.min(self.after + PAGE));
            let changes = match self.store.changes(after, upto).await {
                Ok(changes) => changes,
                Err(Error::Unavailable { .. }) => {
                    // The disk fails; a watch waits for better times, as it does when etcd is away.
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if changes.first().is_none_or(|first| first.revision != after + 1) {
                let oldest = self.store.blocking(Inner::compacted).await?;
                return Err(Error::Compacted { oldest });
            }
            self.ready = changes.into();
        }
    }
}

/// Makes the folder and what is missing above it, for the user alone: the hashes of tokens and the cluster key lie in it,
/// in files that sled makes readable to whoever may enter. What is there stays as it is.
fn create_folder(path: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

fn read_seen(db: &Db) -> Result<Seen, Error> {
    let read = |key| db.get(key).map_err(failed)?.ok_or_else(|| damaged(format!("{key} is missing")));
    let epoch = read(EPOCH)?;
    let head = Head::parse(&read(HEAD)?)?;
    Ok(Seen { epoch: text(&epoch)?.to_owned(), head: head.revision, broken: None })
}

fn text(bytes: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(bytes).map_err(|_| damaged("a key or value is not UTF-8"))
}

fn failed(error: sled::Error) -> Error {
    match error {
        sled::Error::Io(error) => Error::Unavailable { reason: format!("reading from disk failed: {error}") },
        error => damaged(error.to_string()),
    }
}

fn open_error(path: &Path, error: sled::Error) -> OpenError {
    let path = path.to_owned();
    match error {
        sled::Error::Io(source) if source.to_string().contains("could not acquire lock") => {
            OpenError::Locked { path }
        }
        sled::Error::Io(source) => OpenError::Unusable { path, source },
        error => OpenError::Damaged { path, reason: error.to_string() },
    }
}
