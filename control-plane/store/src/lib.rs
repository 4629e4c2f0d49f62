//! Where rules live: one small trait, two stores, one contract.
//!
//! The truth is a sequence of **changes**, each at its own revision (1, 2, 3, ... without gap). A change says
//! who made it, when and why, and which entries it set or removed. The entries at the head revision are kept
//! beside the changes, one key each, readable with the store's own tools. History, resume, audit and rollback
//! read the changes; start-up reads the entries.
//!
//! A store knows nothing of rules: values are bytes. Only what is urgent is known by its keys. It
//! offers exactly one way to write, `commit`, which
//! compares the head revision, so that any number of writers can share a store without losing an update.
//! Which revision each *entry* must have is checked once, before the store, by the writer task.
//!
//! A commit that was acknowledged survives kill -9 of this process, and a loss of power as far as the disk keeps what
//! it was asked to sync: over sled each commit is synced before it is acknowledged, over etcd by a majority of its
//! members.

pub mod etcd;
mod membership;
mod open_error;
mod record;
pub mod sled;
mod url;
pub mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::time::SystemTime;

use bytes::Bytes;
use futures_core::Stream;

pub use crate::membership::{LEASE, Members, Membership};
pub use crate::open_error::OpenError;
pub use crate::url::{StoreUrl, StoreUrlError};

/// The most changes one commit takes: with the head and the epoch they must fit one etcd transaction.
pub const MAX_CHANGES_PER_COMMIT: usize = 64;

/// The longest key in bytes: room for four names of 255 bytes of which each is percent-encoded.
pub const MAX_KEY_BYTES: usize = 4096;

/// The largest value in bytes: with its key it must fit one etcd transaction.
pub const MAX_VALUE_BYTES: usize = 1 << 20;

/// The largest change in bytes, keys and new values together.
pub const MAX_CHANGE_BYTES: usize = 512 << 20;

/// How many bytes of changes are read at once; the change that reaches this is the last one.
pub const MAX_READ_BYTES: usize = 4 << 20;

/// A place in the history of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The identity of the store; empty = whichever it is.
    pub epoch: String,
    /// How far.
    pub revision: u64,
    /// The id of the commit that made the revision; 0 = unknown.
    pub commit: u64,
}

impl Position {
    /// A revision of whichever store.
    #[must_use]
    pub fn at(revision: u64) -> Self {
        Self { revision, ..Self::default() }
    }

    /// True if a revision that `commit` made can be the same as this one.
    #[must_use]
    pub fn is_made_by(&self, commit: Option<u64>) -> bool {
        self.commit == 0 || commit.is_none_or(|commit| commit == 0 || commit == self.commit)
    }
}

/// Which store it is, and where its head is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The identity of the store.
    pub epoch: String,
    /// The head revision.
    pub revision: u64,
    /// The id of the commit that made the revision that was asked about; `None` if its record is not kept.
    pub commit: Option<u64>,
    /// The epochs that an operator made this store the successor of, the newest first.
    pub lineage: Vec<String>,
}

/// Everything in the store at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreContents {
    /// The identity of the store, drawn when it was created.
    pub epoch: String,
    /// The head revision; 0 in a new store.
    pub revision: u64,
    /// The id of the commit that made it; 0 = its record is not kept.
    pub commit: u64,
    /// The epochs that an operator made this store the successor of, the newest first.
    pub lineage: Vec<String>,
    /// The entries, by key.
    pub entries: BTreeMap<String, Entry>,
}

/// One key's current value. It does not say it in `Debug`, since some values are secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The revision of the change that set it.
    pub revision: u64,
    /// What it was set to.
    pub value: Bytes,
}

/// One atomic change: who, when, why, what. Equal changes may have been written by different commits.
#[derive(Clone, Debug)]
pub struct Change {
    /// Its place in the sequence.
    pub revision: u64,
    /// The id of the commit that wrote it, which the store draws; of no meaning before.
    pub commit: u64,
    /// When it was made, by the server's clock.
    pub at: SystemTime,
    /// Who made it, as far as known.
    pub author: String,
    /// Why; may be empty.
    pub reason: String,
    /// The address that asked for it, as the server saw it; empty = unknown, or the server itself.
    pub peer: String,
    /// Who it was proven to be; empty = nobody was asked to prove anything, or the server itself.
    pub principal: String,
    /// What makes the request recognisable when it is repeated; empty = nothing.
    pub request_id: String,
    /// The digest of the request's body, to tell a repetition from another request with the same id.
    pub request_digest: u64,
    /// What it set or removed; a key at most once.
    pub edits: Vec<Edit>,
}

/// One key's part in a change. It does not say the values in `Debug`, since some are secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Edit {
    /// Segments joined by `/`, each percent-encoded by [`key`], so that no name can escape its place.
    pub key: String,
    /// The new value, or none where the key is removed.
    pub value: Option<Bytes>,
    /// The entry as it was, or none where there was none. Kept with the change, so that what a key was before
    /// can be told also where the change that had set it is no longer kept.
    pub before: Option<Entry>,
}

impl Change {
    /// The bytes of its keys and values, what it found included.
    pub fn bytes(&self) -> usize {
        let bytes = |edit: &Edit| {
            let before = edit.before.as_ref().map_or(0, |before| before.value.len());
            edit.key.len() + edit.value.as_ref().map_or(0, Bytes::len) + before
        };
        self.edits.iter().map(bytes).sum()
    }
}

impl PartialEq for Change {
    fn eq(&self, other: &Self) -> bool {
        let Self { revision, commit: _, at, author, reason, peer, principal, .. } = self;
        let who = (revision, at, author, reason, peer, principal);
        who == (&other.revision, &other.at, &other.author, &other.reason, &other.peer, &other.principal)
            && (&self.request_id, self.request_digest) == (&other.request_id, other.request_digest)
            && self.edits == other.edits
    }
}

impl Eq for Change {}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.value.len();
        f.debug_struct("Entry").field("revision", &self.revision).field("bytes", &bytes).finish()
    }
}

impl fmt::Debug for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.value.as_ref().map(Bytes::len);
        f.debug_struct("Edit")
            .field("key", &self.key)
            .field("bytes", &bytes)
            .field("before", &self.before)
            .finish()
    }
}

/// What a watch yields: every change after the revision it was opened at, in order, none twice.
pub type Watch = Pin<Box<dyn Stream<Item = Result<Change, StoreError>> + Send>>;

/// What a store can answer instead of the result.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The head is not where the commit expected it; nothing was written. Read the changes up to `head`, decide again.
    #[error("the store is at revision {head}, not at the expected one")]
    Conflict {
        /// Where the head is.
        head: u64,
    },
    /// The changes asked for are no longer kept; load the state and go on from there.
    #[error("changes up to revision {oldest} are no longer kept")]
    Compacted {
        /// The newest revision whose change is gone.
        oldest: u64,
    },
    /// The store was replaced by another one (another epoch, or an older copy of this one).
    #[error("the store was replaced: epoch {epoch}")]
    Replaced {
        /// The epoch found.
        epoch: String,
    },
    /// The store can not be reached or does not answer in time. It is certain that nothing was written.
    #[error("the store can not be reached: {reason}")]
    Unavailable {
        /// What was tried and what came of it.
        reason: String,
    },
    /// The store stopped answering while a commit was under way, and did not answer the question what became
    /// of it either. Read the changes when it answers again.
    #[error("the store stopped answering during the commit, whether it was written is unknown: {reason}")]
    Uncertain {
        /// What was tried and what came of it.
        reason: String,
    },
    /// The change is larger than the store takes; nothing was written.
    #[error("the change has {size} {what}, the store takes {limit}")]
    TooLarge {
        /// What was counted: `bytes`, `changes in one commit`, ...
        what: &'static str,
        /// How many there are.
        size: usize,
        /// The bound.
        limit: usize,
    },
    /// The request can not be carried out by any store: a reserved or malformed key, a key twice in one change,
    /// a revision out of sequence. Nothing was written.
    #[error("not a change that can be stored: {reason}")]
    Invalid {
        /// What is wrong, and where.
        reason: String,
    },
    /// What was read is not what was written: a damaged file or a foreign hand.
    #[error("the store is damaged: {reason}")]
    Damaged {
        /// What was found.
        reason: String,
    },
}

/// A place to keep changes and entries. All methods may be called from any task at any time.
#[tonic::async_trait]
pub trait Store: Send + Sync + 'static {
    /// Makes the store where there is none, with a new identity. Nothing else does.
    async fn create(&self) -> Result<(), StoreError>;

    /// Reads which store this is, linearizably, and which commit made a revision. [`Error::Replaced`] with an empty
    /// epoch if there is no store.
    async fn identity(&self, revision: u64) -> Result<Identity, StoreError>;

    /// Reads everything at one revision, linearizably. [`Error::Replaced`] with an empty epoch if there is no store.
    async fn load(&self) -> Result<StoreContents, StoreError>;

    /// Writes changes with the revisions `expected_head + 1, + 2, ...`, all or none, if the head is
    /// `expected_head`. Returns once they are durable.
    ///
    /// An attempt whose outcome is unknown (a timeout) is asked for again before this returns, so that an answer
    /// is certain unless the store stays silent, which is [`Error::Uncertain`]. Fails within 5 s when the store
    /// does not answer, except for a change so large that it is written in parts: there each part has 5 s.
    async fn commit(&self, expected_head: u64, changes: &[Change]) -> Result<(), StoreError>;

    /// Changes after a position, for ever. It reconnects by itself; it ends only with an error from
    /// which the caller must recover by `load`: `Compacted`, `Replaced` or `Damaged`. `Replaced` also if another commit
    /// made the position's revision.
    fn watch(&self, after: &Position) -> Watch;

    /// The changes `after + 1 ..= upto` that are still kept, oldest first, read linearizably; `upto` may lie
    /// beyond the head. Those beyond [`MAX_READ_BYTES`] are left out: read on after the last one. [`Error::Compacted`] when there are such changes but none of them is kept, so that an
    /// empty answer means that nothing is newer; [`Error::Replaced`] when the head is behind `after`.
    async fn changes(&self, after: u64, upto: u64) -> Result<Vec<Change>, StoreError>;

    /// Drops the changes up to and including `revision`, at most up to the head; entries stay.
    async fn compact(&self, revision: u64) -> Result<(), StoreError>;

    /// Gives the store a new identity if it still has the epoch `current`, and puts `predecessors` before its lineage:
    /// who knows one of them goes on from this store. Returns the epoch now in force, which is another one if
    /// another writer was faster.
    async fn renew_epoch(&self, current: &str, predecessors: &[String]) -> Result<String, StoreError>;

    /// Whether its disk has no room for what was written last, or for a small change: only kills and removals are
    /// written then, if anything. May wait for the disk.
    fn is_full(&self) -> bool {
        false
    }

    /// Makes a server known to all who serve from this store, and tells who they are, for as long as the answer is
    /// kept. `value` is what it says of itself. None where a store has one server only.
    fn join(&self, id: &str, value: Bytes) -> Option<Membership>;
}

/// The newest changes of `after + 1 ..= upto`, of which the last is kept, and after which revision they begin: later than
/// asked if all have more than [`MAX_READ_BYTES`].
pub async fn latest(store: &dyn Store, mut after: u64, upto: u64) -> Result<(u64, Vec<Change>), StoreError> {
    loop {
        let read = store.changes(after, upto).await?;
        match read.last() {
            Some(last) if last.revision < upto => after = last.revision.max(after + (upto - after) / 2),
            _ => return Ok((after, read)),
        }
    }
}

/// The prefix of the keys whose writes never wait: kills.
pub const URGENT: &str = "kills/";

/// Whether a write of these keys and new values must not wait for others or for room: kills, and what removes entries,
/// as the revocation of a token does.
pub(crate) fn is_urgent<'a>(mut edits: impl Iterator<Item = (&'a str, Option<&'a Bytes>)>) -> bool {
    edits.all(|(key, value)| value.is_none() || key.starts_with(URGENT))
}

/// Joins names to a key; each name is percent-encoded, so that `/`, `%` and control bytes in it are harmless.
#[must_use]
pub fn key<'a>(segments: impl IntoIterator<Item = &'a str>) -> String {
    use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
    const ESCAPED: &AsciiSet = &CONTROLS.add(b'/').add(b'%').add(b' ').add(b'\\').add(b'?').add(b'#');
    let encoded: Vec<String> =
        segments.into_iter().map(|segment| utf8_percent_encode(segment, ESCAPED).to_string()).collect();
    encoded.join("/")
}
