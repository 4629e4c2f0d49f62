//! Waits between attempts to connect: uniform in [0, d], where d grows ("full jitter", M. Brooker, Exponential Backoff
//! And Jitter, AWS Architecture Blog).

use std::time::Duration;

pub(crate) const SHORTEST: Duration = Duration::from_millis(500);

/// Waits that grow to the longest.
#[derive(Debug)]
pub(crate) struct ReconnectBackoff {
    ceiling: Duration,
    longest: Duration,
}

impl ReconnectBackoff {
    pub(crate) fn up_to(longest: Duration) -> Self {
        Self { ceiling: SHORTEST, longest }
    }

    #[cfg(test)]
    pub(crate) fn longest_now(&self) -> Duration {
        self.ceiling
    }

    pub(crate) fn next(&mut self) -> Duration {
        let wait = jittered(self.ceiling);
        self.ceiling = (self.ceiling * 2).min(self.longest);
        wait
    }
}

/// Uniform in [0, ceiling].
pub(crate) fn jittered(ceiling: Duration) -> Duration {
    ceiling.mul_f64(fastrand::f64())
}
