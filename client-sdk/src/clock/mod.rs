//! The SDK's clock.
//!
//! `damper-core` takes times as microseconds since an origin: the creation of the runtime. Instants are
//! tokio's, so that a paused clock in tests moves everything together.

pub(crate) mod timer;

use std::time::{Duration, SystemTime};

use damper_core::Time;
use tokio::time::Instant;

/// Converts between instants and the engine's times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    /// Returns a clock whose origin is now.
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now() }
    }

    /// Returns the current time.
    pub(crate) fn now(&self) -> Time {
        self.time(Instant::now())
    }

    /// Converts an instant; earlier than the origin becomes the origin.
    pub(crate) fn time(&self, instant: Instant) -> Time {
        Time::after_origin(instant.saturating_duration_since(self.origin))
    }

    /// Converts a time; `None` if beyond the range of `Instant`.
    pub(crate) fn instant(&self, time: Time) -> Option<Instant> {
        self.origin.checked_add(Duration::from_micros(time.as_micros()))
    }
}

/// Milliseconds since 1970 by the wall clock; 0 before.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
