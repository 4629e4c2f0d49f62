//! The one writer in front of the store.
//!
//! Every write of this replica goes through one task. It knows the current entries, so it can check the
//! revision a caller expects of each key, drop edits that change nothing, and keep the number of entries below
//! its limits before anything reaches the store. Proposals that wait together become one store commit, each a
//! change of its own revision. Where another replica was faster, the task reads what it missed and decides
//! again; no answer rests on old knowledge, since each is given only after the store confirmed the head.
//!
//! An acknowledged proposal is durable. The task outlives a store that is away: proposals are then refused in
//! time, and later ones go through once the store is back.

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
use crate::{Entry, Store, is_urgent};

/// What somebody wants written: all of it or nothing.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// Who asks, as far as known.
    pub author: String,
    /// Why; may be empty.
    pub reason: String,
    /// The address that asks; empty = unknown, or the server itself.
    pub peer: String,
    /// Who that was proven to be; empty = nobody was asked to prove anything, or the server itself.
    pub principal: String,
    /// What makes the request recognisable when it is repeated; empty = nothing.
    pub request_id: String,
    /// The digest of the request's body, to tell a repetition from another request with the same id.
    pub request_digest: u64,
    /// Now, by the server's clock.
    pub at: SystemTime,
    /// The revision the store must be at; none = any.
    pub expected_head: Option<u64>,
    /// What to set or remove; a key at most once. Where there is a judge, what that is as far as it can be told.
    pub edits: Vec<ProposedEdit>,
    /// Who chooses the edits when they are written; none = they are those above.
    pub judge: Option<Arc<dyn EditPlanner>>,
}

/// One key's part in a proposal. It does not say the value in `Debug`, since some are secret.
#[derive(Clone)]
pub struct ProposedEdit {
    /// The key, made by [`crate::key`].
    pub key: String,
    /// The new value, or none to remove the key.
    pub value: Option<Bytes>,
    /// The revision the key's entry must have: 0 = it must not exist, none = any.
    pub expected: Option<u64>,
}

impl fmt::Debug for ProposedEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.value.as_ref().map(Bytes::len);
        f.debug_struct("ProposedEdit").field("key", &self.key).field("bytes", &bytes).finish_non_exhaustive()
    }
}

/// What became of a proposal that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The revision at which everything proposed is in force: the proposal's own change, or the head where it
    /// changed nothing.
    pub revision: u64,
    /// Whether nothing had to be written.
    pub unchanged: bool,
    /// Whether this is the first result of a request that was repeated.
    pub repeated: bool,
    /// For each key of the proposal the revision of its entry now; none = no entry. In the order of the edits;
    /// for a request repeated after a restart only the keys that it changed, and for one of many keys that is repeated
    /// none.
    pub keys: Arc<[(String, Option<u64>)]>,
}

/// Why a proposal was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// An entry is not at the expected revision; nothing was written.
    #[error("{key} is not at the expected revision")]
    Conflict {
        /// The first such key, in the order of the edits.
        key: String,
        /// Its entry now.
        current: Option<Entry>,
    },
    /// The store is not at the expected revision; nothing was written.
    #[error("the store is at revision {head}, not at the expected one")]
    Moved {
        /// Where it is.
        head: u64,
    },
    /// The proposal's judge does not let it touch some entries; nothing was written.
    #[error("{} entries may not be touched", .entries.len())]
    Judged {
        /// They, as they are.
        entries: Vec<(String, Option<Entry>)>,
    },
    /// The request id was used for another request within the time ids are remembered; nothing was written.
    #[error("the request id {request_id:?} was used for another request")]
    RequestIdReused {
        /// The id.
        request_id: String,
    },
    /// The store, or the writer's queue, does not answer in time. It is certain that nothing was written.
    #[error("not written, the store can not be reached: {reason}")]
    Unavailable {
        /// What was tried and what came of it.
        reason: String,
    },
    /// The store fell silent while the proposal was being written; it may be found written later. Repeating it
    /// with the same request id is safe and answers the question.
    #[error(
        "it is unknown whether this was written: {reason}; see what is stored, or say it again with the same request id"
    )]
    Uncertain {
        /// What was tried and what came of it.
        reason: String,
    },
    /// The proposal is larger than the store takes; nothing was written.
    #[error("the proposal has {size} {what}, the limit is {limit}")]
    TooLarge {
        /// What was counted.
        what: String,
        /// How many there are.
        size: usize,
        /// The bound.
        limit: usize,
    },
    /// There would be more entries than are allowed; nothing was written.
    #[error("{entries} entries under {prefix:?} would be more than the limit of {limit}")]
    TooManyEntries {
        /// The limited part of the store.
        prefix: String,
        /// How many there would be.
        entries: usize,
        /// The bound.
        limit: usize,
    },
    /// No store can keep this: a malformed or reserved key, or a key twice. Nothing was written.
    #[error("{reason}")]
    Invalid {
        /// What is wrong, and where.
        reason: String,
    },
    /// The store holds something it did not write.
    #[error("the store is damaged: {reason}")]
    Damaged {
        /// What was found.
        reason: String,
    },
}

/// A bound on the number of entries whose keys begin with `prefix`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryLimit {
    /// For example `rules/`.
    pub prefix: String,
    /// The most entries there may be.
    pub max_entries: usize,
}

/// How long request ids are remembered by default.
pub const REMEMBER_REQUESTS: Duration = Duration::from_secs(24 * 3600);

/// How a writer behaves.
#[derive(Clone, Debug)]
pub struct WriterConfig {
    /// Bounds on the number of entries. Default: none.
    pub limits: Vec<EntryLimit>,
    /// How many proposals may wait for the writer, and how many urgent ones. Default 1024; beyond it callers wait for a
    /// place.
    pub queue: usize,
    /// The longest a proposal of ordinary size waits for its answer. Default 5 s. Large ones get a second more
    /// per MiB and per 5,000 edits.
    pub answer_within: Duration,
    /// How long request ids are remembered. Default [`REMEMBER_REQUESTS`], 24 h.
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

/// A handle to the writer task; clones share it. The task ends when all handles are gone.
#[derive(Clone, Debug)]
pub struct Writer {
    queue: mpsc::Sender<Pending>,
    /// For kills and removals, which are taken up before all that waits in the other.
    urgent: mpsc::Sender<Pending>,
    answer_within: Duration,
}

/// A proposal on its way to the task.
#[derive(Debug)]
struct Pending {
    proposal: Proposal,
    /// When the proposer no longer waits.
    deadline: Instant,
    stage: Arc<AtomicU8>,
    reply: oneshot::Sender<Result<Committed, ProposeError>>,
}

/// In the queue: the proposer may still withdraw.
const WAITING: u8 = 0;
/// Taken up by the task: from here on only the store knows what becomes of it.
const TAKEN: u8 = 1;
/// The proposer gave up first: the task must not touch it.
const WITHDRAWN: u8 = 2;

impl Pending {
    /// Takes the proposal up, unless the proposer has given up.
    fn take(&self) -> bool {
        move_on(&self.stage, TAKEN)
    }
}

fn move_on(stage: &AtomicU8, to: u8) -> bool {
    stage.compare_exchange(WAITING, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

impl Proposal {
    /// Whether it goes before others. What has neither edits nor a judge only asks for a first answer, for which its
    /// repetition waits.
    fn is_urgent(&self) -> bool {
        let is_known = self.judge.is_none() || !self.edits.is_empty();
        is_known && is_urgent(self.edits.iter().map(|edit| (edit.key.as_str(), edit.value.as_ref())))
    }

    /// Keys and values together.
    fn bytes(&self) -> usize {
        self.edits.iter().map(|edit| edit.key.len() + edit.value.as_ref().map_or(0, Bytes::len)).sum()
    }
}

impl Writer {
    /// Starts the task. It loads the store by itself, at once and again when it must.
    pub fn spawn(store: Arc<dyn Store>, settings: WriterConfig) -> (Self, JoinHandle<()>) {
        let room = settings.queue.max(1);
        let ((queue, ordinary), (urgent, first)) = (mpsc::channel(room), mpsc::channel(room));
        let answer_within = settings.answer_within;
        let queues = task::Queues::new(first, ordinary);
        let task = tokio::spawn(task::Task::new(store, settings).run(queues));
        (Self { queue, urgent, answer_within }, task)
    }

    /// Has a proposal written. Returns once it is durable or refused.
    ///
    /// Dropping the future does not undo a proposal that was already handed over.
    pub async fn propose(&self, proposal: Proposal) -> Result<Committed, ProposeError> {
        self.propose_within(Duration::MAX, proposal).await
    }

    /// The same of a proposal that is refused if the writer has not taken it up in this time.
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
