//! SubmitResult: checks jobs against queue, submitter, route, sizes and quotas, and stores the accepted ones.
//!
//! Each job of a request is checked by itself, and all its faults are returned at once. Nothing of a rejected
//! job is stored. The accepted ones go into one commit; the response follows it.

mod check;
mod digest;

use std::time::Duration;

use damper_core::job::Wall;
use damper_core::{Code, Failure, Fate, Faults};
use futures_util::future::join_all;

use crate::shared::Inner;
use crate::store::{Body, Error, JobId, Record, State, Submitted};
use crate::submit::check::Checked;

pub use check::{MAX_AHEAD, MAX_JOBS_A_REQUEST, MAX_KEY_BYTES};

/// The service that submits, as authenticated: the caller part of the route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submitter {
    /// Service.
    pub service: String,
    /// Deployment group.
    pub cluster: String,
}

/// A job as submitted.
#[derive(Clone, Debug, Default)]
pub struct NewJob {
    /// Faults found while it was read, reported with the others.
    pub unread: Faults,
    /// Name of the queue.
    pub queue: String,
    /// Two submissions with the same key are the same job.
    pub key: String,
    /// Called service.
    pub callee_service: String,
    /// Called method.
    pub callee_method: String,
    /// Body and metadata.
    pub body: Body,
    /// First delivery no sooner than this from now.
    pub after: Option<Duration>,
    /// First delivery no sooner than this.
    pub not_before: Option<Wall>,
    /// Time after which it expires; `None`: that of the queue.
    pub expires_after: Option<Duration>,
    /// Jobs with the same one are delivered one after the other; empty: none.
    pub order_key: String,
    /// How the call ended before it was submitted.
    pub failed: Option<EarlierFailure>,
    /// Attempts made before the submission.
    pub sends_before: u32,
    /// Id of the original call; empty: none.
    pub call_id: String,
    /// Key of an encrypted body; empty: not encrypted.
    pub body_key_id: String,
    /// HMAC of the plain body, compared instead of an encrypted one.
    pub body_tag: Vec<u8>,
    /// Id drawn by the submitter; empty: drawn here.
    pub job_id: Vec<u8>,
}

/// How a call ended before it was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlierFailure {
    /// Code and hints.
    pub failure: Failure,
    /// Duration of the last attempt.
    pub took: Duration,
}

/// Result of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmitResult {
    /// Stored.
    Stored {
        /// Id of the job.
        id: JobId,
        /// Waiting or behind.
        state: State,
        /// When it is due.
        due: Wall,
    },
    /// A job with this key and content was there already.
    Existing(Box<Record>),
    /// Not stored.
    Rejected(Rejected),
}

/// Why a job was not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Status code.
    pub code: Code,
    /// Reason, with field, value and range.
    pub message: String,
    /// Reason by the policy.
    pub fate: Option<Fate>,
}

impl Rejected {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), fate: None }
    }
}

impl Inner {
    /// Checks and stores jobs. Results are in the order of the jobs.
    ///
    /// # Errors
    /// The store does not respond, or too much waits for it. The outcome can be unknown: a submission with
    /// the same keys repeats it safely.
    pub(crate) async fn submit(&self, by: &Submitter, jobs: Vec<NewJob>) -> Result<Vec<SubmitResult>, Error> {
        let mut results: Vec<Option<SubmitResult>> = Vec::new();
        let mut accepted = Vec::new();
        let mut reserved = Vec::new();
        {
            let now = self.now();
            let mut state = self.state();
            for job in jobs {
                let queue = job.queue.clone();
                match check::job(&mut state, by, job, now) {
                    Ok(Checked { record, body, reservation }) => {
                        results.push(None);
                        reserved.push(reservation);
                        accepted.push((record, body));
                    }
                    Err(rejected) => {
                        if let Some(queue) = state.by_name.get_mut(&*queue) {
                            queue.totals.rejected += 1;
                        }
                        results.push(Some(SubmitResult::Rejected(rejected)));
                    }
                }
            }
        }
        if accepted.is_empty() {
            return Ok(results.into_iter().flatten().collect());
        }
        let kept: Vec<Kept> = accepted.iter().map(|(record, _)| Kept::of(record)).collect();
        let stored = join_all(accepted.into_iter().map(|(job, body)| self.writer.submit(job, body))).await;
        let mut state = self.state();
        let read = state.asked.reads;
        let mut stored =
            kept.into_iter().zip(stored).zip(reserved).map(|((kept, submitted), reservation)| {
                // What may have been stored counts until the next reading of all lanes.
                match submitted {
                    Ok(Submitted::Stored(_)) | Err(Error::Unavailable(_)) => {
                        state.quotas.commit(reservation, read)
                    }
                    _ => state.quotas.give_back(reservation),
                }
                if let Ok(Submitted::Refused(Error::Full(_))) | Err(Error::Full(_)) = &submitted {
                    self.note_full();
                }
                let totals = &mut state.queue(&kept.queue).totals;
                match &submitted {
                    Ok(Submitted::Stored(_)) => totals.submitted += 1,
                    Ok(Submitted::Existing(_)) => totals.existing += 1,
                    Ok(Submitted::Conflict(_)) => totals.conflicts += 1,
                    Ok(Submitted::Refused(_)) | Err(_) => totals.rejected += 1,
                }
                kept.result(submitted)
            });
        results.into_iter().map(|result| result.map_or_else(|| stored.next().expect(EACH), Ok)).collect()
    }
}

const EACH: &str = "each accepted job has a result";

/// What the response needs of an accepted job.
struct Kept {
    id: JobId,
    queue: String,
    due: Wall,
}

impl Kept {
    fn of(record: &Record) -> Self {
        Self { id: record.id, queue: record.lane.queue.clone(), due: record.at }
    }

    /// Errors if the store does not respond: then nothing is known of any job of the request.
    fn result(self, submitted: Result<Submitted, Error>) -> Result<SubmitResult, Error> {
        Ok(match submitted {
            Ok(Submitted::Refused(error)) | Err(error) => match error {
                Error::Full(_) => rejected(Code::ResourceExhausted, error.to_string()),
                Error::Invalid(_) => rejected(Code::InvalidArgument, error.to_string()),
                Error::Unavailable(_) | Error::Damaged(_) | Error::Open(_) => return Err(error),
            },
            Ok(Submitted::Stored(state)) => SubmitResult::Stored { id: self.id, state, due: self.due },
            Ok(Submitted::Existing(record)) => SubmitResult::Existing(record),
            Ok(Submitted::Conflict(id)) if id == self.id => {
                rejected(Code::AlreadyExists, format!("job_id: {id} is the id of another job"))
            }
            Ok(Submitted::Conflict(id)) => {
                let text = format!("key: job {id} has the same key and another body or order key");
                rejected(Code::AlreadyExists, text)
            }
        })
    }
}

fn rejected(code: Code, message: impl Into<String>) -> SubmitResult {
    SubmitResult::Rejected(Rejected::new(code, message))
}
