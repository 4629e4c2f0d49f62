//! How a change, an entry and the head are written, the same in every store, and under which keys.
//!
//! | key | value |
//! |---|---|
//! | `epoch` | the store's identity, text |
//! | `head` | the head revision, text; while a large commit's entries are being written also how far that is |
//! | `compacted` | the newest revision whose change was dropped, text |
//! | `lineage` | the epochs that an operator made this store the successor of, the newest first, a line each |
//! | `changes/<revision, 20 digits>` | one change: a [`Record`] |
//! | `parts/<revision>/<commit>/<number>` | the pieces of a record that is too large for one value |
//! | `replicas/<id>` | a server that is there; no part of the recorded state |
//! | everything else | an entry: the revision that set it and its value |
//!
//! A record carries the random id of its commit, by which a writer recognises its own work after a timeout.
//! Revisions have a fixed width so that the order of the keys is the order of the changes.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use prost::Message;

use crate::{
    Change, Edit, Entry, MAX_CHANGE_BYTES, MAX_CHANGES_PER_COMMIT, MAX_KEY_BYTES, MAX_VALUE_BYTES,
    StoreContents, StoreError,
};

pub(crate) const EPOCH: &str = "epoch";
pub(crate) const HEAD: &str = "head";
pub(crate) const COMPACTED: &str = "compacted";
pub(crate) const LINEAGE: &str = "lineage";
pub(crate) const CHANGES: &str = "changes/";
pub(crate) const PARTS: &str = "parts/";

/// Members, in etcd only, each under a lease; no part of the recorded state.
pub(crate) const REPLICAS: &str = "replicas/";

/// First segments reserved by the store.
const RESERVED: [&str; 7] = [EPOCH, HEAD, COMPACTED, LINEAGE, "changes", "parts", "replicas"];

/// Epochs of predecessors that a store keeps.
const MAX_LINEAGE: usize = 64;

/// The longest epoch: those that stores draw have 32 characters.
const MAX_EPOCH_BYTES: usize = 64;

/// Size of a piece of a large record.
pub(crate) const PART_BYTES: usize = 1 << 20;

/// Value of `changes/<revision>`: the change, or the number of its pieces.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Record {
    /// Random, the same for all changes of one commit.
    #[prost(fixed64, tag = "1")]
    pub(crate) commit: u64,
    /// Encoded [`Body`], if small enough.
    #[prost(bytes = "bytes", tag = "2")]
    body: Bytes,
    /// Number of its pieces otherwise.
    #[prost(uint32, tag = "3")]
    pub(crate) parts: u32,
    /// Total length of the pieces, in bytes.
    #[prost(uint64, tag = "4")]
    bytes: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Body {
    #[prost(uint64, tag = "1")]
    at_seconds: u64,
    #[prost(uint32, tag = "2")]
    at_nanos: u32,
    #[prost(string, tag = "3")]
    author: String,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(string, tag = "5")]
    request_id: String,
    #[prost(fixed64, tag = "6")]
    request_digest: u64,
    #[prost(message, repeated, tag = "7")]
    edits: Vec<EditRecord>,
    /// Absent in records of earlier versions.
    #[prost(string, tag = "8")]
    peer: String,
    /// Absent without authentication, and in records of earlier versions.
    #[prost(string, tag = "9")]
    principal: String,
}

#[derive(Clone, PartialEq, Message)]
struct EditRecord {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "bytes", optional, tag = "2")]
    value: Option<Bytes>,
    #[prost(message, optional, tag = "3")]
    before: Option<EntryRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct EntryRecord {
    #[prost(uint64, tag = "1")]
    revision: u64,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

/// Encoded change: its record and the pieces to write before it.
pub(crate) struct Encoded {
    pub(crate) record: Bytes,
    pub(crate) parts: Vec<Bytes>,
}

/// Head revision, and the progress of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) revision: u64,
    /// Set while a commit too large for one transaction is being finished.
    pub(crate) unfinished: Option<Unfinished>,
}

/// Large commit with its changes written and its entries partly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unfinished {
    /// Head before that commit.
    pub(crate) since: u64,
    /// Number of its keys, in order, that are written.
    pub(crate) written: usize,
}

impl Head {
    pub(crate) const fn at(revision: u64) -> Self {
        Self { revision, unfinished: None }
    }

    pub(crate) fn text(self) -> String {
        match self.unfinished {
            None => self.revision.to_string(),
            Some(Unfinished { since, written }) => {
                format!("{} entries since {since} written {written}", self.revision)
            }
        }
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, StoreError> {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let words: Vec<&str> = text.split(' ').collect();
        let parsed = match words[..] {
            [revision] => revision.parse().ok().map(Self::at),
            [revision, "entries", "since", since, "written", written] => {
                match (revision.parse(), since.parse(), written.parse()) {
                    (Ok(revision), Ok(since), Ok(written)) => {
                        Some(Self { revision, unfinished: Some(Unfinished { since, written }) })
                    }
                    _ => None,
                }
            }
            _ => None,
        };
        parsed.ok_or_else(|| damaged(format!("{HEAD} is {:?}", String::from_utf8_lossy(bytes))))
    }
}

pub(crate) fn damaged(reason: impl Into<String>) -> StoreError {
    StoreError::Damaged { reason: reason.into() }
}

/// Returns the identity of a new store: 128 random bits, hexadecimal.
pub(crate) fn new_epoch() -> String {
    format!("{:032x}", fastrand::u128(..))
}

/// Parses the value of `lineage`.
pub(crate) fn lineage(value: Option<&[u8]>) -> Vec<String> {
    let text = std::str::from_utf8(value.unwrap_or_default()).unwrap_or_default();
    text.lines().take(MAX_LINEAGE).map(str::to_owned).collect()
}

/// Formats `lineage`: predecessors first, then the previous ones, each once, up to the limit.
pub(crate) fn lineage_text(predecessors: &[String], before: &[String]) -> String {
    let mut all: Vec<&str> = Vec::new();
    for epoch in predecessors.iter().chain(before) {
        let fits = !epoch.is_empty() && epoch.len() <= MAX_EPOCH_BYTES;
        if fits && epoch.bytes().all(|byte| byte.is_ascii_alphanumeric()) && !all.contains(&&**epoch) {
            all.push(epoch);
        }
    }
    all.truncate(MAX_LINEAGE);
    all.join("\n")
}

pub(crate) fn change_key(revision: u64) -> String {
    format!("{CHANGES}{revision:020}")
}

/// Returns the key ranges outside the history, which may be large.
pub(crate) fn around_history() -> [(Bound<&'static str>, Bound<&'static str>); 3] {
    // `0` follows `/`.
    [
        (Bound::Unbounded, Bound::Excluded(CHANGES)),
        (Bound::Included("changes0"), Bound::Excluded(PARTS)),
        (Bound::Included("parts0"), Bound::Unbounded),
    ]
}

/// Returns the prefix of all pieces at `revision`, of any commit.
pub(crate) fn parts_of(revision: u64) -> String {
    format!("{PARTS}{revision:020}/")
}

pub(crate) fn part_key(revision: u64, commit: u64, number: usize) -> String {
    format!("{}{commit:016x}/{number:06}", parts_of(revision))
}

/// Parses `changes/<revision>`; `None` for another key.
pub(crate) fn revision_of(key: &str) -> Option<u64> {
    key.strip_prefix(CHANGES)?.parse().ok()
}

pub(crate) fn is_entry(key: &str) -> bool {
    !RESERVED.contains(&key.split('/').next().unwrap_or_default())
}

pub(crate) fn number(bytes: &[u8], key: &str) -> Result<u64, StoreError> {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    text.parse().map_err(|_| damaged(format!("the value of {key} must be a number, but is {text:?}")))
}

/// Encodes a change; a record over `inline_bytes` is cut into pieces.
pub(crate) fn encode(change: &Change, commit: u64, inline_bytes: usize) -> Encoded {
    let at = change.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let edits = change.edits.iter().map(|Edit { key, value, before }| EditRecord {
        key: key.clone(),
        value: value.clone(),
        before: before.clone().map(|Entry { revision, value }| EntryRecord { revision, value }),
    });
    let body = Body {
        at_seconds: at.as_secs(),
        at_nanos: at.subsec_nanos(),
        author: change.author.clone(),
        reason: change.reason.clone(),
        peer: change.peer.clone(),
        principal: change.principal.clone(),
        request_id: change.request_id.clone(),
        request_digest: change.request_digest,
        edits: edits.collect(),
    };
    let mut body = Bytes::from(body.encode_to_vec());
    let mut record = Record { commit, bytes: body.len() as u64, ..Record::default() };
    let mut parts = Vec::new();
    if body.len() <= inline_bytes {
        record.body = body;
    } else {
        while !body.is_empty() {
            parts.push(body.split_to(body.len().min(PART_BYTES)));
        }
        record.parts = u32::try_from(parts.len()).expect("a change's size is bounded");
    }
    Encoded { record: record.encode_to_vec().into(), parts }
}

pub(crate) fn decode_record(revision: u64, bytes: &[u8]) -> Result<Record, StoreError> {
    Record::decode(bytes).map_err(|error| damaged(format!("change {revision}: {error}")))
}

/// Decodes a change from its record and its pieces in order, none if it is whole.
pub(crate) fn decode_change(revision: u64, record: &Record, parts: &[Bytes]) -> Result<Change, StoreError> {
    let fail = |what: String| damaged(format!("change {revision}: {what}"));
    let body = if record.parts == 0 { record.body.clone() } else { parts.concat().into() };
    if parts.len() != record.parts as usize || body.len() as u64 != record.bytes {
        return Err(fail(format!(
            "{} bytes in {} parts instead of {} in {}",
            body.len(),
            parts.len(),
            record.bytes,
            record.parts
        )));
    }
    let body = Body::decode(body).map_err(|error| fail(error.to_string()))?;
    let at = Duration::new(body.at_seconds, body.at_nanos.min(999_999_999));
    Ok(Change {
        revision,
        commit: record.commit,
        at: UNIX_EPOCH.checked_add(at).unwrap_or(SystemTime::UNIX_EPOCH),
        author: body.author,
        reason: body.reason,
        peer: body.peer,
        principal: body.principal,
        request_id: body.request_id,
        request_digest: body.request_digest,
        edits: body.edits.into_iter().map(edit).collect(),
    })
}

fn edit(EditRecord { key, value, before }: EditRecord) -> Edit {
    let before = before.map(|EntryRecord { revision, value }| Entry { revision, value });
    Edit { key, value, before }
}

pub(crate) fn encode_entry(revision: u64, value: &Bytes) -> Bytes {
    EntryRecord { revision, value: value.clone() }.encode_to_vec().into()
}

pub(crate) fn decode_entry(key: &str, bytes: &[u8]) -> Result<Entry, StoreError> {
    let entry = EntryRecord::decode(bytes).map_err(|error| damaged(format!("entry {key}: {error}")))?;
    Ok(Entry { revision: entry.revision, value: entry.value })
}

/// Checks changes against the limits and rules of every store.
pub(crate) fn check(expected_head: u64, changes: &[Change]) -> Result<(), StoreError> {
    let invalid = |reason: String| Err(StoreError::Invalid { reason });
    if changes.is_empty() {
        return invalid("a commit without a change".to_owned());
    }
    if changes.len() > MAX_CHANGES_PER_COMMIT {
        let (size, limit) = (changes.len(), MAX_CHANGES_PER_COMMIT);
        return Err(StoreError::TooLarge { what: "changes in one commit", size, limit });
    }
    let mut size = 0;
    for (change, expected) in changes.iter().zip(expected_head + 1..) {
        if change.revision != expected {
            return invalid(format!("revision {} where {expected} follows", change.revision));
        }
        let mut keys = BTreeSet::new();
        for edit in &change.edits {
            size += edit.key.len() + edit.value.as_ref().map_or(0, Bytes::len);
            let value_bytes = edit.value.as_ref().map_or(0, Bytes::len);
            if value_bytes > MAX_VALUE_BYTES {
                let (size, limit) = (value_bytes, MAX_VALUE_BYTES);
                return Err(StoreError::TooLarge { what: "bytes in one value", size, limit });
            }
            if edit.key.is_empty() || edit.key.len() > MAX_KEY_BYTES {
                return invalid(format!(
                    "a key of {} bytes, allowed are 1 to {MAX_KEY_BYTES}",
                    edit.key.len()
                ));
            }
            if !is_entry(&edit.key) {
                return invalid(format!(
                    "the key {:?} begins with a name the store keeps for itself",
                    edit.key
                ));
            }
            if !keys.insert(&edit.key) {
                return invalid(format!("the key {:?} twice in one change", edit.key));
            }
        }
    }
    if size > MAX_CHANGE_BYTES {
        return Err(StoreError::TooLarge { what: "bytes", size, limit: MAX_CHANGE_BYTES });
    }
    Ok(())
}

/// Returns the effect of changes on entries, each key once, sorted by key.
pub(crate) fn effect(changes: &[Change]) -> Vec<(String, Option<Entry>)> {
    let mut state = std::collections::BTreeMap::new();
    for change in changes {
        for edit in &change.edits {
            let entry = edit.value.clone().map(|value| Entry { revision: change.revision, value });
            state.insert(edit.key.clone(), entry);
        }
    }
    state.into_iter().collect()
}

impl StoreContents {
    /// Applies a change to the entries and moves the revision to it.
    pub fn apply(&mut self, change: &Change) {
        for edit in &change.edits {
            match &edit.value {
                Some(value) => {
                    let entry = Entry { revision: change.revision, value: value.clone() };
                    self.entries.insert(edit.key.clone(), entry);
                }
                None => {
                    self.entries.remove(&edit.key);
                }
            }
        }
        (self.revision, self.commit) = (change.revision, change.commit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(value_bytes: usize) -> Change {
        Change {
            revision: 7,
            commit: 0,
            at: UNIX_EPOCH + Duration::new(5, 6),
            author: "ann".to_owned(),
            reason: "why".to_owned(),
            peer: "127.0.0.1:5".to_owned(),
            principal: "token ci (a1)".to_owned(),
            request_id: "id".to_owned(),
            request_digest: 8,
            edits: vec![
                Edit { key: "rules/a".to_owned(), value: Some(vec![3; value_bytes].into()), before: None },
                Edit {
                    key: "rules/b".to_owned(),
                    value: None,
                    before: Some(Entry { revision: 6, value: Bytes::from_static(b"old") }),
                },
                Edit {
                    key: "rules/c".to_owned(),
                    value: Some(Bytes::new()),
                    before: Some(Entry { revision: 0, value: Bytes::new() }),
                },
            ],
        }
    }

    #[test]
    fn a_change_is_read_as_it_was_written_whole_or_in_parts() {
        for size in [0, 10, PART_BYTES - 1, PART_BYTES, 3 * PART_BYTES + 1] {
            let written = change(size);
            let encoded = encode(&written, 9, 1000);
            let record = decode_record(7, &encoded.record).unwrap();
            assert_eq!(record.parts as usize, encoded.parts.len());
            assert_eq!(decode_change(7, &record, &encoded.parts).unwrap(), written);
        }
    }

    #[test]
    fn a_record_from_before_addresses_were_kept_is_read() {
        #[derive(Clone, PartialEq, Message)]
        struct Earlier {
            #[prost(uint64, tag = "1")]
            at_seconds: u64,
            #[prost(string, tag = "3")]
            author: String,
            #[prost(string, tag = "5")]
            request_id: String,
        }
        let earlier = Earlier { at_seconds: 5, author: "ann".to_owned(), request_id: "id".to_owned() };
        let body = Bytes::from(earlier.encode_to_vec());
        let record = Record { commit: 9, bytes: body.len() as u64, body, parts: 0 };
        let read = decode_change(7, &record, &[]).unwrap();
        assert_eq!((&*read.author, &*read.peer, &*read.request_id), ("ann", "", "id"));
    }

    #[test]
    fn a_missing_part_is_noticed() {
        let encoded = encode(&change(3 * PART_BYTES), 9, 1000);
        let record = decode_record(7, &encoded.record).unwrap();
        assert!(matches!(decode_change(7, &record, &encoded.parts[1..]), Err(StoreError::Damaged { .. })));
    }

    #[test]
    fn the_head_is_read_as_it_was_written() {
        let unfinished = Some(Unfinished { since: 3, written: 128 });
        for head in [Head::at(0), Head::at(u64::MAX), Head { revision: 9, unfinished }] {
            assert_eq!(Head::parse(head.text().as_bytes()).unwrap(), head);
        }
        for text in ["", "-1", "1 entries since 0", "x", "1 2"] {
            assert!(Head::parse(text.as_bytes()).is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_the_first_segment_of_a_key_is_reserved() {
        let with_key = |key: &str| {
            let mut change = change(1);
            change.edits[0].key = key.to_owned();
            check(6, &[change])
        };
        for key in
            ["head", "head/x", "changes/1", "parts/", "epoch", "compacted", "lineage", "replicas/a", ""]
        {
            assert!(matches!(with_key(key), Err(StoreError::Invalid { .. })), "{key:?}");
        }
        for key in ["headless", "rules/head", "changes0/x", "parts0"] {
            with_key(key).unwrap();
        }
    }

    #[test]
    fn a_change_out_of_sequence_is_refused() {
        assert!(matches!(check(5, &[change(1)]), Err(StoreError::Invalid { .. })));
        assert!(matches!(check(6, &[]), Err(StoreError::Invalid { .. })));
        let mut twice = change(1);
        twice.edits[1].key = twice.edits[0].key.clone();
        assert!(matches!(check(6, &[twice]), Err(StoreError::Invalid { .. })));
    }
}
