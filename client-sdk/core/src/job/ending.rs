//! What follows the end of a delivery.
//!
//! expired? -> retryable code? -> attempts left? -> wait of the backoff: list used up, `over_max: stop`? ->
//! `stop_when` -> `max_duration` with the wait -> expires with the wait? -> due after the wait
//!
//! - A callee that asks not to be called again (`damper-no-more-retry`, a negative pushback) ends the
//!   delivery, not the job: the next one begins no sooner than [`PAUSE`]. Any other pushback is the exact
//!   wait, at most [`MAX_PUSHBACK`].
//! - A lost delivery counts as an attempt. The first one in a row is repeated at once: usually the worker was
//!   restarted. A job that is lost again may be what kills its workers. It is a suspect and must be delivered
//!   alone; only then is its loss held against it, and not against a job that shared its worker.
//! - A worker can disappear before it reports that a delivery has begun. The attempt counts, because it may
//!   have been one. It also counts towards the suspicion: a job can kill its worker faster than the report is
//!   sent. It does not make a job dead unless that was delivered alone.

use std::time::Duration;

use super::state::{Job, Wall};
use super::{OnStop, QueueSettings};
use crate::outcome::classify::{Failure, Pushback};
use crate::outcome::code::Code;
use crate::outcome::fate::Fate;

/// Shortest wait after a callee asked not to be called again.
pub const PAUSE: Duration = Duration::from_secs(60);
/// Longest pushback; a longer one is shortened to it.
pub const MAX_PUSHBACK: Duration = Duration::from_secs(24 * 3600);
/// Deliveries in a row whose worker disappeared, after which a job is a suspect, if `max_lost` is greater.
const SUSPECT_AFTER: u32 = 2;

/// What follows the end of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The job waits and is due at this time.
    At(Wall),
    /// The job has ended.
    End(JobEnd),
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobEnd {
    /// A worker finished it.
    Done,
    /// The policy gave it up.
    Dead(Fate),
    /// Dead: too many deliveries in a row were lost.
    Lost,
    /// Dead: its worker asked for no further delivery.
    Refused,
    /// Its time ran out.
    Expired,
    /// Cancelled before or during a delivery.
    Cancelled,
}

impl JobEnd {
    /// Returns the name in records, metrics and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Dead(fate) => fate.name(),
            Self::Lost => "lost",
            Self::Refused => "refused",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns true if the job is kept with its body and can be replayed.
    #[must_use]
    pub const fn is_dead(self) -> bool {
        matches!(self, Self::Dead(_) | Self::Lost | Self::Refused)
    }
}

impl Job {
    /// Records that a worker finished the job.
    pub fn done(&mut self) -> Next {
        self.count_attempt();
        Next::End(JobEnd::Done)
    }

    /// Records that a worker asked for no further delivery.
    pub fn refused(&mut self) -> Next {
        self.count_attempt();
        Next::End(JobEnd::Refused)
    }

    /// Records a failed delivery. `stop`: [`Callee::stops`](super::Callee::stops) returned true for it.
    /// `random` is uniform over all of `u64`.
    pub fn failed(
        &mut self,
        settings: &QueueSettings,
        failure: &Failure,
        stop: bool,
        now: Wall,
        random: u64,
    ) -> Next {
        self.count_attempt();
        self.lost = 0;
        if now > self.expires {
            return Next::End(JobEnd::Expired);
        }
        let retry = settings.retry();
        if !retry.codes.contains(failure.code) {
            return Next::End(JobEnd::Dead(Fate::NotRetryable));
        }
        if self.attempts >= retry.max_attempts {
            return Next::End(JobEnd::Dead(Fate::AttemptsExhausted));
        }
        self.after_failure(settings, failure, stop, now, random)
    }

    /// Records a lost delivery. `is_alone`: its worker had no other one.
    pub fn lost(&mut self, settings: &QueueSettings, is_alone: bool, now: Wall, random: u64) -> Next {
        self.vanished(settings, is_alone, true, now, random)
    }

    /// Records a delivery that was sent to a worker which disappeared without reporting that it began.
    /// `is_alone`: its worker had no other one.
    pub fn unknown(&mut self, settings: &QueueSettings, is_alone: bool, now: Wall, random: u64) -> Next {
        self.vanished(settings, is_alone, is_alone, now, random)
    }

    /// Records a delivery whose worker disappeared. `is_proof`: it counts towards `max_lost`.
    fn vanished(
        &mut self,
        settings: &QueueSettings,
        is_alone: bool,
        is_proof: bool,
        now: Wall,
        random: u64,
    ) -> Next {
        self.count_attempt();
        let is_first = self.lost == 0;
        if is_alone || !self.is_suspect(settings) {
            self.lost = self.lost.saturating_add(1);
        }
        let retry = settings.retry();
        if now > self.expires {
            Next::End(JobEnd::Expired)
        } else if is_proof && self.lost >= settings.max_lost {
            Next::End(JobEnd::Lost)
        } else if self.attempts >= retry.max_attempts {
            Next::End(JobEnd::Dead(Fate::AttemptsExhausted))
        } else if is_first {
            Next::At(now)
        } else {
            match self.waits.next(&retry.backoff, Code::Unknown, random) {
                Some(wait) => self.after_wait(settings, wait, now),
                None => Next::End(JobEnd::Dead(Fate::AttemptsExhausted)),
            }
        }
    }

    /// Records a delivery that was not tried: it uses no attempt.
    #[must_use]
    pub fn released(&self, now: Wall) -> Next {
        if now > self.expires { Next::End(JobEnd::Expired) } else { Next::At(now) }
    }

    /// Returns true if the job must be delivered to a worker that has no other delivery.
    #[must_use]
    pub fn is_suspect(&self, settings: &QueueSettings) -> bool {
        self.lost > 0 && self.lost >= SUSPECT_AFTER.min(settings.max_lost.saturating_sub(1))
    }

    /// Returns what follows a failure with a retryable code if attempts are left.
    pub(super) fn after_failure(
        &mut self,
        settings: &QueueSettings,
        failure: &Failure,
        stop: bool,
        now: Wall,
        random: u64,
    ) -> Next {
        let Some(wait) = self.wait(settings, failure, random) else {
            return Next::End(JobEnd::Dead(Fate::AttemptsExhausted));
        };
        if stop && settings.on_stop == OnStop::Dead {
            return Next::End(JobEnd::Dead(Fate::StopWhen));
        }
        self.after_wait(settings, wait, now)
    }

    /// Returns the wait after a failure; `None` if the backoff has ended.
    fn wait(&mut self, settings: &QueueSettings, failure: &Failure, random: u64) -> Option<Duration> {
        let wait = match failure.pushback {
            Some(Pushback::After(wait)) => {
                self.waits.restart();
                wait.min(MAX_PUSHBACK)
            }
            Some(Pushback::Stop) | None => {
                self.waits.next(&settings.retry().backoff, failure.code, random)?
            }
        };
        let pauses = failure.no_more_retry || failure.pushback == Some(Pushback::Stop);
        Some(if pauses { wait.max(PAUSE) } else { wait })
    }

    pub(super) fn after_wait(&self, settings: &QueueSettings, wait: Duration, now: Wall) -> Next {
        let due = now + wait;
        if settings.retry().max_duration.is_some_and(|max| due.since(self.began) > max) {
            Next::End(JobEnd::Dead(Fate::MaxDuration))
        } else if due > self.expires {
            Next::End(JobEnd::Expired)
        } else {
            Next::At(due)
        }
    }

    fn count_attempt(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
    }
}
