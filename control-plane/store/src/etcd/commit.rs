//! Writes to etcd: the single transaction of an ordinary commit, the parts of a large one, and compaction.
//!
//! A large commit writes its parts first, under its random id, so two writers never touch the same key. The
//! deciding transaction then writes the records and a `head` of "entries since R written 0". The entries
//! follow, a hundred at a time; each transaction compares and advances that mark. Any replica can take any of
//! these last steps, and none can be taken twice.

use std::time::Duration;

use etcd_client::{Compare, Txn, TxnOp, TxnResponse};
use tokio::time::timeout;

use crate::etcd::link::EtcdFailure;
use crate::etcd::{EtcdStore, HeadKeys, ReadError};
use crate::record;
use crate::record::{CHANGES, COMPACTED, EPOCH, Encoded, HEAD, Head, PARTS, Unfinished};
use crate::{Change, Entry, StoreError, is_urgent};

/// Operations per transaction; etcd's own limit is 128.
const TXN_OPS: usize = 110;

/// Bytes of keys and values per transaction; etcd's own limit is 1.5 MiB.
const TXN_BYTES: usize = 1280 << 10;

/// Overhead of an operation.
const OP_BYTES: usize = 32;

/// A record above this goes into parts when all records and entries fit one transaction ...
const INLINE_BYTES: usize = 512 << 10;

/// ... and above this when they do not: 64 of them still fit the deciding transaction.
const INLINE_BYTES_LARGE: usize = 16 << 10;

/// Time to finish an earlier commit, less than the proposer's timeout. After it the commit is refused and
/// nothing is written.
const FINISHED_WITHIN: Duration = Duration::from_secs(4);
const FINISHED_WITHIN_IF_URGENT: Duration = Duration::from_secs(1);

/// Number of earlier unfinished commits that a commit finishes before it fails.
const TRIES: usize = 8;

/// Commit ready to be sent.
struct EtcdCommit {
    /// Identifies our own commit after an attempt without an answer.
    commit: u64,
    expected: u64,
    head: Head,
    encoded: Vec<Encoded>,
    /// Entries, if they fit the same transaction.
    ops: Vec<TxnOp>,
}

/// Result of the deciding transaction.
enum CommitResult {
    Written,
    /// An earlier large commit has to be finished first.
    Behind(Head),
}

impl EtcdStore {
    pub(crate) async fn write(&self, expected: u64, changes: &[Change]) -> Result<(), StoreError> {
        let epoch = self.epoch().await?;
        let draft = self.draft(expected, changes);
        self.write_parts(&draft).await?;
        for _ in 0..TRIES {
            match self.decide(&epoch, &draft).await {
                Ok(CommitResult::Written) => {
                    if draft.head.unfinished.is_some() {
                        // The commit is durable and complete for every reader; the next writer finishes the
                        // entries.
                        let _ = self.finish_with(&epoch, draft.head, &record::effect(changes)).await;
                    }
                    return Ok(());
                }
                Ok(CommitResult::Behind(head)) => {
                    let finished = timeout(finished_within(changes), self.finish(&epoch, head)).await;
                    finished.unwrap_or_else(|_| Err(behind()))?;
                }
                Err(error) => {
                    if !matches!(error, StoreError::Uncertain { .. }) {
                        self.drop_parts(&draft).await;
                    }
                    return Err(error);
                }
            }
        }
        self.drop_parts(&draft).await;
        Err(behind())
    }

    async fn epoch(&self) -> Result<String, StoreError> {
        if let Some(epoch) = self.known_epoch() {
            return Ok(epoch);
        }
        let tip = self.tip_there().await.map_err(unavailable)?;
        self.know_epoch(Some(tip.epoch.clone()));
        Ok(tip.epoch)
    }

    /// Chooses between one transaction and several.
    fn draft(&self, expected: u64, changes: &[Change]) -> EtcdCommit {
        let commit = fastrand::u64(..);
        let revision = expected + changes.len() as u64;
        let encode = |inline| changes.iter().map(|change| record::encode(change, commit, inline)).collect();
        let encoded: Vec<Encoded> = encode(INLINE_BYTES);
        let effect = record::effect(changes);
        let bytes = encoded.iter().map(|encoded| encoded.record.len() + OP_BYTES).sum::<usize>()
            + effect.iter().map(|(key, entry)| cost(key, entry.as_ref())).sum::<usize>();
        let whole = encoded.iter().all(|encoded| encoded.parts.is_empty());
        if whole && bytes <= TXN_BYTES && encoded.len() + effect.len() <= TXN_OPS {
            let ops = effect.iter().map(|(key, entry)| self.edit(key, entry.as_ref())).collect();
            return EtcdCommit { commit, expected, head: Head::at(revision), encoded, ops };
        }
        let unfinished = Some(Unfinished { since: expected, written: 0 });
        let head = Head { revision, unfinished };
        EtcdCommit { commit, expected, head, encoded: encode(INLINE_BYTES_LARGE), ops: Vec::new() }
    }

    async fn write_parts(&self, draft: &EtcdCommit) -> Result<(), StoreError> {
        for (encoded, revision) in draft.encoded.iter().zip(draft.expected + 1..) {
            for (number, part) in encoded.parts.iter().enumerate() {
                let key = record::part_key(revision, draft.commit, number);
                let txn = Txn::new().and_then([self.put(&key, &part[..])]);
                // Parts are invisible before the deciding transaction.
                self.write_txn(&txn).await.map_err(EtcdFailure::unavailable)?;
            }
        }
        Ok(())
    }

    /// Removes the parts of a refused commit; compaction does it if this fails.
    async fn drop_parts(&self, draft: &EtcdCommit) {
        for (encoded, revision) in draft.encoded.iter().zip(draft.expected + 1..) {
            let last = encoded.parts.len();
            if last > 0 {
                let from = record::part_key(revision, draft.commit, 0);
                let to = record::part_key(revision, draft.commit, last);
                let _ = self.link().txn(&Txn::new().and_then([self.delete(&from, &to)])).await;
            }
        }
    }

    /// Runs the transaction that accepts or refuses the commit.
    async fn decide(&self, epoch: &str, draft: &EtcdCommit) -> Result<CommitResult, StoreError> {
        let mut ops = draft.ops.clone();
        for (encoded, revision) in draft.encoded.iter().zip(draft.expected + 1..) {
            ops.push(self.put(&record::change_key(revision), &encoded.record[..]));
        }
        ops.push(self.put(HEAD, draft.head.text()));
        let first = record::change_key(draft.expected + 1);
        let txn = Txn::new().when(self.stands(epoch, Head::at(draft.expected))).and_then(ops).or_else([
            self.get(EPOCH),
            self.get(HEAD),
            self.get(&first),
        ]);
        let answer = match self.write_txn(&txn).await {
            Err(failure) if failure.full => return self.decided_when_full(epoch, draft, failure).await,
            answer => answer.map_err(EtcdFailure::after_write)?,
        };
        if answer.succeeded() {
            return Ok(CommitResult::Written);
        }
        self.refused(epoch, draft, &answer)
    }

    /// Reads whether a commit answered with "no room" was written: etcd answers the same if the transaction
    /// took the last room. Reading needs none.
    async fn decided_when_full(
        &self,
        epoch: &str,
        draft: &EtcdCommit,
        failure: EtcdFailure,
    ) -> Result<CommitResult, StoreError> {
        let first = record::change_key(draft.expected + 1);
        let txn = Txn::new().and_then([self.get(EPOCH), self.get(HEAD), self.get(&first)]);
        let Ok(answer) = self.link().txn(&txn).await else { return Err(failure.after_write()) };
        let head = self.found(&answer)?.get(HEAD).map(|head| Head::parse(head)).transpose()?;
        if head == Some(Head::at(draft.expected)) {
            return Err(failure.unavailable());
        }
        self.refused(epoch, draft, &answer)
    }

    /// Returns why the transaction was refused; an earlier attempt of it may have succeeded.
    fn refused(
        &self,
        epoch: &str,
        draft: &EtcdCommit,
        answer: &TxnResponse,
    ) -> Result<CommitResult, StoreError> {
        let found = self.found(answer)?;
        let now =
            found.get(EPOCH).map(|epoch| String::from_utf8_lossy(epoch).into_owned()).unwrap_or_default();
        let Some(head) = found.get(HEAD).filter(|_| now == epoch) else {
            self.know_epoch(None);
            return Err(StoreError::Replaced { epoch: now });
        };
        let head = Head::parse(head)?;
        let revision = draft.expected + 1;
        if let Some(first) = found.get(&record::change_key(revision)).filter(|_| head.revision >= revision)
            && record::decode_record(revision, first)?.commit == draft.commit
        {
            return Ok(CommitResult::Written);
        }
        if head.revision == draft.expected && head.unfinished.is_some() {
            return Ok(CommitResult::Behind(head));
        }
        Err(StoreError::Conflict { head: head.revision })
    }

    /// Writes the remaining entries of a large commit.
    pub(crate) async fn finish(&self, epoch: &str, head: Head) -> Result<(), StoreError> {
        let Some(unfinished) = head.unfinished else { return Ok(()) };
        let changes = self.changes_within(unfinished.since, head.revision, usize::MAX).await?;
        self.finish_with(epoch, head, &record::effect(&changes)).await
    }

    async fn finish_with(
        &self,
        epoch: &str,
        mut head: Head,
        effect: &[(String, Option<Entry>)],
    ) -> Result<(), StoreError> {
        let revision = head.revision;
        while let Some(Unfinished { since, written }) = head.unfinished.filter(|_| head.revision == revision)
        {
            let rest = effect.get(written..).unwrap_or_default();
            let count = fitting(rest);
            let mut ops: Vec<TxnOp> =
                rest[..count].iter().map(|(key, entry)| self.edit(key, entry.as_ref())).collect();
            let unfinished = Unfinished { since, written: written + count };
            let next = Head { revision, unfinished: (count < rest.len()).then_some(unfinished) };
            ops.push(self.put(HEAD, next.text()));
            let txn = Txn::new().when(self.stands(epoch, head)).and_then(ops).or_else([self.get(HEAD)]);
            let answer = self.link().txn(&txn).await.map_err(EtcdFailure::unavailable)?;
            head = next;
            if !answer.succeeded() {
                let found = self.found(&answer)?;
                let now = found.get(HEAD).ok_or_else(|| StoreError::Replaced { epoch: String::new() })?;
                let now = Head::parse(now)?;
                if now == (Head { revision, unfinished: Some(Unfinished { since, written }) }) {
                    self.know_epoch(None);
                    return Err(StoreError::Replaced { epoch: String::new() });
                }
                head = now;
            }
        }
        Ok(())
    }

    pub(crate) async fn drop_changes(&self, revision: u64) -> Result<(), StoreError> {
        let tip = self.tip_there().await.map_err(unavailable)?;
        self.finish(&tip.epoch, tip.head).await?;
        let HeadKeys { epoch, head, compacted, .. } = tip;
        let revision = revision.min(head.revision);
        if revision <= compacted {
            return Ok(());
        }
        let before = match compacted {
            0 => self.absent(COMPACTED),
            compacted => self.equals(COMPACTED, &compacted.to_string()),
        };
        let txn = Txn::new().when([self.equals(EPOCH, &epoch), before]).and_then([
            self.put(COMPACTED, revision.to_string()),
            self.delete(CHANGES, &record::change_key(revision + 1)),
            self.delete(PARTS, &record::parts_of(revision + 1)),
        ]);
        // Repeating it is harmless; a faster replica has done the same.
        self.link().txn(&txn).await.map_err(EtcdFailure::after_write)?;
        Ok(())
    }

    fn stands(&self, epoch: &str, head: Head) -> [Compare; 2] {
        [self.equals(EPOCH, epoch), self.equals(HEAD, &head.text())]
    }

    fn edit(&self, key: &str, entry: Option<&Entry>) -> TxnOp {
        match entry {
            Some(entry) => self.put(key, record::encode_entry(entry.revision, &entry.value)),
            None => TxnOp::delete(self.full(key), None),
        }
    }

    fn delete(&self, from: &str, to: &str) -> TxnOp {
        let options = etcd_client::DeleteOptions::new().with_range(self.full(to));
        TxnOp::delete(self.full(from), Some(options))
    }
}

/// Returns the time for which an earlier commit may delay these changes.
fn finished_within(changes: &[Change]) -> Duration {
    let edits = changes.iter().flat_map(|change| &change.edits);
    match is_urgent(edits.map(|edit| (edit.key.as_str(), edit.value.as_ref()))) {
        true => FINISHED_WITHIN_IF_URGENT,
        false => FINISHED_WITHIN,
    }
}

fn behind() -> StoreError {
    StoreError::Unavailable { reason: "the entries of an earlier commit are still being written".to_owned() }
}

fn cost(key: &str, entry: Option<&Entry>) -> usize {
    key.len() + entry.map_or(0, |entry| entry.value.len()) + OP_BYTES
}

/// Returns how many of these fit one transaction; at least one, since a value has at most 1 MiB.
fn fitting(entries: &[(String, Option<Entry>)]) -> usize {
    let mut bytes = 0;
    let fits = entries.iter().take(TXN_OPS - 1).take_while(|(key, entry)| {
        bytes += cost(key, entry.as_ref());
        bytes <= TXN_BYTES
    });
    fits.count()
}

pub(crate) fn unavailable(error: ReadError) -> StoreError {
    match error {
        ReadError::Store(error) => error,
        ReadError::Gone => crate::etcd::compacted_again(),
    }
}
