//! Backoff between connection attempts: uniform in [0, d] with growing d ("full jitter", M. Brooker,
//! Exponential Backoff And Jitter, AWS Architecture Blog).

use std::time::Duration;

pub(crate) const SHORTEST: Duration = Duration::from_millis(500);

/// Waits that grow to a limit.
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

/// Returns a uniform random wait in [0, ceiling].
pub(crate) fn jittered(ceiling: Duration) -> Duration {
    ceiling.mul_f64(fastrand::f64())
}
