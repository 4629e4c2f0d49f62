//! Shared store: any number of control planes over one etcd, version 3.4 or later.
//!
//! Damper's revisions are not etcd's: they count changes, without gap, in keys below one prefix. A commit is
//! one etcd transaction that compares `epoch` and `head`, so repeating it is harmless and resolves an attempt
//! without an answer. A commit over the limits of a transaction (128 operations, 1.5 MiB) is written in parts
//! before, and its entries in further transactions after; `head` records the progress, and the next writer
//! finishes them.
//!
//! `link` holds the connection, `commit` writes, `watch` follows; this file reads.

mod commit;
mod config;
mod link;
mod membership;
mod watch;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse};

pub use crate::etcd::config::{EtcdConfig, EtcdTls};
use crate::etcd::link::{EtcdConnection, EtcdFailure};
use crate::membership::Membership;
use crate::open_error::OpenError;
use crate::record;
use crate::record::{CHANGES, COMPACTED, EPOCH, HEAD, Head, LINEAGE, PARTS, Record, damaged};
use crate::{Change, Identity, MAX_READ_BYTES, Position, Store, StoreContents, StoreError, Watch};

/// Default prefix of the keys.
pub const DEFAULT_PREFIX: &str = "/damper/";

/// Changes per request; a record has at most 512 KiB.
const CHANGES_PAGE: i64 = 16;

/// Entries per request.
const ENTRIES_PAGE: i64 = 512;

/// Parts of 1 MiB of a large record per request.
const PARTS_PAGE: i64 = 16;

/// Restarts of a read whose etcd revision was compacted meanwhile.
const READS: usize = 5;

/// A store in an etcd cluster.
#[derive(Clone)]
pub struct EtcdStore {
    shared: Arc<EtcdInner>,
}

struct EtcdInner {
    link: EtcdConnection,
    prefix: String,
    /// Epoch of this replica's last load.
    epoch: Mutex<Option<String>>,
    /// True if etcd had no room for the last write.
    full: AtomicBool,
}

/// Keys of the store's position, read at one etcd revision.
struct HeadKeys {
    epoch: String,
    head: Head,
    compacted: u64,
    lineage: Vec<String>,
    /// Commit of the requested change.
    commit: Option<u64>,
    /// The etcd revision.
    at: i64,
}

/// Error of a read at a fixed etcd revision.
enum ReadError {
    /// etcd no longer keeps that revision; read again at a newer one.
    Gone,
    Store(StoreError),
}

impl From<StoreError> for ReadError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<EtcdFailure> for ReadError {
    fn from(failure: EtcdFailure) -> Self {
        if failure.compacted { Self::Gone } else { Self::Store(failure.unavailable()) }
    }
}

impl EtcdStore {
    /// Checks the settings and reads the TLS files. etcd itself is contacted by the first request.
    pub fn open(settings: EtcdConfig) -> Result<Self, OpenError> {
        let link = EtcdConnection::new(&settings)?;
        let shared = EtcdInner {
            link,
            prefix: settings.prefix,
            epoch: Mutex::new(None),
            full: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    fn link(&self) -> &EtcdConnection {
        &self.shared.link
    }

    /// Runs a transaction that writes.
    async fn write_txn(&self, txn: &Txn) -> Result<TxnResponse, EtcdFailure> {
        let answer = self.link().txn(txn).await;
        match &answer {
            Ok(answer) if answer.succeeded() => self.shared.full.store(false, Ordering::Relaxed),
            Err(failure) if failure.full => self.shared.full.store(true, Ordering::Relaxed),
            _ => {}
        }
        answer
    }

    /// Returns the etcd key of one of ours.
    fn full(&self, key: &str) -> Vec<u8> {
        [self.shared.prefix.as_bytes(), key.as_bytes()].concat()
    }

    /// Returns our key of an etcd key.
    fn own<'a>(&self, key: &'a [u8]) -> Result<&'a str, StoreError> {
        let own = key.strip_prefix(self.shared.prefix.as_bytes()).unwrap_or(key);
        std::str::from_utf8(own).map_err(|_| damaged(format!("the key {:?}", String::from_utf8_lossy(own))))
    }

    fn equals(&self, key: &str, value: &str) -> Compare {
        Compare::value(self.full(key), CompareOp::Equal, value)
    }

    fn absent(&self, key: &str) -> Compare {
        Compare::version(self.full(key), CompareOp::Equal, 0)
    }

    fn put(&self, key: &str, value: impl Into<Vec<u8>>) -> TxnOp {
        TxnOp::put(self.full(key), value, None)
    }

    fn get(&self, key: &str) -> TxnOp {
        TxnOp::get(self.full(key), None)
    }

    fn known_epoch(&self) -> Option<String> {
        self.shared.epoch.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn know_epoch(&self, epoch: Option<String>) {
        *self.shared.epoch.lock().unwrap_or_else(PoisonError::into_inner) = epoch;
    }

    /// Reads the store's position, linearizably; `None` if there is no store.
    async fn tip(&self) -> Result<Option<HeadKeys>, ReadError> {
        self.tip_and_commit(0).await
    }

    /// Reads the position and the commit that made a revision.
    async fn tip_and_commit(&self, revision: u64) -> Result<Option<HeadKeys>, ReadError> {
        let change = record::change_key(revision);
        let keys = [EPOCH, HEAD, COMPACTED, LINEAGE, &change];
        let txn = Txn::new().and_then(keys.map(|key| self.get(key)));
        let answer = self.link().txn(&txn).await?;
        let at = answer.header().map_or(0, |header| header.revision());
        let found = self.found(&answer)?;
        let (Some(epoch), Some(head)) = (found.get(EPOCH), found.get(HEAD)) else {
            if !found.contains_key(EPOCH) && !found.contains_key(HEAD) {
                return Ok(None);
            }
            return Err(ReadError::Store(damaged(format!("one of {EPOCH} and {HEAD} is missing"))));
        };
        let epoch = String::from_utf8_lossy(epoch).into_owned();
        let compacted = found.get(COMPACTED).map_or(Ok(0), |value| record::number(value, COMPACTED))?;
        let lineage = record::lineage(found.get(LINEAGE).map(|value| &**value));
        let commit = found.get(&change).map(|record| record::decode_record(revision, record)).transpose()?;
        let commit = commit.map(|record| record.commit);
        Ok(Some(HeadKeys { epoch, head: Head::parse(head)?, compacted, lineage, commit, at }))
    }

    /// Reads the position of an existing store.
    async fn tip_there(&self) -> Result<HeadKeys, ReadError> {
        let missing = || ReadError::Store(StoreError::Replaced { epoch: String::new() });
        self.tip().await?.ok_or_else(missing)
    }

    /// Collects the values that a transaction read.
    fn found(&self, answer: &TxnResponse) -> Result<BTreeMap<String, Bytes>, StoreError> {
        let mut found = BTreeMap::new();
        for response in answer.op_responses() {
            let TxnOpResponse::Get(mut got) = response else { continue };
            for pair in got.take_kvs() {
                let (key, value) = pair.into_key_value();
                found.insert(self.own(&key)?.to_owned(), value.into());
            }
        }
        Ok(found)
    }

    /// The keys `[from, to)`, or to the end of the prefix, as they were at an etcd revision; at most `limit`
    /// pairs with one request.
    async fn pages(
        &self,
        from: &str,
        to: Option<&str>,
        at: i64,
        limit: i64,
        mut take: impl FnMut(&str, Bytes) -> Result<(), StoreError>,
    ) -> Result<(), ReadError> {
        let end = to.map_or_else(|| end_of(&self.full("")), |to| self.full(to));
        let mut next = Some(self.full(from));
        while let Some(from) = next {
            next = self.page(from, &end, at, limit, &mut take).await?;
        }
        Ok(())
    }

    /// The first pairs of the keys `[from, end)`, which are whole ones; returns where the others begin.
    async fn page(
        &self,
        from: Vec<u8>,
        end: &[u8],
        at: i64,
        limit: i64,
        mut take: impl FnMut(&str, Bytes) -> Result<(), StoreError>,
    ) -> Result<Option<Vec<u8>>, ReadError> {
        let options = GetOptions::new().with_range(end).with_limit(limit).with_revision(at);
        let mut page = self.link().get(&from, &options).await?;
        let pairs: Vec<KeyValue> = page.take_kvs();
        let last = pairs.last().filter(|_| page.more());
        let next = last.map(|last| [last.key(), b"\0"].concat());
        for pair in pairs {
            let (key, value) = pair.into_key_value();
            take(self.own(&key)?, value.into())?;
        }
        Ok(next)
    }

    /// Reads the changes after `after` up to `upto` at an etcd revision, until the bytes exceed the limit.
    async fn changes_at(
        &self,
        after: u64,
        upto: u64,
        at: i64,
        mut room: usize,
    ) -> Result<Vec<Change>, ReadError> {
        if upto <= after {
            return Ok(Vec::new());
        }
        let end = self.full(&format!("{}\0", record::change_key(upto)));
        let (mut next, mut changes) = (Some(self.full(&record::change_key(after + 1))), Vec::new());
        while let Some(from) = next {
            let mut records = Vec::new();
            let take = |key: &str, value: Bytes| {
                let revision = record::revision_of(key).ok_or_else(|| damaged(format!("the key {key:?}")))?;
                records.push((revision, record::decode_record(revision, &value)?));
                Ok(())
            };
            next = self.page(from, &end, at, CHANGES_PAGE, take).await?;
            for (revision, record) in records {
                let change = self.change_at(revision, &record, at).await?;
                room = room.saturating_sub(change.bytes());
                changes.push(change);
                if room == 0 {
                    return Ok(changes);
                }
            }
        }
        Ok(changes)
    }

    /// A change with its parts.
    async fn change_at(&self, revision: u64, record: &Record, at: i64) -> Result<Change, ReadError> {
        let mut parts = Vec::new();
        if record.parts > 0 {
            let from = record::part_key(revision, record.commit, 0);
            let to = record::part_key(revision, record.commit, record.parts as usize);
            let take = |_: &str, part| {
                parts.push(part);
                Ok(())
            };
            self.pages(&from, Some(&to), at, PARTS_PAGE, take).await?;
        }
        Ok(record::decode_change(revision, record, &parts)?)
    }

    /// Reads the entries at an etcd revision, which may be behind the head.
    async fn entries_at(&self, at: i64) -> Result<BTreeMap<String, crate::Entry>, ReadError> {
        let mut entries = BTreeMap::new();
        let after_changes = end_of(CHANGES.as_bytes());
        let after_parts = end_of(PARTS.as_bytes());
        let after_changes = String::from_utf8_lossy(&after_changes);
        let after_parts = String::from_utf8_lossy(&after_parts);
        let ranges = [("", Some(CHANGES)), (&*after_changes, Some(PARTS)), (&*after_parts, None)];
        for (from, to) in ranges {
            self.pages(from, to, at, ENTRIES_PAGE, |key, value| {
                if record::is_entry(key) {
                    entries.insert(key.to_owned(), record::decode_entry(key, &value)?);
                }
                Ok(())
            })
            .await?;
        }
        Ok(entries)
    }

    async fn load_once(&self) -> Result<(StoreContents, HeadKeys), ReadError> {
        let tip = self.tip_there().await?;
        let entries = self.entries_at(tip.at).await?;
        let (epoch, lineage, revision) = (tip.epoch.clone(), tip.lineage.clone(), tip.head.revision);
        let mut state = StoreContents { epoch, revision, commit: 0, lineage, entries };
        let key = record::change_key(revision);
        self.pages(&key, Some(&format!("{key}\0")), tip.at, 1, |_, value| {
            state.commit = record::decode_record(revision, &value)?.commit;
            Ok(())
        })
        .await?;
        if let Some(unfinished) = tip.head.unfinished {
            for change in self.changes_at(unfinished.since, tip.head.revision, tip.at, usize::MAX).await? {
                state.apply(&change);
            }
        }
        Ok((state, tip))
    }

    /// Reads the changes after `after` up to `upto`, until the bytes exceed the limit.
    async fn changes_within(&self, after: u64, upto: u64, room: usize) -> Result<Vec<Change>, StoreError> {
        for _ in 0..READS {
            match self.changes_once(after, upto, room).await {
                Err(ReadError::Gone) => {}
                Err(ReadError::Store(error)) => return Err(error),
                Ok(changes) => return Ok(changes),
            }
        }
        Err(compacted_again())
    }

    async fn changes_once(&self, after: u64, upto: u64, room: usize) -> Result<Vec<Change>, ReadError> {
        let Some(tip) = self.tip().await? else {
            return Err(ReadError::Store(StoreError::Replaced { epoch: String::new() }));
        };
        let foreign = self.known_epoch().is_some_and(|known| known != tip.epoch);
        if foreign || tip.head.revision < after {
            return Err(ReadError::Store(StoreError::Replaced { epoch: tip.epoch }));
        }
        let upto = upto.min(tip.head.revision);
        let changes = self.changes_at(after, upto, tip.at, room).await?;
        if changes.is_empty() && after < upto {
            return Err(ReadError::Store(StoreError::Compacted { oldest: tip.compacted }));
        }
        Ok(changes)
    }
}

#[tonic::async_trait]
impl Store for EtcdStore {
    async fn create(&self) -> Result<(), StoreError> {
        let create = Txn::new()
            .when([self.absent(EPOCH), self.absent(HEAD)])
            .and_then([self.put(EPOCH, record::new_epoch()), self.put(HEAD, Head::at(0).text())]);
        self.link().txn(&create).await.map(|_| ()).map_err(EtcdFailure::after_write)
    }

    async fn identity(&self, revision: u64) -> Result<Identity, StoreError> {
        match self.tip_and_commit(revision).await {
            Ok(Some(HeadKeys { epoch, head, commit, lineage, .. })) => {
                Ok(Identity { epoch, revision: head.revision, commit, lineage })
            }
            Ok(None) => Err(StoreError::Replaced { epoch: String::new() }),
            Err(ReadError::Gone) => Err(compacted_again()),
            Err(ReadError::Store(error)) => Err(error),
        }
    }

    async fn load(&self) -> Result<StoreContents, StoreError> {
        for _ in 0..READS {
            match self.load_once().await {
                Ok((state, tip)) => {
                    self.know_epoch(Some(state.epoch.clone()));
                    if tip.head.unfinished.is_some() {
                        // Only for readers of the keys with etcd's tools: the state is complete.
                        let _ = self.finish(&tip.epoch, tip.head).await;
                    }
                    return Ok(state);
                }
                Err(ReadError::Gone) => {}
                Err(ReadError::Store(error)) => return Err(error),
            }
        }
        Err(compacted_again())
    }

    async fn commit(&self, expected_head: u64, changes: &[Change]) -> Result<(), StoreError> {
        record::check(expected_head, changes)?;
        self.write(expected_head, changes).await
    }

    fn watch(&self, after: &Position) -> Watch {
        watch::open(self.clone(), after.clone())
    }

    async fn changes(&self, after: u64, upto: u64) -> Result<Vec<Change>, StoreError> {
        self.changes_within(after, upto, MAX_READ_BYTES).await
    }

    async fn compact(&self, revision: u64) -> Result<(), StoreError> {
        self.drop_changes(revision).await
    }

    fn is_full(&self) -> bool {
        self.shared.full.load(Ordering::Relaxed)
    }

    fn join(&self, id: &str, value: Bytes) -> Option<Membership> {
        Some(crate::etcd::membership::join(self.clone(), id, value))
    }

    async fn renew_epoch(&self, current: &str, predecessors: &[String]) -> Result<String, StoreError> {
        let epoch = record::new_epoch();
        let tip = self.tip_there().await.map_err(commit::unavailable)?;
        let lineage = record::lineage_text(predecessors, &tip.lineage);
        let txn = Txn::new()
            .when([self.equals(EPOCH, current)])
            .and_then([self.put(EPOCH, epoch.as_str()), self.put(LINEAGE, lineage)])
            .or_else([self.get(EPOCH)]);
        let answer = self.link().txn(&txn).await.map_err(EtcdFailure::after_write)?;
        if answer.succeeded() {
            return Ok(epoch);
        }
        let found = self.found(&answer)?;
        let epoch = found.get(EPOCH).ok_or_else(|| StoreError::Replaced { epoch: String::new() })?;
        Ok(String::from_utf8_lossy(epoch).into_owned())
    }
}

fn compacted_again() -> StoreError {
    StoreError::Unavailable { reason: "etcd compacted what was being read, again and again".to_owned() }
}

/// The first key after all that begin with `prefix`, which ends in an ASCII byte.
fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    match end.last_mut() {
        Some(last) => *last += 1,
        // An empty prefix means all keys, which etcd writes so.
        None => end.push(0),
    }
    end
}
