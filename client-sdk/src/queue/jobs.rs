//! Submits and cancels jobs.
//!
//! Jobs are sent in bounded messages, one after another within one limit. The errors distinguish a job that
//! is not stored from one that may be.

use std::time::{Duration, SystemTime};

use damper_core::{Code, Fate};
use damper_proto::v1;
use prost::Message as _;
use tokio::time::Instant;

use super::ask::{Outcome, Refused};
use super::{NewJob, QueueAccess};

/// Default limit of a submission.
const WITHIN: Duration = Duration::from_secs(10);
/// Jobs in one message.
const MAX_JOBS: usize = 500;
/// Bytes of jobs in one message, below the limit of 1 MiB.
const MAX_BYTES: usize = 900 << 10;

/// Submits jobs. Made by [`Damper::jobs`](crate::Damper::jobs); clones share one connection.
#[derive(Clone, Debug)]
pub struct Jobs {
    access: Option<QueueAccess>,
    within: Duration,
}

/// A job that Damper keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Submitted {
    /// Id of the job, 32 hexadecimal digits.
    pub job_id: String,
    /// An earlier submission with the same key and content made the job.
    pub existing: bool,
    /// State of the job.
    pub state: JobState,
    /// Time of the next delivery; `None` if the job waits behind another one or has been delivered.
    pub due_at: Option<SystemTime>,
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobState {
    /// It waits for its time, a worker or its callee.
    Waiting,
    /// It waits behind another job with the same order key.
    Behind,
    /// A worker has it.
    Leased,
    /// It was handled.
    Done,
    /// It was given up. Operators can replay it.
    Dead,
    /// It was cancelled.
    Cancelled,
    /// Its time ended before it was handled.
    Expired,
    /// A state that this version does not know.
    Unknown,
}

/// A job was not submitted, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The job cannot be sent or was rejected; nothing is stored.
    #[error("job rejected: {}: {message}", .code.name())]
    #[non_exhaustive]
    Rejected {
        /// `FAILED_PRECONDITION` if the queue's policy rejects the job, `NOT_FOUND` for an unknown queue,
        /// `ALREADY_EXISTS` for a key with another content, `RESOURCE_EXHAUSTED` for a full queue.
        code: Code,
        /// Field, problem and allowed values.
        message: String,
        /// Reason by the queue's policy.
        fate: Option<Fate>,
    },
    /// No control plane accepted the job in time; nothing is stored.
    #[error("job not submitted: {problem}")]
    #[non_exhaustive]
    Unavailable {
        /// Problem of the last attempt.
        problem: String,
    },
    /// The job may be stored or not. Submit it again with the same key, or cancel it by its id.
    #[error("it is unknown whether job {job_id} was stored: {problem}; submit again with the same job key")]
    #[non_exhaustive]
    Unknown {
        /// Id of the job.
        job_id: String,
        /// Problem of the last attempt.
        problem: String,
    },
}

impl Jobs {
    pub(super) fn new(access: Option<QueueAccess>) -> Self {
        Self { access, within: WITHIN }
    }

    /// Limits the time of each submission, with all its attempts. Default: 10 s.
    #[must_use]
    pub fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// Submits a job. Returns when it is stored on disk.
    ///
    /// A job with the same key, method and content as an earlier one is that job, until some time after its
    /// end (the queue's `keep_done`).
    ///
    /// # Errors
    /// The job was rejected, or its submission did not end in time.
    pub async fn submit(&self, job: NewJob) -> Result<Submitted, SubmitError> {
        self.submit_all([job]).await.pop().expect("a result for each job")
    }

    /// Submits jobs, each checked on its own. Returns their results in the same order.
    pub async fn submit_all(
        &self,
        jobs: impl IntoIterator<Item = NewJob>,
    ) -> Vec<Result<Submitted, SubmitError>> {
        let deadline = Instant::now() + self.within;
        let mut results = Vec::new();
        let mut batch = Batch::default();
        for job in jobs {
            let sealed = job.into_wire().and_then(|mut job| {
                self.access.as_ref().map_or(Ok(()), |access| access.seal(&mut job)).map(|()| job)
            });
            let job = match sealed {
                Ok(job) => job,
                Err(message) => {
                    batch.send(self.access.as_ref(), deadline, &mut results).await;
                    results.push(Err(SubmitError::rejected(Code::InvalidArgument, message)));
                    continue;
                }
            };
            if !batch.has_room_for(&job) {
                batch.send(self.access.as_ref(), deadline, &mut results).await;
            }
            batch.add(job);
        }
        batch.send(self.access.as_ref(), deadline, &mut results).await;
        results
    }

    /// Cancels a job of this service that waits. Returns false if there is no such job.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` if the job has been delivered; no control plane responded in time.
    pub async fn cancel(&self, job_id: &str) -> Result<bool, SubmitError> {
        let Some(access) = &self.access else { return Err(SubmitError::without_control_plane()) };
        let deadline = Instant::now() + self.within;
        let mut outcome = Outcome::default();
        let cancelled =
            access.ask(deadline, &mut outcome, |access, line| access.cancel_on(line, job_id.to_owned()));
        match cancelled.await {
            Ok(cancelled) => Ok(cancelled),
            Err(Refused::Rejected(code, message)) => Err(SubmitError::rejected(code, message)),
            Err(Refused::Late(problem)) => Err(SubmitError::Unavailable { problem }),
        }
    }
}

/// Jobs for one message.
#[derive(Debug, Default)]
struct Batch {
    jobs: Vec<v1::NewJob>,
    bytes: usize,
}

impl Batch {
    fn has_room_for(&self, job: &v1::NewJob) -> bool {
        self.jobs.len() < MAX_JOBS && self.bytes + job.encoded_len() <= MAX_BYTES
    }

    fn add(&mut self, job: v1::NewJob) {
        self.bytes += job.encoded_len();
        self.jobs.push(job);
    }

    /// Submits the jobs and empties the batch.
    async fn send(
        &mut self,
        access: Option<&QueueAccess>,
        deadline: Instant,
        results: &mut Vec<Result<Submitted, SubmitError>>,
    ) {
        let Self { jobs, .. } = std::mem::take(self);
        if jobs.is_empty() {
            return;
        }
        results.extend(match access {
            Some(access) => access.submit(&jobs, deadline).await,
            None => jobs.iter().map(|_| Err(SubmitError::without_control_plane())).collect(),
        });
    }
}

impl QueueAccess {
    /// Submits jobs of one message.
    pub(super) async fn submit(
        &self,
        jobs: &[v1::NewJob],
        deadline: Instant,
    ) -> Vec<Result<Submitted, SubmitError>> {
        let mut outcome = Outcome::default();
        let submitted =
            self.ask(deadline, &mut outcome, |access, line| access.submit_on(line, jobs.to_vec())).await;
        match submitted {
            Ok(submitted) if submitted.len() == jobs.len() => {
                jobs.iter().zip(submitted).map(|(job, submitted)| read(job, submitted)).collect()
            }
            Ok(submitted) => {
                let problem = format!("{} results for {} jobs", submitted.len(), jobs.len());
                jobs.iter().map(|job| Err(SubmitError::unknown(job, &problem))).collect()
            }
            Err(refused) => jobs.iter().map(|job| Err(refused.of(job, outcome.is_unknown))).collect(),
        }
    }
}

/// Reads the result of one job.
fn read(job: &v1::NewJob, submitted: v1::Submitted) -> Result<Submitted, SubmitError> {
    let v1::Submitted { job_id, existing, state, due_at, rejected } = submitted;
    if let Some(v1::Rejected { code, message, fate }) = rejected {
        let code = v1::Code::try_from(code).map_or(Code::Unknown, Code::from);
        let fate = Fate::ALL.into_iter().find(|known| known.name() == fate);
        return Err(SubmitError::Rejected { code, message, fate });
    }
    // An attempt with an unknown outcome made it.
    let existing = existing && job_id != hex(&job.job_id);
    let state = v1::JobState::try_from(state).map_or(JobState::Unknown, JobState::from);
    Ok(Submitted { job_id, existing, state, due_at: due_at.and_then(|time| time.try_into().ok()) })
}

impl From<v1::JobState> for JobState {
    fn from(state: v1::JobState) -> Self {
        match state {
            v1::JobState::Unspecified => Self::Unknown,
            v1::JobState::Waiting => Self::Waiting,
            v1::JobState::Behind => Self::Behind,
            v1::JobState::Leased => Self::Leased,
            v1::JobState::Done => Self::Done,
            v1::JobState::Dead => Self::Dead,
            v1::JobState::Cancelled => Self::Cancelled,
            v1::JobState::Expired => Self::Expired,
        }
    }
}

/// Returns the text of a job id.
pub(super) fn hex(job_id: &[u8]) -> String {
    job_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Refused {
    fn of(&self, job: &v1::NewJob, is_unknown: bool) -> SubmitError {
        match self {
            Self::Rejected(code, message) if !is_unknown => SubmitError::rejected(*code, message.clone()),
            Self::Late(problem) if !is_unknown => SubmitError::Unavailable { problem: problem.clone() },
            Self::Rejected(_, problem) | Self::Late(problem) => SubmitError::unknown(job, problem),
        }
    }
}

impl SubmitError {
    fn rejected(code: Code, message: String) -> Self {
        Self::Rejected { code, message, fate: None }
    }

    fn unknown(job: &v1::NewJob, problem: &str) -> Self {
        Self::Unknown { job_id: hex(&job.job_id), problem: problem.to_owned() }
    }

    fn without_control_plane() -> Self {
        Self::Unavailable { problem: "this Damper has no control plane; use Damper::connect".to_owned() }
    }

    /// Returns the code of a rejection; `UNAVAILABLE` if the submission did not end in time.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Rejected { code, .. } => *code,
            Self::Unavailable { .. } | Self::Unknown { .. } => Code::Unavailable,
        }
    }
}
