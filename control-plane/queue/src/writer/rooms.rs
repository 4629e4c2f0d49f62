//! Operations that wait for a commit, in three rooms.

use std::collections::VecDeque;
use std::iter::repeat;

use tokio::sync::oneshot;

use crate::store::{
    Batch, Body, Change, Committed, Error, LeaseClaim, LeaseRequest, NextDue, Record, Refused, Settled,
    Settlement, Submitted,
};

/// Operations of one commit.
const COMMIT_OPERATIONS: usize = 512;
/// Bytes of new jobs in one commit.
const COMMIT_BYTES: usize = 1 << 20;
/// Changes of one commit.
const COMMIT_CHANGES: usize = 256;
/// Changes that go with each commit, however much waits before them.
const LEAST_CHANGES: usize = 32;
/// Submissions that may wait.
const WAITING_OPERATIONS: usize = 10_000;
/// Bytes of the submissions that may wait.
const WAITING_BYTES: usize = 64 << 20;

/// Sends the result of an operation.
pub(super) type Answer<T> = oneshot::Sender<Result<T, Error>>;

/// Result of a request for due jobs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Leased {
    /// The jobs.
    pub jobs: Vec<(Record, Body)>,
    /// When the next job of the lane is due.
    pub next: NextDue,
    /// Why there are fewer jobs than the request asked for; `None`: not by a bound over all servers.
    pub refused: Option<Refused>,
}

/// An operation of the first room.
pub(super) enum First {
    Settle(Box<Settlement>, Answer<Settled>),
    Claim(LeaseClaim, Answer<Option<Record>>),
    Lease(Vec<LeaseRequest>, Answer<Vec<Leased>>),
}

impl First {
    /// Rows that it changes at most.
    fn operations(&self) -> usize {
        match self {
            Self::Settle(..) | Self::Claim(..) => 1,
            Self::Lease(requests, _) => requests.iter().map(|request| request.count as usize).sum(),
        }
    }
}

struct Submission {
    job: Record,
    body: Body,
    answer: Answer<Submitted>,
    bytes: usize,
}

/// The rooms.
#[derive(Default)]
pub(super) struct Rooms {
    first: VecDeque<First>,
    submissions: VecDeque<Submission>,
    submission_bytes: usize,
    changes: VecDeque<(Change, Answer<bool>)>,
    is_closed: bool,
}

impl Rooms {
    /// Empty rooms that accept nothing.
    pub(super) fn closed() -> Self {
        Self { is_closed: true, ..Self::default() }
    }

    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(super) fn add_first(&mut self, operation: First) {
        // Closed: the answer is dropped, which fails the operation.
        if !self.is_closed {
            self.first.push_back(operation);
        }
    }

    pub(super) fn add_submission(&mut self, job: Record, body: Body, answer: Answer<Submitted>) {
        if self.is_closed {
            return;
        }
        let bytes = usize::try_from(job.bytes()).unwrap_or(usize::MAX).saturating_add(body.bytes() as usize);
        if self.submissions.len() >= WAITING_OPERATIONS || self.submission_bytes + bytes > WAITING_BYTES {
            let full = format!(
                "{} submissions ({} bytes) wait to be written, at most {WAITING_OPERATIONS} ({WAITING_BYTES} \
                 bytes); try again later",
                self.submissions.len(),
                self.submission_bytes
            );
            // A caller that has gone needs no answer.
            let _ = answer.send(Err(Error::Full(full)));
            return;
        }
        self.submission_bytes += bytes;
        self.submissions.push_back(Submission { job, body, answer, bytes });
    }

    pub(super) fn add_change(&mut self, change: Change, answer: Answer<bool>) {
        if !self.is_closed {
            self.changes.push_back((change, answer));
        }
    }

    /// Takes the next commit; `None` if nothing waits.
    pub(super) fn take(&mut self) -> Option<(Batch, Answers)> {
        let (mut batch, mut answers) = (Batch::default(), Answers::default());
        let most = COMMIT_OPERATIONS - self.changes.len().min(LEAST_CHANGES);
        let mut operations = 0;
        while operations < most
            && let Some(next) = self.first.pop_front()
        {
            operations += next.operations();
            answers.add_first(next, &mut batch);
        }
        let mut bytes = 0;
        while operations < most
            && bytes < COMMIT_BYTES
            && let Some(Submission { job, body, answer, bytes: more }) = self.submissions.pop_front()
        {
            operations += 1;
            bytes += more;
            self.submission_bytes -= more;
            batch.submissions.push((job, body));
            answers.submissions.push(answer);
        }
        let changes = COMMIT_OPERATIONS.saturating_sub(operations).clamp(LEAST_CHANGES, COMMIT_CHANGES);
        for (change, answer) in self.changes.drain(..changes.min(self.changes.len())) {
            batch.changes.push(change);
            answers.changes.push(answer);
        }
        (answers.operations() > 0).then_some((batch, answers))
    }
}

/// Who waits for the results of a commit, in the order of its parts.
#[derive(Default)]
pub(super) struct Answers {
    settlements: Vec<Answer<Settled>>,
    claims: Vec<Answer<Option<Record>>>,
    /// With the number of requests of each.
    leases: Vec<(usize, Answer<Vec<Leased>>)>,
    submissions: Vec<Answer<Submitted>>,
    changes: Vec<Answer<bool>>,
}

impl Answers {
    fn add_first(&mut self, operation: First, batch: &mut Batch) {
        match operation {
            First::Settle(settlement, answer) => {
                batch.settlements.push(*settlement);
                self.settlements.push(answer);
            }
            First::Claim(claim, answer) => {
                batch.claims.push(claim);
                self.claims.push(answer);
            }
            First::Lease(requests, answer) => {
                self.leases.push((requests.len(), answer));
                batch.leases.extend(requests);
            }
        }
    }

    /// Number of operations.
    pub(super) fn operations(&self) -> usize {
        let Self { settlements, claims, leases, submissions, changes } = self;
        settlements.len() + claims.len() + leases.len() + submissions.len() + changes.len()
    }

    /// Takes the second half of a commit off it. The halves in turn keep the order of its parts.
    pub(super) fn halve(&mut self, batch: &mut Batch) -> (Batch, Self) {
        let mut keep = self.operations() / 2;
        let settlements = split(&mut self.settlements, &mut keep);
        let claims = split(&mut self.claims, &mut keep);
        let leases = split(&mut self.leases, &mut keep);
        let submissions = split(&mut self.submissions, &mut keep);
        let changes = split(&mut self.changes, &mut keep);
        let requests = self.leases.iter().map(|(requests, _)| requests).sum();
        let second = Batch {
            settlements: batch.settlements.split_off(self.settlements.len()),
            claims: batch.claims.split_off(self.claims.len()),
            leases: batch.leases.split_off(requests),
            submissions: batch.submissions.split_off(self.submissions.len()),
            changes: batch.changes.split_off(self.changes.len()),
        };
        (second, Self { settlements, claims, leases, submissions, changes })
    }

    /// Sends the results of a commit.
    pub(super) fn send(self, committed: Committed) {
        send_each(self.settlements, committed.settlements);
        send_each(self.claims, committed.claims);
        let next_due = committed.next_due.into_iter().chain(repeat(NextDue::default()));
        let refused = committed.refused.into_iter().chain(repeat(None));
        let leased = committed.leases.into_iter().zip(next_due).zip(refused);
        let mut leased = leased.map(|((jobs, next), refused)| Leased { jobs, next, refused });
        for (requests, answer) in self.leases {
            send_each([answer], [leased.by_ref().take(requests).collect()]);
        }
        for (answer, submitted) in self.submissions.into_iter().zip(committed.submissions) {
            // A caller that has gone needs no answer.
            let _ = answer.send(match submitted {
                Submitted::Refused(error) => Err(error),
                submitted => Ok(submitted),
            });
        }
        send_each(self.changes, committed.changes);
    }

    /// Sends the error of a commit to the submissions, if there are other operations too. Returns false if
    /// there are no submissions, or nothing else.
    pub(super) fn fail_submissions(&mut self, error: &Error) -> bool {
        let is_mixed = !self.submissions.is_empty() && self.operations() > self.submissions.len();
        if is_mixed {
            fail_each(std::mem::take(&mut self.submissions), error);
        }
        is_mixed
    }

    /// Sends the error of a commit to all.
    pub(super) fn fail(self, error: &Error) {
        fail_each(self.settlements, error);
        fail_each(self.claims, error);
        fail_each(self.leases.into_iter().map(|(_, answer)| answer), error);
        fail_each(self.submissions, error);
        fail_each(self.changes, error);
    }
}

/// Takes off what is beyond the number of operations to keep, and counts the kept ones.
fn split<T>(operations: &mut Vec<T>, keep: &mut usize) -> Vec<T> {
    let kept = operations.len().min(*keep);
    *keep -= kept;
    operations.split_off(kept)
}

fn send_each<T>(answers: impl IntoIterator<Item = Answer<T>>, results: impl IntoIterator<Item = T>) {
    for (answer, result) in answers.into_iter().zip(results) {
        // A caller that has gone needs no answer.
        let _ = answer.send(Ok(result));
    }
}

fn fail_each<T>(answers: impl IntoIterator<Item = Answer<T>>, error: &Error) {
    for answer in answers {
        // A caller that has gone needs no answer.
        let _ = answer.send(Err(error.clone()));
    }
}
