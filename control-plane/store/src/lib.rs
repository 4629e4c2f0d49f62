//! Revisioned key-value store for rules: one trait, two implementations.
//!
//! A store holds a sequence of **changes**, each at its own revision (1, 2, 3, ... without gap). A change
//! records author, time, reason and the entries that it set or removed. The entries at the head revision are
//! kept separately, one key each, readable with the store's own tools. History, resume, audit and rollback
//! read the changes; start-up reads the entries.
//!
//! Values are bytes; the store does not know rules. It recognises urgent writes by their keys. The only write
//! is `commit`, which compares the head revision, so any number of writers can share a store without a lost
//! update. The writer task checks the expected revision of each *entry* before the commit.
//!
//! An acknowledged commit survives kill -9 of this process. It survives a power loss as far as the disk
//! honours a sync: sled syncs each commit before it is acknowledged, etcd on a majority of its members.

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

/// Changes per commit: with the head and the epoch they must fit one etcd transaction.
pub const MAX_CHANGES_PER_COMMIT: usize = 64;

/// Key length in bytes: fits four names of 255 percent-encoded bytes.
pub const MAX_KEY_BYTES: usize = 4096;

/// Value size in bytes: with its key it must fit one etcd transaction.
pub const MAX_VALUE_BYTES: usize = 1 << 20;

/// Change size in bytes, keys and new values together.
pub const MAX_CHANGE_BYTES: usize = 512 << 20;

/// Bytes of changes per read; the read ends with the change that reaches this.
pub const MAX_READ_BYTES: usize = 2 << 20;

/// Position in the history of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Identity of the store; empty: any.
    pub epoch: String,
    /// Revision.
    pub revision: u64,
    /// Id of the commit that made the revision; 0: unknown.
    pub commit: u64,
}

impl Position {
    /// Returns a revision of any store.
    #[must_use]
    pub fn at(revision: u64) -> Self {
        Self { revision, ..Self::default() }
    }

    /// Returns true if a revision that `commit` made can be this one.
    #[must_use]
    pub fn is_made_by(&self, commit: Option<u64>) -> bool {
        self.commit == 0 || commit.is_none_or(|commit| commit == 0 || commit == self.commit)
    }
}

/// Identity of a store, and its head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The identity of the store.
    pub epoch: String,
    /// The head revision.
    pub revision: u64,
    /// The id of the commit that made the revision that was asked about; `None` if its record is not kept.
    pub commit: Option<u64>,
    /// Epochs that an operator made this store the successor of, newest first.
    pub lineage: Vec<String>,
}

/// Contents of a store at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreContents {
    /// The identity of the store, drawn when it was created.
    pub epoch: String,
    /// The head revision; 0 in a new store.
    pub revision: u64,
    /// Id of the commit that made the revision; 0: its record is not kept.
    pub commit: u64,
    /// Epochs that an operator made this store the successor of, newest first.
    pub lineage: Vec<String>,
    /// The entries, by key.
    pub entries: BTreeMap<String, Entry>,
}

/// Current value of a key. `Debug` hides the value, which may be secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The revision of the change that set it.
    pub revision: u64,
    /// What it was set to.
    pub value: Bytes,
}

/// Atomic change: author, time, reason, edits. Equal changes may be of different commits.
#[derive(Clone, Debug)]
pub struct Change {
    /// Its place in the sequence.
    pub revision: u64,
    /// Id of the commit that wrote it, drawn by the store; ignored in a commit.
    pub commit: u64,
    /// When it was made, by the server's clock.
    pub at: SystemTime,
    /// Author, as far as known.
    pub author: String,
    /// Reason; may be empty.
    pub reason: String,
    /// Address of the requester; empty: unknown, or the server itself.
    pub peer: String,
    /// Authenticated principal; empty: authentication off, or the server itself.
    pub principal: String,
    /// Request id, which identifies a repeated request; empty: none.
    pub request_id: String,
    /// Digest of the request's body, which detects another request with the same id.
    pub request_digest: u64,
    /// Entries set or removed; each key at most once.
    pub edits: Vec<Edit>,
}

/// Edit of one key. `Debug` hides the values, which may be secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Edit {
    /// Segments joined by `/`, each percent-encoded by [`key`], so that no name can contain a separator.
    pub key: String,
    /// New value; `None` removes the key.
    pub value: Option<Bytes>,
    /// Previous entry, if any. Kept with the change, so it is known even if the change that set it was
    /// dropped.
    pub before: Option<Entry>,
}

impl Change {
    /// Returns the bytes of its keys and values, previous entries included.
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

/// Stream of all changes after its starting revision, in order, each once.
pub type Watch = Pin<Box<dyn Stream<Item = Result<Change, StoreError>> + Send>>;

/// Error of a store operation.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The head is not at the expected revision; nothing was written. Read the changes up to `head` and plan
    /// again.
    #[error(
        "the store has changed: it is at revision {head}, not at the expected one; read it again, then repeat the change"
    )]
    Conflict {
        /// The head revision.
        head: u64,
    },
    /// The requested changes are no longer kept. Load the contents and continue from there.
    #[error("the store no longer contains the changes up to revision {oldest}, only later ones")]
    Compacted {
        /// Newest revision whose change was dropped.
        oldest: u64,
    },
    /// Another store is in place: another epoch, or an older copy.
    #[error("the store was replaced by another one, with the id (epoch) {epoch}")]
    Replaced {
        /// The epoch found.
        epoch: String,
    },
    /// The store is unreachable or does not answer in time. Nothing was written.
    #[error("the control plane's store cannot be reached: {reason}")]
    Unavailable {
        /// The attempted operation and its error.
        reason: String,
    },
    /// The store stopped answering during a commit and could not confirm its outcome. Read the changes when
    /// it answers again.
    #[error(
        "the store stopped answering while a change was written; whether the change was stored is unknown: {reason}"
    )]
    Uncertain {
        /// The attempted operation and its error.
        reason: String,
    },
    /// The change is too large for the store; nothing was written.
    #[error("the change is too large for the store: {size} {what}, at most {limit} are allowed")]
    TooLarge {
        /// Unit: `bytes`, `changes in one commit`, ...
        what: &'static str,
        /// Actual size.
        size: usize,
        /// Limit.
        limit: usize,
    },
    /// The request is invalid for any store: a reserved or malformed key, a key twice in one change, a
    /// revision out of sequence. Nothing was written.
    #[error("the store rejects the change as invalid: {reason}")]
    Invalid {
        /// What is wrong, and where.
        reason: String,
    },
    /// The data read is not what was written: a damaged file, or a write by another program.
    #[error("the control plane's store is damaged: {reason}; restore it from a backup")]
    Damaged {
        /// What was found.
        reason: String,
    },
}

/// Store of changes and entries. All methods may be called from any task at any time.
#[tonic::async_trait]
pub trait Store: Send + Sync + 'static {
    /// Creates the store with a new identity if there is none. No other method creates it.
    async fn create(&self) -> Result<(), StoreError>;

    /// Reads the store's identity and the commit that made a revision, linearizably. [`StoreError::Replaced`]
    /// with an empty epoch if there is no store.
    async fn identity(&self, revision: u64) -> Result<Identity, StoreError>;

    /// Reads all entries at one revision, linearizably. [`StoreError::Replaced`] with an empty epoch if there
    /// is no store.
    async fn load(&self) -> Result<StoreContents, StoreError>;

    /// Writes changes with the revisions `expected_head + 1, + 2, ...`, all or none, if the head is
    /// `expected_head`. Returns once they are durable.
    ///
    /// An attempt with an unknown outcome (a timeout) is repeated before this returns, so the answer is
    /// certain unless the store stays silent ([`StoreError::Uncertain`]). Fails within 5 s if the store does
    /// not answer; a change written in parts has 5 s per part.
    async fn commit(&self, expected_head: u64, changes: &[Change]) -> Result<(), StoreError>;

    /// Streams the changes after a position. Reconnects on its own and ends only with an error that requires
    /// `load`: `Compacted`, `Replaced` or `Damaged`. `Replaced` also if another commit made the position's
    /// revision.
    fn watch(&self, after: &Position) -> Watch;

    /// Reads the kept changes from `after + 1` to `upto`, oldest first, linearizably; `upto` may be beyond
    /// the head. Stops after [`MAX_READ_BYTES`]; read on after the last change. [`StoreError::Compacted`] if
    /// none of the existing changes is kept, so an empty answer means that there is none.
    /// [`StoreError::Replaced`] if the head is behind `after`.
    async fn changes(&self, after: u64, upto: u64) -> Result<Vec<Change>, StoreError>;

    /// Drops the changes up to and including `revision`, at most up to the head; entries stay.
    async fn compact(&self, revision: u64) -> Result<(), StoreError>;

    /// Gives the store a new identity if its epoch is still `current`, and prepends `predecessors` to its
    /// lineage: replicas that know one of them continue from this store. Returns the epoch in force, another
    /// one if another writer was faster.
    async fn renew_epoch(&self, current: &str, predecessors: &[String]) -> Result<String, StoreError>;

    /// Returns true if the disk has no room for the last write or for a small change. Only kills and removals
    /// are accepted then, if anything. May block on the disk.
    fn is_full(&self) -> bool {
        false
    }

    /// Registers a server as a member with `value`, and follows the members until the answer is dropped.
    /// `None` if the store has one server only.
    fn join(&self, id: &str, value: Bytes) -> Option<Membership>;
}

/// Reads the newest changes from `after + 1` to `upto`, and the revision after which they begin: later than
/// `after` if all have more than [`MAX_READ_BYTES`]. The last one must be kept.
pub async fn latest(store: &dyn Store, mut after: u64, upto: u64) -> Result<(u64, Vec<Change>), StoreError> {
    loop {
        let read = store.changes(after, upto).await?;
        match read.last() {
            Some(last) if last.revision < upto => after = last.revision.max(after + (upto - after) / 2),
            _ => return Ok((after, read)),
        }
    }
}

/// Prefix of the keys of kills, whose writes never wait.
pub const URGENT: &str = "kills/";

/// Returns true if a write must not wait for others or for room: a kill, or a removal such as the revocation
/// of a token.
pub(crate) fn is_urgent<'a>(mut edits: impl Iterator<Item = (&'a str, Option<&'a Bytes>)>) -> bool {
    edits.all(|(key, value)| value.is_none() || key.starts_with(URGENT))
}

/// Joins names to a key. Each name is percent-encoded, so it may contain `/`, `%` and control bytes.
#[must_use]
pub fn key<'a>(segments: impl IntoIterator<Item = &'a str>) -> String {
    use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
    const ESCAPED: &AsciiSet = &CONTROLS.add(b'/').add(b'%').add(b' ').add(b'\\').add(b'?').add(b'#');
    let encoded: Vec<String> =
        segments.into_iter().map(|segment| utf8_percent_encode(segment, ESCAPED).to_string()).collect();
    encoded.join("/")
}
