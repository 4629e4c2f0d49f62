//! What is kept of a job between its deliveries: plain integers, stored by the driver.
//!
//! A lease adds one to `deliveries`; the store does that. All other counters change at the end of a delivery.
//! So a settlement that arrives late is decided with the counters of its lease, and replaces what was booked
//! for the same delivery in the meantime: a delivery counts once.

use std::ops::Add;
use std::time::Duration;

use super::{JobEnd, QueueSettings};
use crate::call::backoff::Sequence;
use crate::outcome::fate::Fate;

/// Milliseconds since 1970, by the clock of the job store.
///
/// A type of its own: jobs outlive the processes whose monotonic [`Time`](crate::Time) measures everything
/// else. The clock may jump in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall(pub u64);

impl Wall {
    /// Returns the time since `earlier`; zero if `earlier` is in the future.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Wall {
    type Output = Self;

    /// Rounds up, so that nothing is due too early; saturates.
    fn add(self, wait: Duration) -> Self {
        let ms = wait.as_nanos().div_ceil(1_000_000);
        Self(self.0.saturating_add(u64::try_from(ms).unwrap_or(u64::MAX)))
    }
}

/// Counters of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Deliveries so far, released ones included. Only grows; the number of the current delivery.
    pub deliveries: u32,
    /// Deliveries that used an attempt.
    pub attempts: u32,
    /// Attempts made before the submission, or before the last replay.
    pub sends_before: u32,
    /// Deliveries in a row whose worker disappeared. Those of a suspect count only if it was delivered alone.
    pub lost: u32,
    /// Position in the sequence of waits.
    pub waits: Sequence,
    /// Time of the submission, or of the last replay.
    pub began: Wall,
    /// No delivery begins after this.
    pub expires: Wall,
}

/// A delivery that may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobSend {
    /// Number of the delivery, from 1; released ones count.
    pub number: u32,
    /// Attempts made before; 0: the job was never sent. The value of `damper-retry` if it is not 0.
    pub sends_before: u32,
    /// Limit of the delivery.
    pub limit: Duration,
}

impl Job {
    /// Checks a leased job before its delivery, because the settings may have changed since it became due.
    ///
    /// # Errors
    /// The job ends without this delivery.
    pub fn deliver(&self, settings: &QueueSettings, now: Wall) -> Result<JobSend, JobEnd> {
        if now > self.expires {
            return Err(JobEnd::Expired);
        }
        let retry = settings.retry();
        if self.attempts >= retry.max_attempts {
            return Err(JobEnd::Dead(Fate::AttemptsExhausted));
        }
        if retry.max_duration.is_some_and(|max| now.since(self.began) > max) {
            return Err(JobEnd::Dead(Fate::MaxDuration));
        }
        let limit = settings.per_attempt_timeout();
        Ok(JobSend { number: self.deliveries, sends_before: self.sends(), limit })
    }

    /// Returns the attempts made so far. A kill of retries holds a job if it is not 0.
    #[must_use]
    pub const fn sends(&self) -> u32 {
        self.sends_before.saturating_add(self.attempts)
    }

    /// Returns the counters of a dead job that is replayed: due at `due`, with new attempts.
    #[must_use]
    pub fn replayed(self, settings: &QueueSettings, due: Wall) -> Self {
        Self {
            attempts: 0,
            sends_before: self.sends(),
            lost: 0,
            waits: Sequence::default(),
            began: due,
            expires: due + settings.expires_after,
            ..self
        }
    }
}
