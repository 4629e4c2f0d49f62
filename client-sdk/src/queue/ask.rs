//! Requests to the control plane, repeated until they are answered or their time is over.
//!
//! A submission whose outcome is unknown is repeated with the same job id and key, so the job exists once. If
//! the time is over, the outcome can stay unknown.

use std::error::Error as _;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use damper_core::{Code, Verdict};
use damper_proto::v1;
use tokio::time::Instant;
use tonic::Status;

use super::QueueAccess;
use super::dial::Line;
use super::link::Link;
use crate::background::reconnect_backoff::ReconnectBackoff;
use crate::control::ConnectError;
use crate::outcome::verdict;

/// Longest wait between two attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Limit of one attempt: a server that does not respond is replaced by another.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(6);

/// Knowledge about the attempts of one request.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// True once an attempt was sent whose outcome is unknown.
    pub(super) is_unknown: bool,
}

/// No answer to a request.
#[derive(Debug)]
pub(super) enum Refused {
    /// The server rejected it and did nothing.
    Rejected(Code, String),
    /// The time is over. Contains the problem of the last attempt.
    Late(String),
}

/// Result of one attempt of one request.
type Attempted<T> = Result<T, Status>;

impl QueueAccess {
    /// Asks to submit jobs.
    pub(super) async fn submit_on(self, line: Line, jobs: Vec<v1::NewJob>) -> Attempted<Vec<v1::Submitted>> {
        let request = v1::SubmitRequest { identity: Some(self.identity), jobs };
        Ok(line.client().submit(line.request(request)).await?.into_inner().jobs)
    }

    /// Asks to cancel a job.
    pub(super) async fn cancel_on(self, line: Line, job_id: String) -> Attempted<bool> {
        let request = v1::CancelJobRequest { identity: Some(self.identity), job_id };
        Ok(line.client().cancel_job(line.request(request)).await?.into_inner().cancelled)
    }

    /// Repeats a request until it is answered, at most until the deadline.
    pub(super) async fn ask<T, F: Future<Output = Attempted<T>>>(
        &self,
        deadline: Instant,
        outcome: &mut Outcome,
        mut attempt: impl FnMut(Self, Line) -> F,
    ) -> Result<T, Refused> {
        let mut waits = ReconnectBackoff::up_to(LONGEST_WAIT);
        let mut problem = "no connection to the control plane in time".to_owned();
        loop {
            let attempted = tokio::time::timeout_at(deadline, self.attempt(outcome, &mut attempt));
            match attempted.await {
                Err(_) => return Err(Refused::Late(problem)),
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(Refused::Rejected(code, message))) => return Err(Refused::Rejected(code, message)),
                Ok(Err(Refused::Late(failed))) => problem = failed,
            }
            let again = Instant::now() + waits.next();
            if again >= deadline {
                return Err(Refused::Late(problem));
            }
            tokio::time::sleep_until(again).await;
        }
    }

    /// Makes one attempt. An error that may pass is [`Refused::Late`].
    async fn attempt<T, F: Future<Output = Attempted<T>>>(
        &self,
        outcome: &mut Outcome,
        attempt: &mut impl FnMut(Self, Line) -> F,
    ) -> Result<T, Refused> {
        let link: &Arc<Link> = &self.link;
        let (line, number) = link.line().await.map_err(|missed| Refused::Late(missed.problem))?;
        let was_unknown = std::mem::replace(&mut outcome.is_unknown, true);
        // Also if this future is dropped at the deadline: the connection may be dead.
        let mut in_doubt = InDoubt { link, number: Some(number) };
        let attempted = tokio::time::timeout(ATTEMPT_WITHIN, attempt(self.clone(), line.clone())).await;
        let Ok(answer) = attempted else {
            return Err(Refused::Late(format!("no response within {ATTEMPT_WITHIN:?}")));
        };
        let status = match answer {
            Ok(answer) => {
                in_doubt.number = None;
                return Ok(answer);
            }
            Err(status) => status,
        };
        let (may_pass, may_be_done) = meaning(&status);
        outcome.is_unknown = was_unknown || may_be_done;
        if !may_pass && status.code() != tonic::Code::Unauthenticated {
            // Else another replica may accept it, or a renewed token.
            in_doubt.number = None;
        }
        Err(match line.error_of(&status) {
            ConnectError::Denied(_, problem) => Refused::Rejected(verdict::code_of(&status), problem),
            ConnectError::Failed(problem) if may_pass => Refused::Late(problem),
            ConnectError::Failed(_) => {
                Refused::Rejected(verdict::code_of(&status), line.hide(status.message()))
            }
        })
    }
}

/// Drops the connection of an attempt, unless it is known to work.
struct InDoubt<'a> {
    link: &'a Link,
    number: Option<u64>,
}

impl Drop for InDoubt<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.link.drop_line(number);
        }
    }
}

/// Returns if a failed attempt is repeated, and if the server may have done what it asked.
fn meaning(status: &Status) -> (bool, bool) {
    if status.source().is_some() {
        // From the transport.
        let was_refused = matches!(verdict::of_error(status), Verdict::Unsent | Verdict::Unprocessed);
        return (true, !was_refused && !verdict::is_not_connected(status));
    }
    match status.code() {
        // A commit may have had an unknown outcome.
        tonic::Code::Unavailable
        | tonic::Code::Unknown
        | tonic::Code::Cancelled
        | tonic::Code::DeadlineExceeded
        | tonic::Code::Aborted
        | tonic::Code::Internal => (true, true),
        // Too many requests wait.
        tonic::Code::ResourceExhausted => (true, false),
        _ => (false, false),
    }
}
