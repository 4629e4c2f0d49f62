//! Writer task: gathers proposals, plans them, commits and answers.
//!
//! Answers are sent only after the store confirmed their head, by accepting the commit or by having no newer
//! change. During an outage of the store each waiting proposal is refused. Nothing is queued for later, since
//! a caller who got "not written" must not find it written. A proposal that was answered "unknown" at its
//! timeout is not written later either, unless the write had begun.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::writer::request_ids::RequestIdLog;
use crate::writer::state::{BatchPlan, WriterState};
use crate::writer::{Committed, EntryLimit, Pending, Proposal, ProposeError, WriterConfig};
use crate::{MAX_CHANGES_PER_COMMIT, Store, StoreError, latest};

/// Edits per commit, a change counted as one; applies to more than one proposal only.
const BATCH_EDITS: usize = 100;

/// Bytes per commit; applies to more than one proposal only.
const BATCH_BYTES: usize = 512 << 10;

/// Changes per read of the last day; no more of them are in memory.
const PAGE: u64 = 16;

pub(crate) struct Task {
    store: Arc<dyn Store>,
    limits: Arc<[EntryLimit]>,
    remember_requests: Duration,
    known: Option<WriterState>,
}

/// Waiting proposals.
pub(crate) struct Queues {
    urgent: Queue,
    ordinary: Queue,
}

struct Queue {
    /// Proposal that did not fit the last batch.
    left_over: Option<Pending>,
    receiver: mpsc::Receiver<Pending>,
}

impl Queues {
    pub(crate) fn new(urgent: mpsc::Receiver<Pending>, ordinary: mpsc::Receiver<Pending>) -> Self {
        let queue = |receiver| Queue { left_over: None, receiver };
        Self { urgent: queue(urgent), ordinary: queue(ordinary) }
    }

    /// Returns the next proposal; `None` if all writers are dropped.
    async fn next(&mut self) -> Option<Pending> {
        if let Some(waiting) = self.waiting() {
            return Some(waiting);
        }
        tokio::select! {
            biased;
            Some(urgent) = self.urgent.receiver.recv() => Some(urgent),
            Some(ordinary) = self.ordinary.receiver.recv() => Some(ordinary),
            else => None,
        }
    }

    /// Refuses all that waits.
    fn refuse(&mut self, refusal: &ProposeError) {
        self.urgent.refuse(refusal);
        self.ordinary.refuse(refusal);
    }

    /// Returns the next queued proposal.
    fn waiting(&mut self) -> Option<Pending> {
        self.urgent.waiting().or_else(|| self.ordinary.waiting())
    }

    fn queue_of(&mut self, pending: &Pending) -> &mut Queue {
        if pending.proposal.is_urgent() { &mut self.urgent } else { &mut self.ordinary }
    }
}

impl Queue {
    fn waiting(&mut self) -> Option<Pending> {
        self.left_over.take().or_else(|| self.receiver.try_recv().ok())
    }

    /// Refuses all that waits, so that none waits for its own timeout.
    fn refuse(&mut self, refusal: &ProposeError) {
        while let Some(pending) = self.waiting() {
            pending.refuse(refusal);
        }
    }
}

/// Reason why a plan could not be carried out as a whole.
enum ReloadCause {
    /// All proposals get this answer.
    Refused(ProposeError),
    /// One of them cannot be stored, or has timed out; find out which.
    Split(ProposeError),
}

impl Task {
    pub(crate) fn new(store: Arc<dyn Store>, settings: WriterConfig) -> Self {
        Self {
            store,
            limits: settings.limits.into(),
            remember_requests: settings.remember_requests,
            known: None,
        }
    }

    pub(crate) async fn run(mut self, mut proposals: Queues) {
        if let Err(error) = self.reload().await {
            tracing::warn!(%error, "reading the store failed; the writer tries again");
            proposals.refuse(&as_certain(&refusal_of(error)));
        }
        while let Some(first) = proposals.next().await {
            // Proposers that wait for a long load may withdraw, knowing that nothing was written.
            if let Err(error) = self.know().await {
                let refusal = as_certain(&refusal_of(error));
                first.refuse(&refusal);
                proposals.refuse(&refusal);
                continue;
            }
            let is_urgent = first.proposal.is_urgent();
            let batch = gather(first, &mut proposals);
            match self.settle(batch).await {
                Err(refusal) if is_urgent => proposals.refuse(&refusal),
                // A store that has no room for these may have room for the urgent ones.
                Err(refusal) => proposals.ordinary.refuse(&refusal),
                Ok(()) => {}
            }
        }
    }

    /// Carries out a batch and answers it. Errors if the store is unreachable.
    async fn settle(&mut self, batch: Vec<Pending>) -> Result<(), ProposeError> {
        let mut groups = vec![batch];
        while let Some(group) = groups.pop() {
            if group.is_empty() {
                continue;
            }
            let proposals: Vec<&Proposal> = group.iter().map(|pending| &pending.proposal).collect();
            let deadline = group.iter().map(|pending| pending.deadline).min();
            match self.carry_out(&proposals, deadline).await {
                Ok(answers) => answer(group, answers),
                Err(ReloadCause::Split(_)) if group.len() > 1 => {
                    groups.extend(group.into_iter().rev().map(|pending| vec![pending]));
                }
                Err(ReloadCause::Split(refusal)) => answer(group, vec![Err(refusal)]),
                Err(ReloadCause::Refused(refusal)) => {
                    let untouched: Vec<Pending> = groups.into_iter().flatten().collect();
                    let certain = as_certain(&refusal);
                    let others = untouched.iter().map(|_| Err(certain.clone())).collect();
                    answer(untouched, others);
                    let answers = group.iter().map(|_| Err(refusal.clone())).collect();
                    answer(group, answers);
                    return Err(certain);
                }
            }
        }
        Ok(())
    }

    /// Plans and commits, again after each change of another replica, until the first proposer gives up.
    async fn carry_out(
        &mut self,
        proposals: &[&Proposal],
        deadline: Option<Instant>,
    ) -> Result<Vec<Result<Committed, ProposeError>>, ReloadCause> {
        loop {
            self.know().await.map_err(setback)?;
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let reason = "its time ended before it could be written".to_owned();
                return Err(ReloadCause::Split(ProposeError::Unavailable { reason }));
            }
            let known = self.known.as_mut().expect("it was read above");
            known.requests.forget();
            let plan = known.plan(proposals);
            let outcome = if plan.changes.is_empty() {
                self.nothing_newer().await
            } else {
                self.store.commit(known.head(), &plan.changes).await.map(|()| true)
            };
            match outcome {
                Ok(true) => return Ok(self.done(proposals, plan)),
                Ok(false) => {}
                Err(StoreError::Conflict { .. }) => {
                    self.nothing_newer().await.map_err(setback)?;
                }
                Err(StoreError::Replaced { .. } | StoreError::Compacted { .. }) => self.known = None,
                Err(error) => return Err(setback(error)),
            }
        }
    }

    /// Applies a committed plan to the known state.
    fn done(&mut self, proposals: &[&Proposal], plan: BatchPlan) -> Vec<Result<Committed, ProposeError>> {
        let known = self.known.as_mut().expect("a plan was made from it");
        for (proposal, answer) in proposals.iter().zip(&plan.answers) {
            if let Ok(committed) = answer {
                known.requests.remember(proposal, committed);
            }
        }
        for change in &plan.changes {
            assert!(known.follow(change), "planned changes follow the head");
        }
        plan.answers
    }

    /// Reads the changes of other replicas; true if there are none.
    async fn nothing_newer(&mut self) -> Result<bool, StoreError> {
        let Some(known) = self.known.as_mut() else { return Ok(false) };
        match self.store.changes(known.head(), u64::MAX).await {
            Ok(changes) if changes.is_empty() => Ok(true),
            Ok(changes) => {
                if !changes.iter().all(|change| known.follow(change)) {
                    self.known = None;
                }
                Ok(false)
            }
            Err(StoreError::Replaced { .. } | StoreError::Compacted { .. }) => {
                self.known = None;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Loads the store unless it is known.
    async fn know(&mut self) -> Result<(), StoreError> {
        if self.known.is_none() { self.reload().await } else { Ok(()) }
    }

    /// Loads the store: the entries, then the requests of the last day, newest first.
    async fn reload(&mut self) -> Result<(), StoreError> {
        let state = self.store.load().await?;
        let now = SystemTime::now();
        let mut requests = RequestIdLog::new(self.remember_requests);
        let mut upto = state.revision;
        while upto > 0 {
            let (after, page) = match latest(&*self.store, upto.saturating_sub(PAGE), upto).await {
                Err(StoreError::Compacted { .. }) => break,
                page => page?,
            };
            let is_whole = page.len() as u64 == upto - after;
            // Clocks differ, so a single change that seems too old does not end the loop.
            let remembered = page.iter().rev().filter(|change| requests.record_older(change, now)).count();
            if !is_whole || remembered == 0 {
                break;
            }
            upto = after;
        }
        self.known = Some(WriterState::new(state, requests, self.limits.clone()));
        Ok(())
    }
}

/// Gathers the first proposal and those behind it in its queue that fit one batch. A full store refuses an
/// ordinary proposal with its whole batch, so urgent ones are never in the same.
fn gather(first: Pending, proposals: &mut Queues) -> Vec<Pending> {
    let queue = proposals.queue_of(&first);
    let (mut edits, mut bytes) = first.proposal.weight();
    let mut batch = Vec::new();
    if first.take() {
        batch.push(first);
    }
    while batch.len() < MAX_CHANGES_PER_COMMIT {
        let Some(next) = queue.waiting() else { break };
        let (more_edits, more_bytes) = next.proposal.weight();
        if edits + more_edits > BATCH_EDITS || bytes + more_bytes > BATCH_BYTES {
            queue.left_over = Some(next);
            break;
        }
        if next.take() {
            edits += more_edits;
            bytes += more_bytes;
            batch.push(next);
        }
    }
    batch
}

fn answer(batch: Vec<Pending>, answers: Vec<Result<Committed, ProposeError>>) {
    for (pending, answer) in batch.into_iter().zip(answers) {
        // The proposer may be gone.
        let _ = pending.reply.send(answer);
    }
}

/// Returns the same error for proposals that were not sent to the store.
fn as_certain(refusal: &ProposeError) -> ProposeError {
    match refusal {
        ProposeError::Uncertain { reason } => ProposeError::Unavailable { reason: reason.clone() },
        other => other.clone(),
    }
}

fn setback(error: StoreError) -> ReloadCause {
    match error {
        error @ (StoreError::TooLarge { .. } | StoreError::Invalid { .. }) => {
            ReloadCause::Split(refusal_of(error))
        }
        error => ReloadCause::Refused(refusal_of(error)),
    }
}

fn refusal_of(error: StoreError) -> ProposeError {
    match error {
        StoreError::Unavailable { reason } => ProposeError::Unavailable { reason },
        StoreError::Uncertain { reason } => ProposeError::Uncertain { reason },
        StoreError::Damaged { reason } => ProposeError::Damaged { reason },
        StoreError::TooLarge { what, size, limit } => {
            ProposeError::TooLarge { what: what.to_owned(), size, limit }
        }
        StoreError::Invalid { reason } => ProposeError::Invalid { reason },
        error
        @ (StoreError::Conflict { .. } | StoreError::Compacted { .. } | StoreError::Replaced { .. }) => {
            ProposeError::Unavailable { reason: error.to_string() }
        }
    }
}
