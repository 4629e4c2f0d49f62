//! The task: gathers proposals, plans them, commits, answers.
//!
//! Answers leave only after the store confirmed the head they rest on, by accepting the commit or by saying
//! that nothing is newer. A store that is away costs every waiting proposal one refusal; nothing is queued for
//! later, since a caller who was told "not written" must not find it written.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::known::{Known, Plan};
use super::requests::Requests;
use super::{Committed, EntryLimit, Pending, Proposal, Refusal, Settings};
use crate::store::{Change, Error, MAX_CHANGES_PER_COMMIT, Store};

/// How many edits, changes counted as one each, go into one commit; more than one proposal only.
const BATCH_EDITS: usize = 100;

/// How many bytes go into one commit; more than one proposal only.
const BATCH_BYTES: usize = 512 << 10;

/// How many changes are read at once on the way back through the last day.
const PAGE: u64 = 64;

pub(super) struct Task {
    store: Arc<dyn Store>,
    limits: Arc<[EntryLimit]>,
    answer_within: Duration,
    remember_requests: Duration,
    known: Option<Known>,
}

/// Why a plan could not be carried out as a whole.
enum Setback {
    /// Everybody gets this answer.
    Refused(Refusal),
    /// One of them can not be stored; find out which.
    Split(Refusal),
}

impl Task {
    pub(super) fn new(store: Arc<dyn Store>, settings: Settings) -> Self {
        Self {
            store,
            limits: settings.limits.into(),
            answer_within: settings.answer_within,
            remember_requests: settings.remember_requests,
            known: None,
        }
    }

    pub(super) async fn run(mut self, mut proposals: mpsc::Receiver<Pending>) {
        if let Err(error) = self.recall().await {
            tracing::warn!(%error, "the writer can not read the store yet");
            refuse_waiting(&mut proposals, None, &as_certain(&refusal_of(error)));
        }
        let mut left_over = None;
        loop {
            let first = match left_over.take() {
                Some(pending) => pending,
                None => match proposals.recv().await {
                    Some(pending) => pending,
                    None => return,
                },
            };
            let batch;
            (batch, left_over) = gather(first, &mut proposals);
            if let Err(refusal) = self.settle(batch).await {
                refuse_waiting(&mut proposals, left_over.take(), &refusal);
            }
        }
    }

    /// Carries a batch out and answers it. Fails when the store can not be reached.
    async fn settle(&mut self, batch: Vec<Pending>) -> Result<(), Refusal> {
        let mut groups = vec![batch];
        while let Some(group) = groups.pop() {
            if group.is_empty() {
                continue;
            }
            let proposals: Vec<&Proposal> = group.iter().map(|pending| &pending.proposal).collect();
            match self.carry_out(&proposals).await {
                Ok(answers) => answer(group, answers),
                Err(Setback::Split(_)) if group.len() > 1 => {
                    groups.extend(group.into_iter().rev().map(|pending| vec![pending]));
                }
                Err(Setback::Split(refusal)) => answer(group, vec![Err(refusal)]),
                Err(Setback::Refused(refusal)) => {
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

    /// Plans and commits, as often as others are faster, within the time an answer may take.
    async fn carry_out(
        &mut self,
        proposals: &[&Proposal],
    ) -> Result<Vec<Result<Committed, Refusal>>, Setback> {
        let deadline = Instant::now() + self.answer_within;
        let latest = proposals.iter().map(|proposal| proposal.at).max();
        loop {
            if self.known.is_none() {
                self.recall().await.map_err(setback)?;
            }
            let known = self.known.as_mut().expect("recalled above");
            known.requests.forget(latest.unwrap_or(SystemTime::UNIX_EPOCH));
            let plan = known.plan(proposals);
            let outcome = if plan.changes.is_empty() {
                self.nothing_newer().await
            } else {
                self.store.commit(known.head(), &plan.changes).await.map(|()| true)
            };
            match outcome {
                Ok(true) => return Ok(self.done(proposals, plan)),
                Ok(false) => {}
                Err(Error::Conflict { .. }) => {
                    self.nothing_newer().await.map_err(setback)?;
                }
                Err(Error::Replaced { .. } | Error::Compacted { .. }) => self.known = None,
                Err(error) => return Err(setback(error)),
            }
            if Instant::now() > deadline {
                let reason = "other writers were faster again and again".to_owned();
                return Err(Setback::Refused(Refusal::Unavailable { reason }));
            }
        }
    }

    /// Takes a committed plan into what is known.
    fn done(&mut self, proposals: &[&Proposal], plan: Plan) -> Vec<Result<Committed, Refusal>> {
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

    /// Reads what others wrote since; true where that is nothing.
    async fn nothing_newer(&mut self) -> Result<bool, Error> {
        let Some(known) = self.known.as_mut() else { return Ok(false) };
        match self.store.changes(known.head(), u64::MAX).await {
            Ok(changes) if changes.is_empty() => Ok(true),
            Ok(changes) => {
                if !changes.iter().all(|change| known.follow(change)) {
                    self.known = None;
                }
                Ok(false)
            }
            Err(Error::Replaced { .. } | Error::Compacted { .. }) => {
                self.known = None;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the store from scratch: the entries, and the requests of the last day.
    async fn recall(&mut self) -> Result<(), Error> {
        let state = self.store.load().await?;
        let since = SystemTime::now().checked_sub(self.remember_requests).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut pages: Vec<Vec<Change>> = Vec::new();
        let mut upto = state.revision;
        while upto > 0 {
            let after = upto.saturating_sub(PAGE);
            let page = match self.store.changes(after, upto).await {
                Err(Error::Compacted { .. }) => break,
                page => page?,
            };
            let whole = page.len() as u64 == upto - after;
            let recent = page.first().is_some_and(|oldest| oldest.at >= since);
            pages.push(page);
            if !whole || !recent {
                break;
            }
            upto = after;
        }
        let mut requests = Requests::new(self.remember_requests);
        for change in pages.iter().rev().flatten() {
            if change.at >= since {
                requests.learn(change);
            }
        }
        self.known = Some(Known::new(state, requests, self.limits.clone()));
        Ok(())
    }
}

/// Takes up the first proposal and those that wait behind it, as many as go together; what no longer fits is
/// handed back.
fn gather(first: Pending, proposals: &mut mpsc::Receiver<Pending>) -> (Vec<Pending>, Option<Pending>) {
    let (mut edits, mut bytes) = first.proposal.weight();
    let mut batch = Vec::new();
    if first.take() {
        batch.push(first);
    }
    while batch.len() < MAX_CHANGES_PER_COMMIT {
        let Ok(next) = proposals.try_recv() else { break };
        let (more_edits, more_bytes) = next.proposal.weight();
        if edits + more_edits > BATCH_EDITS || bytes + more_bytes > BATCH_BYTES {
            return (batch, Some(next));
        }
        if next.take() {
            edits += more_edits;
            bytes += more_bytes;
            batch.push(next);
        }
    }
    (batch, None)
}

fn answer(batch: Vec<Pending>, answers: Vec<Result<Committed, Refusal>>) {
    for (pending, answer) in batch.into_iter().zip(answers) {
        // A proposer who is gone no longer wants the answer.
        let _ = pending.reply.send(answer);
    }
}

/// Tells everybody who waits that the store is away, instead of letting each find out for itself.
fn refuse_waiting(proposals: &mut mpsc::Receiver<Pending>, first: Option<Pending>, refusal: &Refusal) {
    let mut next = first.or_else(|| proposals.try_recv().ok());
    while let Some(pending) = next {
        if pending.take() {
            let _ = pending.reply.send(Err(refusal.clone()));
        }
        next = proposals.try_recv().ok();
    }
}

/// The same news for those of whom nothing was sent to the store.
fn as_certain(refusal: &Refusal) -> Refusal {
    match refusal {
        Refusal::Uncertain { reason } => Refusal::Unavailable { reason: reason.clone() },
        other => other.clone(),
    }
}

fn setback(error: Error) -> Setback {
    match error {
        error @ (Error::TooLarge { .. } | Error::Invalid { .. }) => Setback::Split(refusal_of(error)),
        error => Setback::Refused(refusal_of(error)),
    }
}

fn refusal_of(error: Error) -> Refusal {
    match error {
        Error::Unavailable { reason } => Refusal::Unavailable { reason },
        Error::Uncertain { reason } => Refusal::Uncertain { reason },
        Error::Damaged { reason } => Refusal::Damaged { reason },
        Error::TooLarge { what, size, limit } => Refusal::TooLarge { what: what.to_owned(), size, limit },
        Error::Invalid { reason } => Refusal::Invalid { reason },
        error @ (Error::Conflict { .. } | Error::Compacted { .. } | Error::Replaced { .. }) => {
            Refusal::Unavailable { reason: error.to_string() }
        }
    }
}
