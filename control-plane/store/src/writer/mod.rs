//! Writer in front of the store.
//!
//! Every write of this replica goes through one task. It knows the current entries, so it checks expected
//! revisions, drops edits without effect and enforces the limits on entries before anything reaches the
//! store. Proposals that wait together become one commit, each a change of its own revision. If another
//! replica was faster, the task reads its changes and plans again. An answer is given only after the store
//! confirmed the head, so none rests on outdated entries.
//!
//! An acknowledged proposal is durable. The task survives an outage of the store: proposals are refused in
//! time, and later ones succeed once the store is back.

mod edits;
mod request_ids;
mod state;
mod task;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

pub use crate::writer::edits::{EditPlanner, EntriesView};
pub use crate::writer::request_ids::MAX_BYTES as MAX_REQUEST_ID_BYTES;
use crate::{Entry, Store, is_urgent};

/// Proposed write: all of it or nothing.
#[derive(Clone, Debug)]
pub struct Proposal {
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
    /// Present time by the server's clock.
    pub at: SystemTime,
    /// Expected revision of the store; `None`: any.
    pub expected_head: Option<u64>,
    /// Edits; each key at most once. With a planner, the edits as far as they are known in advance.
    pub edits: Vec<ProposedEdit>,
    /// Planner of the edits at commit time; `None`: the edits above.
    pub planner: Option<Arc<dyn EditPlanner>>,
}

/// Proposed edit of one key. `Debug` hides the value, which may be secret.
#[derive(Clone)]
pub struct ProposedEdit {
    /// Key, made by [`crate::key`].
    pub key: String,
    /// New value; `None` removes the key.
    pub value: Option<Bytes>,
    /// Expected revision of the key's entry: 0: it must not exist; `None`: any.
    pub expected: Option<u64>,
}

impl fmt::Debug for ProposedEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.value.as_ref().map(Bytes::len);
        f.debug_struct("ProposedEdit").field("key", &self.key).field("bytes", &bytes).finish_non_exhaustive()
    }
}

/// Result of an accepted proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Revision at which the proposal is in force: its own change, or the head if it changed nothing.
    pub revision: u64,
    /// True if nothing had to be written.
    pub unchanged: bool,
    /// True if this is the stored answer of a repeated request.
    pub repeated: bool,
    /// Revision of each key's entry, `None` without one, in the order of the edits. For a request repeated
    /// after a restart only the keys that it changed; for a repeated request of many keys none.
    pub keys: Arc<[(String, Option<u64>)]>,
}

/// Reason of a failed proposal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// An entry is not at the expected revision; nothing was written.
    #[error("{key} is not at the expected revision")]
    Conflict {
        /// First such key, in the order of the edits.
        key: String,
        /// Its current entry.
        current: Option<Entry>,
    },
    /// The store is not at the expected revision; nothing was written.
    #[error(
        "the store has changed: it is at revision {head}, not at the expected one; read it again, then repeat the change"
    )]
    Moved {
        /// The head revision.
        head: u64,
    },
    /// The proposal's planner rejected some entries; nothing was written.
    #[error("the caller may not change {count} of the entries in this request", count = .entries.len())]
    PlannerRejected {
        /// These entries, as they are.
        entries: Vec<(String, Option<Entry>)>,
    },
    /// The request id was used for another request within the time ids are kept; nothing was written.
    #[error("the request id {request_id:?} was used for another request: use a new id")]
    RequestIdReused {
        /// The id.
        request_id: String,
    },
    /// The store, or the writer's queue, does not answer in time. Nothing was written.
    #[error("nothing was changed: the control plane's store cannot be reached: {reason}")]
    Unavailable {
        /// The attempted operation and its error.
        reason: String,
    },
    /// The store stopped answering while the proposal was being written, so it may have been written.
    /// Repeating it with the same request id is safe and resolves that.
    #[error(
        "it is unknown whether this was written: {reason}; check the stored value, or repeat it with the same request id"
    )]
    Uncertain {
        /// The attempted operation and its error.
        reason: String,
    },
    /// The proposal is too large for the store; nothing was written.
    #[error("the change is too large for the store: {size} {what}, at most {limit} are allowed")]
    TooLarge {
        /// Unit.
        what: String,
        /// Actual size.
        size: usize,
        /// Limit.
        limit: usize,
    },
    /// The proposal would exceed the number of entries; nothing was written.
    #[error("the store would contain {entries} entries under {prefix:?}; at most {limit} are allowed")]
    TooManyEntries {
        /// Prefix with the limit.
        prefix: String,
        /// Number of entries after the proposal.
        entries: usize,
        /// Limit.
        limit: usize,
    },
    /// The proposal would exceed the bytes of entries; nothing was written.
    #[error("the store would contain {bytes} bytes under {prefix:?}; at most {limit} are allowed")]
    TooManyBytes {
        /// Prefix with the limit.
        prefix: String,
        /// Bytes of all keys and values after the proposal.
        bytes: usize,
        /// Limit.
        limit: usize,
    },
    /// The request is invalid for any store: a malformed or reserved key, or a key twice. Nothing was
    /// written.
    #[error("{reason}")]
    Invalid {
        /// What is wrong, and where.
        reason: String,
    },
    /// The store holds data that it did not write.
    #[error("the control plane's store is damaged: {reason}; restore it from a backup")]
    Damaged {
        /// What was found.
        reason: String,
    },
}

/// Limit on the entries whose keys begin with `prefix`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryLimit {
    /// For example `rules/`.
    pub prefix: String,
    /// Maximum number of entries.
    pub max_entries: usize,
    /// Maximum of all their keys and values.
    pub max_bytes: usize,
}

/// Default time for which request ids are kept.
pub const REMEMBER_REQUESTS: Duration = Duration::from_secs(24 * 3600);

/// Configuration of a writer.
#[derive(Clone, Debug)]
pub struct WriterConfig {
    /// Limits on entries. Default: none.
    pub limits: Vec<EntryLimit>,
    /// Capacity of each queue, of ordinary and of urgent proposals. Default 1024; callers wait beyond it.
    pub queue: usize,
    /// Timeout of a proposal of ordinary size. Default 5 s. Large ones get a second more per MiB and per
    /// 5,000 edits.
    pub answer_within: Duration,
    /// Time for which request ids are kept. Default [`REMEMBER_REQUESTS`], 24 h.
    pub remember_requests: Duration,
}

impl Default for WriterConfig {
    fn default() -> Self {
        Self {
            limits: Vec::new(),
            queue: 1024,
            answer_within: Duration::from_secs(5),
            remember_requests: REMEMBER_REQUESTS,
        }
    }
}

/// Handle to the writer task. Clones share it. The task ends when all handles are dropped.
#[derive(Clone, Debug)]
pub struct Writer {
    queue: mpsc::Sender<Pending>,
    /// Kills and removals, which go before the other queue.
    urgent: mpsc::Sender<Pending>,
    answer_within: Duration,
}

/// Proposal on its way to the task.
#[derive(Debug)]
struct Pending {
    proposal: Proposal,
    /// Time at which the proposer gives up.
    deadline: Instant,
    stage: Arc<AtomicU8>,
    reply: oneshot::Sender<Result<Committed, ProposeError>>,
}

/// Queued: the proposer may still withdraw.
const WAITING: u8 = 0;
/// Accepted by the task: only the store knows its outcome.
const TAKEN: u8 = 1;
/// Withdrawn by the proposer: the task must skip it.
const WITHDRAWN: u8 = 2;

impl Pending {
    /// Accepts the proposal; false if the proposer has withdrawn it.
    fn take(&self) -> bool {
        move_on(&self.stage, TAKEN)
    }

    /// Refuses the proposal unless the proposer has withdrawn it.
    fn refuse(self, refusal: &ProposeError) {
        if self.take() {
            let _ = self.reply.send(Err(refusal.clone()));
        }
    }
}

fn move_on(stage: &AtomicU8, to: u8) -> bool {
    stage.compare_exchange(WAITING, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

impl Proposal {
    /// Returns true if it goes before others. A proposal with neither edits nor a planner only asks for a
    /// stored answer, for which its repetition waits.
    fn is_urgent(&self) -> bool {
        let is_known = self.planner.is_none() || !self.edits.is_empty();
        is_known && is_urgent(self.edits.iter().map(|edit| (edit.key.as_str(), edit.value.as_ref())))
    }

    /// Returns the bytes of keys and values.
    fn bytes(&self) -> usize {
        self.edits.iter().map(|edit| edit.key.len() + edit.value.as_ref().map_or(0, Bytes::len)).sum()
    }
}

impl Writer {
    /// Starts the task, which loads the store now and again when needed.
    pub fn spawn(store: Arc<dyn Store>, settings: WriterConfig) -> (Self, JoinHandle<()>) {
        let room = settings.queue.max(1);
        let ((queue, ordinary), (urgent, first)) = (mpsc::channel(room), mpsc::channel(room));
        let answer_within = settings.answer_within;
        let queues = task::Queues::new(first, ordinary);
        let task = tokio::spawn(task::Task::new(store, settings).run(queues));
        (Self { queue, urgent, answer_within }, task)
    }

    /// Proposes a write. Returns once it is durable or refused.
    ///
    /// Dropping the future does not undo a proposal that the task has accepted.
    pub async fn propose(&self, proposal: Proposal) -> Result<Committed, ProposeError> {
        self.propose_within(Duration::MAX, proposal).await
    }

    /// Proposes a write that fails if the writer has not accepted it within this time.
    pub async fn propose_within(
        &self,
        taken_within: Duration,
        proposal: Proposal,
    ) -> Result<Committed, ProposeError> {
        let time = self.time_for(&proposal);
        let deadline = Instant::now() + time;
        let taken_by = Instant::now() + taken_within.min(time);
        let (reply, mut answer) = oneshot::channel();
        let stage = Arc::new(AtomicU8::new(WAITING));
        let pending = Pending { proposal, deadline, stage: stage.clone(), reply };
        let unavailable = |reason: &str| Err(ProposeError::Unavailable { reason: reason.to_owned() });
        let queue = if pending.proposal.is_urgent() { &self.urgent } else { &self.queue };
        match timeout_at(taken_by, queue.send(pending)).await {
            Err(_) => return unavailable("too many proposals are waiting"),
            Ok(Err(_)) => return unavailable("the writer has stopped"),
            Ok(Ok(())) => {}
        }
        let early = match timeout_at(taken_by, &mut answer).await {
            Err(_) if !move_on(&stage, WITHDRAWN) => timeout_at(deadline, answer).await,
            early => early,
        };
        match early {
            Ok(Ok(answer)) => answer,
            _ if stage.load(Ordering::Acquire) == WITHDRAWN || move_on(&stage, WITHDRAWN) => {
                unavailable("the store is busy with earlier proposals")
            }
            _ => Err(ProposeError::Uncertain { reason: "the store did not answer in time".to_owned() }),
        }
    }

    fn time_for(&self, proposal: &Proposal) -> Duration {
        let extra = proposal.bytes() / (1 << 20) + proposal.edits.len() / 5_000;
        self.answer_within + Duration::from_secs(extra as u64)
    }
}
