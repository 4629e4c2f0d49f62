//! Time of the engine: passed in by the driver, never read from a clock.
//!
//! A `Time` is a number of microseconds since an origin that the driver chose, such as the start of the
//! process or of a simulation. Drivers read their clock once per event. Nothing is assumed about its
//! progress: it may stand still, and threads may pass slightly different times.

pub mod deadline;
pub(crate) mod window;

use std::ops::Add;
use std::time::Duration;

/// Microseconds since the driver's origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The driver's origin.
    pub const ZERO: Self = Self(0);

    /// Returns the instant this many microseconds after the origin.
    #[must_use]
    pub const fn from_micros(us: u64) -> Self {
        Self(us)
    }

    /// Returns the instant this long after the origin; the last representable one on overflow.
    #[must_use]
    pub fn after_origin(elapsed: Duration) -> Self {
        Self(micros(elapsed))
    }

    /// Returns the microseconds since the origin.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`; zero if `earlier` is in the future.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(micros(wait)))
    }
}

/// Returns the whole microseconds of a duration; saturates.
#[must_use]
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
