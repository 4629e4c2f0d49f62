//! The one clock of the SDK, and the engine's times as instants.
//!
//! `damper-core` is told the present as microseconds since an origin; here the origin is the moment the
//! engine was made. The instants are tokio's, so that a paused clock in tests moves everything at once.

use std::time::{Duration, SystemTime};

use damper_core::Time;
use tokio::time::Instant;

/// Tells the engine the present.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock whose origin is now.
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now() }
    }

    /// The present.
    pub(crate) fn now(&self) -> Time {
        self.time(Instant::now())
    }

    /// An instant as the engine knows it; what lies before the origin is the origin.
    pub(crate) fn time(&self, instant: Instant) -> Time {
        Time::after_origin(instant.saturating_duration_since(self.origin))
    }

    /// The instant of a time; none if it is too far away to be one.
    pub(crate) fn instant(&self, time: Time) -> Option<Instant> {
        self.origin.checked_add(Duration::from_micros(time.as_micros()))
    }
}

/// The wall clock: milliseconds since 1970; 0 before.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
