//! The submission of a job: when it is due, or why it is not accepted.
//!
//! A call that was handed over has failed already. Its job answers the questions that follow a failed
//! delivery at once, except for the number of attempts: attempts before the submission do not count. So a
//! call that the policy would give up is never stored.

use std::time::Duration;

use super::QueueSettings;
use super::ending::{JobEnd, Next};
use super::state::{Job, Wall};
use crate::call::backoff::Sequence;
use crate::outcome::classify::Failure;
use crate::outcome::fate::Fate;

/// A job that is submitted.
#[derive(Clone, Copy, Debug)]
pub struct Submission {
    /// How the call ended before; `None`: it was not tried, or its failure does not matter.
    pub failed: Option<Failure>,
    /// [`Callee::stops`](super::Callee::stops) returned true for that failure.
    pub stop: bool,
    /// Attempts that were made before.
    pub sends_before: u32,
    /// First delivery no sooner than this; `None`: at once, or after the first wait.
    pub not_before: Option<Wall>,
    /// Time after which it expires; at most that of the queue.
    pub expires_after: Duration,
}

impl Job {
    /// Accepts a job. Returns its counters and when it is due. `random` is uniform over all of `u64`.
    ///
    /// # Errors
    /// The policy does not repeat the failed call, or the job is due after `max_duration`; [`Fate::Deadline`]
    /// if it is due after it expires.
    pub fn submit(
        settings: &QueueSettings,
        submission: &Submission,
        now: Wall,
        random: u64,
    ) -> Result<(Self, Wall), Fate> {
        let mut job = Self {
            deliveries: 0,
            attempts: 0,
            sends_before: submission.sends_before,
            lost: 0,
            waits: Sequence::default(),
            began: now,
            expires: now + submission.expires_after,
        };
        let due = match &submission.failed {
            None => now,
            Some(failure) => {
                if !settings.retry().codes.contains(failure.code) {
                    return Err(Fate::NotRetryable);
                }
                accepted(job.after_failure(settings, failure, submission.stop, now, random))?
            }
        };
        let due = due.max(submission.not_before.unwrap_or(now));
        accepted(job.after_wait(settings, due.since(now), now)).map(|due| (job, due))
    }
}

fn accepted(next: Next) -> Result<Wall, Fate> {
    match next {
        Next::At(due) => Ok(due),
        Next::End(JobEnd::Dead(fate)) => Err(fate),
        Next::End(_) => Err(Fate::Deadline),
    }
}
