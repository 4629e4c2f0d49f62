//! Conversion between instants and the engine's times.
//!
//! Instants are tokio's, so that a paused clock in tests moves everything together.

use std::time::Duration;

use damper_core::Time;
use tokio::time::Instant;

/// A clock whose origin is its creation.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// Returns a clock whose origin is now.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "two new clocks differ")]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.time(Instant::now())
    }

    /// Converts an instant; earlier than the origin becomes the origin.
    #[must_use]
    pub fn time(&self, instant: Instant) -> Time {
        Time::after_origin(instant.saturating_duration_since(self.origin))
    }

    /// Converts a time; `None` if beyond the range of `Instant`.
    #[must_use]
    pub fn instant(&self, time: Time) -> Option<Instant> {
        self.origin.checked_add(Duration::from_micros(time.as_micros()))
    }
}
